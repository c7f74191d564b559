"""What servers leave in memory that outlives their processes, and how their successors resume from it.

A slice is saved before a message is answered that has changed it. So a successor knows everything that was
acknowledged: values, the updater's state, the ledger, the clocks of the worker groups, and the accounts with
neighbours. Repeated messages get the answers that they would have got.

A slice and its accounts are saved as one. Accounts change less often, so they have images of their own. The image of
the slice names those that belong to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from singa_dask.memory.owner import Saved
from singa_dask.memory.region import VALUES, ImageLayout, Key, Piece, Region, Regions
from singa_dask.server.clocks import SliceNote
from singa_dask.server.ledger import Ledger
from singa_dask.server.neighbours import Account

if TYPE_CHECKING:
    from singa_dask.server.protocol import ServerProtocol
    from singa_dask.server.slice_protocol import SliceProtocol

Left: TypeAlias = dict[Key, list[Piece]]
SIDES = ("left", "right")
SLICE = ""  # an image's key is the index of a slice, and this, or the side of an account
_DELTA = "delta"


class Keeper:
    """Saves a slice, and its accounts by side, to their regions."""

    def __init__(self, index: int, regions: Regions) -> None:
        self._index, self._regions = index, regions

    @classmethod
    def all_of(cls, regions: Regions) -> dict[int, Keeper]:
        """For each slice whose region is among these, by index."""
        return {index: cls(index, regions) for index in slices_of(regions)}

    def save(self, state: SliceProtocol) -> None:
        """Save what a successor needs, if an image is due. Raises Superseded."""
        region = self._regions[self._index, SLICE]
        if not region.due(state.version):
            return
        for side, account in state.accounts.items():
            of_account = self._regions[self._index, side]
            if of_account.at(account.change) is None:
                values, delta, about = account.saved()
                arrays = {VALUES: values} if delta is None else {VALUES: values, _DELTA: delta}
                of_account.save(account.change, arrays, json.dumps(about).encode())
        accounts = {side: account.change for side, account in state.accounts.items()}
        note = SliceNote(state.ledger, state.members, state.reductions, state.untold, state.heard, accounts)
        region.save(state.version, {VALUES: state.values, **state.updater.state}, note.encode())

    def at(self, version: int) -> Piece | None:
        """The slice as it was after `version` updates, if it is still here and had no accounts."""
        image = self._regions[self._index, SLICE].at(version)
        return None if image is None or SliceNote.decode(image.note).accounts else image.piece(copy=False)


def save_slices(protocol: ServerProtocol, sides: Sequence[str], room: Callable[[int], bool]) -> Regions | None:
    """Have the slices saved to regions from now on; None if there is no memory for so many bytes, as `room` tells, or
    none that can be shared. sides: on which there are neighbours."""
    layouts = []
    for index, state in protocol.slices.items():
        parts = {SLICE: tuple(sorted(state.updater.state)), **dict.fromkeys(sides, (_DELTA,))}
        layouts += [layout_of((index, part), 0, state.size, names, protocol.dtype) for part, names in parts.items()]
    regions = Regions.create(layouts, room)
    for index, keeper in ({} if regions is None else Keeper.all_of(regions)).items():
        protocol.slices[index].keeper = keeper
    return regions


def read_kept(kept: Saved) -> Left | None:
    """What a server has left: of each slice both images, or the newest one and its accounts if it has any; None if the
    memory is gone. The server, if it lives, acknowledges nothing any more."""
    regions = Regions.open(*kept.regions)
    if regions is None:
        return None
    left: Left = {}
    for (index, part), region in regions.items():
        region.fence()
        images, newest = region.images, regions[index, SLICE].newest
        accounts = {} if newest is None else SliceNote.decode(newest.note).accounts
        if part != SLICE:  # accounts that only an older image names may be written over by now
            images = [image for image in images if image.version == accounts.get(part)]
        elif accounts:
            images = images[-1:]
        left[index, part] = [image.piece(copy=False) for image in images]
    return left


def accounts_of(left: Left, index: int) -> dict[str, Account]:
    """The accounts of a slice, by side."""
    found = [(side, of) for side in SIDES for of in left.get((index, side), ())]
    return {
        side: Account.restored(index, of.arrays[VALUES], of.arrays[_DELTA], json.loads(of.note)) for side, of in found
    }


def kept_ledger(kept: Saved) -> Ledger | None:
    """Which steps' gradients the slices of a lost server contain; None if the memory is gone, or a slice had no
    values. The server, if it lives, acknowledges nothing any more."""
    slices = _kept_slices(kept)
    if slices is None or not all(slices):
        return None
    return Ledger.joint(SliceNote.decode(of[-1].note).ledger for of in slices)


def never_served(kept: Saved) -> bool:
    """Whether a slice of a lost server never had values, so that the server has acknowledged no update. The server, if
    it lives, acknowledges nothing any more."""
    slices = _kept_slices(kept)
    return slices is not None and not all(slices)


def _kept_slices(kept: Saved) -> list[list[Piece]] | None:
    left = read_kept(kept)
    return None if left is None else [images for (_, part), images in left.items() if part == SLICE]


def slices_of(regions: Regions) -> dict[int, Region]:
    """The regions of slices, by index, without those of accounts."""
    return {index: region for (index, part), region in regions.items() if part == SLICE}


def layout_of(key: Key, start: int, stop: int, states: Iterable[str], dtype: Any) -> ImageLayout:
    """Of the image of a slice, or of an account: its values, and as many elements of each state."""
    return ImageLayout(key, start, stop, (VALUES, *states), np.dtype(dtype).name)
