"""A run without a cluster: its state and its launcher are real, processes and what is in them are played.

The test decides when a question or an operation is answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from singa_dask.cluster import GroupFailed, RankFailure, WorkerInfo
from singa_dask.cluster.deposits import Deposit
from singa_dask.cluster.workers import place
from singa_dask.comm.shared_memory import MemoryAddress
from singa_dask.errors import ClusterError
from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import JobProto
from singa_dask.net.flat import GroupLayout
from singa_dask.server import KeptServer, ShadowAddress
from singa_dask.supervision import events as ev
from singa_dask.supervision import launch
from singa_dask.supervision.launch import GroupLauncher, close
from singa_dask.supervision.members import Members, Phase, ServerGroup
from singa_dask.supervision.state import Supervision
from singa_dask.training.checkpoint import Found
from singa_dask.training.worker import WorkerPlan


def found(step: int, *deposits: Deposit) -> Found:
    """A checkpoint: on the disk, or in memory."""
    return Found(Path(f"step-{step}.h5"), step, {}, {}, (), deposits=deposits)


class Group:
    """The ranks of a worker group. plan: what they were told; told: what they have heard since."""

    def __init__(self, run: Run, where, plan):
        self.run, self.workers, self.plan = run, tuple(run.there[address] for address in where), plan
        self.addresses, self.generation = tuple(where), plan.group.generation
        self.told: list[tuple[str, Any]] = []
        self.aborted, self.replaced = "", {}

    def tell(self, name, value):
        self.told.append((name, value))
        return self.run.hears

    def leave_after_step(self):
        self.tell("regroup", True)

    def abort(self, reason):
        self.aborted = reason
        for address in self.addresses:
            if address in self.run.stuck and self.run.there[address].nanny:
                self.replaced[address] = self.run.there[address].pid

    def close(self):
        self.run.groups = [group for group in self.run.groups if group is not self]

    def replace_processes(self):
        self.replaced |= {}


@dataclass(eq=False)
class Servers:
    """A server group. parameters: where it has them from; met: the generation of the right one that it met."""

    run: Run
    number: int
    generation: int
    where: tuple[str, ...]
    plans: list[Any]
    parameters: str = "workers"
    met: int = 0
    stopped: bool = False
    dismissed: list[tuple[int, int]] = field(default_factory=list)
    replicas: list[str] = field(default_factory=list)

    @property
    def addresses(self):
        return tuple(f"{address}/{self.number}/{self.generation}" for address in self.where)

    def meet(self, right):
        assert right.number == self.number + 1 and not right.stopped and not self.stopped
        self.met = right.generation

    def take_over(self, neighbour):
        assert abs(neighbour.number - self.number) == 1 and not neighbour.stopped
        self.parameters = f"server group {neighbour.number}"

    def hand_on(self, neighbour):
        assert abs(neighbour.number - self.number) == 1 and not neighbour.stopped
        neighbour.parameters = f"server group {self.number}"

    def replicate(self, nannies):
        assert len(nannies) == len(self.where)
        self.replicas = list(nannies)

    def settle(self):
        return self.run.keeps

    def replica_lost(self, rank, replica, nanny):
        self.replicas[rank] = nanny

    def stop(self):
        self.stopped = True


class Run:
    """A run of this topology.

    there: the Dask workers that answer; stuck: those of them that do not leave. kept: the server groups whose memory
    is held. commands: all so far, in order; open: those that have no answer yet. notes, replies: what was said.
    """

    def __init__(
        self, monkeypatch, *, spare=0, nannies=True, max_restarts=3, steps=None, least=None, starts=0, **numbers
    ):
        topology = ClusterTopology(**numbers)
        self.there: dict[str, WorkerInfo] = {}
        self.stuck: set[str] = set()
        self.lost_nannies: set[str] = set()
        self.silent_nannies: set[str] = set()
        self.groups: list[Group] = []
        self.hears, self.fault, self.nannies, self.keeps = True, None, nannies, True
        self.pids = 0
        first = [self.start() for _ in range(topology.nprocesses)]
        placement = place(topology, [self.there[address] for address in first])
        for _ in range(spare):
            self.start()
        members = Members.placed(topology, placement, starts)
        self.state = Supervision(members, steps=steps, max_restarts=max_restarts, patience_s=30.0, least=least)
        self.members, self.worker_groups, self.server_groups = members, members.worker_groups, members.server_groups
        prepared = SimpleNamespace(
            topology=topology,
            job=JobProto(name="job"),
            layout=GroupLayout((), 0),
            code=None,
            data={},
            updater_state=(),
            partition=SimpleNamespace(of_server=lambda i: (i,)),
        )
        worker_plan = WorkerPlan(b"", Path("checkpoints"))
        self.launcher = GroupLauncher(None, prepared, worker_plan, topic="run", patience_s=30.0)
        monkeypatch.setattr(launch, "form_group", self._form_group)
        monkeypatch.setattr(launch, "make_servers", self._make_servers)
        monkeypatch.setattr(launch, "server_plan", lambda *args, accounts, **more: SimpleNamespace(accounts=accounts))
        self.commands: list[ev.Command] = []
        self.open: list[ev.Command] = []
        self.notes: list[str] = []
        self.replies: dict[Any, str] = {}
        self.ranks: dict[int, Group] = {}
        self.servers: dict[int, Servers] = {}
        self.clock, self.found, self.left, self.inherited = 0.0, None, {}, None
        self.kept: set[int] = set()
        self.generations: dict[Any, int] = {}

    # What happens

    def start(self, nanny: str = "") -> str:
        """One more Dask worker, which a nanny has started: a new one, or this one."""
        self.pids += 1
        address = f"w{self.pids}"
        nanny = nanny or (f"n{self.pids}" if self.nannies else "")
        self.there[address] = WorkerInfo(address, pid=self.pids, nanny=nanny, cores=8)
        return address

    def kill(self, address: str) -> None:
        del self.there[address]
        self.stuck.discard(address)

    def lose(self, number: int, address: str | None = None, raised=None) -> None:
        """A process of a worker group dies, or a rank of it raises, and that is noticed."""
        group = self.worker_groups[number]
        if raised is None:
            self.kill(address or group.where[0])
        self.handle(ev.WorkerGroupFailed(number, group.generation, "its process died", raised))

    def lose_servers(self, number: int) -> None:
        where = self.server_groups[number].where
        for address in where:
            self.there.pop(address, None)
        self.handle(ev.ServersLost(frozenset(where)))

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self.handle(ev.Progress(number, 10))
            self.handle(ev.WorkerGroupEnded(number, self.worker_groups[number].generation))

    def ask_join(self, asker="asker") -> str:
        self.handle(ev.JoinAsked(asker))
        while asker not in self.replies:
            self.answer(ev.Survey)
        return self.replies.pop(asker)

    def ask_leave(self, number: int) -> str:
        self.handle(ev.LeaveAsked("leaver", number))
        return self.replies.pop("leaver")

    # What is answered

    def handle(self, event: ev.Event | None) -> list[ev.Command]:
        commands = self.state.handle(event)
        self.commands += commands
        for command in commands:
            match command:
                case ev.Note(text):
                    self.notes.append(text)
                case ev.Reply(asker, text):
                    self.replies[asker] = text
                case ev.Dismiss(server_group, group, generation):
                    self.servers[server_group].dismissed.append((group, generation))
                case ev.Survey() | ev.FormRequest() | ev.Close() | ev.TellLead():
                    self.open.append(command)
        check(self)
        return commands

    def answer(self, kind: type | None = None, event: ev.Event | None = None) -> list[ev.Command]:
        """Answer the oldest open command of this kind: with the event, or with what comes of it."""
        command = next(command for command in self.open if kind is None or isinstance(command, kind))
        self.open.remove(command)
        return self.handle(event or self.answer_to(command))

    def answer_to(self, command: ev.Command) -> ev.Event:
        match command:
            case ev.Survey(number, checkpoint, nannies=nannies):
                busy = {address for group in self.groups for address in group.addresses}
                workers = [replace(info, group="job" if a in busy else "") for a, info in sorted(self.there.items())]
                known = self.found if checkpoint else None, self.left | self._kept() if nannies else {}
                there, silent = nannies - self.lost_nannies - self.silent_nannies, nannies & self.silent_nannies
                return ev.Surveyed(number, tuple(workers), self.clock, *known, there, self.inherited, silent)
            case ev.FormRequest():
                launched = self.launcher.form(command, dict(self.servers), dict(self.ranks))
                self.ranks |= launched.groups
                self.servers |= launched.servers
                return launched.event
            case ev.Close(worker_groups, server_groups, growing):
                grow = [self.ranks[number] for number in growing]
                groups = [self.ranks.pop(n) for n in worker_groups if n in self.ranks]
                servers = [self.servers.pop(n) for n in server_groups if n in self.servers]
                return ev.Closed(close(groups, servers, grow))
            case ev.TellLead(ended):
                return ev.LeadTold(ended, self.ranks[0].tell("others ended", ended))
        raise AssertionError(command)

    def settle(self) -> Run:
        """Answer until nothing is open."""
        for _ in range(200):
            if not self.open:
                return self
            self.answer()
        raise AssertionError(f"{self.open} without end")

    def until_formed(self, times: int) -> ev.FormRequest:
        """Answer until members have been formed so many times in all; returns the last request."""
        for _ in range(200):
            if len(self.made()) >= times and not isinstance(self.state.busy, ev.FormRequest):
                return [command for command in self.commands if isinstance(command, ev.FormRequest)][-1]
            self.answer()
        raise AssertionError(f"{self.open} without end")

    def begin(self) -> Run:
        self.handle(None)
        return self.settle()

    # What is there

    def _kept(self) -> dict[str, tuple[Any, ...]]:
        groups = [self.server_groups[number] for number in self.kept]
        return {str(g): tuple(kept_server(rank, g) for rank in range(len(g.where))) for g in groups if g.formed}

    def made(self) -> list[tuple[list[int], list[int]]]:
        """What was formed together, request by request."""
        requests = [command for command in self.commands if isinstance(command, ev.FormRequest)]
        return [([g.plan.number for g in r.worker_groups], [g.number for g in r.server_groups]) for r in requests]

    def told(self, number: int) -> list[tuple[str, Any]]:
        return [told for told in self.ranks[number].told if told[0] != "servers"]

    def _form_group(self, client, where, fn, plan, topic, *, replaced, **options):
        gone = [address for address in where if address not in self.there]
        if gone:
            raise ClusterError(f"Dask workers are gone: {', '.join(gone)}")
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        group = Group(self, where, plan)
        self.groups.append(group)
        return group

    def _make_servers(self, client, number, generation, where, plans, keeping):
        if any(address not in self.there for address in where):
            raise ClusterError(f"server group {number} could not be made")
        made = Servers(self, number, generation, tuple(where), plans)
        if keeping[0].left is not None:
            made.parameters = f"generation {keeping[0].left.generation}"
        return made


def kept_server(rank: int, group: ServerGroup) -> KeptServer:
    """What a server has left."""
    return KeptServer(rank, len(group.where), group.formed, ShadowAddress(MemoryAddress(0, 0, 0, 0), (), (), ""))


def failed(exception=None) -> GroupFailed:
    """What a group raises whose rank 0 died, or raised `exception`."""
    return GroupFailed("group", RankFailure(0, WorkerInfo("w1"), "its process died", exception))


def check(run: Run) -> None:
    """What must hold after every event."""
    state, members = run.state, run.members
    requests = [c for c in run.commands if isinstance(c, ev.FormRequest)]
    operations = [c for c in run.open if not isinstance(c, ev.Survey)]
    assert len(operations) <= 1 and len(run.open) - len(operations) <= 1, "one operation and one survey at a time"
    if state.over:
        return
    assert operations == ([state.busy] if state.busy else [])
    request = state.busy if isinstance(state.busy, ev.FormRequest) else ev.FormRequest(0, (), (), False)
    forming = [m for m in members.all() if m.phase is Phase.FORMING]
    assert {g.plan.number for g in request.worker_groups} == {m.number for m in forming if m in members.worker_groups}
    assert {g.number for g in request.server_groups} == {m.number for m in forming if m in members.server_groups}
    workers = [set(group.where) for group in members.worker_groups if group.phase is not Phase.ENDED]
    servers = [
        {address for rank, address in enumerate(group.where) if rank not in group.guests}
        for group in members.server_groups
        if group.phase is not Phase.ENDED
    ]
    for places in (workers, servers, [*workers, *servers] if members.topology.server_worker_separate else []):
        assert len(set().union(*places)) == sum(map(len, places)), "a Dask worker is in two places"
    for member in members.all():
        if member in members.worker_groups:
            named = [g.plan for r in requests for g in r.worker_groups]
        else:
            named = [g for r in requests for g in r.server_groups]
        mine = [g.generation for g in named if g.number == member.number]
        assert mine == list(range(members.before + 1, member.generation + 1)), (
            "generations grow by one with each request"
        )
        assert member.restarts <= state.max_restarts
    if not state._losses:
        for group in members.running() if run.server_groups else ():
            servers = members.server_groups[group.server_group]
            assert servers.phase is Phase.RUNNING or run.open, "its servers are there, or come back"
    if request.worker_groups or request.server_groups:
        assert (
            not {(i.address, i.pid) for i in run.there.values()}
            & state.processes.replaced
            & {(a, run.there[a].pid) for m in forming for a in m.where if a in run.there}
        ), "a process that is being replaced was taken"
    for number, group in run.servers.items():
        right = run.servers.get(number + 1)
        alive = all(members.server_groups[n].phase is Phase.RUNNING for n in (number, number + 1) if right)
        assert not (right and alive) or group.met == right.generation, "neighbours have not met"
    for group in members.running():
        ranks = run.ranks[group.number]
        assert ranks.addresses == group.where and ranks.generation == group.generation
