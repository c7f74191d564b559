"""Simulated Dask: hosts, processes and their nannies, and what the scheduler knows of them."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import psutil  # type: ignore[import-untyped]

from simulation.clock import Fiber, Loop, SimulatedFuture
from simulation.memory import SimulatedMemory
from simulation.network import QUICK_S, Network
from singa_dask.cluster import held, leases
from singa_dask.cluster.bootstrap import MpiReport
from singa_dask.cluster.workers import WorkerInfo
from singa_dask.server.ledger import Ledger

if TYPE_CHECKING:
    from simulation.client import Client
    from simulation.ranks import Rank

DRIVERS = "h0"  # the host of the scheduler and of the drivers
TTL_S = 10.0  # distributed.scheduler.worker-ttl, see docs/cluster.md
NANNY_S = 0.5  # that a nanny takes to start a process


@dataclass(eq=False)
class Process:
    """A process: a Dask worker, its nanny, or a driver.

    stopped: how many faults hold it; held: what it does once it goes on. nanny: address of what starts it anew, "" for
    none. silent: since when the scheduler cannot reach it; registered: whether the scheduler knows it. rank: that it
    has. memories: that others may open, by descriptor.
    """

    cluster: Cluster
    address: str
    pid: int
    host: str
    nanny: str = ""
    alive: bool = True
    stopped: int = 0
    held: list[Callable[[], None]] = field(default_factory=list)
    silent: float = math.inf
    registered: bool = True
    mpi: MpiReport = field(default_factory=MpiReport)
    rank: Rank | None = None
    fibers: list[Fiber] = field(default_factory=list)
    memories: WeakValueDictionary[int, SimulatedMemory] = field(default_factory=WeakValueDictionary)
    memory_manager: Any = None
    state: Any = field(default_factory=lambda: SimpleNamespace(actors={}))
    handlers: dict[str, Callable[..., Any]] = field(default_factory=dict)

    @property
    def loop(self) -> Any:
        return SimpleNamespace(asyncio_loop=self.cluster.loop)

    def start(self, function: Callable[[], Any]) -> Fiber:
        """Run blocking code in this process."""
        fiber = Fiber(self.cluster.loop, function)
        fiber.process = self
        self.fibers = [other for other in self.fibers if other in self.cluster.loop.fibers]
        self.fibers.append(fiber)
        return fiber

    def rpc(self, address: str) -> _Rpc:
        return _Rpc(self, address)

    def log_event(self, topic: str, event: Any) -> None:
        """Tell the client that listens, through the scheduler."""
        self.cluster.told(self, topic, event)

    def drop(self, key: str) -> None:
        """Dask releases an actor."""
        if key in self.state.actors:
            self.cluster.dropped(self, key)
            del self.state.actors[key]


@dataclass
class _Rpc:
    """Calls from one Dask worker to another or to a nanny, as distributed.core.PooledRPCCall."""

    source: Process
    address: str

    async def actor_execute(
        self, actor: str, function: str, args: list[Any], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        cluster, message = self.source.cluster, copied(args[0].data)
        target = cluster.processes.get(self.address)

        async def handle() -> Any:
            assert target is not None
            return await getattr(target.state.actors[actor], function)(copied(message))  # KeyError where it is gone

        reply = await cluster.network.call(self.source, target, handle, repeats=True)
        return {"status": "OK", "result": copied(reply)}

    async def run(self, function: bytes, args: bytes) -> dict[str, Any]:
        cluster = self.source.cluster
        target = cluster.processes.get(self.address)

        async def handle() -> Any:
            assert target is not None
            return cluster.run(target, pickle.loads(function), pickle.loads(args))

        return {"status": "OK", "result": await cluster.network.call(self.source, target, handle)}

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        """A message that the process has a handler for."""
        cluster = self.source.cluster
        target = cluster.processes.get(self.address)

        async def call(**message: Any) -> Any:
            given = {name: pickle.loads(pickle.dumps(part.data)) for name, part in message.items()}

            async def handle() -> Any:
                assert target is not None
                cluster.here = target
                handler = target.handlers.get(operation)
                return None if handler is None else handler(**given)

            return await cluster.network.call(self.source, target, handle, repeats=True)

        return call


@cache
def _takes_worker(function: Callable[..., Any]) -> bool:
    return "dask_worker" in signature(function).parameters


def copied(message: Any) -> Any:
    """The message with copies of its arrays and its ledger, as the network makes them."""
    parts = {name: value.copy() for name, value in vars(message).items() if isinstance(value, np.ndarray | Ledger)}
    if not parts:
        return message
    own = copy(message)
    vars(own).update(parts)
    return own


class Cluster:
    """All processes. dropped: is told of every actor that goes, and of its process, before it does; told: of every
    event for a client."""

    def __init__(self, loop: Loop, network: Network) -> None:
        self.loop, self.network = loop, network
        self.processes: dict[str, Process] = {}
        self.by_pid: dict[int, Process] = {}
        self.dropped: Callable[[Process, str], None] = lambda process, key: None
        self.told: Callable[[Process, str, Any], None] = lambda process, topic, event: None
        self._here: Process
        self._numbers = self._pids = 0
        SimulatedMemory.cluster = self

    @property
    def here(self) -> Process:
        """The process whose code runs now."""
        process: Process | None = self.loop.fiber and self.loop.fiber.process
        return process or self._here

    @here.setter
    def here(self, process: Process) -> None:
        self._here = process

    def next_number(self) -> int:
        """A number that nothing has had."""
        self._numbers += 1
        return self._numbers

    def add(self, host: str, nanny: str = "", kind: str = "w") -> Process:
        """Start a process."""
        self._pids += 1
        process = Process(self, f"tcp://{host}:{self._pids}/{kind}", self._pids, host, nanny)
        self.processes[process.address] = self.by_pid[self._pids] = process
        self.look()
        return process

    def add_worker(self, host: str, *, nanny: bool) -> Process:
        """Start a Dask worker, by a nanny or alone."""
        return self.add(host, self.add(host, kind="n").address if nanny else "")

    def run(self, process: Process, function: Callable[..., Any], args: tuple) -> Any:
        """Call a function in a process, as Dask's `run`."""
        self.here = process
        return function(*args, **({"dask_worker": process} if _takes_worker(function) else {}))

    def workers(self) -> list[Process]:
        """The Dask workers that live."""
        return [p for p in self.processes.values() if p.alive and p.address.endswith("/w")]

    # What happens to processes

    def kill(self, process: Process, *, for_good: bool = False) -> None:
        """The process dies; its nanny, if it has one, starts another. for_good: the nanny dies too."""
        if not process.alive:
            return
        for key in list(process.state.actors):
            process.drop(key)
        process.alive, process.held = False, []
        leases.end(process.address)
        for fiber in process.fibers:
            fiber.kill()
        if process.rank is not None:
            process.rank.died()
        if process.nanny and for_good:
            self.processes[process.nanny].alive = False
            held._held.pop(process.nanny, None)
        elif process.nanny:
            self.loop.call_later(NANNY_S, self._start_again, process)

    def _start_again(self, process: Process) -> None:
        if self.processes[process.nanny].alive:
            self.add(process.host, process.nanny)

    def stop(self, process: Process) -> None:
        """SIGSTOP."""
        process.stopped += 1
        self.look()

    def go_on(self, process: Process) -> None:
        """SIGCONT."""
        process.stopped -= 1
        if process.alive and not process.stopped:
            held, process.held = process.held, []
            for action in held:
                action()
        self.look()

    # What the scheduler knows

    def look(self) -> None:
        """Have the scheduler notice who is silent: after TTL_S it forgets them."""
        for process in self.workers():
            cut = self.network.has("partition", frozenset((process.host, DRIVERS))) and process.host != DRIVERS
            if not (process.stopped or cut):
                if not process.registered:
                    # Dask workers that the scheduler has forgotten close themselves.
                    self.loop.call_later(NANNY_S, self.kill, process)
                process.silent = math.inf
            elif process.silent == math.inf:
                process.silent = self.loop.now
                self.loop.call_later(TTL_S + 0.1, self._forget, process)

    def _forget(self, process: Process) -> None:
        if process.alive and process.registered and self.loop.now - process.silent > TTL_S:
            process.registered = False
            if process.rank is not None:
                process.rank.forgotten()

    def alive(self, client: Any, addresses: Iterable[str] | None = None, timeout_s: float = 10.0) -> set[str]:
        """As cluster.remote."""
        there = {process.address for process in self.workers() if process.registered}
        return there if addresses is None else there & set(addresses)

    def last_seen(self, client: Any, timeout_s: float = 10.0) -> dict[str, float]:
        """As cluster.remote."""
        now = self.loop.now
        return {p.address: min(now, p.silent) for p in self.workers() if p.registered}

    def run_each(
        self, client: Client, function: Callable[..., Any], args: Mapping[str, tuple], timeout_s: float, **_: Any
    ) -> dict[str, Any]:
        """As cluster.remote."""
        known = (self.processes.get(address) for address in args)
        registered = {process.address: process for process in known if process is not None and process.registered}
        return self._ask(client, registered, function, args, timeout_s)

    def ask_nannies(
        self, client: Client, function: Callable[..., Any], args: Mapping[str, tuple], timeout_s: float
    ) -> dict[str, Any]:
        """As cluster.remote."""
        return self._ask(client, self.processes, function, args, timeout_s)

    def _ask(
        self,
        client: Client,
        processes: Mapping[str, Process],
        function: Callable[..., Any],
        args: Mapping[str, tuple],
        timeout_s: float,
    ) -> dict[str, Any]:
        everybody, answers = SimulatedFuture(), dict[str, Any]()

        def ask(address: str, process: Process | None) -> None:
            async def handle() -> Any:
                assert process is not None
                return self.run(process, function, args[address])

            def answered(future: Any) -> None:
                error = future.exception()
                if error is not None and not isinstance(error, OSError):
                    self.loop.call_exception_handler({"message": f"a callback: {function}", "exception": error})
                answers[address] = future.result() if error is None else error
                if len(answers) == len(args):
                    everybody.settle()

            self.network.call(client.process, process, handle).add_done_callback(answered)

        for address in sorted(args):
            ask(address, processes.get(address))
        if args:
            assert self.loop.fiber is not None
            self.loop.fiber.wait(timeout_s, everybody)
        return {address: answers.get(address, TimeoutError("no answer")) for address in args}

    def replace_stopped(self, client: Client, nannies: Iterable[str]) -> None:
        """As cluster.remote."""
        stopped = {p.address: p.pid for p in self.workers() if p.stopped and p.nanny in set(nannies)}
        if stopped:
            self.kill_processes(client, stopped)

    def kill_processes(self, client: Client, pids: Mapping[str, int]) -> None:
        """As cluster.remote: nannies kill. One that is cut off does it once it hears of it."""
        for address in sorted(pids):
            process = self.processes.get(address)
            if process is not None and process.alive and process.nanny:
                nanny = self.processes[process.nanny]
                self.network.send(client.process, nanny, lambda process=process: self.kill(process))
        assert self.loop.fiber is not None
        self.loop.fiber.wait(QUICK_S)


class Psutil:
    """The module `psutil`, of simulated processes."""

    Error, STATUS_STOPPED = psutil.Error, psutil.STATUS_STOPPED

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def pid_exists(self, pid: int) -> bool:
        return self._cluster.by_pid[pid].alive

    def Process(self, pid: int) -> Any:
        if not self.pid_exists(pid):
            raise psutil.NoSuchProcess(pid)
        stopped = self._cluster.by_pid[pid].stopped
        return SimpleNamespace(status=lambda: psutil.STATUS_STOPPED if stopped else psutil.STATUS_RUNNING)


def describe(dask_worker: Any = None) -> WorkerInfo:
    """As cluster.workers."""
    server = next(iter(leases.servers(dask_worker.state.actors)), "")
    return WorkerInfo(
        dask_worker.address,
        dask_worker.host,
        dask_worker.host,
        dask_worker.pid,
        8,
        dask_worker.nanny,
        dask_worker.mpi,
        group=leases.holder(dask_worker.address) or server,
        run=leases.run_of(dask_worker.address) or server.partition("@")[2],
    )
