"""What a run does about losses, newcomers and leavers, with groups and servers that only say that they are there."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from singa_dask.cluster import GroupFailed, RankFailure, WorkerInfo
from singa_dask.errors import ClusterError, DataError
from singa_dask.job import ClusterTopology
from singa_dask.supervision import supervisor as supervision
from singa_dask.supervision.launch import Gang, NoReplacement, State
from singa_dask.supervision.supervisor import Supervisor


class Ranks:
    """A group whose ranks do what the test says."""

    def __init__(self, numbers, where):
        self.numbers, self.addresses = numbers, where
        self.ended, self.error, self.hears = False, None, True
        self.told, self.stopped, self.closed = [], False, False

    def fail(self, exception=None):
        self.error = GroupFailed("group", RankFailure(0, WorkerInfo(self.addresses[0]), "its process died", exception))

    def poll(self):
        if self.error:
            raise self.error
        return self.ended

    def results(self):
        return [{number: {"step": 10} for number in self.numbers}]

    def stop(self):
        self.stopped = self.ended = True

    def tell(self, name, value):
        self.told.append((name, value, self.hears))
        return self.hears

    def abort(self, reason):
        self.closed = True

    close = results


class Servers:
    def __init__(self, number, where):
        self.number, self.where, self.restarts, self.generation = number, where, 0, 0
        self.up, self.flushed, self.dismissed, self.broken = False, 0, [], False

    def flush(self):
        if self.broken:
            raise ClusterError("the neighbour does not answer")
        self.flushed += 1

    def dismiss(self, group, generation):
        self.dismissed.append(group)

    def lost(self):
        self.up = False

    stop = lost


class GangLauncher:
    """Forms at once, or fails as the test says. made: what each order was for."""

    def __init__(self, topology, held=1):
        self.topology, self.client, self.newest = topology, None, lambda: None
        self.held, self.dead, self.made = held, set(), []
        self.crews, self.server_groups, self.faults, self.hold = [], [], [], threading.Event()
        self.hold.set()

    def plan(self):
        for first in range(0, self.topology.nworker_groups, self.held):
            numbers = tuple(range(first, first + self.held))
            used = tuple(self.topology.server_group_of(number) for number in numbers)
            self.crews.append(Gang(numbers, [f"w{first}"], used))
        beside = not self.topology.server_worker_separate
        self.server_groups += [
            Servers(i, [f"w{i}" if beside else f"s{i}"]) for i in range(self.topology.nserver_groups)
        ]

    def newcomer(self):
        number = 1 + max(number for crew in self.crews for number in crew.groups)
        self.crews.append(Gang((number,), [f"w{number}"], (0,), joined=True))
        return self.crews[-1]

    def lost(self):
        return set(self.dead)

    def bring_up(self, order):
        self.made.append(([c.groups for c in order.crews], [g.number for g in order.server_groups]))
        assert self.hold.wait(10)
        if self.faults:
            fault = self.faults.pop(0)
            for group in order.server_groups:
                group.up = True  # half of it was made
            raise fault
        for crew in order.crews:
            crew.generation += 1
            crew.group = Ranks(crew.groups, crew.where)
        for group in order.server_groups:
            group.up, group.generation = True, group.generation + 1
        self.dead.clear()


@pytest.fixture
def start(monkeypatch):
    """Start a fleet of this topology; the fixture's end ends it."""
    pool, started = ThreadPoolExecutor(), []

    def begin(held=1, max_restarts=3, faults=(), **numbers):
        former = GangLauncher(ClusterTopology(**numbers), held)
        former.faults += faults
        monkeypatch.setattr(supervision, "alive", lambda client, addresses: set(addresses) - former.dead)
        fleet = Supervisor(former, note=(notes := []).append, steps={}, ended=set(), max_restarts=max_restarts)
        fleet.notes, fleet.done = notes, pool.submit(fleet.run)
        started.append(fleet)
        return fleet, former

    yield begin
    for fleet in started:
        for crew in fleet.crews:
            if crew.group:
                crew.group.ended, crew.group.error = True, None
        fleet.interrupted = True
    pool.shutdown()


DOWNPOUR = {"nworker_groups": 2, "server_worker_separate": True}
HOGWILD = {"nworker_groups": 3, "nserver_groups": 3}


