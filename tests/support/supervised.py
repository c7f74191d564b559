"""A run without a cluster: its state and its launcher are real, processes and what is in them are played.

A test decides when a question or an operation is answered, or has a Supervisor do it with `Run.supervision` and
`Run.launcher`. What happens in a test may be a table of steps, and what comes of it of entries of `Run.seen`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from support.played_groups import Group, Servers, left_by
from support.run_state import contradictions, in_short

from singa_dask.cluster import WorkerInfo
from singa_dask.cluster.workers import place
from singa_dask.errors import ClusterError
from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import JobProto
from singa_dask.net.flat import GroupLayout
from singa_dask.supervision import events as ev
from singa_dask.supervision import launch
from singa_dask.supervision.launch import GroupLauncher, close
from singa_dask.supervision.members import Members
from singa_dask.supervision.phases import Phase
from singa_dask.supervision.state import Supervision
from singa_dask.supervision.words import sentence
from singa_dask.training.rank_plan import WorkerPlan

# Options of a Run, steps to `play`, and what is `seen` then.
Case: TypeAlias = tuple[dict[str, Any], list[Any], dict[str, Any]]

ALLREDUCE = {"nworkers_per_group": 2, "nservers_per_group": 2}
SANDBLASTER = {**ALLREDUCE, "server_worker_separate": True}
DOWNPOUR = {"nworker_groups": 2, "server_worker_separate": True}
HOGWILD = {"nworker_groups": 3, "nserver_groups": 3}
HYBRID = {"nworker_groups": 4, "nserver_groups": 2, "nworkers_per_group": 2}


class Run:
    """A run of this topology.

    there: the Dask workers that answer; stuck: those of them that do not leave; reborn: those that their nannies
    start anew while a group forms on them. hosts: on which Dask workers are in turns. lost_nannies, silent_nannies:
    that are gone, and that do not answer in time. kept: the server groups whose memory is held; left: other memory.
    fault: of the next group that forms; unmade: the server groups that cannot be made; formed: is called with each
    new Group; groups: those that are not closed; history: all. commands: all so far, in order; open: those that have
    no answer yet. notes: what was said; replies: the same, in short.
    """

    def __init__(
        self,
        monkeypatch,
        *,
        spare=0,
        nannies=True,
        max_restarts=None,
        steps=None,
        least=None,
        starts=0,
        hosts=1,
        **numbers,
    ):
        topology = ClusterTopology(**numbers)
        self.there: dict[str, WorkerInfo] = {}
        self.stuck, self.reborn, self.lost_nannies, self.silent_nannies = (set[str]() for _ in range(4))
        self.kept, self.unmade = set[int](), set[int]()
        self.groups: list[Group] = []
        self.history: list[Group] = []
        self.hears, self.fault, self.nannies, self.keeps = True, None, nannies, True
        self.formed = lambda group: None
        self.pids, self.hosts = 0, hosts
        first = [self.start() for _ in range(topology.nprocesses)]
        placement = place(topology, [self.there[address] for address in first])
        for _ in range(spare):
            self.start()
        members = Members.placed(topology, placement, starts)
        bound = {} if max_restarts is None else {"max_restarts": max_restarts}
        self.supervision = Supervision(members, steps=steps, patience_s=30.0, least=least, **bound)
        self.state = self.supervision.run
        self.state.processes.there(self.there.values())
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
        monkeypatch.setattr(launch, "ask_nannies", lambda *args: {})
        monkeypatch.setattr(launch, "alive", lambda client: {"w1", "w2", "w3", "w4"})
        monkeypatch.setattr(launch, "server_plan", lambda *args, accounts, **more: SimpleNamespace(accounts=accounts))
        self.commands: list[ev.Command] = []
        self.open: list[ev.Command] = []
        self.notes: list[str] = []
        self.replies: dict[Any, str] = {}
        self.ranks: dict[int, Group] = {}
        self.servers: dict[int, Servers] = {}
        self.clock, self.found, self.left, self.inherited = 0.0, None, {}, None

    # What happens

    def play(self, steps: Iterable[Any]) -> Run:
        """Have steps happen one after the other: a method, by its name or with arguments, or attributes to set."""
        for step in steps:
            match step:
                case dict():
                    vars(self).update(step)
                case str():
                    getattr(self, step)()
                case (name, *args):
                    getattr(self, name)(*args)
        return self

    def start(self, nanny: str = "") -> str:
        """One more Dask worker, which a nanny has started: a new one, or this one."""
        self.pids += 1
        address = f"w{self.pids}"
        nanny = nanny or (f"n{self.pids}" if self.nannies else "")
        node = f"host{self.pids % self.hosts}"
        self.there[address] = WorkerInfo(address, pid=self.pids, nanny=nanny, cores=8, node=node)
        return address

    def kill(self, *addresses: str, nannies: bool = False) -> None:
        """Processes die. nannies: with these, as their hosts are lost."""
        for address in addresses:
            info = self.there.pop(address, None)
            self.stuck.discard(address)
            self.lost_nannies |= {info.nanny} if info and nannies else set()

    def lose(self, number: int, address: str = "", *, raised=None, nannies: bool = False) -> None:
        """A process of a worker group dies, or a rank of it raises, and that is noticed."""
        group = self.worker_groups[number]
        if raised is None:
            self.kill(address or group.where[0], nannies=nannies)
        self.handle(ev.WorkerGroupFailed(number, group.generation, "its process died", raised))

    def lose_host(self, number: int, address: str = "") -> None:
        """The host of a worker group's process is lost, with its nanny."""
        self.lose(number, address, nannies=True)

    def kill_host(self, address: str) -> None:
        self.kill(address, nannies=True)

    def rank_raises(self, number: int, error: Exception) -> None:
        self.lose(number, raised=error)

    def lose_servers(self, *addresses: str) -> None:
        """Processes with servers die, and that is noticed."""
        self.kill(*addresses)
        self.handle(ev.ServersLost(frozenset(addresses)))

    def servers_stop(self, address: str) -> None:
        """A process with servers is stopped, and that is noticed."""
        self.handle(ev.ServersLost(frozenset({address}), frozenset({address})))

    def progress(self, number: int, *steps: int) -> None:
        for step in steps:
            self.handle(ev.Progress(number, step))

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self.progress(number, 10)
            self.handle(ev.WorkerGroupEnded(number, self.worker_groups[number].generation))

    def join(self, asker: str = "joins") -> None:
        self.handle(ev.JoinAsked(asker))

    def leave(self, number: int) -> None:
        self.handle(ev.LeaveAsked("leaves", number))

    def stop(self, by: str = "Ctrl-C", early: bool = False) -> None:
        self.handle(ev.StopAsked(by, early))

    # What is answered

    def handle(self, event: ev.Event | None) -> list[ev.Command]:
        commands = self.supervision.handle(event)
        self.commands += commands
        for command in commands:
            match command:
                case ev.Note(what):
                    self.notes.append(sentence(what))
                case ev.Reply(asker, what):
                    self.replies[asker] = in_short(what)
                case ev.Dismiss(server_group, group, generation):
                    self.servers[server_group].dismissed.append((group, generation))
                case ev.ReplaceReplica(server_group, rank, replica, nanny):
                    self.servers[server_group].replica_lost(rank, replica, nanny)
                case ev.StatusRequest() | ev.FormRequest() | ev.Close() | ev.TellLead():
                    self.open.append(command)
        check(self)
        return commands

    def answer(self, kind: type | None = None, event: ev.Event | None = None) -> list[ev.Command]:
        """Answer the oldest open command of this kind: with the event, or with what comes of it."""
        command = next(command for command in self.open if kind is None or isinstance(command, kind))
        self.open.remove(command)
        return self.handle(event or self.answer_to(command))

    def answers(self) -> tuple[WorkerInfo, ...]:
        """What Dask workers say of themselves."""
        busy = {address for group in self.groups for address in group.addresses}
        return tuple(replace(info, group="job" if a in busy else "") for a, info in sorted(self.there.items()))

    def answer_to(self, command: ev.Command) -> ev.Event:
        match command:
            case ev.StatusRequest(number, checkpoint, nannies=nannies):
                known = self.found if checkpoint else None, self._held() if nannies else {}
                there, silent = nannies - self.lost_nannies - self.silent_nannies, nannies & self.silent_nannies
                return ev.StatusReport(number, self.answers(), self.clock, *known, there, self.inherited, silent)
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
        self.go_on(200)
        assert not self.open, f"{self.open} without end"
        return self

    def go_on(self, times: int = 12) -> None:
        """Answer what is open, so often: status requests follow each other as long as a process is missing."""
        for _ in range(times if self.open else 0):
            if self.open:
                self.answer()

    def until_forming(self) -> None:
        while not isinstance(self.state.request, ev.FormRequest):
            self.answer()

    def until_formed(self, times: int) -> None:
        """Answer until members have been formed so many times in all."""
        for _ in range(200):
            if len(self.made()) >= times and not isinstance(self.state.request, ev.FormRequest):
                return
            self.answer()
        raise AssertionError(f"{self.open} without end")

    def not_formed(self, error: Exception, about: dict[str, Any] | None = None) -> None:
        """What is being formed fails. about: more of NotFormed."""
        self.until_forming()
        self.answer(ev.FormRequest, ev.NotFormed(self.state.request.number, error, **about or {}))

    def begin(self) -> Run:
        self.handle(None)
        return self.settle()

    # What is there

    def _held(self) -> dict[str, tuple[Any, ...]]:
        """What lost members have left in memory."""
        held = dict(self.left)
        for group in self.server_groups:
            if group.number in self.kept and group.formed:
                held |= left_by(group.number, group.formed, *[0] * len(group.where))
        return held

    def made(self) -> list[tuple[list[int], list[int]]]:
        """What was formed together, request by request."""
        return [([g.plan.number for g in r.worker_groups], [g.number for g in r.server_groups]) for r in self.requests]

    @property
    def requests(self) -> list[ev.FormRequest]:
        return self.all(ev.FormRequest)

    def all(self, kind: type) -> list[Any]:
        """All commands of this kind so far."""
        return [command for command in self.commands if isinstance(command, kind)]

    def told(self, number: int) -> list[tuple[str, Any]]:
        return [told for told in self.ranks[number].told if told[0] != "servers"] if number in self.ranks else []

    def seen(self) -> dict[str, Any]:
        """What has become of the run: a table expects some of it."""
        plans = {number: ranks.plan.group for number, ranks in sorted(self.ranks.items())}
        servers = [self.servers[number] for number in sorted(self.servers)]
        return {
            "workers": [" ".join(group.where) for group in self.worker_groups],
            "servers": [" ".join(group.where) for group in self.server_groups],
            "phases": [member.phase.value for member in self.members.all()],
            "made": self.made()[1:],  # after the start
            "fresh": [request.fresh for request in self.requests],
            "restarts": [(restart.groups, restart.servers, restart.whole) for restart in self.state.restarts],
            "steps": dict(self.state.steps),
            "lost at": [restart.step for restart in self.state.restarts],
            "counted": [member.restarts for member in self.members.all()],
            "begin": {number: plan.first for number, plan in plans.items()},
            "cores": {number: plan.cores for number, plan in plans.items()},
            "resume": {number: plan.resume for number, plan in plans.items() if plan.resume},
            "left": {number: plan.left for number, plan in plans.items() if plan.left},
            "put": [number for number, plan in plans.items() if plan.puts],
            "back": [(command.groups, command.step) for command in self.all(ev.Rewind)],
            "from": [group.parameters for group in servers],
            "met": [group.met for group in servers],
            "replicas": [group.replicas for group in servers],
            "dismissed": [group.dismissed for group in servers],
            "lead heard": [ended for name, ended in self.told(0) if name == "others ended"],
            "killed": sorted({address for command in self.all(ev.Kill) for address in command.pids}),
            "flushed": [command.flush for command in self.all(ev.TellLead)],
            "stopped": [command.group for command in self.all(ev.Stop)],
            "let go": len(self.all(ev.LetEarlierGo)),
            "grown": [command.growing for command in self.all(ev.Close) if command.growing],
            "lacks": [" ".join(group.lacks) for group in self.worker_groups],
            "colocated": [sorted(group.colocated) for group in self.server_groups],
            "replies": self.replies,
            "over": in_short(self.state.error) if self.state.error else "well" if self.state.over else "",
        }

    # What the launcher calls

    def _form_group(self, client, where, fn, plan, topic, *, in_use_s, **options):
        for address in self.reborn.intersection(where):
            where = [self.start(self.there.pop(address).nanny) if a == address else a for a in where]
        gone = [address for address in where if address not in self.there]
        if gone:
            raise ClusterError(f"Dask workers are gone: {', '.join(gone)}")
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        group = Group(self, where, plan, in_use_s)
        self.formed(group)
        self.groups.append(group)
        self.history.append(group)
        return group

    def _make_servers(self, client, number, generation, where, plans, keeping):
        if number in self.unmade or any(address not in self.there for address in where):
            raise ClusterError(f"server group {number} could not be made")
        made = Servers(self, number, generation, tuple(where), plans)
        if keeping[0].left is not None:
            made.parameters = f"generation {keeping[0].left.version.generation}"
        return made


