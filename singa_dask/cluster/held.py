"""Memory that outlives a Dask worker's process: its nanny holds it too, until the run ends.

So the memory of a killed process is still there for the process that the nanny starts in its place.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

import psutil  # type: ignore[import-untyped]

from singa_dask.cluster.bootstrap import this_node
from singa_dask.cluster.formation import NoAnswer
from singa_dask.cluster.leases import same_run
from singa_dask.cluster.remote import ask_nannies
from singa_dask.comm.shared_memory import Memory, MemoryAddress

logger = logging.getLogger(__name__)

CHECKPOINT = "checkpoint"  # what Owner calls the group of deposits
_HOLD_S = 10.0
_ANSWER_S = 2.0


class Held(Protocol):
    """What describes memory to a successor."""

    @property
    def rank(self) -> int:
        """Of the process in its group."""

    @property
    def size(self) -> int:
        """The number of processes of the group."""

    @property
    def memories(self) -> tuple[MemoryAddress, ...]:
        """All memory that it takes."""

    def moved(self, memories: Sequence[MemoryAddress], holder: str) -> Any:
        """The same, held by the nanny `holder`."""


class Written(Protocol):
    """Memory that a nanny keeps for another machine, which writes to it by messages."""

    @property
    def memories(self) -> Sequence[Memory]:
        """All memory that it takes."""

    def write(self, pieces: Sequence[Any]) -> bool:
        """Take what has come; False if a successor goes on from here."""


@dataclass(frozen=True)
class Owner:
    """Whose memory it is: of process `rank` of `size` of a group in this `generation`.

    run: the key of a start of the run; pid: of the process. replica: the number of a replica or a deposit, 0 for what
    the process itself has written.
    """

    run: str
    group: str
    generation: int
    rank: int
    size: int
    pid: int
    replica: int = 0


@dataclass
class HeldMemory:
    """Memory that a nanny holds. own: whether it is of the nanny's own worker. whole: False while a replica lacks
    something that its server has acknowledged. settled: whether all processes of the group have theirs held, so that
    it has taken over from former ones. replica: what messages are written to, if any; written: lately."""

    described: bytes
    memories: list[Memory]
    own: bool = False
    whole: bool = True
    settled: bool = False
    replica: Written | None = None
    written: bool = True


# Whose it is, its description, its memory, and whether it is settled.
_Listed: TypeAlias = tuple[Owner, bytes, list[MemoryAddress], bool]

_held: defaultdict[str, dict[Owner, HeldMemory]] = defaultdict(dict)  # by nanny


def memory_of(nanny: str) -> dict[Owner, HeldMemory]:
    """What the nanny of this process holds."""
    return _held[nanny]


class NannyHolder:
    """Has the nanny of a Dask worker hold memory of the worker's process.

    run, group, generation: whose memory it is. place: the worker's machine, and its nanny. orphan_s: for how long
    memory is held after its process has ended, if nobody has said that the run is over.
    """

    def __init__(self, worker: Any, run: str, group: str, generation: int, orphan_s: float) -> None:
        self.place = this_node(), worker.nanny
        self.worker, self.orphan_s = worker, orphan_s
        self._owner = run, group, generation

    @classmethod
    def of(cls, worker: Any, *owner: Any, **options: Any) -> NannyHolder | None:
        """None for a worker without a nanny."""
        return cls(worker, *owner, **options) if worker.nanny else None

    def hold(self, described: Held, *, only: bool = False, also: str = "") -> bool:
        """Have memory held; returns whether it is.

        only: let go what former generations of the group have left. also: another nanny of the machine that holds it,
        as a nanny may be lost with its worker.
        """
        args = self.owner(described), pickle.dumps(described), described.memories, only, self.orphan_s
        asked = [self._ask(nanny, *args, nanny == self.place[1]) for nanny in (self.place[1], also) if nanny]
        return any(asked)

    def owner(self, described: Held, replica: int = 0) -> Owner:
        """Whose memory it is."""
        return Owner(*self._owner, described.rank, described.size, os.getpid(), replica)

    def _ask(self, nanny: str, *args: Any) -> bool:
        try:
            return bool(_run_on_nanny(self.worker, nanny, _hold, pickle.dumps(args), _HOLD_S))
        except (OSError, TimeoutError) as error:
            logger.warning("the nanny %s does not hold memory: %r", nanny, error)
            return False


def read_at(worker: Any, nanny: str, function: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
    """What a function returns that reads memory where a nanny holds it, perhaps on another machine.

    Raises NoAnswer if the nanny does not answer.
    """
    try:
        return _run_on_nanny(worker, nanny, function, pickle.dumps(args), timeout_s)
    except (OSError, TimeoutError) as error:
        raise NoAnswer(f"the nanny {nanny}, which holds memory of a lost process, does not answer") from error


def _run_on_nanny(worker: Any, nanny: str, function: Callable[..., Any], args: bytes, timeout_s: float) -> Any:
    call = worker.rpc(nanny).run(function=pickle.dumps(function), args=args)
    answer = asyncio.run_coroutine_threadsafe(call, worker.loop.asyncio_loop).result(timeout_s)
    if answer["status"] != "OK":
        raise answer["exception"]
    return answer["result"]


@dataclass(frozen=True)
class Left:
    """What processes of one start of a run have left in memory.

    run: the key of the start, "" if there is nothing. groups: by the group's name, in the order of the processes;
    torn: the groups of which something is missing. deposits: with the newest checkpoint, each of another nanny.
    nannies: those that answer; silent: those that do not answer in time, and may hold more.
    """

    run: str = ""
    groups: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    torn: tuple[str, ...] = ()
    deposits: tuple[Any, ...] = ()
    nannies: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()


def left_behind(client: Any, nannies: Iterable[str], run: str, *, earlier: bool = False) -> Left:
    """What the last complete generation of each group of the run has left. Where what a process itself has written is
    gone, its last replica counts.

    earlier: whether earlier starts of the run count too. All groups go on from the same start: the last one of which
    a group has taken over from former ones, or of which all groups are complete.
    """
    answers = ask_nannies(client, _list_held, dict.fromkeys(nannies, (run,)), _ANSWER_S)
    there = frozenset(nanny for nanny, answer in answers.items() if not isinstance(answer, Exception))
    silent = frozenset(nanny for nanny, answer in answers.items() if isinstance(answer, TimeoutError))
    starts: defaultdict[str, _Start] = defaultdict(_Start)
    deposits: defaultdict[tuple[int, int], list[Any]] = defaultdict(list)
    for nanny in sorted(there):
        for owner, described, memories, settled in cast("Sequence[_Listed]", answers[nanny]):
            if owner.group == CHECKPOINT and (owner.run == run or earlier):
                deposit = pickle.loads(described).moved(memories, nanny)
                deposits[owner.generation, owner.replica].append(deposit)
            elif owner.run == run or earlier:
                starts[owner.run].add(owner, settled, described, memories, nanny)
    newest = tuple(deposits[max(deposits)]) if deposits else ()
    names = {name for start in starts.values() for name, _ in start.found}
    for key, start in sorted(starts.items(), key=lambda item: (item[0] == run, item[1].generation), reverse=True):
        groups = dict(start.complete())
        if start.settled or groups.keys() == names:
            torn = tuple(sorted({name for name, _ in start.found} - groups.keys()))
            return Left(key, groups, torn, newest, there, silent)
    return Left(deposits=newest, nannies=there, silent=silent)


class _Start:
    """What the processes of one start have left, by group, generation and rank. generation: the last of any group."""

    def __init__(self) -> None:
        self.found: defaultdict[tuple[str, int], dict[int, tuple[Owner, Any]]] = defaultdict(dict)
        self.settled, self.generation = False, 0

    def add(
        self, owner: Owner, settled: bool, described: bytes, memories: Sequence[MemoryAddress], nanny: str
    ) -> None:
        known = self.found[owner.group, owner.generation]
        if owner.rank not in known or _nearer(owner, known[owner.rank][0]):
            # Pickled by a process of this run.
            known[owner.rank] = owner, pickle.loads(described).moved(memories, nanny)
        self.settled, self.generation = self.settled or settled, max(self.generation, owner.generation)

    def complete(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """The complete generations, the last one of each group last."""
        for (group, _), members in sorted(self.found.items(), key=lambda item: item[0][1]):
            size = next(iter(members.values()))[0].size
            if len(members) == size:
                yield group, tuple(members[rank][1] for rank in range(size))


def _nearer(one: Owner, other: Owner) -> bool:
    """Whether memory is more recent than other memory of the same process."""
    return (one.replica == 0, one.replica) > (other.replica == 0, other.replica)


def let_go(
    client: Any, nannies: Iterable[str], run: str, *, own: bool = True, earlier: bool = False, deposits: bool = True
) -> None:
    """Hold nothing any more of this start of a run (`own`), or of all other starts of the run (`earlier`); but
    deposits, unless these are to go too."""
    ask_nannies(client, _let_go, dict.fromkeys(nannies, (run, own, earlier, deposits)), _ANSWER_S)


def _hold(
    owner: Owner,
    described: bytes,
    memories: Sequence[MemoryAddress],
    only: bool,
    orphan_s: float,
    own: bool,
    dask_worker: Any,
) -> bool:
    """Hold memory of this nanny's `own` worker, or of another one of the machine.

    A worker is of one run at a time, so what it has left of other runs goes: later, as these may just have lost it.
    """
    opened = [memory for address in memories if (memory := Memory.open(address, mapped=False)) is not None]
    if len(opened) < len(memories):
        return False
    kept, loop = _held[dask_worker.address], asyncio.get_running_loop()
    for other in list(kept):
        former = (other.run, other.group) == (owner.run, owner.group) and other.generation < owner.generation
        if former and only:
            del kept[other]
        elif own and kept[other].own and other.run != owner.run:
            loop.call_later(orphan_s, _drop, dask_worker.address, other)
    settled = only or (owner in kept and kept[owner].settled)
    kept[owner] = HeldMemory(described, opened, own, settled=settled)
    loop.call_later(orphan_s, _forget, dask_worker.address, owner, orphan_s)
    return True


def _drop(nanny: str, owner: Owner) -> None:
    _held[nanny].pop(owner, None)


def _forget(nanny: str, owner: Owner, orphan_s: float) -> None:
    """Let go the memory of a process that has ended long ago."""
    if owner in _held[nanny]:
        if not psutil.pid_exists(owner.pid):
            del _held[nanny][owner]
        else:
            asyncio.get_running_loop().call_later(orphan_s, _forget, nanny, owner, orphan_s)


def _list_held(run: str, dask_worker: Any) -> list[_Listed]:
    """What this nanny holds of all starts of a run."""
    return [
        (owner, held.described, [memory.address for memory in held.memories], held.settled)
        for owner, held in _held[dask_worker.address].items()
        if same_run(owner.run, run) and held.whole
    ]


def _let_go(run: str, own: bool, earlier: bool, deposits: bool, dask_worker: Any) -> None:
    kept = _held[dask_worker.address]
    for owner in [owner for owner in kept if same_run(owner.run, run)]:
        if (own if owner.run == run else earlier) and (deposits or owner.group != CHECKPOINT):
            del kept[owner]
