"""What a rank leaves in memory that outlives its process, for the ranks that go on from there.

Besides the regions of its slices this is its *moving state*: what recurrent layers carry, residuals of codecs, and
what evaluations have decided.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from singa_dask.comm.communicator import Communicator, part_of
from singa_dask.comm.shared_memory import MemoryAddress
from singa_dask.memory.region import ImageLayout, Regions, RegionsAddress

LATEST = 1 << 62  # more than any number of steps
_MOVING, _BYTES = (0, "moving"), "bytes"
_SPARE = 1 << 16  # bytes


@dataclass(frozen=True)
class RankAddress:
    """Where the shadow of rank `rank` of `size` is.

    net: identifies the parameters, the updater's state and the data. moving: of its moving state; None while there is
    none. every_step: whether that changes with every step.
    """

    net: int
    rank: int
    size: int
    slices: RegionsAddress
    every_step: bool
    moving: RegionsAddress | None = None

    @property
    def memories(self) -> tuple[MemoryAddress, ...]:
        """All memory that it takes."""
        return tuple(each.memory for each in (self.slices, self.moving) if each is not None)

    def moved(self, memories: Sequence[MemoryAddress], holder: str) -> RankAddress:
        """The same, held by another process."""
        slices = replace(self.slices, memory=memories[0])
        return replace(self, slices=slices, moving=self.moving and replace(self.moving, memory=memories[1]))


class Holder(Protocol):
    """Has memory outlive this process. place: the machine, and what holds it there (see cluster.held)."""

    place: tuple[str, str]

    def hold(self, described: Any, *, only: bool = False, also: str = "") -> bool:
        """Have the memory of a RankAddress held; returns whether it is."""


class RankShadow:
    """The shadow of a rank. net, every_step: see RankAddress."""

    def __init__(self, comm: Communicator, slices: Regions, holder: Holder, net: int, *, every_step: bool) -> None:
        self._comm, self.slices, self._holder, self._net, self._every_step = comm, slices, holder, net, every_step
        self._moving: Regions | None = None
        self._also: str | None = None  # once it is held

    @property
    def address(self) -> RankAddress:
        """Where other processes find it."""
        moving = None if self._moving is None else self._moving.address
        return RankAddress(self._net, self._comm.rank, self._comm.size, self.slices.address, self._every_step, moving)

    def hold(self) -> None:
        """Have it outlive this process from now on, beside what former ranks of the group have left. Collective."""
        node, own = self._holder.place
        places = all_gather_objects(self._comm, (node, own))
        behind = places[self._comm.rank + 1 :] + places[: self._comm.rank]
        self._also = next((other for where, other in behind if where == node and other != own), "")
        self._holder.hold(self.address, also=self._also)

    def settle(self) -> None:
        """Let go what former ranks have left: all ranks of the group hold theirs."""
        self._holder.hold(self.address, only=True, also=self._also or "")

    def save_moving(self, step: int, state: Any) -> None:
        """Copy the moving state after `step` steps: if it changes with every step, when the slices are copied."""
        if self._every_step and step % self.slices.pace.every:
            return
        began = time.perf_counter()
        self._save_moving(step, np.frombuffer(pickle.dumps(state, pickle.HIGHEST_PROTOCOL), np.uint8))
        self.slices.pace.seconds += time.perf_counter() - began

    def _save_moving(self, step: int, data: np.ndarray) -> None:
        if self._moving is None or data.size > self._moving.address.layouts[0].size:
            moving = Regions.create([ImageLayout(_MOVING, 0, 2 * data.size + _SPARE, (_BYTES,), "uint8")])
            if moving is None:
                return
            self._moving = moving
            self._save(step, data)
            if self._also is not None:
                self._holder.hold(self.address, also=self._also)
            return
        self._save(step, data)

    def _save(self, step: int, data: np.ndarray) -> None:
        assert self._moving is not None
        self._moving[_MOVING].save(step, {_BYTES: data}, data.size.to_bytes(8, "little"))


class LeftBehind:
    """The shadow of a lost rank, as a successor sees it."""

    def __init__(self, address: RankAddress, slices: Regions, moving: Regions | None) -> None:
        self.address, self.slices, self._moving = address, slices, moving

    @classmethod
    def open(cls, address: RankAddress) -> LeftBehind | None:
        """None if the shadow is on another machine, or gone."""
        slices = Regions.open(address.slices)
        moving = None if address.moving is None else Regions.open(address.moving)
        if slices is None or (moving is None and address.moving is not None):
            return None
        return cls(address, slices, moving)

    @property
    def layouts(self) -> tuple[ImageLayout, ...]:
        """Of the images of its slices."""
        return self.address.slices.layouts

    @property
    def step(self) -> int | None:
        """The newest step after which everything is here; None if something was never saved, LATEST if there is
        nothing: the rank had no slice."""
        steps = [self.slices.version] if self.layouts else []
        if self.address.every_step:
            steps.append(None if self._moving is None else self._moving.version)
        return None if None in steps else min((step for step in steps if step is not None), default=LATEST)

    def moving(self, step: int) -> Any:
        """The moving state after `step` steps; None if there is none."""
        if self._moving is None:
            return None
        saved = self._moving[_MOVING]
        image = saved.at(step) if self.address.every_step else saved.newest
        if image is None:
            return None
        return pickle.loads(image.arrays[_BYTES][: int.from_bytes(image.note, "little")].tobytes())


def all_gather_objects(comm: Communicator, own: Any) -> list[Any]:
    """Every rank's object, by rank. Collective."""
    image = np.frombuffer(pickle.dumps(own, pickle.HIGHEST_PROTOCOL), np.uint8)
    sizes = comm.all_gather_number(image.size).tolist()
    images = np.empty(sum(sizes), np.uint8)
    images[part_of(comm.rank, sizes)] = image
    comm.all_gather(images, sizes)
    return [pickle.loads(images[part_of(rank, sizes)].tobytes()) for rank in range(comm.size)]  # of this group's ranks


def provider_of(comm: Communicator, addresses: Sequence[RankAddress]) -> tuple[list[int], dict[int, LeftBehind]]:
    """Which rank brings each lost rank's shadow, and those that this rank brings, by lost rank. Collective.

    A rank can bring what is on its machine. The provider is -1 for what nobody can bring.
    """
    opened = [LeftBehind.open(address) for address in addresses]
    table = np.zeros((comm.size, len(addresses)), np.int64)
    table[comm.rank] = [found is not None and found.step is not None for found in opened]
    comm.all_gather(table.reshape(-1), [len(addresses)] * comm.size)
    providers = [_first(table[:, lost], lost) for lost in range(len(addresses))]
    mine = {i: found for i, found in enumerate(opened) if found is not None and providers[i] == comm.rank}
    return providers, mine


def _first(able: np.ndarray, lost: int) -> int:
    """Of the ranks that are able, the one with the lost rank's number, else the first."""
    if lost < able.size and able[lost]:
        return lost
    return int(able.argmax()) if able.any() else -1
