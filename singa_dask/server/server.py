"""A ParamShard that many threads call: the worker beside it directly, everybody else through the actor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from singa_dask.job.job_pb2 import UpdaterProto
from singa_dask.net.flat import Entry
from singa_dask.ops import Ops, get_ops
from singa_dask.server.messages import Array, Fresh, Reply, Request, State, Sync, Update
from singa_dask.server.shard import ParamShard
from singa_dask.server.slices import Slice
from singa_dask.updaters import Updater, make_updater


@dataclass(frozen=True)
class ServerPlan:
    """What a server must know. key: unique; updater: serialised UpdaterProto; entries: of all parameters; the rest as
    ParamShard has it."""

    key: str
    updater: bytes
    entries: tuple[Entry, ...]
    slices: tuple[Slice, ...]
    groups: tuple[int, ...] = (0,)
    max_staleness: int | None = None
    sync_freq: int = 1
    accounts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def shard(self, ops: Ops | None = None, *, copy: bool = True) -> ParamShard:
        """The shard, computing on `ops` (the CPU's by default)."""
        ops = ops or get_ops("cpu")
        proto = UpdaterProto.FromString(self.updater)

        def updater(of: Slice) -> Updater:
            made = make_updater(proto, ops)
            made.bind(self.entries, of.start, of.stop)
            return made

        return ParamShard(
            self.slices,
            updater,
            ops,
            groups=self.groups,
            max_staleness=self.max_staleness,
            sync_freq=self.sync_freq,
            accounts=self.accounts,
            copy=copy,
        )


class Server:
    """A shard behind a lock.

    live: replies hold the shard's own arrays, for a caller that put them there and is alone; else copies.
    """

    def __init__(self, shard: ParamShard, *, live: bool = False) -> None:
        self.shard = shard
        self.live = live
        self.on_update: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._numbers = count()
        self._open: dict[int, tuple[Future[Reply], Array | None]] = {}

    def call(self, request: Request, out: Array | None = None) -> Future[Reply]:
        """The future of the reply. out: where its parameters shall go, instead of into an array of their own."""
        future: Future[Reply] = Future()
        given: list[tuple[Future[Reply], Reply]] = []
        with self._lock:
            number = next(self._numbers)
            self._open[number] = future, out
            for sender, reply in self.shard.handle(number, request):
                waiting, target = self._open.pop(sender)  # type: ignore[call-overload]
                given.append((waiting, reply if self.live else _detached(reply, target)))
        for waiting, reply in given:
            with suppress(InvalidStateError):  # whoever asked does not wait any more
                waiting.set_result(reply)
        if isinstance(request, Update | Sync):
            self.on_update()
        return future

    def withdraw(self, future: Future[Reply], index: int) -> bool:
        """Forget a request that waits in this slice, because it will be repeated. False where it has been answered."""
        with self._lock:
            number = next((number for number, (own, _) in self._open.items() if own is future), None)
            if number is None or not self.shard.withdraw(number, index):
                return False
            del self._open[number]
            return True

    def begin_sync(self, index: int, *, force: bool = False) -> Sync | None:
        """See ParamShard."""
        with self._lock:
            return self.shard.begin_sync(index, force=force)

    def finish_sync(self, sync: Sync, reply: Reply) -> None:
        """See ParamShard."""
        with self._lock:
            self.shard.finish_sync(sync, reply)

    def open_account(self, index: int, side: str, generations: tuple[int, int]) -> Array:
        """See ParamShard; returns a copy."""
        with self._lock:
            return self.shard.open_account(index, side, generations).copy()


_here: WeakValueDictionary[str, Server] = WeakValueDictionary()


def publish(key: str, server: Server) -> None:
    """Let workers in this process find the server."""
    _here[key] = server


def server_here(key: str) -> Server | None:
    """The server of this key, if it is in this process."""
    return _here.get(key)


def _detached(reply: Reply, out: Array | None) -> Reply:
    """The reply with arrays that later messages leave alone."""
    if isinstance(reply, Fresh):
        if out is None:
            return replace(reply, values=reply.values.copy())
        out[...] = reply.values
        return replace(reply, values=out)
    if isinstance(reply, State):
        state: dict[str, Any] = {name: array.copy() for name, array in reply.state.items()}
        return State(reply.values.copy(), state, reply.version)
    return reply
