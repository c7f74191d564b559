"""Saved state in the memory of nannies, which outlive the processes of their Dask workers.

A process has its nanny hold the memory that it shares too, so it is still there for the process that the nanny starts
in its place. Nannies of other machines keep what messages bring: replicas of servers, and checkpoints. A nanny keeps
it itself, so there is no further process that could be lost or stopped. All is held until the run ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil  # type: ignore[import-untyped]

from singa_dask.cluster.bootstrap import this_node
from singa_dask.cluster.formation import NoAnswer
from singa_dask.cluster.remote import ask_nannies, check_listening
from singa_dask.comm.shared_memory import Memory, MemoryAddress
from singa_dask.memory.newest import Newest, newest
from singa_dask.memory.owner import CHECKPOINT, Owner, Place, Saved, Version, outlived, same_owner, same_run
from singa_dask.memory.region import Regions, RegionsAddress
from singa_dask.memory.store import PutResult

logger = logging.getLogger(__name__)

T = TypeVar("T")
_OP = "singa_dask_saved"
_ANSWER_S = 2.0
_CALL_S = 10.0  # for a nanny to hold something, make room or take a message: it imports this package for the first one
_READ_S = 120.0  # for a checkpoint to be read
_BLOCK = 16 << 20  # bytes of a message with a part of a file
_LOOK_S = 0.2
_KEEP_S = 100.0  # for a nanny to have all


@dataclass
class Held:
    """Saved state that a nanny holds. pid: of its owner, 0 if messages bring it; these are for `write`. heard: whether
    one has come lately. own: whether it is of the nanny's own worker. whole: whether it has everything that its owner
    has acknowledged."""

    saved: Saved
    memories: list[Memory]
    pid: int = 0
    own: bool = False
    whole: bool = True
    heard: bool = True
    write: Callable[[Sequence[Any]], bool] | None = None

    @property
    def wanted(self) -> bool:
        """Whether its owner lives, as far as this nanny knows; if that sends messages: whether one has come since this
        was asked last. A checkpoint is wanted until the next one must have taken its place."""
        if self.pid:
            return psutil.pid_exists(self.pid)
        heard, self.heard = self.heard, False
        return heard and self.saved.owner.kind != CHECKPOINT


HELD: defaultdict[str, dict[Place, Held]] = defaultdict(dict)  # by nanny


class NannyStore:
    """Nannies keep what a process of a Dask worker saves: a Store.

    orphan_s: for how long it is kept after its owner has ended, if nobody has said that the run is over. room: whether
    there is memory for so many bytes, where it is called.
    """

    def __init__(
        self,
        worker: Any,
        owner: Owner,
        version: Version,
        orphan_s: float,
        *,
        room: Callable[[int], bool],
        leaves: Callable[[], bool] = lambda: False,
    ) -> None:
        self.place, self.owner, self.version = (this_node(), worker.nanny or ""), owner, version
        self._worker, self._orphan_s, self._room, self.leaves = worker, orphan_s, room, leaves

    def hold(self, saved: Saved, *, only: bool = False, also: str = "") -> bool:
        """See Store."""
        held = False
        for nanny in [nanny for nanny in (self.place[1], also) if nanny]:
            args = saved, os.getpid(), only, self._orphan_s, nanny == self.place[1]
            try:
                held |= self.ask(nanny, _hold, *args, timeout_s=_CALL_S)
            except NoAnswer as error:
                logger.warning("memory is not held: %s", error)
        return held

    def ask(self, nanny: str, function: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """What a function returns on a nanny, which may be on another machine. Raises NoAnswer without an answer."""
        call = self._run(nanny, function, *args)
        try:  # also of a process that leaves: it may have to read first
            return asyncio.run_coroutine_threadsafe(call, self._worker.loop.asyncio_loop).result(timeout_s)
        except (OSError, TimeoutError) as error:
            raise NoAnswer(f"the nanny {nanny}, which holds memory, does not answer: {error!r}") from error

    async def _run(self, nanny: str, function: Callable[..., Any], *args: Any) -> Any:
        answer = await self._worker.rpc(nanny).run(function=pickle.dumps(function), args=pickle.dumps(args))
        if answer["status"] != "OK":
            raise answer["exception"]
        return answer["result"]

    async def open(self, nanny: str, saved: Saved) -> bool:
        """See Store."""
        await check_listening(nanny)
        try:
            return bool(await self._run(nanny, _open, saved, self._room, self._orphan_s))
        except OSError:
            raise
        except Exception as error:
            logger.warning("the nanny %s keeps nothing: %r", nanny, error)
            return False

    async def put(self, nanny: str, saved: Saved, pieces: Sequence[Any], *, whole: bool) -> PutResult:
        """See Store."""
        from distributed.protocol import to_serialize  # keeps Dask out of programs that only read jobs

        # A message of its own, as `run` is for calls that are worth a line in a log.
        answer = await getattr(self._worker.rpc(nanny), _OP)(message=to_serialize((saved.place, pieces, whole)))
        # A nanny that was started meanwhile has no such operation.
        return PutResult(answer) if isinstance(answer, str) else PutResult.GONE

    def keep(self, nanny: str, saved: Saved, path: Path) -> bool:
        """See Store."""
        deadline, nbytes = time.monotonic() + _KEEP_S, path.stat().st_size
        where = (RegionsAddress(MemoryAddress(0, 0, 0, nbytes), ()),)
        version = replace(self.version, number=saved.version.number)
        saved = replace(saved, owner=self.owner, version=version, regions=where)
        kept = self._in_time(self.open(nanny, saved), _CALL_S)
        for first in (*range(0, nbytes, _BLOCK), nbytes):  # the last message says that the former ones may go
            if not kept or self.leaves():
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"{nbytes} bytes took longer than {_KEEP_S:g} s")
            block = first, np.fromfile(path, np.uint8, _BLOCK, offset=first)
            put = self.put(nanny, saved, [block], whole=first + _BLOCK >= nbytes)
            kept = self._in_time(put, _CALL_S) is PutResult.KEPT
        return kept

    def _in_time(self, call: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """What a coroutine returns in Dask's thread. Raises TimeoutError if it takes longer, or the process leaves."""
        asked = asyncio.run_coroutine_threadsafe(call, self._worker.loop.asyncio_loop)
        deadline = time.monotonic() + timeout_s
        while not asked.done():
            with suppress(TimeoutError):
                asked.result(_LOOK_S)
            if not asked.done() and (self.leaves() or time.monotonic() > deadline):
                asked.cancel()
                raise TimeoutError(f"no answer within {timeout_s:g} s, or until the process leaves")
        return asked.result()

    def read(self, saved: Saved, out: Callable[[bytes], Any]) -> None:
        """See Store."""
        for first in range(0, saved.nbytes, _BLOCK):
            args = saved.memories[0], first, min(_BLOCK, saved.nbytes - first)
            block = self.ask(saved.holder, _read, *args, timeout_s=_CALL_S)
            if block is None:
                raise NoAnswer(
                    f"the nanny {saved.holder} no longer has its checkpoint in memory: it was replaced, or "
                    "a later run needed the memory"
                )
            out(block)


