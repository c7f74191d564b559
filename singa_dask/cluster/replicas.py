"""Memory of nannies that is written by messages from other machines: replicas of servers, and deposits.

A nanny keeps it itself, so there is no further process that could be lost or stopped.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from singa_dask.cluster.held import CHECKPOINT, Held, HeldMemory, NannyHolder, Owner, Written, memory_of
from singa_dask.cluster.leases import same_run
from singa_dask.cluster.remote import check_listening
from singa_dask.server import KeptServer
from singa_dask.server.replica import Piece, Replica
from singa_dask.server.replicator import OPEN_S, Kept

logger = logging.getLogger(__name__)

_OP = "singa_dask_replica"
_LOOK_S = 0.2
_READ_S = 120.0  # for a checkpoint to be read


@dataclass(frozen=True)
class _Copies:
    """For what a nanny keeps for this owner. whole: as in Target.write."""

    owner: Owner
    pieces: Sequence[Any]
    whole: bool


class NannyReplica:
    """The replica of a server, in the memory of a nanny: a Target.

    holder: of what the server itself writes, which is described. room: whether there is memory for so many bytes,
    where it is called.
    """

    def __init__(self, holder: NannyHolder, nanny: str, described: KeptServer, room: Callable[[int], bool]) -> None:
        self._holder, self._nanny, self._described, self._room = holder, nanny, described, room
        self._owner: Owner | None = None

    async def open(self, number: int) -> bool:
        """See Target."""
        described = replace(self._described, replica=number)
        self._owner = self._holder.owner(described, number)
        return await _ask_to_keep(self._holder, self._nanny, self._owner, described, Replica.create, self._room)

    async def write(self, pieces: Sequence[Piece], *, whole: bool) -> Kept:
        """See Target."""
        assert self._owner is not None
        return await _send(self._holder, self._nanny, _Copies(self._owner, pieces, whole))


def keep_at(holder: NannyHolder, nanny: str, *args: Any, aborted: Callable[[], bool] | None = None) -> bool:
    """Have a nanny keep memory that is written by messages; whether it has room. From another thread than Dask's.

    args: the owner, what describes the memory, what makes it of that, `room` as in NannyReplica. aborted: whether
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
    owner: Owner,
    pieces: Sequence[Any],
    whole: bool,
    timeout_s: float,
    aborted: Callable[[], bool] | None = None,
) -> Kept:
    """Write to memory that a nanny keeps, as keep_at. Raises OSError or TimeoutError."""
    return Kept(_in_time(holder, _send(holder, nanny, _Copies(owner, pieces, whole)), timeout_s, aborted))


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
    owner: Owner,
    described: Held,
    create: Callable[..., Written | None],
    room: Callable[[int], bool],
) -> bool:
    args = pickle.dumps((owner, described, create, room, holder.orphan_s))
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
    owner: Owner,
    described: Held,
    create: Callable[..., Written | None],
    room: Callable[[int], bool],
    orphan_s: float,
    dask_worker: Any,
) -> bool:
    """Make memory that is written by messages, on a nanny."""
    kept = memory_of(dask_worker.address)
    for other in [other for other in kept if owner.group == CHECKPOINT == other.group and not kept[other].whole]:
        if _same(owner, other):
            del kept[other]  # which could not be completed
    made = create(described, room)
    if made is None:
        return False
    # A message of its own, as `run` is for calls that are worth a line in a log.
    dask_worker.handlers[_OP] = _handler(dask_worker.address)
    kept[owner] = HeldMemory(pickle.dumps(described), list(made.memories), whole=False, replica=made)
    if owner.group == CHECKPOINT:  # the next one takes its place
        asyncio.get_running_loop().call_later(orphan_s, kept.pop, owner, None)
    else:
        _forget_later(dask_worker.address, owner, orphan_s)
    return True


def _handler(nanny: str) -> Callable[[_Copies], str]:
    def take(copies: _Copies) -> str:
        return _write(nanny, copies).value

    return take


def _write(nanny: str, copies: _Copies) -> Kept:
    kept = memory_of(nanny).get(copies.owner)
    if kept is None or kept.replica is None:
        return Kept.GONE
    if not kept.replica.write(copies.pieces):
        return Kept.SUPERSEDED
    kept.written = True
    if copies.whole and kept.whole:  # all servers of its group have been made, as it goes on
        kept.settled = True
        _let_go_former(nanny, copies.owner)
    kept.whole = kept.whole or copies.whole
    return Kept.KEPT


def _let_go_former(nanny: str, owner: Owner) -> None:
    """A server has one replica, the last, and a run one deposit, whatever start it is of."""
    for other in list(memory_of(nanny)):
        before = (other.generation, other.replica) < (owner.generation, owner.replica)
        if not (other.replica and before and _same(owner, other)):
            continue
        if owner.group == CHECKPOINT and (owner.run, owner.generation) != (other.run, other.generation):
            # Groups that were formed together may still be reading it.
            asyncio.get_running_loop().call_later(_READ_S, memory_of(nanny).pop, other, None)
        else:
            del memory_of(nanny)[other]


def _same(owner: Owner, other: Owner) -> bool:
    """Whether both are replicas of one server, or deposits of one run."""
    run = same_run(owner.run, other.run) if owner.group == CHECKPOINT else owner.run == other.run
    return run and (owner.group, owner.rank) == (other.group, other.rank)


def _forget_later(nanny: str, owner: Owner, orphan_s: float) -> None:
    asyncio.get_running_loop().call_later(orphan_s, partial(_forget, nanny, owner, orphan_s))


def _forget(nanny: str, owner: Owner, orphan_s: float) -> None:
    """Let a replica go whose server has been silent for long. Its process is on another machine."""
    kept = memory_of(nanny).get(owner)
    if kept is not None and kept.written:
        kept.written = False
        _forget_later(nanny, owner, orphan_s)
    elif kept is not None:
        del memory_of(nanny)[owner]
