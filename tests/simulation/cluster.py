"""Simulated Dask: hosts, processes and their nannies, and what the scheduler knows of them."""

from __future__ import annotations

import asyncio
import math
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import psutil  # type: ignore[import-untyped]

from simulation.clock import Fiber, Loop, SimulatedFuture
from simulation.memory import SimulatedMemory
from simulation.network import QUICK_S, Network
from singa_dask.cluster import leases, nanny_store
from singa_dask.cluster.bootstrap import MpiReport
from singa_dask.cluster.workers import WorkerInfo

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

    def __post_init__(self) -> None:
        self.loop = SimpleNamespace(asyncio_loop=self.cluster.loop)
        self.works = self.address.endswith("/w")

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

    def actor_execute(self, actor: str, function: str, args: list[Any], kwargs: Any) -> asyncio.Future[Any]:
        message = copied(args[0].data)
        execute = lambda target: getattr(target.state.actors[actor], function)(message)  # noqa: E731
        return self._call(execute, lambda reply: {"status": "OK", "result": copied(reply)}, repeats=True)

    def run(self, function: bytes, args: bytes) -> asyncio.Future[Any]:
        run = lambda target: target.cluster.run(target, pickle.loads(function), pickle.loads(args))  # noqa: E731
        return self._call(run, lambda result: {"status": "OK", "result": result})

    def __getattr__(self, operation: str) -> Callable[..., asyncio.Future[Any]]:
        """A message that the process has a handler for."""

        def call(**message: Any) -> asyncio.Future[Any]:
            def handle(target: Process) -> Any:
                target.cluster.here = target
                handler = target.handlers.get(operation, lambda **_: None)
                return handler(**{name: part.data for name, part in message.items()})

            return self._call(handle, repeats=True)

        return call

    def _call(
        self,
        handle: Callable[[Process], Any],
        read: Callable[[Any], Any] = lambda reply: reply,
        *,
        repeats: bool = False,
    ) -> asyncio.Future[Any]:
        cluster = self.source.cluster
        target: Any = cluster.processes.get(self.address)
        return cluster.network.call(self.source, target, lambda: handle(target), read, repeats=repeats)


@cache
def _takes_worker(function: Callable[..., Any]) -> bool:
    return "dask_worker" in signature(function).parameters


def changed(message: Any, **parts: Any) -> Any:
    """As dataclasses.replace, which takes longer."""
    own = object.__new__(type(message))
    vars(own).update(vars(message) | parts)
    return own


def copied(message: Any) -> Any:
    """The message with copies of its arrays, as the network makes them."""
    parts = {name: value.copy() for name, value in vars(message).items() if isinstance(value, np.ndarray)}
    return changed(message, **parts) if parts else message


class Cluster:
    """All processes. dropped: is told of every actor that goes, and of its process, before it does; told: of every
    event for a client."""

    def __init__(
        self,
        loop: Loop,
        network: Network,
        dropped: Callable[[Process, str], None],
        told: Callable[[Process, str, Any], None],
    ) -> None:
        self.loop, self.network, self.dropped, self.told = loop, network, dropped, told
        self.processes: dict[str, Process] = {}
        self.by_pid: dict[int, Process] = {}
        self._pids = 0
        self.next_number = count(1).__next__  # a number that nothing has had
        SimulatedMemory.cluster = self

    @property
    def here(self) -> Process:
        """The process whose code runs now."""
        process: Process | None = self.loop.fiber and self.loop.fiber.process
        return process or self._here

    @here.setter
    def here(self, process: Process) -> None:
        self._here = process

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
        return [p for p in self.processes.values() if p.works and p.alive]

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
            nanny_store.HELD.pop(process.nanny, None)
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
        known = self.processes
        found = [known[address] for address in (known if addresses is None else addresses) if address in known]
        return {process.address for process in found if process.works and process.alive and process.registered}

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
            def answered(result: Any, error: BaseException | None) -> None:
                if error is not None and not isinstance(error, OSError):
                    self.loop.call_exception_handler({"message": f"a callback: {function}", "exception": error})
                answers[address] = result if error is None else error
                if len(answers) == len(args):
                    everybody.settle()

            self.network.ask(client.process, process, lambda: self.run(process, function, args[address]), answered)

        for address in sorted(args):
            ask(address, processes.get(address))
        if args:
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
