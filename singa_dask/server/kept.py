"""What servers leave in memory that outlives their processes, and how their successors go on from it.

A slice is saved before a message is answered that has changed it. So a successor knows everything that was
acknowledged: values, the updater's state, the ledger, the clocks of the worker groups, and the accounts with
neighbours. Repeated messages get the answers that they would have got.

A slice and its accounts are saved as one. Accounts change less often, so they have copies of their own. The copy of
the slice names those that belong to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.comm.shared_memory import MemoryAddress
from singa_dask.server.clocks import Note
from singa_dask.server.ledger import Ledger
from singa_dask.server.neighbours import Account
from singa_dask.server.shadow import Shadow, ShadowAddress, SliceShadow
from singa_dask.server.slices import Slice

if TYPE_CHECKING:
    from singa_dask.server.protocol import ServerProtocol, SliceProtocol

Array = np.ndarray
SIDES = ("left", "right")
_DELTA = "delta"


class Keeper:
    """Saves a slice to the shadow of its values, and its accounts to shadows by side."""

    def __init__(self, values: SliceShadow, accounts: Mapping[str, SliceShadow] | None = None) -> None:
        self._values, self._accounts = values, accounts or {}
        self._saved: dict[str, tuple[Account, int, int]] = {}  # the account, its changes, the number of its copy

    def save(self, state: SliceProtocol) -> None:
        """Save what a successor needs, if a copy is due. Raises Superseded."""
        if not self._values.due(state.version):
            return
        accounts = {side: self._save_account(side, account) for side, account in state.accounts.items()}
        note = Note(state.ledger, state.members, state.reductions, state.untold, state.heard, accounts)
        self._values.save(state.version, state.values, state.updater.state, note.encode())

    def at(self, version: int) -> KeptSlice | None:
        """The slice as it was after `version` updates, if it is still here and had no accounts."""
        copy = self._values.at(version)
        note = None if copy is None else Note.decode(copy.note)
        if copy is None or note is None or note.accounts:
            return None
        return KeptSlice(copy.version, copy.values, copy.states, note, {})

    def _save_account(self, side: str, account: Account) -> int:
        """The number of the copy that has the account as it is."""
        known, changes, number = self._saved.get(side, (None, 0, 0))
        if known is not account or changes != account.changes:
            number += 1
            values, delta, note = account.saved()
            states = {} if delta is None else {_DELTA: delta}
            self._accounts[side].save(number, values, states, json.dumps(note).encode())
            self._saved[side] = account, account.changes, number
        return number


@dataclass(frozen=True)
class KeptSlice:
    """What a server has left of a slice. accounts: by side, as Account.restored takes them. before: the copy before
    this one, if there is one and the slice has no accounts."""

    version: int
    values: Array
    states: Mapping[str, Array]
    note: Note
    accounts: Mapping[str, tuple[Array, Array, Mapping[str, Any]]]
    before: KeptSlice | None = None


@dataclass(frozen=True)
class KeptServer:
    """Where the shadows of server `rank` of a server group of `size` are.

    generation: of the server group. accounts: of slices with neighbours, None without any. opened: accounts that a
    slice opens with its first values, as in ServerPlan. model: identifies what is trained, on what, and how it is cut.
    holder: the nanny that holds the memory, once the server is lost. replica: the number of a replica, 0 for what the
    server itself has written.
    """

    rank: int
    size: int
    generation: int
    slices: ShadowAddress
    accounts: ShadowAddress | None = None
    opened: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    model: int = 0
    holder: str = ""
    replica: int = 0

    @property
    def memories(self) -> tuple[MemoryAddress, ...]:
        """All memory that it takes."""
        return tuple(each.memory for each in (self.slices, self.accounts) if each is not None)

    def moved(self, memories: Sequence[MemoryAddress], holder: str) -> KeptServer:
        """The same, held by another process."""
        slices = replace(self.slices, memory=memories[0])
        accounts = self.accounts and replace(self.accounts, memory=memories[1])
        return replace(self, slices=slices, accounts=accounts, holder=holder)


class ServerShadow:
    """The shadows of all slices of a server. described: to successors."""

    def __init__(self, slices: Shadow, accounts: Shadow | None, described: KeptServer) -> None:
        self.slices, self.accounts, self.described = slices, accounts, described

    @classmethod
    def create(
        cls,
        protocol: ServerProtocol,
        place: tuple[int, int, int],
        sides: Sequence[str],
        opened: Mapping[str, tuple[int, int]],
        room: Callable[[int], bool],
        model: int = 0,
    ) -> ServerShadow | None:
        """Have the slices saved from now on; None if there is no memory for so many bytes, as `room` tells, or none
        that can be shared.

        place, opened, model: rank, size and generation, `opened` and `model` of KeptServer. sides: on which there are
        neighbours.
        """
        states = [(Slice(i, 0, s.size, 0, 0), s) for i, s in protocol.slices.items()]
        names = sorted({name for _, s in states for name in s.updater.state})
        dtype = protocol.dtype
        slices = Shadow.create([of for of, _ in states], names, dtype, room)
        of_sides = [Slice(account_of(i, side), 0, s.size, 0, 0) for i, s in protocol.slices.items() for side in sides]
        accounts = Shadow.create(of_sides, (_DELTA,), dtype, room) if of_sides else None
        if slices is None or (of_sides and accounts is None):
            return None
        described = KeptServer(*place, slices.address, None if accounts is None else accounts.address, opened, model)
        for i, state in protocol.slices.items():
            own = {} if accounts is None else {side: accounts.slices[account_of(i, side)] for side in sides}
            state.keeper = Keeper(slices.slices[i], own)
        return cls(slices, accounts, described)


def read_kept(kept: KeptServer) -> dict[int, KeptSlice] | None:
    """What a server has left, by slice, without those that had no values yet; None if the memory is gone. The server,
    if it lives, acknowledges nothing any more."""
    slices = Shadow.open(kept.slices)
    accounts = None if kept.accounts is None else Shadow.open(kept.accounts)
    if slices is None or (accounts is None and kept.accounts is not None):
        return None
    found: dict[int, KeptSlice] = {}
    for index, of in slices.slices.items():
        of.fence()
        for copy in of.copies:
            note, left = Note.decode(copy.note), {}
            for side, number in note.accounts.items() if copy is of.newest else ():
                assert accounts is not None
                account = accounts.slices[account_of(index, side)].at(number)
                assert account is not None  # the older one is overwritten once no copy names it
                left[side] = account.values, account.states[_DELTA], json.loads(account.note)
            before = None if note.accounts else found.get(index)
            found[index] = KeptSlice(copy.version, copy.values, copy.states, note, left, before)
    return found


def kept_ledger(kept: KeptServer) -> Ledger | None:
    """Which steps' gradients the slices of a lost server contain; None if the memory is gone, or a slice had no
    values. The server, if it lives, acknowledges nothing any more."""
    found = read_kept(kept) or {}
    whole = len(found) == len(kept.slices.slices)
    return Ledger.joint(left.note.ledger for left in found.values()) if whole else None


def account_of(index: int, side: str) -> int:
    """Where a slice's account with the neighbour on this side is in the shadow of accounts."""
    return 2 * index + SIDES.index(side)