def left_behind(client: Any, nannies: Iterable[str], run: str, **options: Any) -> Newest:
    """The newest of what these nannies hold. options: of `newest`."""
    answers = ask_nannies(client, _listed, dict.fromkeys(nannies, (run,)), _ANSWER_S)
    there = {nanny: answer for nanny, answer in sorted(answers.items()) if not isinstance(answer, Exception)}
    silent = frozenset(nanny for nanny, answer in answers.items() if isinstance(answer, TimeoutError))
    found = newest((saved for listed in there.values() for saved in listed), run, **options)
    return replace(found, nannies=frozenset(there), silent=silent)


def let_go(
    client: Any, nannies: Iterable[str], run: str, *, own: bool = True, earlier: bool = False, deposits: bool = True
) -> None:
    """Hold nothing any more of this start of a run (`own`), or of all other starts of the run (`earlier`); but
    checkpoints, unless these are to go too."""
    ask_nannies(client, _let_go, dict.fromkeys(nannies, (run, own, earlier, deposits)), _ANSWER_S)


# On nannies


def _hold(saved: Saved, pid: int, only: bool, orphan_s: float, own: bool, dask_worker: Any) -> bool:
    """Hold memory of this nanny's `own` worker, or of another one of the machine.

    A worker is of one run at a time, so what it has left of other runs is released: later, as these may just have lost
    it.
    """
    opened = [memory for address in saved.memories if (memory := Memory.open(address, mapped=False)) is not None]
    if len(opened) < len(saved.memories):
        return False
    kept, place = HELD[dask_worker.address], saved.place
    for other in [other for other in kept if own and kept[other].own and other[1].run != saved.version.run]:
        asyncio.get_running_loop().call_later(orphan_s, kept.pop, other, None)
    succeeded = only or (place in kept and kept[place].saved.succeeded)
    _add(dask_worker.address, Held(replace(saved, succeeded=succeeded), opened, pid, own), orphan_s)
    if only:
        _end_former(kept, place)
    return True


