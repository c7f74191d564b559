"""One history: a cluster, a run on it, and what happens to both. The same scenario has the same history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import distributed

from simulation.clock import SIMULATED_ASYNCIO, Clock, Loop, Mailbox, Pool, SimulatedFuture, Stuck, at_once
from simulation.cluster import DRIVERS, Cluster, Process, Psutil, changed, describe
from simulation.faults import HOSTS, PAIRS, Fault, Scenario
from simulation.memory import SimulatedMemory
from simulation.network import Network
from simulation.run import Run
from singa_dask.cluster import exits, formation, group, leases, nanny_store, rank, remote, workers
from singa_dask.job import ClusterTopology
from singa_dask.memory import region
from singa_dask.ops import Ops
from singa_dask.server import actor, link, server, slice_protocol, stub
from singa_dask.supervision import events as ev
from singa_dask.supervision import launch, servers, supervisor
from singa_dask.training import group_checkpoints, shadows

LIMIT_S = 1500.0  # every run ends by then, whatever happens to it
RESUMED_S = 3.0  # after its driver was lost
BOOT_S = 1.0  # of a host


@dataclass(frozen=True)
class Outcome:
    """broken: the rule that was, "" for none; runs: how each run ended; ended_s: when; trace: what happened."""

    scenario: Scenario
    broken: str
    runs: tuple[str, ...]
    ended_s: float
    trace: tuple[str, ...]


class History:
    """The world of one scenario. traced: whether somebody reads what happens."""

    def __init__(self, scenario: Scenario, *, traced: bool = True) -> None:
        self.scenario, self.traced = scenario, traced
        self.loop = SimulatedFuture.loop = Loop(self._failed)
        self.clock = Clock(self.loop)
        self.network = Network(self.loop, scenario.seed)
        self.cluster = Cluster(self.loop, self.network, self._dropped, self._told)
        self.broken = ""
        self.trace: list[str] = []
        self.runs: list[Run] = []
        leases._leases.clear()
        nanny_store.HELD.clear()

    def play(self) -> Outcome:
        """Let it happen."""
        topology = ClusterTopology(**self.scenario.topology)
        for i in range(topology.nprocesses + self.scenario.spare):
            self.cluster.add_worker(HOSTS[i % self.scenario.hosts], nanny=self.scenario.nannies)
        with self._simulated():
            try:
                self._begin(topology)
                for fault in self.scenario.faults:
                    self.loop.call_at(fault.at, self._happen, fault)
                self.loop.call_at(LIMIT_S, self.breaks, f"the run has not ended after {LIMIT_S:g} s")
                self.loop.run_forever()
            except Stuck:
                self.breaks("nothing happens any more, and the run has not ended")
            finally:
                ended_s = self.loop.now
                self._exchanges_go_on()
                self.loop.end()
        outcomes = tuple(run.outcome for run in self.runs)
        return Outcome(self.scenario, self.broken, outcomes, ended_s, tuple(self.trace))

    def tell(self, what: str) -> None:
        """Add a line to the trace."""
        if self.traced:
            self.trace.append(f"{self.loop.now:9.3f} s  {what}")

    def breaks(self, what: str) -> None:
        """A rule is broken: the history ends here. The first one counts."""
        if not self.broken:
            self.broken = f"{what} ({self.loop.now:.3f} s)"
            self.tell(f"broken: {what}")
        self.loop.stop()

    def ended(self) -> None:
        """A run has ended."""
        if all(run.outcome for run in self.runs):
            self.loop.stop()

    def occupied(self, process: Process, topic: str) -> None:
        """A rank or a server of this run comes to a process."""
        others = [key for key in leases.servers(process.state.actors) if not key.endswith(f"@{topic}")]
        if process.rank is not None and process.rank.meeting.topic != topic:
            others.append("a rank")
        if others:
            self.breaks(f"two runs are in the process {process.address}, which has {', '.join(others)}")

    def _begin(self, topology: ClusterTopology) -> Run:
        run = Run(self, f"run{len(self.runs)}", topology, self.scenario.max_restarts, slow=dict(self.scenario.slow))
        self.runs.append(run)
        run.drive()
        return run

    def _exchanges_go_on(self) -> None:
        """No server may have stopped exchanging with its neighbour."""
        for process in self.cluster.workers():
            for key, server_ in process.state.actors.items():
                task = None if server_ is None else server_._exchanging
                if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
                    self.breaks(f"{key} has stopped exchanging: {task.exception()!r}")

    def _failed(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if context["message"] == "a simulated thread failed" or "callback" in context["message"]:
            self.breaks(f"{context['message']}: {error!r}")

    def _told(self, process: Process, topic: str, event: dict[str, Any]) -> None:
        for run in self.runs:
            if leases.parts_of_run(topic) == (run.name, f"/{run.name}") and run.driver is not None:
                self.network.send(process, run.driver, partial(run.hear, topic, event), stream=True)

    def _dropped(self, process: Process, key: str) -> None:
        actor_ = process.state.actors[key]
        for run in self.runs:
            for lineage in run.lineages:
                lineage.gone(key)
        if actor_ is not None:  # it is not made yet
            actor_.closed = True

    # Faults

    def _happen(self, fault: Fault) -> None:
        run, kind = self.runs[0], fault.kind
        processes = self.cluster.workers()
        self.tell(f"{kind} {fault.who}")
        end: Callable[[], None] = lambda: None  # noqa: E731
        if kind in ("kill", "kill for good", "stop") and processes:
            process = processes[fault.who % len(processes)]
            if kind == "stop":
                self.cluster.stop(process)
                self.network.begin("stop process", process.address)
                end = partial(self._over, partial(self.cluster.go_on, process), "stop process", process.address)
            else:
                self.cluster.kill(process, for_good=kind == "kill for good")
        elif kind in ("reboot", "lose host"):
            host = HOSTS[1 + fault.who % 2]
            for process in processes:
                if process.host == host:
                    self.cluster.kill(process, for_good=True)
                    start = partial(self.cluster.add_worker, host, nanny=bool(process.nanny))
                    self.loop.call_later(BOOT_S, start if kind == "reboot" else lambda: None)
        elif kind in ("lose", "delay", "duplicate", "reorder", "partition"):
            hosts = PAIRS[fault.who % len(PAIRS)]
            self.network.begin(kind, *hosts)
            self.cluster.look()
            end = partial(self._over, self.cluster.look, kind, *hosts)
        elif kind == "disk full":
            run.disk.full += 1
            end = lambda: setattr(run.disk, "full", run.disk.full - 1)  # noqa: E731
        elif kind == "lose driver" and not run.outcome and run.driver is not None and run.driver.alive:
            run.lose_driver()
            self.loop.call_later(RESUMED_S, lambda: run.drive(resume=True))
        elif kind == "stop driver" and run.driver is not None and run.driver.alive:
            self.cluster.stop(run.driver)
            self.network.begin("stop driver", DRIVERS)
            end = partial(self._over, partial(self.cluster.go_on, run.driver), "stop driver", DRIVERS)
        elif kind == "second run" and len(self.runs) == 1:
            self._begin(ClusterTopology(nworker_groups=2, server_worker_separate=True))
        elif kind == "start process":
            self.cluster.add_worker(HOSTS[fault.who % len(HOSTS)], nanny=True)
        elif kind == "join":
            run.post(ev.JoinAsked(lambda text: None))
        elif kind == "leave":
            run.post(ev.LeaveAsked(lambda text: None, fault.who % run.topology.nworker_groups))
        elif kind == "stop run":
            run.post(ev.StopAsked("Ctrl-C"))
        self.loop.call_later(fault.lasts, end)

    def _over(self, go_on: Callable[[], None], kind: str, *hosts: str) -> None:
        self.network.end(kind, *hosts)
        go_on()

    # The product's surroundings

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        """Inside, the product's modules have simulated time, threads and Dask."""
        calls = {
            "alive": self.cluster.alive,
            "last_seen": self.cluster.last_seen,
            "run_each": self.cluster.run_each,
            "kill_processes": self.cluster.kill_processes,
            "describe": describe,
            "time": self.clock,
        }
        names, psutil = count(), Psutil(self.cluster)
        unique = lambda: SimpleNamespace(hex=f"{next(names):08x}")  # noqa: E731
        changes: list[tuple[Any, dict[str, Any]]] = [
            (distributed, {"get_worker": lambda: self.making[0]}),
            (link, {"time": self.clock, "asyncio": SIMULATED_ASYNCIO, "Future": SimulatedFuture}),
            (stub, {"time": self.clock, "_LOOK_S": 0.5, "replace": changed}),
            (slice_protocol, {"replace": changed}),
            (
                server,
                {
                    "Future": SimulatedFuture,
                    "replace": changed,
                    "make_updater": lambda proto, ops: self.making[1](),
                    "get_ops": lambda name: Ops(),
                },
            ),
            (actor, {"ThreadPoolExecutor": at_once}),
            (leases, {"time": self.clock, "uuid": SimpleNamespace(uuid4=unique)}),
            (rank, {"time": self.clock, "describe": describe}),
            (launch, {"alive": self.cluster.alive, "ask_nannies": self.cluster.ask_nannies, "time": self.clock}),
            (
                exits,
                {
                    "ask_nannies": self.cluster.ask_nannies,
                    "_code_of": lambda pid: None,
                    "_ended_by_dask": lambda client, pid, address: "",
                },
            ),
            (remote, {"ask_nannies": self.cluster.ask_nannies, "psutil": psutil, "time": self.clock}),
            (
                nanny_store,
                {
                    "ask_nannies": self.cluster.ask_nannies,
                    "psutil": psutil,
                    "asyncio": SIMULATED_ASYNCIO,
                    "Memory": SimulatedMemory,
                    "os": SimpleNamespace(getpid=lambda: self.cluster.here.pid),
                    "this_node": lambda: self.cluster.here.host,
                    "time": self.clock,
                    "check_listening": _nothing,
                },
            ),
            (region, {"Memory": SimulatedMemory, "_NOTE": 4096}),
            (group_checkpoints, {"time": self.clock}),
            (shadows, {"all_gather_objects": lambda comm, own: comm.places}),
            (
                workers,
                {name: calls[name] for name in ("alive", "run_each", "describe", "time")} | {"this_node": lambda: ""},
            ),
            (group, calls),
            (
                formation,
                {
                    **{name: calls[name] for name in calls if name != "last_seen"},
                    "uuid": SimpleNamespace(uuid4=unique),
                    "random": SimpleNamespace(uniform=lambda low, high: (low + high) / 2),
                    "_pmi_server": lambda workers: nullcontext(),
                    "without_a_thread": lambda client, addresses: "",
                    "without_tasks_and_data": lambda client, addresses: (set(addresses), ""),
                    "take_tasks": lambda client, addresses: None,
                },
            ),
            (
                servers,
                {
                    "alive": self.cluster.alive,
                    "time": self.clock,
                    "uuid4": unique,
                    "has_room_here": lambda nbytes, dask_limit: True,
                    "memory_limit": lambda manager: None,
                    "prepare_successor": lambda worker: None,
                    "Departure": lambda *_: SimpleNamespace(remove=_nothing),
                },
            ),
            (
                supervisor,
                {
                    "alive": self.cluster.alive,
                    "kill_processes": self.cluster.kill_processes,
                    "replace_stopped": self.cluster.replace_stopped,
                    "time": self.clock,
                    "SimpleQueue": Mailbox,
                    "ThreadPoolExecutor": self._pool,
                    "interrupts": lambda post: nullcontext(),
                    "_POLL_S": 0.2,
                },
            ),
        ]
        before = [(module, name, getattr(module, name)) for module, names_ in changes for name in names_]
        try:
            for module, names_ in changes:
                for name, value in names_.items():
                    setattr(module, name, value)
            yield
        finally:
            for place in before:
                setattr(*place)

    def _pool(self, *_: Any, **__: Any) -> Pool:
        return Pool(self.loop.fiber.process.start)


async def _nothing(*_: Any) -> None:
    """The network of the history says who listens, and no scheduler is lost."""