def until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def running(fleet, *numbers):
    wanted = set(numbers or range(fleet.topology.nworker_groups))
    until(lambda: {n for c in fleet.crews if c.state == State.RUNNING for n in c.groups} >= wanted)


def asked(fleet, action):
    """What the fleet answers, in its own thread."""
    answers = []
    fleet.wish(lambda: answers.append(action()))
    until(lambda: answers)
    return answers[0]


def end(fleet, *numbers):
    for crew in fleet.crews:
        if set(crew.groups) & set(numbers):
            crew.group.ended = True
    until(lambda: all(c.state == State.ENDED for c in fleet.crews if set(c.groups) & set(numbers)))


def test_the_lead_hears_once_all_others_have_ended(start):
    fleet, _ = start(**HOGWILD)
    running(fleet)
    end(fleet, 1)
    assert not fleet.crews[0].group.told
    end(fleet, 2)
    until(lambda: fleet.crews[0].group.told == [("others ended", True, True)])
    assert [group.flushed for group in fleet.server_groups] == [2, 1, 0]  # along the line, and back
    end(fleet, 0)
    assert fleet.done.result(5) == {0: {"step": 10}, 1: {"step": 10}, 2: {"step": 10}}


def test_the_lead_is_told_until_it_hears(start):
    fleet, _ = start(**DOWNPOUR)
    running(fleet)
    lead = fleet.crews[0].group
    lead.hears = False
    end(fleet, 1)
    until(lambda: len(lead.told) >= 3)
    lead.hears = True
    until(lambda: lead.told[-1] == ("others ended", True, True))
    told = len(lead.told)
    time.sleep(0.1)
    assert len(lead.told) == told


def test_a_failed_last_exchange_is_tried_again_after_the_loss(start):
    fleet, former = start(**HOGWILD)
    running(fleet)
    fleet.server_groups[1].broken = True
    former.dead.add("w1")  # the process of an ended group, with its server
    end(fleet, 1, 2)
    until(lambda: any("server group 1" in note for note in fleet.notes))
    fleet.server_groups[1].broken = False
    until(lambda: fleet.crews[0].group.told == [("others ended", True, True)])
    assert former.made[1] == ([], [1])


def test_a_loss_takes_along_what_shares_processes_only(start):
    fleet, former = start(**HOGWILD)
    running(fleet)
    former.dead.add("w1")
    fleet.crews[1].group.fail()
    until(lambda: len(former.made) == 2)
    running(fleet)
    assert former.made[1] == ([(1,)], [1])
    assert [restart.groups for restart in fleet.restarts] == [(1,)]


def test_a_mute_process_takes_its_server_along_though_the_scheduler_lists_it(start, monkeypatch):
    fleet, former = start(**HOGWILD)
    running(fleet)
    monkeypatch.setattr(supervision, "alive", lambda client, addresses: set(addresses))
    former.dead.add("w2")
    fleet.crews[2].group.fail(ClusterError("the server does not answer"))
    until(lambda: len(former.made) == 2)
    assert former.made[1] == ([(2,)], [2])


def test_a_loss_while_another_is_being_formed_waits_for_its_turn(start):
    fleet, former = start(**DOWNPOUR)
    running(fleet)
    former.hold.clear()
    fleet.crews[1].group.fail()
    until(lambda: fleet.crews[1].state == State.FORMING)
    fleet.crews[0].group.fail()
    time.sleep(0.1)
    assert fleet.crews[0].state == State.RUNNING
    former.hold.set()
    running(fleet, 1)
    until(lambda: len(former.made) == 3)
    running(fleet)
    assert former.made[1:] == [([(1,)], []), ([(0,)], [])]
    assert fleet.crews[1].generation == 2


def test_servers_of_an_order_that_failed_are_made_again(start):
    """As they have no parameters, nobody may begin with what they have."""
    fleet, former = start(**HOGWILD, faults=[ClusterError("w1 is gone")])
    former.dead.add("w1")
    running(fleet)
    assert former.made == [([(0,), (1,), (2,)], [0, 1, 2])] * 2


def test_what_no_loss_explains_ends_the_run(start):
    fleet, _ = start(**DOWNPOUR, faults=[ClusterError("MPI cannot be loaded")])
    with pytest.raises(ClusterError, match="MPI cannot be loaded"):
        fleet.done.result(5)


