"""Runs under any order of losses, joins, leaves, stops, late answers and failures.

What must hold after every event is in support.supervised.check, what must hold in the end in `teardown`.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.played_groups import failed
from support.supervised import Run

from singa_dask.errors import ClusterError
from singa_dask.supervision import events as ev
from singa_dask.supervision.phases import Phase

pytestmark = pytest.mark.timeout(300)  # seconds to pass, minutes to make a failure small

SHAPES = [
    {"nworkers_per_group": 2, "nservers_per_group": 2},
    {"nworkers_per_group": 2, "server_worker_separate": True},
    {"nworker_groups": 2, "server_worker_separate": True},
    {"nworker_groups": 3, "nserver_groups": 3},
    {"nworker_groups": 4, "nserver_groups": 2, "nworkers_per_group": 2},
    {"nworker_groups": 4, "server_worker_separate": True},
]


class Supervised(RuleBasedStateMachine):
    """Processes die and come; the test says when that is noticed, and when each question and operation is answered."""

    @initialize(
        shape=st.sampled_from(SHAPES), spare=st.integers(0, 3), nannies=st.booleans(), max_restarts=st.integers(0, 3)
    )
    def start(self, shape, spare, nannies, max_restarts):
        self.patch = pytest.MonkeyPatch()
        self.run = Run(self.patch, spare=spare, nannies=nannies, max_restarts=max_restarts, **shape)
        self.asked = self.stopped = 0
        self.late: list[ev.Event] = []
        self.run.handle(None)

    @property
    def going(self) -> bool:
        return hasattr(self, "run") and not self.run.state.over

    @property
    def running(self):
        return [group for group in self.run.worker_groups if group.phase is Phase.RUNNING]

    # What may happen

    @precondition(lambda self: self.going and self.run.open)
    @rule(data=st.data(), pick=st.integers(0, 1), late=st.booleans())
    def answer(self, data, pick, late):
        """late: the answer is on its way while other things happen."""
        command = self.run.open[pick % len(self.run.open)]
        answer = self.run.answer_to(command)
        if late and isinstance(command, ev.StatusRequest):
            self.other_events(data)
        if command in self.run.open:
            self.say(command, answer)

    @precondition(lambda self: self.going and self.run.state.request)
    @rule(how=st.sampled_from(["lost", "error", "refused", "flush"]))
    def fail(self, how):
        command = self.run.state.request
        if isinstance(command, ev.FormRequest) and how != "flush":
            error = ClusterError("in use") if how == "error" else failed()
            where = [*command.worker_groups, *command.server_groups][0].where[0]
            info = self.run.there.get(where)
            if how == "refused" and info and info.nanny:  # its rank does not react, and its nanny is asked
                self.say(command, ev.NotFormed(command.number, error, lost=True, replaced={where: info.pid}))
            else:
                if how == "error" and info:  # the reason is a process that is gone
                    self.run.kill(where)
                self.say(command, ev.NotFormed(command.number, error, lost=how != "error"))
        elif isinstance(command, ev.TellLead) and how == "flush" and command.flush:
            self.say(command, ev.LeadTold(command.ended, False, "no answer"))
        elif isinstance(command, ev.TellLead):
            self.say(command, ev.LeadTold(command.ended, False))

    @precondition(lambda self: self.going and self.run.there)
    @rule(data=st.data(), stuck=st.booleans())
    def die(self, data, stuck):
        address = data.draw(st.sampled_from(sorted(self.run.there)))
        if stuck:
            self.run.stuck.add(address)
        else:
            self.run.kill(address)

    @precondition(lambda self: self.going and self.run.server_groups)
    @rule(data=st.data(), held=st.booleans())
    def hold(self, data, held):
        """Nannies hold the memory of a server group, or do so no more."""
        number = data.draw(st.integers(0, len(self.run.server_groups) - 1))
        (self.run.kept.add if held else self.run.kept.discard)(number)

    @rule()
    def come(self):
        self.run.start()

    @precondition(lambda self: self.going)
    @rule(data=st.data())
    def notice(self, data):
        """The worker groups and servers in dead processes are found, some of them at once."""
        dead = [group for group in self.running if set(group.where) - self.run.there.keys()]
        if dead:
            group = data.draw(st.sampled_from(dead))
            self.run.handle(self.remember(ev.WorkerGroupFailed(group.number, group.generation, "its process died")))
        elif self.going:
            self.notice_servers()

    @precondition(lambda self: self.going)
    @rule()
    def notice_servers(self):
        watched = {a for group in self.run.members.serving() for a in group.where}
        if gone := watched - self.run.there.keys():
            self.run.handle(ev.ServersLost(frozenset(gone)))

    @precondition(lambda self: self.going)
    @rule(data=st.data())
    def other_events(self, data):
        """What a user does, what worker groups tell, and what comes late from an earlier generation."""
        kind = data.draw(st.sampled_from(["step", "step", "end", "join", "leave", "stop", "early", "late", "found"]))
        if kind == "step" and self.running:
            group = data.draw(st.sampled_from(self.running))
            self.run.handle(ev.Progress(group.number, self.run.state.steps.get(group.number, 0) + 1))
        elif kind == "end" and self.running:
            group = data.draw(st.sampled_from(self.running))
            self.run.handle(self.remember(ev.WorkerGroupEnded(group.number, group.generation)))
        elif kind == "join":
            self.asked += 1
            self.run.handle(ev.JoinAsked(self.asked))
        elif kind == "leave":
            self.run.handle(ev.LeaveAsked("leaver", data.draw(st.integers(0, 5))))
            assert "leaver" in self.run.replies
        elif kind == "stop" and not self.stopped and data.draw(st.integers(0, 3)) == 0:
            self.stopped = 1
            self.run.handle(ev.StopAsked())
        elif kind == "early" and self.run.worker_groups[0].phase is Phase.RUNNING and data.draw(st.booleans()):
            self.run.handle(ev.StopAsked("early stopping", early=True))
        elif kind == "late" and self.late:
            assert self.run.handle(data.draw(st.sampled_from(self.late))) == [], "it was answered before"

    def say(self, command, event):
        self.run.open.remove(command)
        self.run.handle(self.remember(event))

    def remember(self, event):
        if not isinstance(event, ev.Closed | ev.LeadTold):
            self.late.append(event)
        return event

    # What must hold in the end

    def teardown(self):
        """Once nothing dies any more, every loss is answered: what runs is complete, and the run comes to its end."""
        if not hasattr(self, "run"):
            return
        run, state = self.run, self.run.state
        try:
            run.stuck.clear()
            for _ in range(12):
                run.start()
            for _ in range(60):
                if state.over:
                    break
                self.notice_all()
                while run.open and not state.over:
                    self.say(run.open[0], run.answer_to(run.open[0]))
                if not state.over and not run.open:
                    self.settled()
                    run.end(self.running[-1].number)
            assert state.over, "it waits for ever"
            self.over()
        finally:
            self.patch.undo()

    def notice_all(self):
        for group in self.running:
            if not self.run.state.over and set(group.where) - self.run.there.keys():
                self.run.handle(ev.WorkerGroupFailed(group.number, group.generation, "its process died"))
        if not self.run.state.over:
            self.notice_servers()

    def settled(self):
        """Nothing is under way, and all losses were noticed: whoever is not over runs, where a process is."""
        run = self.run
        ended = [group for group in run.worker_groups if group.phase is Phase.ENDED]
        assert [group for group in run.worker_groups if group not in self.running] == ended
        for group in self.running:
            assert set(group.where) <= run.there.keys()
            ranks = run.ranks[group.number]
            assert "abort" not in ranks.log
            if run.server_groups:
                addresses = run.servers[group.server_group].addresses
                assert ("servers", addresses) in ranks.told, "it knows where its servers are"
        if run.worker_groups[0] not in self.running:
            pass
        elif {group.phase for group in run.worker_groups[1:]} <= {Phase.ENDED}:
            assert run.told(0)[-1] == ("others ended", True)
        else:
            assert run.told(0)[-1:] in ([], [("others ended", False)])
        for number, group in run.servers.items():
            assert not group.stopped and group.where == run.server_groups[number].where
        assert not set(range(1, self.asked + 1)) - run.replies.keys(), "whoever asked was answered"

    def over(self):
        run, state = self.run, self.run.state
        assert run.commands[-1] == ev.End(state.error)
        assert not set(range(1, self.asked + 1)) - run.replies.keys()
        if state.error is None:
            dropped = any(": drop: " in line for line in run.members.history)
            assert all(group.phase is Phase.ENDED for group in run.worker_groups)
            assert dropped or all(group.generation for group in run.worker_groups)


TestSupervised = Supervised.TestCase
TestSupervised.settings = settings(
    max_examples=60, stateful_step_count=50, derandomize=True, suppress_health_check=list(HealthCheck)
)
