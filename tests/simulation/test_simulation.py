"""The rules hold in many histories, and the histories show it when the code is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from simulation.faults import KNOWN, TOPOLOGIES, Fault, Scenario, scenario
from simulation.shrink import broken, play, shrunk
from singa_dask.cluster import held, replicas
from singa_dask.server import Keeper, Partition, Stub
from singa_dask.server.messages import State
from singa_dask.server.neighbours import Account
from singa_dask.server.protocol import SliceProtocol
from singa_dask.server.replica import Replication
from singa_dask.server.shadow import SliceShadow
from singa_dask.supervision.events import Inherited
from singa_dask.supervision.launch import GroupLauncher
from singa_dask.supervision.members import Members
from singa_dask.supervision.processes import Processes
from singa_dask.supervision.servers import RunServer, Servers

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # as the history had ended

ALONE = {"resumes": False}
SEEDS = 200  # in the ordinary suite; `make simulate` plays 10,000
MOST = 1000  # until a mistake is found


@pytest.mark.parametrize("first", range(0, SEEDS, 40))
def test_every_history_keeps_the_rules(first):
    for seed in range(first, first + 40):
        outcome = play(scenario(seed))
        assert not outcome.broken, f"{outcome.scenario}\n{outcome.broken}"


@pytest.mark.parametrize("name", KNOWN)
def test_what_has_broken_others_keeps_the_rules(name):
    for drawn in islice(filter(lambda s: s.name == name, map(scenario, range(SEEDS, 100_000))), 5):
        outcome = play(drawn)
        assert not outcome.broken, f"{outcome.scenario}\n{outcome.broken}"
        assert len(outcome.trace) >= 10


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_a_history_without_faults_is_complete_and_has_no_restart(topology):
    outcome = play(Scenario(1, "no faults", topology))
    assert outcome.runs == ("completed",) and not outcome.broken and outcome.ended_s < 20
    assert sum("Formed" in line for line in outcome.trace) == 1


def test_a_history_depends_on_its_seed_alone():
    seeds = (3, 17, 40, 41, 55)
    here = [play(scenario(seed)) for seed in seeds]
    assert [play(scenario(seed)) for seed in seeds] == here
    program = (
        "from simulation.faults import scenario; from simulation.shrink import play\n"
        f"for seed in {seeds}: print(*play(scenario(seed)).trace, sep='\\n')"
    )
    tests = Path(__file__).parents[1]
    for hash_seed in "12":
        paths = os.pathsep.join([str(tests), str(tests.parent)])
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths}
        told = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=50, check=True
        ).stdout
        assert told.splitlines() == [line for outcome in here for line in outcome.trace]


# The histories find mistakes


def restarted_groups_begin_too_early(patch):
    """The updates of a restarted worker group since its driver's last news are applied again."""
    enter = SliceProtocol._enter

    def wrong(self, origin):
        before = self.members.get(origin.group)
        refused = enter(self, origin)
        if before is not None and self.members[origin.group] is not before:
            self.members[origin.group].next = origin.first
        return refused

    patch.setattr(SliceProtocol, "_enter", wrong)


def repeated_exchanges_are_added_again(patch):
    answer = Account.answer

    def wrong(self, values, ledger, message):
        if message.account == self.generations and message.sequence == self.sequence:
            values += message.delta
        return answer(self, values, ledger, message)

    patch.setattr(Account, "answer", wrong)


def a_restarted_server_begins_anew(patch):
    """It gets the initial parameters in place of its neighbour's, and hands them on to the other neighbour."""
    handle = SliceProtocol._open

    def wrong(self, request):
        reply = handle(self, request)
        return replace(reply, values=0 * reply.values) if isinstance(reply, State) else reply

    patch.setattr(SliceProtocol, "_open", wrong)


def nobody_is_too_far_ahead(patch):
    patch.setattr(SliceProtocol, "_too_far", lambda self, clock, group: False)


def the_last_exchange_is_left_out(patch):
    patch.setattr(Servers, "flush", lambda self: None)


def processes_in_use_are_free(patch):
    patch.setattr(Processes, "free", lambda self, there, members: list(there))


def checkpoints_are_put_without_their_ledger(patch):
    """Worker groups of new servers begin with the step of the checkpoint, though others were ahead of it."""
    put = Stub.put
    patch.setattr(Stub, "put", lambda self, values, state, step, *_: put(self, values, state, step))


def nobody_has_the_slices_of_workers_that_are_missing(patch):
    patch.setattr(Partition, "dealt_to", lambda self, workers: self)


def memory_is_of_different_steps(patch):
    patch.setattr(SliceShadow, "at", lambda self, version: self.newest)


def nobody_waits_for_nannies(patch):
    patch.setattr(Processes, "coming", lambda *_: set())


def servers_save_every_other_change(patch):
    save = Keeper.save
    patch.setattr(Keeper, "save", lambda self, state: None if state.version % 2 else save(self, state))


def accounts_stay_as_they_were_opened(patch):
    """Exchanges since then are made again with a server that comes back, or refused."""
    patch.setattr(Account, "changes", property(lambda self: 0, lambda self, changes: None), raising=False)


