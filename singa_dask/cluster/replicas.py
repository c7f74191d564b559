"""Memory of nannies that is written by messages from other machines: replicas of servers, and deposits.

A nanny keeps it itself, so there is no further process that could be lost or stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from singa_dask.cluster.held import HeldMemory, NannyHolder, Place, Progress, Written, memory_of
from singa_dask.cluster.remote import check_listening
from singa_dask.memory.owner import CHECKPOINT, Owner, Saved, same_run
from singa_dask.server.replica import Piece, Replica
from singa_dask.server.replicator import OPEN_S, Kept

logger = logging.getLogger(__name__)

_OP = "singa_dask_replica"
_LOOK_S = 0.2
_READ_S = 120.0  # for a checkpoint to be read


@dataclass(frozen=True)
class _Copies:
    """For what a nanny keeps at this place. whole: as in Target.write."""

    place: Place
    pieces: Sequence[Any]
    whole: bool


class NannyReplica:
    """The replica of a server, in the memory of a nanny: a Target.

    saved: what the server itself writes. room: whether there is memory for so many bytes, where it is called.
    """

    def __init__(self, holder: NannyHolder, nanny: str, saved: Saved, room: Callable[[int], bool]) -> None:
        self._holder, self._nanny, self._saved, self._room = holder, nanny, saved, room

    async def open(self, number: int) -> bool:
        """See Target."""
        self._saved = replace(self._saved, version=replace(self._saved.version, number=number))
        return await _ask_to_keep(self._holder, self._nanny, self._saved, Replica.create, self._room)

    async def write(self, pieces: Sequence[Piece], *, whole: bool) -> Kept:
        """See Target."""
        place = self._saved.owner, self._saved.version
        return await _send(self._holder, self._nanny, _Copies(place, pieces, whole))


def keep_at(holder: NannyHolder, nanny: str, *args: Any, aborted: Callable[[], bool] | None = None) -> bool:
    """Have a nanny keep memory that is written by messages; whether it has room. From another thread than Dask's.

    args: the Saved that describes the memory, what makes it of that, `room` as in NannyReplica. aborted: whether
    nobody needs the answer any more.
    Raises OSError if nobody listens at the nanny's address, TimeoutError if it does not answer.
    """

    async def ask() -> bool:
        await check_listening(nanny)
        return await _ask_to_keep(holder, nanny, *args)

    return bool(_in_time(holder, ask(), OPEN_S, aborted))


def write_at(
    holder: NannyHolder,
    nanny: str,
    saved: Saved,
    pieces: Sequence[Any],
    whole: bool,
    timeout_s: float,
    aborted: Callable[[], bool] | None = None,
) -> Kept:
    """Write to memory that a nanny keeps, as keep_at. Raises OSError or TimeoutError."""
    copies = _Copies((saved.owner, saved.version), pieces, whole)
    return Kept(_in_time(holder, _send(holder, nanny, copies), timeout_s, aborted))


def _in_time(holder: NannyHolder, call: Any, timeout_s: float, aborted: Callable[[], bool] | None) -> Any:
    """What a coroutine returns in Dask's thread. Raises TimeoutError if it takes longer, or is aborted."""
    asked = asyncio.run_coroutine_threadsafe(call, holder.worker.loop.asyncio_loop)
    deadline, look_s = time.monotonic() + timeout_s, timeout_s if aborted is None else _LOOK_S
    while True:
        try:
            return asked.result(look_s)
        except TimeoutError:
            if asked.done() and asked.exception() is not None:
                raise
            if aborted is None or aborted() or time.monotonic() > deadline:
                asked.cancel()
                raise


async def _ask_to_keep(
    holder: NannyHolder,
    nanny: str,
    saved: Saved,
    create: Callable[..., Written | None],
    room: Callable[[int], bool],
) -> bool:
    args = pickle.dumps((saved, create, room, os.getpid(), holder.orphan_s))
    answer = await holder.worker.rpc(nanny).run(function=pickle.dumps(_open), args=args)
    if answer["status"] != "OK":
        logger.warning("the nanny %s keeps nothing: %r", nanny, answer["exception"])
        return False
    return bool(answer["result"])


