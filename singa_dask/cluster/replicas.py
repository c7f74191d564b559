"""Memory of nannies that is written by messages from other machines: replicas of servers, and deposits.

A nanny keeps it itself, so there is no further process that could be lost or stopped.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from singa_dask.cluster.held import HeldMemory, NannyHolder, Place, Progress, forget_later, memory_of
from singa_dask.memory.owner import CHECKPOINT, Owner, Saved, same_run
from singa_dask.memory.store import Kept, Receiver

logger = logging.getLogger(__name__)

_OP = "singa_dask_replica"
_READ_S = 120.0  # for a checkpoint to be read


@dataclass(frozen=True)
class _Message:
    """To a nanny, for what it keeps at this place. pieces, whole: as in Store.write."""

    place: Place
    pieces: Sequence[Any]
    whole: bool


class NannyStore:
    """The memory of a nanny: a Store.

    saved: describes what is kept there. create: makes room of that there, if there is memory for so many bytes, as
    `room` tells.
    """

    def __init__(
        self,
        holder: NannyHolder,
        nanny: str,
        saved: Saved,
        create: Callable[[Saved, Callable[[int], bool]], Receiver | None],
        room: Callable[[int], bool],
    ) -> None:
        self._holder, self._nanny, self._saved, self._create, self._room = holder, nanny, saved, create, room

    async def open(self, number: int) -> bool:
        """See Store."""
        self._saved = replace(self._saved, version=replace(self._saved.version, number=number))
        args = pickle.dumps((self._saved, self._create, self._room, self._holder.orphan_s))
        answer = await self._holder.worker.rpc(self._nanny).run(function=pickle.dumps(_open), args=args)
        if answer["status"] != "OK":
            logger.warning("the nanny %s keeps nothing: %r", self._nanny, answer["exception"])
            return False
        return bool(answer["result"])

    async def write(self, pieces: Sequence[Any], *, whole: bool) -> Kept:
        """See Store."""
        from distributed.protocol import to_serialize  # keeps Dask out of programs that only read jobs

        message = _Message((self._saved.owner, self._saved.version), pieces, whole)
        answer = await getattr(self._holder.worker.rpc(self._nanny), _OP)(message=to_serialize(message))
        return Kept(answer) if isinstance(answer, str) else Kept.GONE  # a nanny that was started meanwhile has none


def _open(
    saved: Saved,
    create: Callable[[Saved, Callable[[int], bool]], Receiver | None],
    room: Callable[[int], bool],
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
    kept[place] = HeldMemory(described, memories, 0, Progress.FILLING, receiver=made)
    if is_checkpoint:  # the next one takes its place
        asyncio.get_running_loop().call_later(orphan_s, kept.pop, place, None)
    else:
        forget_later(dask_worker.address, place, orphan_s)
    return True


def _handler(nanny: str) -> Callable[[_Message], str]:
    def take(message: _Message) -> str:
        return _write(nanny, message).value

    return take


def _write(nanny: str, message: _Message) -> Kept:
    kept = memory_of(nanny).get(message.place)
    if kept is None or kept.receiver is None:
        return Kept.GONE
    if not kept.receiver.write(message.pieces):
        return Kept.SUPERSEDED
    kept.heard = True
    if message.whole and kept.progress:  # all servers of its group have been made, as it goes on
        kept.progress = Progress.SUCCEEDED
        _let_go_former(nanny, message.place)
    elif message.whole:
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
