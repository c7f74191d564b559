"""Memory that outlives a Dask worker's process: its nanny holds it too, until the run ends.

So the memory of a killed process is still there for the process that the nanny starts in its place.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias, cast

import psutil  # type: ignore[import-untyped]

from singa_dask.cluster.bootstrap import this_node
from singa_dask.cluster.formation import NoAnswer
from singa_dask.cluster.remote import ask_nannies
from singa_dask.comm.shared_memory import Memory, MemoryAddress
from singa_dask.memory.newest import Listed, Newest, newest
from singa_dask.memory.owner import CHECKPOINT, Owner, Saved, Version, same_run
from singa_dask.memory.store import Receiver

logger = logging.getLogger(__name__)

_HOLD_S = 10.0
_ANSWER_S = 2.0


class Progress(IntEnum):
    """How far memory that a nanny holds is."""

    FILLING = 0  # it lacks something that its owner has acknowledged
    COMPLETE = 1
    SUCCEEDED = 2  # all processes of the group have theirs held, so it has taken over from former ones


@dataclass
class HeldMemory:
    """Memory that a nanny holds. described: a pickled Saved. pid: of the owner. own: whether it is of the nanny's own
    worker. receiver: of messages that bring its content, if any; heard: whether one has come lately."""

    described: bytes
    memories: list[Memory]
    pid: int
    progress: Progress
    own: bool = False
    receiver: Receiver | None = None
    heard: bool = True

    @property
    def wanted(self) -> bool:
        """Whether its owner lives, as far as this nanny knows; if that sends messages: whether one has come since this
        was asked last."""
        if self.receiver is None:
            return psutil.pid_exists(self.pid)
        heard, self.heard = self.heard, False
        return heard


# A pickled Saved, its memory, and how far it is.
_Listed: TypeAlias = tuple[bytes, list[MemoryAddress], Progress]
Place: TypeAlias = tuple[Owner, Version]

_held: defaultdict[str, dict[Place, HeldMemory]] = defaultdict(dict)  # by nanny


def memory_of(nanny: str) -> dict[Place, HeldMemory]:
    """What the nanny of this process holds."""
    return _held[nanny]


class NannyHolder:
    """Has the nanny of a Dask worker hold memory of the worker's process.

    owner, version: whose memory it is. place: the worker's machine, and its nanny. orphan_s: for how long memory is
    held after its process has ended, if nobody has said that the run is over.
    """

    def __init__(self, worker: Any, owner: Owner, version: Version, orphan_s: float) -> None:
        self.place = this_node(), worker.nanny
        self.worker, self.owner, self.version, self.orphan_s = worker, owner, version, orphan_s

    @classmethod
    def of(cls, worker: Any, owner: Owner, version: Version, orphan_s: float) -> NannyHolder | None:
        """None for a worker without a nanny."""
        return cls(worker, owner, version, orphan_s) if worker.nanny else None

    def hold(self, saved: Saved, *, only: bool = False, also: str = "") -> bool:
        """Have memory held; returns whether it is.

        only: let go what former generations of the group have left. also: another nanny of the machine that holds it,
        as a nanny may be lost with its worker.
        """
        place = saved.owner, saved.version
        args = place, pickle.dumps(saved), saved.memories, os.getpid(), only, self.orphan_s
        asked = [self._ask(nanny, *args, nanny == self.place[1]) for nanny in (self.place[1], also) if nanny]
        return any(asked)

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
class Left(Newest):
    """What processes of a run have left in memory. nannies: those that answer; silent: those that do not answer in
    time, and may hold more."""

    nannies: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()


def left_behind(client: Any, nannies: Iterable[str], run: str, *, earlier: bool = False) -> Left:
    """The newest of what these nannies hold. earlier: as for `newest`."""
    answers = ask_nannies(client, _list_held, dict.fromkeys(nannies, (run,)), _ANSWER_S)
    there = frozenset(nanny for nanny, answer in answers.items() if not isinstance(answer, Exception))
    silent = frozenset(nanny for nanny, answer in answers.items() if isinstance(answer, TimeoutError))
    listed = [
        # Pickled by a process of this run.
        Listed(pickle.loads(described).moved(memories, nanny), progress is Progress.SUCCEEDED)
        for nanny in sorted(there)
        for described, memories, progress in cast("Sequence[_Listed]", answers[nanny])
    ]
    return Left(**vars(newest(listed, run, earlier=earlier)), nannies=there, silent=silent)


def let_go(
    client: Any, nannies: Iterable[str], run: str, *, own: bool = True, earlier: bool = False, deposits: bool = True
) -> None:
    """Hold nothing any more of this start of a run (`own`), or of all other starts of the run (`earlier`); but
    deposits, unless these are to go too."""
    ask_nannies(client, _let_go, dict.fromkeys(nannies, (run, own, earlier, deposits)), _ANSWER_S)


def _hold(
    place: Place,
    described: bytes,
    memories: Sequence[MemoryAddress],
    pid: int,
    only: bool,
    orphan_s: float,
    own: bool,
    dask_worker: Any,
) -> bool:
    """Hold memory of this nanny's `own` worker, or of another one of the machine.

    A worker is of one run at a time, so what it has left of other runs is released: later, as these may just have lost
    it.
    """
    opened = [memory for address in memories if (memory := Memory.open(address, mapped=False)) is not None]
    if len(opened) < len(memories):
        return False
    (owner, version), kept, loop = place, _held[dask_worker.address], asyncio.get_running_loop()
    for other, of in list(kept):
        same_group = (other.kind, other.group, of.run) == (owner.kind, owner.group, version.run)
        if only and same_group and of.generation < version.generation:
            del kept[other, of]
        elif own and kept[other, of].own and of.run != version.run:
            loop.call_later(orphan_s, _drop, dask_worker.address, (other, of))
    known = kept[place].progress if place in kept else Progress.COMPLETE
    kept[place] = HeldMemory(described, opened, pid, Progress.SUCCEEDED if only else known, own)
    forget_later(dask_worker.address, place, orphan_s)
    return True


def _drop(nanny: str, place: Place) -> None:
    _held[nanny].pop(place, None)


def forget_later(nanny: str, place: Place, orphan_s: float) -> None:
    """Let memory go once its owner has ended, or has been silent, for so long."""
    asyncio.get_running_loop().call_later(orphan_s, _forget, nanny, place, orphan_s)


def _forget(nanny: str, place: Place, orphan_s: float) -> None:
    held = _held[nanny].get(place)
    if held is not None and held.wanted:
        forget_later(nanny, place, orphan_s)
    elif held is not None:
        del _held[nanny][place]


def _list_held(run: str, dask_worker: Any) -> list[_Listed]:
    """What this nanny holds of all starts of a run."""
    return [
        (held.described, [memory.address for memory in held.memories], held.progress)
        for (_, version), held in _held[dask_worker.address].items()
        if same_run(version.run, run) and held.progress
    ]


def _let_go(run: str, own: bool, earlier: bool, deposits: bool, dask_worker: Any) -> None:
    kept = _held[dask_worker.address]
    for owner, version in [place for place in kept if same_run(place[1].run, run)]:
        if (own if version.run == run else earlier) and (deposits or owner.kind != CHECKPOINT):
            del kept[owner, version]