def _open(saved: Saved, room: Callable[[int], bool], orphan_s: float, dask_worker: Any) -> bool:
    """Make memory that messages fill, in place of what could not be completed."""
    kept = HELD[dask_worker.address]
    for other in [other for other in kept if not kept[other].whole and same_owner(other, saved.place)]:
        del kept[other]
    memory = Memory.create(saved.nbytes) if room(saved.nbytes) else None
    if memory is None:
        return False
    regions = Regions(memory, saved.regions[0])  # none for a file
    write = regions.write if regions else partial(_write, memory)
    _add(dask_worker.address, Held(saved, [memory], whole=False, write=write), orphan_s)
    dask_worker.handlers[_OP] = lambda message: _put(kept, message)  # Dask asks for its __name__
    return True


def _write(memory: Memory, blocks: Sequence[tuple[int, np.ndarray]]) -> bool:
    """Write blocks of a file, each with the place of its first byte. Nobody supersedes who sends them."""
    for first, block in blocks:
        memory.array(np.uint8, block.size, first)[...] = block
    return True


def _add(nanny: str, held: Held, orphan_s: float) -> None:
    held.saved = held.saved.moved([memory.address for memory in held.memories], nanny)
    HELD[nanny][held.saved.place] = held
    _end_later(HELD[nanny], held.saved.place, orphan_s)


def _put(kept: dict[Place, Held], message: tuple[Place, Sequence[Any], bool]) -> str:
    place, pieces, whole = message
    held = kept.get(place)
    if held is None or held.write is None:
        return PutResult.GONE.value
    if not held.write(pieces):
        return PutResult.SUPERSEDED.value
    held.heard = True
    if whole and held.whole:  # all servers of its group have been made, as it goes on
        held.saved = replace(held.saved, succeeded=True)
        _end_former(kept, place)
    held.whole = held.whole or whole
    return PutResult.KEPT.value


def _end_former(kept: dict[Place, Held], place: Place) -> None:
    version = replace(place[1], number=0)
    for owner, of in [former for former in kept if outlived(former, place)]:
        # Groups that were formed together may still be reading a checkpoint.
        later = owner.kind == CHECKPOINT and replace(of, number=0) != version
        if later:
            asyncio.get_running_loop().call_later(_READ_S, kept.pop, (owner, of), None)
        else:
            del kept[owner, of]


def _end_later(kept: dict[Place, Held], place: Place, orphan_s: float, *, now: bool = False) -> None:
    """Let state go once its owner has ended, or has been silent, for so long."""
    if not now or (place in kept and kept[place].wanted):
        asyncio.get_running_loop().call_later(orphan_s, partial(_end_later, kept, place, orphan_s, now=True))
    else:
        kept.pop(place, None)


def _listed(run: str, dask_worker: Any) -> list[Saved]:
    """What this nanny holds of all starts of a run."""
    kept = HELD[dask_worker.address]
    return [held.saved for (_, of), held in kept.items() if held.whole and same_run(of.run, run)]


def _let_go(run: str, own: bool, earlier: bool, deposits: bool, dask_worker: Any) -> None:
    kept = HELD[dask_worker.address]
    for owner, version in [place for place in kept if same_run(place[1].run, run)]:
        if (own if version.run == run else earlier) and (deposits or owner.kind != CHECKPOINT):
            del kept[owner, version]


def _read(memory: MemoryAddress, first: int, size: int, dask_worker: Any) -> bytes | None:
    opened = Memory.open(memory)
    return None if opened is None else opened.array(np.uint8, size, first).tobytes()