def test_too_many_losses_end_the_run_with_the_last(start):
    fleet, former = start(**DOWNPOUR, max_restarts=1)
    running(fleet)
    fleet.crews[1].group.fail()
    until(lambda: len(former.made) == 2)
    running(fleet)
    fleet.crews[1].group.fail()
    with pytest.raises(ClusterError, match="its process died"):
        fleet.done.result(5)


def test_an_error_of_a_ranks_own_ends_the_run(start):
    fleet, _ = start(**DOWNPOUR)
    running(fleet)
    fleet.crews[1].group.fail(DataError("shard 7 is damaged"))
    with pytest.raises(DataError, match="shard 7"):
        fleet.done.result(5)


def test_newcomers_that_cannot_join_are_left_out(start):
    fleet, former = start(**DOWNPOUR)
    running(fleet)
    former.faults = [ClusterError("w2 is in use")]
    assert asked(fleet, fleet.join) == "worker group 2 joins on w2"
    until(lambda: "worker group 2 could not join: w2 is in use" in fleet.notes)
    former.faults = [NoReplacement("nobody is there")]
    asked(fleet, fleet.join)
    until(lambda: "worker group 3 could not join: nobody is there" in fleet.notes)
    asked(fleet, fleet.join)
    running(fleet, 4)
    fleet.crews[4].group.fail(DataError("there are no shards here"))
    until(lambda: any("worker group 4 could not join" in note for note in fleet.notes))
    assert fleet.server_groups[0].dismissed == [2, 3, 4]
    asked(fleet, fleet.join)
    running(fleet, 0, 1, 5)
    assert not fleet.restarts


def test_who_joins_after_the_others_ended_is_waited_for(start):
    fleet, _ = start(**DOWNPOUR)
    running(fleet)
    end(fleet, 1)
    lead = fleet.crews[0].group
    until(lambda: lead.told)
    asked(fleet, fleet.join)
    running(fleet, 2)
    assert lead.told == [("others ended", True, True), ("others ended", False, True)]
    end(fleet, 2)
    until(lambda: lead.told[-1] == ("others ended", True, True))


def test_who_leaves_is_not_brought_back(start):
    fleet, _ = start(**DOWNPOUR)
    running(fleet)
    leaving = fleet.crews[1].group
    leaving.stop = lambda: leaving.fail()  # dies on its way out
    assert asked(fleet, lambda: fleet.leave(1)) == "worker group 1 leaves after its step"
    until(lambda: fleet.crews[1].state == State.ENDED)
    assert not fleet.restarts and fleet.server_groups[0].dismissed == [1]


def test_the_lead_does_not_leave_nor_who_shares_its_processes(start):
    fleet, _ = start(held=2, **{**DOWNPOUR, "nworker_groups": 4})
    running(fleet)
    for number in (0, 1):
        assert "worker group 0 tests and saves" in asked(fleet, lambda n=number: fleet.leave(n))
    assert asked(fleet, lambda: fleet.leave(3)).startswith("worker group 2+3 leaves")
    assert not fleet.crews[0].group.stopped


def test_a_loss_while_the_run_is_being_stopped_is_told_once(start, monkeypatch):
    monkeypatch.setattr(supervision, "_ALIVE_EVERY_S", 0.0)
    fleet, former = start(**HOGWILD)
    running(fleet)
    fleet.interrupted = True
    former.dead.add("w2")
    until(lambda: fleet.crews[2].state == State.ENDED)
    time.sleep(0.2)
    end(fleet, 0, 1)
    fleet.done.result(5)
    assert sum("ends here" in note for note in fleet.notes) == 1
    assert not fleet.restarts


def test_ctrl_c_at_the_very_moment_of_an_order_leaves_no_group_between_the_states(start, monkeypatch):
    pressed = []

    class Interrupted(ThreadPoolExecutor):
        def submit(self, *args):
            if not pressed:
                pressed.append(True)
                raise KeyboardInterrupt
            return super().submit(*args)

    monkeypatch.setattr(supervision, "ThreadPoolExecutor", Interrupted)
    fleet, _ = start(**DOWNPOUR)
    assert fleet.done.result(5).keys() == {0, 1}
    assert fleet.interrupted and all(crew.group.stopped for crew in fleet.crews)
