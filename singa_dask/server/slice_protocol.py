"""The protocol of one slice, without IO: its state, and its reactions to messages."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from singa_dask.memory.region import VALUES, Piece
from singa_dask.ops import Ops
from singa_dask.server.clocks import GroupClock, SliceNote
from singa_dask.server.kept import SLICE, Keeper, Left, accounts_of
from singa_dask.server.ledger import Ledger
from singa_dask.server.messages import (
    Array,
    Delta,
    Done,
    Fresh,
    Get,
    GoBack,
    Inspect,
    Leave,
    OpenAccount,
    Origin,
    Put,
    Refused,
    Reply,
    Request,
    State,
    Sync,
    Update,
)
from singa_dask.server.neighbours import Account
from singa_dask.tracing import span
from singa_dask.updaters import Updater

Sender = Hashable


LEFT, RIGHT = "left", "right"


class Answer(NamedTuple):
    """A reply and its receiver."""

    sender: Sender
    reply: Reply


@dataclass
class _Waiting:
    sender: Sender
    request: Request
    staleness: int = 0


@dataclass
class SliceProtocol:
    """The state of one slice, and its reactions to messages."""

    index: int
    size: int
    updater: Updater
    ops: Ops
    groups: tuple[int, ...]
    dealt_to: int
    max_staleness: int | None
    sync_freq: int
    generations: dict[str, tuple[int, int]]
    copy: bool
    keeper: Keeper | None = None
    values: Array = None
    version: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    members: dict[int, GroupClock] = field(default_factory=dict)
    waiting: list[_Waiting] = field(default_factory=list)
    accounts: dict[str, Account] = field(default_factory=dict)
    untold: int = 0  # updates since the last exchange with the right neighbour
    heard: bool = False  # changes from the left neighbour since then
    entered: int = 0  # generations that have started
    reductions: int = 0  # of the learning rate, the maximum that anybody knows
    arrived: dict[int, int] = field(default_factory=dict)  # clocks including waiting updates, at the start of a pass
    changed: bool = False  # since it was saved
    fault: Refused | None = None  # of an exchange; answers all further updates

    def handle(self, sender: Sender, request: Request) -> list[Answer]:
        """See ServerProtocol.handle."""
        self.waiting.append(_Waiting(sender, request))
        given: list[tuple[_Waiting, Reply]] = []
        while True:  # one request may make another one ready
            still: list[_Waiting] = []
            before = len(given), self.version, self.entered
            self._count_arrived()
            for entry in self._in_turn():
                reply = self._try_or_refuse(entry)
                if reply is None:
                    still.append(entry)
                else:
                    given.append((entry, reply))
            self.waiting = still
            if (len(given), self.version, self.entered) == before:
                self.save()
                return [Answer(entry.sender, self._dated(entry.request, reply)) for entry, reply in given]

    def _in_turn(self) -> Sequence[_Waiting]:
        """The waiting requests. In lock-step they are ordered by group: rounding and momentum depend on the order."""
        if self.max_staleness != 0:
            return self.waiting
        return sorted(self.waiting, key=lambda e: e.request.origin.group if isinstance(e.request, Update) else -1)

    def withdraw(self, sender: Sender) -> bool:
        """Forget a waiting request, which will be repeated. Returns False if it has been answered."""
        before = len(self.waiting)
        self.waiting = [entry for entry in self.waiting if entry.sender != sender]
        return len(self.waiting) < before

    def _dated(self, request: Request, reply: Reply) -> Reply:
        """The reply with the version of its live arrays after the last request."""
        if isinstance(request, Get | Update | GoBack) and isinstance(reply, Fresh):
            member = self.members[request.origin.group]
            reply = replace(reply, next_step=member.next, clock=member.clock, version=self.version)
            return replace(reply, reductions=self.reductions, ledger=self.ledger)
        if isinstance(request, Inspect) and isinstance(reply, State):
            return replace(reply, version=self.version, ledger=self.ledger.copy())
        return reply

    def _try_or_refuse(self, entry: _Waiting) -> Reply | None:
        try:
            return self._try(entry)
        except Exception as error:
            # Drop it: it would fail again with every later request of anybody.
            refused = Refused(f"{type(entry.request).__name__} failed: {type(error).__name__}: {error}")
            if isinstance(entry.request, Sync):
                self.fault = refused  # the neighbour repeats its message, and nobody else would see this
            return refused

    def _try(self, entry: _Waiting) -> Reply | None:
        """The reply to a request, or None if it has to wait."""
        request = entry.request
        if isinstance(request, Put):
            return self._put(request)
        if self.values is None:
            return None
        match request:
            case Get():
                return self._get(request)
            case Update():
                return self._update(entry, request)
            case GoBack():
                return self._go_back(request)
            case Leave():
                return self._leave(request.origin)
            case Sync():
                return self._sync(request)
            case OpenAccount():
                return self._open(request)
        return State(self.values, self.updater.state, self.version, self.reductions)

    def restore(self, left: Left) -> None:
        """Go on from what a lost server has left, and keep it. Worker groups that are not expected have left."""
        for image in left[self.index, SLICE]:
            self._take(image, accounts_of(left, self.index))
            for group, member in self.members.items():
                member.active = member.active and group in self.groups
            self.changed = True
            self.save()

    def _take(self, left: Piece, accounts: dict[str, Account]) -> None:
        note = SliceNote.decode(left.note)
        self.values = self.ops.asarray(left.arrays[VALUES]).copy()
        self.updater.load_state({name: array for name, array in left.arrays.items() if name != VALUES})
        self.version, self.ledger, self.members = left.version, note.ledger, note.members
        self.reductions, self.untold, self.heard = note.reductions, note.untold, note.heard
        self.accounts = accounts

    # Worker groups

    def _put(self, put: Put) -> Reply:
        if self.values is None:
            self._must_fit("values", put.values)
            if put.state:
                self.updater.load_state(put.state)
            self.values = self.ops.asarray(put.values).copy() if self.copy else put.values
            if not put.state:
                self.updater.start(self.values)
            self.version, self.reductions, self.ledger = put.version, put.reductions, put.ledger.copy()
            self.ledger.begin(self.dealt_to, put.step)
            self.members = {group: GroupClock(-1, self.ledger.next(group)) for group in self.groups}
            self.changed = True
            for side, generations in self.generations.items():
                self.open_account(side, generations)
        return Done()

    def _get(self, get: Get) -> Reply | None:
        if self.version < get.version:
            return None
        refused = self._enter(get.origin)
        return refused or Fresh(self.values, self.version)

    def _enter(self, origin: Origin) -> Refused | None:
        """Make the group a member in this generation."""
        member = self.members.get(origin.group)
        if member is not None and origin.generation < member.generation:
            return Refused(
                f"group {origin.group} is in generation {member.generation}; the request is of generation "
                f"{origin.generation}, which has ended"
            )
        if member is None or origin.generation > member.generation:
            step = max(origin.first, member.next if member else self.ledger.next(origin.group))
            if member is not None and member.active:
                clock = member.clock  # the others wait for it
            else:
                slowest = self._slowest(without=origin.group)
                clock = step if slowest is None else slowest
            self.members[origin.group] = GroupClock(origin.generation, step, max(0, clock - step))
            self.entered += 1
            self.arrived.pop(origin.group, None)  # counted with the updates of the former generation
        return None

    def _update(self, entry: _Waiting, update: Update) -> Reply | None:
        origin = update.origin
        refused = self.fault or self._enter(origin)
        if refused:
            return refused
        member = self.members[origin.group]
        if not member.begun:
            clock = max(member.clock, origin.clock, origin.first)
            member.next, member.begun = max(member.next, origin.first), True
            member.excused = clock - member.next
            self.entered += 1
            return None  # until the next pass, which counts it as arrived: lock-step has one order from its first step
        if update.step > member.next or self._too_far(update.step + 1 + member.excused, origin.group):
            return None
        if update.step == member.next:
            self._must_fit("gradient", update.gradient)
            entry.staleness = max(0, self.version - update.based_on)
            gradient, reductions = self.ops.asarray(update.gradient), update.reductions
            context = {"made": self.version, "reductions": reductions, "staleness": entry.staleness}
            with span("update", update.step, slice=self.index, origin=origin):
                self.updater.update(update.step, self.values, gradient, **context)
            self.ledger.add(origin.group, update.step)
            self.reductions = max(self.reductions, reductions)
            self.version += 1
            member.next += 1
            self.untold, self.changed = self.untold + 1, True
        return Fresh(self.values, self.version, staleness=entry.staleness)

    def _go_back(self, request: GoBack) -> Reply:
        refused = self._enter(request.origin)
        if refused:
            return refused
        ahead = self.members[request.origin.group].next - request.step
        left = self.keeper.at(self.version - ahead) if self.keeper is not None and ahead > 0 else None
        if left is not None and len(self.members) == 1:
            reductions = self.reductions  # the evaluation came before the step
            self._take(left, {})
            self.reductions, self.changed = reductions, True
            self._enter(request.origin)
        return Fresh(self.values, self.version)

    def save(self) -> None:
        """Save what has changed, if there is somewhere to. Raises Superseded if a successor resumes from there."""
        if self.changed and self.keeper is not None:
            self.keeper.save(self)
        self.changed = False

    def _must_fit(self, name: str, array: Array) -> None:
        if array.shape != (self.size,):
            raise ValueError(f"{name}: must have shape ({self.size},), not {array.shape}")

    def _too_far(self, clock: int, group: int) -> bool:
        if self.max_staleness is None:
            return False
        others = [self.arrived.get(g, m.clock) for g, m in self.members.items() if m.active and g != group]
        return clock - min(others, default=clock) > self.max_staleness

    def _count_arrived(self) -> None:
        """The clock up to which the updates of every group have arrived, applied or waiting."""
        if self.max_staleness is None:
            return
        origins = ((e.request.origin, e.request.step) for e in self.waiting if isinstance(e.request, Update))
        here = {(origin.group, origin.generation, step) for origin, step in origins}
        for group, member in self.members.items():
            step = member.next
            while member.begun and (group, member.generation, step) in here:
                step += 1
            self.arrived[group] = step + member.excused

    def _slowest(self, without: int) -> int | None:
        others = [m.clock for group, m in self.members.items() if m.active and group != without]
        return min(others, default=None)

    def _leave(self, origin: Origin) -> Reply:
        # Even if its Get has not arrived: a Get under way must not make the others wait.
        if self._enter(origin) is None:
            self.members[origin.group].active, self.changed = False, True
        return Done()

    # Neighbours

    def open_account(self, side: str, generations: tuple[int, int]) -> tuple[Array, Ledger]:
        """Open an account with a neighbour at the current values, unless there is one of these generations: a repeated
        request must not reopen it. Returns its opening values and their ledger."""
        account = self.accounts.get(side)
        if account is None or account.generations != generations:
            account, self.changed = Account(self.values, self.ledger, generations), True
            self.accounts[side] = account
        return account.opening

    def part_with(self) -> None:
        """Continue with a copy of the values and leave the current array unchanged."""
        self.values = self.values.copy()

    def begin_sync(self, *, force: bool = False) -> Sync | None:
        """The next message to the right neighbour if an exchange is due or forced; the last one while it is
        unanswered."""
        account = self.accounts.get(RIGHT)
        if self.values is None or account is None:
            return None
        if not account.waiting:
            if not (force or self.heard or self.untold >= self.sync_freq):
                return None
            self.untold, self.heard, self.changed = 0, False, True
        return account.begin(self.index, self.values, self.ledger, self.reductions)

    def finish_sync(self, sync: Sync, reply: Reply) -> None:
        """Take the right neighbour's answer to `sync`. Raises ValueError if it refused."""
        if not isinstance(reply, Delta):
            raise ValueError(f"the right neighbour did not answer the exchange: {reply}")
        self.accounts[RIGHT].finish(self.values, self.ledger, sync, reply)
        self.changed = True
        self.reductions = max(self.reductions, reply.reductions)

    def _sync(self, sync: Sync) -> Reply:
        if LEFT not in self.accounts:
            return Refused("no neighbour on the left")
        reply = self.accounts[LEFT].answer(self.values, self.ledger, sync, self.updater.mix)
        if not isinstance(reply, Delta):
            return reply
        self.heard, self.changed, self.reductions = True, True, max(self.reductions, sync.reductions)
        return replace(reply, reductions=self.reductions)

    def _open(self, request: OpenAccount) -> Reply:
        account = self.accounts.get(request.side)
        if account is not None and any(
            new < now for new, now in zip(request.account, account.generations, strict=True)
        ):
            return Refused(f"an opening of the account {request.account}, this one is {account.generations}")
        if request.values is None:
            opening, ledger = self.open_account(request.side, request.account)
            return State(opening, self.updater.state, self.version, self.reductions, ledger)
        if account is not None and account.generations == request.account:
            return Done()  # repeated
        self._must_fit("values", request.values)
        given = self.ops.asarray(request.values)
        own, untold = account.untold(self.values, self.ledger) if account is not None else (0, Ledger())
        self.values[...] = given + own
        self.ledger = request.ledger.plus(untold)
        account = self.accounts[request.side] = Account(given, request.ledger, request.account)
        self.untold, self.heard, self.changed = self.sync_freq, True, True
        return Done()