async def _send(holder: NannyHolder, nanny: str, copies: _Copies) -> Kept:
    from distributed.protocol import to_serialize  # keeps Dask out of programs that only read jobs

    answer = await getattr(holder.worker.rpc(nanny), _OP)(copies=to_serialize(copies))
    return Kept(answer) if isinstance(answer, str) else Kept.GONE  # a nanny that was started meanwhile has none


def _open(
    saved: Saved,
    create: Callable[..., Written | None],
    room: Callable[[int], bool],
    pid: int,
    orphan_s: float,
    dask_worker: Any,
) -> bool:
    """Make memory that is written by messages, on a nanny."""
    kept, place, is_checkpoint = (
        memory_of(dask_worker.address),
        (saved.owner, saved.version),
        _is_checkpoint(saved.owner),
    )
    for other in [other for other in kept if is_checkpoint and kept[other].progress is Progress.FILLING]:
        if _same(place, other):
            del kept[other]  # which could not be completed
    made = create(saved, room)
    if made is None:
        return False
    # A message of its own, as `run` is for calls that are worth a line in a log.
    dask_worker.handlers[_OP] = _handler(dask_worker.address)
    described, memories = pickle.dumps(saved), list(made.memories)
    kept[place] = HeldMemory(described, memories, pid, Progress.FILLING, receiver=made)
    if is_checkpoint:  # the next one takes its place
        asyncio.get_running_loop().call_later(orphan_s, kept.pop, place, None)
    else:
        _forget_later(dask_worker.address, place, orphan_s)
    return True


def _handler(nanny: str) -> Callable[[_Copies], str]:
    def take(copies: _Copies) -> str:
        return _write(nanny, copies).value

    return take


def _write(nanny: str, copies: _Copies) -> Kept:
    kept = memory_of(nanny).get(copies.place)
    if kept is None or kept.receiver is None:
        return Kept.GONE
    if not kept.receiver.write(copies.pieces):
        return Kept.SUPERSEDED
    kept.heard = True
    if copies.whole and kept.progress:  # all servers of its group have been made, as it goes on
        kept.progress = Progress.SUCCEEDED
        _let_go_former(nanny, copies.place)
    elif copies.whole:
        kept.progress = Progress.COMPLETE
    return Kept.KEPT


def _let_go_former(nanny: str, place: Place) -> None:
    """A server has one replica, the last, and a run one deposit, whatever start it is of."""
    owner, version = place
    for other, of in list(memory_of(nanny)):
        before = (of.generation, of.number) < (version.generation, version.number)
        if not (of.number and before and _same(place, (other, of))):
            continue
        if _is_checkpoint(owner) and (version.run, version.generation) != (of.run, of.generation):
            # Groups that were formed together may still be reading it.
            asyncio.get_running_loop().call_later(_READ_S, memory_of(nanny).pop, (other, of), None)
        else:
            del memory_of(nanny)[other, of]


def _same(place: Place, other: Place) -> bool:
    """Whether both are replicas of one server, or deposits of one run."""
    (owner, version), (other_owner, of) = place, other
    run = same_run(version.run, of.run) if _is_checkpoint(owner) else version.run == of.run
    return run and owner == other_owner


def _is_checkpoint(owner: Owner) -> bool:
    return owner.kind == CHECKPOINT


def _forget_later(nanny: str, place: Place, orphan_s: float) -> None:
    asyncio.get_running_loop().call_later(orphan_s, partial(_forget, nanny, place, orphan_s))


def _forget(nanny: str, place: Place, orphan_s: float) -> None:
    """Let a replica go whose server has been silent for long. Its process is on another machine."""
    kept = memory_of(nanny).get(place)
    if kept is not None and kept.heard:
        kept.heard = False
        _forget_later(nanny, place, orphan_s)
    elif kept is not None:
        del memory_of(nanny)[place]
