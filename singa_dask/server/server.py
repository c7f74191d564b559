"""A thread-safe ServerProtocol. Workers in its process call it directly, all others through the actor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from weakref import ref

import numpy as np

from singa_dask.job.code_bundle import CodeBundle, unpacked
from singa_dask.job.job_pb2 import UpdaterProto
from singa_dask.memory.region import Superseded
from singa_dask.net.flat import ALIGNMENT, Entry
from singa_dask.ops import Ops, get_ops
from singa_dask.ops.arrays import Array
from singa_dask.server.kept import Keeper
from singa_dask.server.ledger import Ledger
from singa_dask.server.messages import Done, Fresh, Moved, Reply, Request, State, Sync, Update
from singa_dask.server.protocol import ServerProtocol
from singa_dask.server.replication import LEAST_RATE, Given, Replication, give
from singa_dask.server.slice_protocol import Answer, SliceProtocol
from singa_dask.server.slices import ParameterSlice
from singa_dask.tracing import Recorder
from singa_dask.updaters import Updater, make_updater


@dataclass(frozen=True)
class ServerPlan:
    """The settings of a server. updater: serialised UpdaterProto; entries: of all parameters; key: unique, "" for a
    server in the worker's process; code: user code; trace: the steps that are traced, from, to; the rest: as in
    ServerProtocol."""

    updater: bytes
    entries: tuple[Entry, ...]
    slices: tuple[ParameterSlice, ...]
    key: str = ""
    groups: tuple[int, ...] = (0,)
    dealt_to: int = 1
    max_staleness: int | None = None
    sync_freq: int = 1
    accounts: dict[str, tuple[int, int]] = field(default_factory=dict)
    code: CodeBundle | None = None
    trace: tuple[int, int] | None = None

    def protocol(
        self, ops: Ops | None = None, *, copy: bool = True, keepers: Mapping[int, Keeper] | None = None
    ) -> ServerProtocol:
        """The server's protocol, which computes on `ops` (by default the CPU's). copy, keepers: as in
        ServerProtocol."""
        ops = ops or get_ops("cpu")

        def updater(of: ParameterSlice) -> Updater:
            return self._updater(ops, self.entries, of.start, of.stop)

        return ServerProtocol(
            self.slices,
            updater,
            ops,
            groups=self.groups,
            dealt_to=self.dealt_to,
            max_staleness=self.max_staleness,
            sync_freq=self.sync_freq,
            accounts=self.accounts,
            copy=copy,
            keepers=keepers,
        )

    @property
    def transfer_s(self) -> float:
        """Maximum transfer time of all slices and updater arrays in float32, in seconds."""
        return 4 * 4 * sum(s.size for s in self.slices) / LEAST_RATE

    def warm_up(self, ops: Ops | None = None) -> None:
        """Compile the kernels of an update on `ops`, by default the CPU's, with updates that are discarded: of
        parameters that are shorter than those of the slices and, on given `ops`, scaled alike."""
        if ops is None:
            layouts = [[Entry("any", (ALIGNMENT,), 0, ALIGNMENT)]] if self.slices else []
        else:
            layouts = [[e for e in self.entries if e.start < s.stop and s.start < e.stop] for s in self.slices]
        for entries in layouts:
            short = [
                replace(entry, shape=(ALIGNMENT,), start=ALIGNMENT * i, size=ALIGNMENT)
                for i, entry in enumerate(entries)
            ]
            used, size = ops or get_ops("cpu"), ALIGNMENT * len(short)
            updater, values = self._updater(used, short, 0, size), used.zeros((size,))
            updater.start(values)
            updater.update(0, values, used.zeros((size,)), made=0)

    def _updater(self, ops: Ops, entries: Sequence[Entry], start: int, stop: int) -> Updater:
        with unpacked(self.code):
            updater = make_updater(UpdaterProto.FromString(self.updater), ops)
        updater.bind(entries, start, stop)
        return updater


class Server:
    """A ServerProtocol behind a lock.

    live: replies hold the protocol's own arrays, for a single caller that put them there. Otherwise parameters are
    lent: they are copied only if the next message comes while a reply is still in use or under way. retired: it has a
    successor, and answers everything with Moved. on_update, on_change: called after messages, from any thread: one
    after updates, the other when the replica may lack something. recorder: of the updates that are traced; None where
    the caller's records them.
    """

    def __init__(self, protocol: ServerProtocol, *, live: bool = False) -> None:
        self.protocol = protocol
        self.live = live
        self.retired = False
        self.recorder: Recorder | None = None
        self.on_update: Callable[[], None] = lambda: None
        self.on_change: Callable[[], object] = lambda: None
        self._lock = threading.Lock()
        self.replication = Replication(self._lock)
        self._numbers = count()
        self._open: dict[int, tuple[Future[Reply], Array | None]] = {}
        self._lent: dict[int, list[ref[Array]]] = {}  # by slice

    def call(self, request: Request, out: Array | None = None) -> Future[Reply]:
        """The future of the reply. out: an array for its parameters, instead of a new one."""
        future: Future[Reply] = Future()
        with self._lock:
            number = next(self._numbers)
            self._open[number] = future, out
            given = self._moved() if self.retired else self._handled(number, request)
        give(given)
        self.on_change()
        if isinstance(request, Update | Sync):
            self.on_update()
        return future

    def _handled(self, number: int, request: Request) -> Sequence[Given]:
        """The replies that a request makes possible, and who waits for them."""
        self._part_with(request.slice)
        given: list[Given] = []
        try:
            answers = self._answers(number, request)
        except Superseded:
            return self._moved()
        for sender, reply in answers:
            waiting, target = self._open.pop(sender)  # type: ignore[call-overload]
            given.append((waiting, reply if self.live else self._detached(request.slice, reply, target)))
        return self.replication.after(request.slice, given)  # its image is saved here, and stored there

    def _answers(self, number: int, request: Request) -> Sequence[Answer]:
        if self.recorder is None:
            return self.protocol.handle(number, request)
        with self.recorder.here():
            answers = self.protocol.handle(number, request)
        if isinstance(request, Update):
            self.recorder.reach(request.step, request.origin.group)
        return answers

    def retire(self) -> None:
        """Answer nothing any more: there is, or will be, a successor."""
        with self._lock:
            given = self._moved()
        give(given)
        self.on_change()

    def _moved(self) -> Sequence[Given]:
        self.retired = True
        given: list[Given] = [(future, Moved()) for future, _ in self._open.values()]
        self._open.clear()
        return [*given, *((future, Moved()) for future, _ in self.replication.dropped())]

    def withdraw(self, future: Future[Reply], index: int) -> bool:
        """Forget a request waiting in this slice, which will be repeated. Returns False if it has been answered. One
        that waits for the replica is answered when it is repeated."""
        with self._lock:
            number = next((number for number, (own, _) in self._open.items() if own is future), None)
            if number is None:
                return self.replication.waits and not future.done()
            if not self.protocol.slices[index].withdraw(number):
                return False
            del self._open[number]
            return True

    def kept(self, index: int) -> Future[Reply]:
        """Of Done, once the replica has the slice as it is; of Moved if the server has a successor."""
        future: Future[Reply] = Future()
        with self._lock:
            done = self.replication.after(index, [(future, Done())]) if not self.retired else [(future, Moved())]
        give(done)
        self.on_change()
        return future

    # Neighbours

    def begin_sync(self, index: int, *, force: bool = False) -> Sync | None:
        """See SliceProtocol."""
        with self._changing(index) as state:
            return state.begin_sync(force=force)

    def finish_sync(self, sync: Sync, reply: Reply) -> None:
        """See SliceProtocol."""
        with self._changing(sync.slice) as state:
            self._part_with(sync.slice)
            state.finish_sync(sync, reply)

    def open_account(self, index: int, side: str, generations: tuple[int, int]) -> tuple[Array, Ledger]:
        """See SliceProtocol. Returns copies."""
        with self._changing(index) as state:
            values, ledger = state.open_account(side, generations)
            return values.copy(), ledger.copy()

    @contextmanager
    def _changing(self, index: int) -> Iterator[SliceProtocol]:
        """A slice, which is saved afterwards. Raises Superseded."""
        with self._lock:
            if self.retired:
                raise Superseded("this server has a successor")
            yield self.protocol.slices[index]
            self.protocol.slices[index].save()

    def _detached(self, index: int, reply: Reply, out: Array | None) -> Reply:
        """The reply with arrays that later messages do not change."""
        if isinstance(reply, Fresh):
            ledger = reply.ledger.copy()
            if out is None:
                return replace(reply, values=self._lend(index, reply.values), ledger=ledger)
            out[...] = reply.values
            return replace(reply, values=out, ledger=ledger)
        if isinstance(reply, State):
            state: dict[str, Any] = {name: array.copy() for name, array in reply.state.items()}
            return replace(reply, values=reply.values.copy(), state=state)
        return reply

    def _lend(self, index: int, values: Array) -> Array:
        """The values as a read-only array that lives while any view or message uses it."""
        lent = np.frombuffer(memoryview(values), values.dtype)  # views of a plain view could outlive it
        lent.flags.writeable = False
        self._lent.setdefault(index, []).append(ref(lent))
        return lent

    def _part_with(self, index: int) -> None:
        """Continue with a copy if the values are still in use."""
        if any(lent() is not None for lent in self._lent.pop(index, ())):
            self.protocol.slices[index].part_with()


def server_here(worker: Any, key: str) -> Server | None:
    """The server that is the actor of this key on a Dask worker, None if it is not there."""
    server: Server | None = getattr(worker.state.actors.get(key), "server", None)
    return server