def worker_groups_are_restarted_with_their_servers(patch):
    affected = Members.affected

    def wrong(self, member, silent):
        workers, servers = affected(self, member, silent)
        down = {group.number for group in servers}
        return [g for g in self.running() if g.server_group in down or g in workers], servers

    patch.setattr(Members, "affected", wrong)


def what_is_left_is_not_looked_for(patch):
    left_behind = GroupLauncher.left_behind

    def wrong(self, nannies):
        left, inherited = left_behind(self, nannies)
        groups = {name: of for name, of in left.groups.items() if not name.startswith("server")}
        return replace(left, groups=groups), inherited and Inherited()

    patch.setattr(GroupLauncher, "left_behind", wrong)


def what_a_lost_driver_has_left_is_not_looked_for(patch):
    made = GroupLauncher.__init__
    patch.setattr(GroupLauncher, "__init__", lambda self, *args, **options: made(self, *args, **options | ALONE))


def memory_of_any_start_counts(patch):
    """Each server group goes on from the oldest memory that is complete."""
    order = property(lambda self: -self._generation, lambda self, value: setattr(self, "_generation", value))
    patch.setattr(held._Start, "generation", order, raising=False)
    patch.setattr(GroupLauncher, "let_go", lambda self, nannies, **options: None)


def servers_forget_the_clocks(patch):
    """A worker group's repeated update is applied again."""
    take = SliceProtocol._take

    def wrong(self, left):
        take(self, left)
        for member in self.members.values():
            member.next = max(0, member.next - 1)

    patch.setattr(SliceProtocol, "_take", wrong)


def updates_are_acknowledged_before_the_replica_has_them(patch):
    patch.setattr(Replication, "after", lambda self, index, replies: replies)


def servers_do_not_wait_until_their_driver_knows_of_a_lost_replica(patch):
    tell = RunServer._tell_lost

    def wrong(self, replica, awaited):
        self.server.replica_lost()
        tell(self, replica, awaited)

    patch.setattr(RunServer, "_tell_lost", wrong)


def checkpoints_in_memory_are_not_looked_for(patch):
    patch.setattr(GroupLauncher, "checkpoint_in", lambda self, left: None)


def the_oldest_checkpoint_in_memory_counts(patch):
    choose = lambda of, *more: min(of) if isinstance(of, dict) else max(of, *more)  # noqa: E731
    patch.setattr(held, "max", choose, raising=False)
    patch.setattr(replicas, "_let_go_former", lambda nanny, owner: None)


MISTAKES = [
    checkpoints_in_memory_are_not_looked_for,
    the_oldest_checkpoint_in_memory_counts,
    updates_are_acknowledged_before_the_replica_has_them,
    servers_do_not_wait_until_their_driver_knows_of_a_lost_replica,
    restarted_groups_begin_too_early,
    repeated_exchanges_are_added_again,
    a_restarted_server_begins_anew,
    nobody_is_too_far_ahead,
    the_last_exchange_is_left_out,
    processes_in_use_are_free,
    checkpoints_are_put_without_their_ledger,
    nobody_has_the_slices_of_workers_that_are_missing,
    memory_is_of_different_steps,
    nobody_waits_for_nannies,
    servers_save_every_other_change,
    accounts_stay_as_they_were_opened,
    worker_groups_are_restarted_with_their_servers,
    what_is_left_is_not_looked_for,
    what_a_lost_driver_has_left_is_not_looked_for,
    memory_of_any_start_counts,
    servers_forget_the_clocks,
]


# The known history that finds a mistake, where few others do.
FINDS = {
    a_restarted_server_begins_anew: "a server group is lost with its memory",
    checkpoints_in_memory_are_not_looked_for: "hosts of a synchronous group are lost",
    the_oldest_checkpoint_in_memory_counts: "hosts of a synchronous group are lost",
    memory_of_any_start_counts: "a driver is lost, and the next one too",
    nobody_has_the_slices_of_workers_that_are_missing: "groups with servers shrink and grow",
    servers_do_not_wait_until_their_driver_knows_of_a_lost_replica: "a server is cut off from its replica and lost",
    updates_are_acknowledged_before_the_replica_has_them: "a server is cut off from its replica and lost",
    what_a_lost_driver_has_left_is_not_looked_for: "a driver is lost, and the next one too",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found_and_shrunk(mistake, monkeypatch):
    mistake(monkeypatch)
    drawn = sorted(map(scenario, range(MOST)), key=lambda s: s.name != FINDS.get(mistake, s.name))
    found = (shrunk(s) for s in drawn if broken(s))
    smallest = next((s for s in found if len(s.faults) <= 2), None)
    assert smallest is not None and broken(smallest), "no history finds it with two faults"
    for i in range(len(smallest.faults)):
        assert not broken(replace(smallest, faults=smallest.faults[:i] + smallest.faults[i + 1 :]))


def test_shrinking_leaves_what_a_failure_needs():
    faults = tuple(Fault(float(i), "kill", i) for i in range(9))
    needed = {faults[2], faults[7]}
    tried = []

    def breaks(scenario):
        tried.append(scenario)
        return needed <= set(scenario.faults)

    smallest = shrunk(Scenario(0, "ten faults", {}, spare=2, faults=faults), breaks)
    assert set(smallest.faults) == needed and smallest.spare == 0
    assert len(tried) < 40
