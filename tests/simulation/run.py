"""A run in a history: its job, its checkpoints, and its driver, which is the product's Supervisor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from simulation.client import Client, Task
from simulation.cluster import Process, describe
from simulation.disk import Disk, Saved
from simulation.ranks import Meeting
from simulation.rules import CheckedSupervision, Counting, Lineage, Rules
from singa_dask.cluster import leases
from singa_dask.cluster.formation import WorkersInUse
from singa_dask.cluster.rank import RankTask
from singa_dask.cluster.workers import place
from singa_dask.errors import ClusterError
from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import JobProto
from singa_dask.memory import owner as owners
from singa_dask.net.flat import ALIGNMENT, Entry
from singa_dask.server import Partition, ServerActor, partition
from singa_dask.server.ledger import Ledger
from singa_dask.supervision import events as ev
from singa_dask.supervision.launch import GroupLauncher
from singa_dask.supervision.members import Members
from singa_dask.supervision.servers import REPLICA_LOST
from singa_dask.supervision.supervisor import Supervisor
from singa_dask.supervision.words import NoReplacement
from singa_dask.training.forms import OUTDATED
from singa_dask.training.rank_plan import WorkerPlan

if TYPE_CHECKING:
    from simulation.history import History

STEPS = 10
PATIENCE_S = 30.0
QUEUE_S = 60.0  # that a second run waits for free workers
LEAVING_S = 10.0  # that a resumed run waits for its former workers


@dataclass(eq=False)
class Run:
    """A run and, one after the other, its drivers. outcome: "" while it goes on."""

    history: History
    name: str
    topology: ClusterTopology
    max_restarts: int = 3
    checkpoint_freq: int = 4
    display_freq: int = 2
    slow: dict[int, float] = field(default_factory=dict)
    steps: int = STEPS
    patience_s: float = PATIENCE_S
    outcome: str = ""
    driver: Process | None = None
    supervisor: Supervisor | None = None
    disk: Disk = field(default_factory=Disk)
    deposited: list[Saved] = field(default_factory=list)  # that nannies were given
    starts: int = -1
    outdated: list[dict[str, Any]] = field(default_factory=list)  # in the record of the run

    def __post_init__(self) -> None:
        topology = self.topology
        blocks = max(topology.nworkers_per_group, topology.nservers_per_group)
        self.newcomers = sum(fault.kind == "join" for fault in self.history.scenario.faults)
        self.width = -(-(topology.nworker_groups + self.newcomers) * self.steps // ALIGNMENT) * ALIGNMENT
        self.size = blocks * self.width
        job = JobProto(name=self.name, train_steps=self.steps, cluster=topology.to_proto())
        layout = SimpleNamespace(entries=(Entry("w", (self.size,), 0, self.size),))
        self.prepared = SimpleNamespace(
            topology=topology,
            job=job,
            layout=layout,
            code=None,
            data={},
            contents={},
            updater_state=(),
            partition=self.cut(topology),
        )
        self.rules = Rules(self)
        self.lineages = [self.rules.lineage]
        self.meetings: dict[str, Meeting] = {}

    def cut(self, topology: ClusterTopology) -> Partition:
        """The partition of the parameters for groups of this topology."""
        nworkers, nservers = topology.nworkers_per_group, topology.nservers_per_group
        return partition(self.size, nworkers, nservers, beside=not topology.server_worker_separate)

    def tell(self, what: str) -> None:
        """Add a line to the trace of the history."""
        self.history.tell(f"{self.name}: {what}")

    # The driver

    def drive(self, *, resume: bool = False) -> None:
        """Start a driver."""
        cluster, self.starts = self.history.cluster, self.starts + 1
        self.driver = driver = cluster.add("h0", kind="driver")
        self.client = Client(driver, self._start_rank, self._make_server)
        driver.start(lambda: self._drive(driver, resume))

    def lose_driver(self) -> None:
        """The driver dies, and Dask misses its client."""
        self.history.cluster.kill(self.driver)
        self.supervisor = None
        self.history.loop.call_later(1.0, self.client.gone)

    def post(self, event: ev.Event) -> None:
        """Tell the driver, if there is one."""
        if self.supervisor is not None:
            self.supervisor.post(event)

    def progress(self, group: int, step: int) -> None:
        """An event of Dask has reached the driver: supervision/run.py."""
        self.heard, self.known[group] = True, step
        self.post(ev.Progress(group, step))

    def hear(self, topic: str, event: dict[str, Any]) -> None:
        """An event of a server has reached the driver: supervision/run.py."""
        if event["kind"] == REPLICA_LOST and self.supervisor is not None and topic == self.supervisor.launcher.topic:
            self.post(ev.ReplicaLost(*event["lost"]))

    def _drive(self, driver: Process, resume: bool) -> None:
        try:
            self.heard = False
            while True:
                try:
                    self.outcome = self._supervised(self._free(), resume)
                    return
                except WorkersInUse:  # another run was faster: supervision/run.py
                    if self.heard:
                        raise
        except ClusterError as error:
            self.outcome = f"failed: {str(error).splitlines()[0]}"
            self.rules.failed(error)
        finally:
            if self.outcome:
                self.tell(self.outcome)
                self.supervisor = None
                self.history.ended()

    def _supervised(self, free: list[Any], resume: bool) -> str:
        found = self.disk.newest() if resume else None
        self.known = {0: found.step} if found else {}
        members = Members.placed(self.topology, place(self.topology, free), self.starts)
        members.recall(self.outdated)
        supervision = CheckedSupervision(
            members,
            steps=self.known,
            max_restarts=self.max_restarts,
            patience_s=self.patience_s,
            least=self.topology.min_workers,
        )
        supervision.run.processes.there(free)
        supervision.rules, self.rules.state = self.rules, supervision.run
        topic = leases.run_key(self.name, f"/{self.name}")
        plan = WorkerPlan(self.prepared.job.SerializeToString(), Path(self.name))
        launcher = GroupLauncher(
            self.client, self.prepared, plan, topic=topic, patience_s=self.patience_s, resumes=resume
        )
        self.supervisor = Supervisor(
            supervision,
            launcher,
            note=lambda text: None,
            newest=self.disk.newest,
            rewound=lambda groups, step: self.known.update(dict.fromkeys(groups, step or 0)),
            restarted=lambda restart: None,
            outdated=lambda lost: self.outdated.append({"event": OUTDATED, **asdict(lost)}),
            giving_up=lambda: None,
        )
        self.supervisor.run()
        return "interrupted" if supervision.run.stopped else "completed"

    def _free(self) -> list[Any]:
        """The free Dask workers, once there are enough: supervision/queue.py."""
        began, own = self.history.clock.monotonic(), (self.name, f"/{self.name}")
        while True:
            answers = self.history.cluster.run_each(
                self.client, describe, dict.fromkeys(sorted(self.history.cluster.alive(self.client)), ()), 2.0
            )
            workers = [info for info in answers.values() if not isinstance(info, Exception)]
            free = [info for info in workers if not info.group]
            waited_s = self.history.clock.monotonic() - began
            leaving = any(leases.parts_of_run(info.run) == own for info in workers) and waited_s < LEAVING_S
            if len(free) >= self.topology.nprocesses and not leaving:
                return free
            if waited_s > QUEUE_S:
                raise NoReplacement("there are too few free Dask workers")
            self.history.clock.sleep(0.5)

    # What its tasks do

    def saved(self, source: Sequence[owners.Saved]) -> Saved:
        """The checkpoint on the disk or in memory, or the start."""
        if not source:
            return Saved("", 0, np.zeros(self.size, np.float32), Ledger())
        of = self.deposited if source[0].regions else self.disk.saved
        return next(saved for saved in of if saved.path == source[0].note.job)

    def new_lineage(self, source: Any) -> None:
        """All begin at a checkpoint, or at the start."""
        saved = self.saved(source)
        self.rules.lineage = Lineage(self.rules, saved.step, saved.values, saved.ledger)
        self.lineages.append(self.rules.lineage)

    def _start_rank(self, process: Process, future: Task, args: tuple) -> None:
        plan, _, (worker_plan, topic) = args
        task = RankTask(plan)
        if not leases.take_up(process.address, plan.group, task):
            error = ClusterError("this process is not the one that was chosen")
            return future.settle("error", error=error)
        self.history.occupied(process, topic)
        self.rules.demand(process.rank is None, f"two ranks are in the process {process.address}")
        meeting = self.meetings.setdefault(plan.group, Meeting(self, worker_plan, topic, plan.size))
        meeting.join(process, task, future)

    def _make_server(self, process: Process, key: str, kind: type[ServerActor], args: tuple) -> None:
        lineage = self.rules.lineage
        self.history.making = process, lambda: Counting(lineage, key)
        process.state.actors[key] = None
        try:
            server = kind(*args)
        except ClusterError:
            process.drop(key)
            raise
        if key not in process.state.actors:  # Dask has released it meanwhile
            server.server.retire()
            return
        process.state.actors[key] = server
        self.history.occupied(process, key.partition("@")[2])
        lineage.came(key, server.server, returns=args[1].left is not None)
