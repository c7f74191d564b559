"""What a rank leaves in memory that outlives its process, for the ranks that resume from there.

Besides the regions of its slices this is its *moving state*: what recurrent layers carry, residuals of codecs, and
what evaluations have decided.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.comm.objects import all_gather_objects
from singa_dask.memory.owner import Saved
from singa_dask.memory.region import ImageLayout, Key, Region, Regions
from singa_dask.memory.store import Store

LATEST = 1 << 62  # more than any number of steps
MOVING, _BYTES = (0, "moving"), "bytes"
_SPARE = 1 << 16  # bytes


class RankShadow:
    """The shadow of a rank. net: identifies the parameters, the updater's state and the data. every_step: whether the
    moving state changes with every step, which is the note for successors."""

    def __init__(self, comm: Communicator, slices: Regions, store: Store, net: int, *, every_step: bool) -> None:
        self._comm, self.slices, self._store, self._net, self._every_step = comm, slices, store, net, every_step
        self._moving: Regions | None = None
        self._also: str | None = None  # once it is held

    @property
    def saved(self) -> Saved:
        """As a successor finds it: the slices, and the moving state once there is one."""
        regions = tuple(each.address for each in (self.slices, self._moving) if each is not None)
        return Saved(self._store.owner, self._store.version, regions, self._net, self._every_step)

    def hold(self) -> None:
        """Have it outlive this process from now on, beside what former ranks of the group have left. Collective."""
        self.slices.finish()
        node, own = self._store.place
        places = all_gather_objects(self._comm, (node, own))
        behind = places[self._comm.rank + 1 :] + places[: self._comm.rank]
        self._also = next((other for where, other in behind if where == node and other != own), "")
        self._store.hold(self.saved, also=self._also)

    def settle(self) -> None:
        """Let go what former ranks have left: all ranks of the group hold theirs."""
        self.slices.finish()
        self._store.hold(self.saved, only=True, also=self._also or "")

    def save_moving(self, step: int, state: Any) -> None:
        """Copy the moving state after `step` steps: if it changes with every step, when the slices are copied."""
        if self._every_step and step % self.slices.pace.every:
            return
        self.slices.finish()
        began, moving = time.perf_counter(), self._moving
        data = np.frombuffer(pickle.dumps(state, pickle.HIGHEST_PROTOCOL), np.uint8)
        if moving is None or data.size > moving.address.layouts[0].size:
            moving = Regions.create([ImageLayout(MOVING, 0, 2 * data.size + _SPARE, (_BYTES,), "uint8")])
        if moving is not None:
            moving[MOVING].save(step, {_BYTES: data}, data.size.to_bytes(8, "little"))
            grown, self._moving = moving is not self._moving, moving
            if grown and self._also is not None:
                self._store.hold(self.saved, also=self._also)
        self.slices.pace.seconds += time.perf_counter() - began


def step_of(saved: Saved, left: Mapping[Key, Region]) -> int | None:
    """The newest step after which everything is here that a lost rank has left; None if something was never saved,
    LATEST if there is nothing: the rank had no slice."""
    wanted = [region for key, region in left.items() if saved.note or key != MOVING]
    newest = [image.version for region in wanted if (image := region.newest) is not None]
    if len(newest) < len(wanted) or (saved.note and MOVING not in left):
        return None
    return min(newest, default=LATEST)


def moving_of(saved: Saved, left: Mapping[Key, Region], step: int) -> Any:
    """The moving state after `step` steps; None if there is none."""
    region = left.get(MOVING)
    image = None if region is None else region.at(step) if saved.note else region.newest
    if image is None:
        return None
    return pickle.loads(image.arrays[_BYTES][: int.from_bytes(image.note, "little")].tobytes())


def provider_of(comm: Communicator, lost: Sequence[Saved]) -> tuple[list[int], dict[int, dict[Key, Region]]]:
    """Which rank brings what each lost rank has left, and those that this rank brings, by lost rank. Collective.

    A rank can bring what is on its machine. The provider is -1 for what nobody can bring.
    """
    opened = [Regions.open(*saved.regions) for saved in lost]
    table = np.zeros((comm.size, len(lost)), np.int64)
    table[comm.rank] = [
        left is not None and step_of(saved, left) is not None for saved, left in zip(lost, opened, strict=True)
    ]
    comm.all_gather(table.reshape(-1), [len(lost)] * comm.size)
    providers = [_first(table[:, rank], rank) for rank in range(len(lost))]
    mine = {i: found for i, found in enumerate(opened) if found is not None and providers[i] == comm.rank}
    return providers, mine


def _first(able: np.ndarray, lost: int) -> int:
    """Of the ranks that are able, the one with the lost rank's number, else the first."""
    if lost < able.size and able[lost]:
        return lost
    return int(able.argmax()) if able.any() else -1