def check(run: Run) -> None:
    """What must hold after every event."""
    state, members = run.state, run.members
    operations = [c for c in run.open if not isinstance(c, ev.StatusRequest)]
    assert len(operations) <= 1 and len(run.open) - len(operations) <= 1, (
        "one operation and one status request at a time"
    )
    assert not contradictions(state)
    if state.over:
        return
    assert operations == ([state.request] if state.request else [])
    request = state.request if isinstance(state.request, ev.FormRequest) else ev.FormRequest(0, (), (), False)
    forming = [str(member) for member in members.all() if member.phase is Phase.FORMING]
    named = [f"worker group {g.plan.number}" for g in request.worker_groups]
    assert [*named, *(f"server group {g.number}" for g in request.server_groups)] == forming
    workers = [set(group.where) for group in members.worker_groups if group.phase is not Phase.ENDED]
    servers = [
        {address for rank, address in enumerate(group.where) if rank not in group.colocated}
        for group in members.server_groups
        if group.phase is not Phase.ENDED
    ]
    for places in (workers, servers, [*workers, *servers] if members.topology.server_worker_separate else []):
        assert len(set().union(*places)) == sum(map(len, places)), "a Dask worker is in two places"
    generations = [(f"worker group {g.plan.number}", g.plan.generation) for r in run.requests for g in r.worker_groups]
    generations += [(f"server group {g.number}", g.generation) for r in run.requests for g in r.server_groups]
    for member in members.all():
        mine = [generation for name, generation in generations if name == str(member)]
        assert mine == [*range(members.before + 1, member.generation + 1)], "generations grow by one a request"
        assert member.restarts <= run.supervision.losing.max_restarts
    for group in members.running():
        ranks = run.ranks[group.number]
        assert (ranks.addresses, ranks.plan.group.generation) == (group.where, group.generation)
        if run.server_groups and not run.supervision.losing.losses:
            serves = members.server_groups[group.server_group].phase is Phase.RUNNING
            assert serves or run.open, "its servers are there, or come back"
    taken = [member.where for member in members.all() if member.phase is Phase.FORMING]
    pids = {(info.address, info.pid) for info in run.there.values() if info.address in sum(taken, ())}
    assert not pids & state.processes.replaced, "a process that is being replaced was taken"
    for number, group in run.servers.items():
        right = run.servers.get(number + 1)
        alive = all(members.server_groups[n].phase is Phase.RUNNING for n in (number, number + 1) if right)
        assert not (right and alive) or group.met == right.generation, "neighbours have not met"


def becomes(monkeypatch: pytest.MonkeyPatch, case: Case) -> dict[str, Any]:
    """What is seen after the steps of a case, of what it expects."""
    options, steps, expected = case
    seen = Run(monkeypatch, **options).play(steps).seen()
    return {name: seen[name] for name in expected}
