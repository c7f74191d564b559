"""The rules hold in many histories, and the histories show it when the code is wrong."""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from simulation.batch import failed, seed_of_tree
from simulation.faults import KNOWN, TOPOLOGIES, Fault, Scenario, scenario
from simulation.shrink import broken, play, shrunk
from singa_dask.cluster import nanny_store
from singa_dask.memory import newest
from singa_dask.memory.region import Region
from singa_dask.server import Keeper, Partition, Stub
from singa_dask.server.messages import State
from singa_dask.server.neighbours import Account
from singa_dask.server.replication import Replication
from singa_dask.server.slice_protocol import SliceProtocol
from singa_dask.supervision.events import Inherited
from singa_dask.supervision.launch import GroupLauncher
from singa_dask.supervision.members import Members
from singa_dask.supervision.processes import Processes
from singa_dask.supervision.servers import RunServer, Servers

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # as the history had ended

ALONE = {"resumes": False}
SEEDS = 200  # in the ordinary suite; `make simulate` plays 10,000
IN_CI = 2000  # at least, by `make simulate-ci`
MOST = 1000  # until a mistake is found


@pytest.fixture(autouse=True)
def nothing_is_logged():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_every_history_keeps_the_rules(first):
    for seed in range(first, first + 10):
        outcome = play(scenario(seed))
        assert not outcome.broken, f"{outcome.scenario}\n{outcome.broken}"


@pytest.mark.parametrize("name", KNOWN)
def test_what_has_broken_others_keeps_the_rules(name):
    for drawn in islice(filter(lambda s: s.name == name, map(scenario, range(SEEDS, 100_000))), 3):
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
    paths = os.pathsep.join([str(tests), str(tests.parent)])
    environment = os.environ | {"PYTHONHASHSEED": str(hash("another") % 1000), "PYTHONPATH": paths}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == [line for outcome in here for line in outcome.trace]


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

    def wrong(self, values, ledger, message, mix):
        if message.account == self.generations and message.sequence == self.sequence:
            values += message.delta
        return answer(self, values, ledger, message, mix)

    patch.setattr(Account, "answer", wrong)


def a_restarted_server_begins_anew(patch):
    """It gets the initial parameters in place of its neighbour's, and hands them on to the other neighbour."""
    handle = SliceProtocol._open

    def wrong(self, request):
        reply = handle(self, request)
        return replace(reply, values=0 * reply.values) if isinstance(reply, State) else reply

    patch.setattr(SliceProtocol, "_open", wrong)


def checkpoints_are_put_without_their_ledger(patch):
    """Worker groups of new servers begin with the step of the checkpoint, though others were ahead of it."""
    put = Stub.put
    patch.setattr(Stub, "put", lambda self, values, state, step, *_: put(self, values, state, step))


def servers_save_every_other_change(patch):
    save = Keeper.save
    patch.setattr(Keeper, "save", lambda self, state: None if state.version % 2 else save(self, state))


def accounts_stay_as_they_were_opened(patch):
    """Exchanges since then are repeated with a server that comes back, or refused."""
    opened = property(lambda self: vars(self)["change"], lambda self, change: vars(self).setdefault("change", change))
    patch.setattr(Account, "change", opened, raising=False)


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
    """Each group resumes from the oldest memory that is complete."""
    oldest_first = lambda of, *, key=None, reverse=False: sorted(of, key=key)  # noqa: E731
    patch.setattr(newest, "sorted", oldest_first, raising=False)
    patch.setattr(GroupLauncher, "let_go", lambda self, nannies, **options: None)


def an_older_generation_counts(patch):
    """Also where a later one is complete."""
    wrong = lambda of, *, key=None, reverse=False: sorted(of, key=key, reverse=reverse and key is not None)  # noqa: E731
    patch.setattr(newest, "sorted", wrong, raising=False)


def memory_of_another_run_counts(patch):
    for module in (newest, nanny_store):
        patch.setattr(module, "same_run", lambda one, other: True)


def a_part_of_a_group_is_enough(patch):
    """What one of its processes has left stands for that of the others."""

    def wrong(saved, **options):
        saved = sorted(saved, key=lambda each: each.version.generation)
        last = {each.owner.rank: each for each in saved}
        return find(saved, **options) or tuple(last.get(rank, *saved[-1:]) for rank in range(saved[-1].owner.size))

    find = newest.complete
    patch.setattr(newest, "complete", wrong)


def servers_forget_the_clocks(patch):
    """A worker group's repeated update is applied again."""
    take = SliceProtocol._take

    def wrong(self, left):
        take(self, left)
        for member in self.members.values():
            member.next = max(0, member.next - 1)

    patch.setattr(SliceProtocol, "_take", wrong)


def servers_do_not_wait_until_their_driver_knows_of_a_lost_replica(patch):
    tell = RunServer._tell_lost

    def wrong(self, replica, awaited):
        self.server.replication.drop()
        tell(self, replica, awaited)

    patch.setattr(RunServer, "_tell_lost", wrong)


def the_oldest_checkpoint_in_memory_counts(patch):
    choose = lambda of, **options: (min if isinstance(of, map) else max)(of, **options)  # noqa: E731
    patch.setattr(newest, "max", choose, raising=False)
    patch.setattr(nanny_store, "_end_former", lambda kept, place: None)


# Mistakes that replace one function: whose, which, and what is in its place.
REPLACED = {
    "nobody_is_too_far_ahead": (SliceProtocol, "_too_far", lambda self, clock, group: False),
    "the_last_exchange_is_left_out": (Servers, "flush", lambda self: None),
    "processes_in_use_are_free": (Processes, "free", lambda self, there, members: list(there)),
    "nobody_has_the_slices_of_workers_that_are_missing": (Partition, "dealt_to", lambda self, workers: self),
    "memory_is_of_different_steps": (Region, "at", lambda self, version: self.newest),
    "an_older_image_counts": (newest, "_nearness", lambda of: (of.number != 0, -of.number)),
    "nobody_waits_for_nannies": (Processes, "coming", lambda *_: set()),
    "updates_are_acknowledged_before_the_replica_has_them": (
        Replication,
        "after",
        lambda self, index, replies: replies,
    ),
    "checkpoints_in_memory_are_not_looked_for": (GroupLauncher, "_fits", lambda self, saved: False),
}


def _replaced(what, patch):
    patch.setattr(*what)


MISTAKES = {name: partial(_replaced, what) for name, what in REPLACED.items()}
MISTAKES |= {
    mistake.__name__: mistake
    for mistake in (
        the_oldest_checkpoint_in_memory_counts,
        servers_do_not_wait_until_their_driver_knows_of_a_lost_replica,
        restarted_groups_begin_too_early,
        repeated_exchanges_are_added_again,
        a_restarted_server_begins_anew,
        checkpoints_are_put_without_their_ledger,
        servers_save_every_other_change,
        accounts_stay_as_they_were_opened,
        worker_groups_are_restarted_with_their_servers,
        what_is_left_is_not_looked_for,
        what_a_lost_driver_has_left_is_not_looked_for,
        memory_of_any_start_counts,
        an_older_generation_counts,
        memory_of_another_run_counts,
        a_part_of_a_group_is_enough,
        servers_forget_the_clocks,
    )
}


def _likely(mistake):
    """Histories that may find a mistake: the one that has found it, others like it, all others."""
    (seed,) = (seed for seed, of in failed().items() if of == mistake)
    yield (known := scenario(seed))
    yield from sorted(map(scenario, range(MOST)), key=lambda s: s.name != known.name)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_and_shrunk(mistake, monkeypatch):
    MISTAKES[mistake](monkeypatch)
    found = (shrunk(s) for s in _likely(mistake) if broken(s))
    smallest = next((s for s in found if len(s.faults) <= 2), None)
    assert smallest is not None and broken(smallest), "no history finds it with two faults"
    for i in range(len(smallest.faults)):
        assert not broken(replace(smallest, faults=smallest.faults[:i] + smallest.faults[i + 1 :]))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_seeds_of_the_tree_find_a_mistake(mistake, monkeypatch):
    MISTAKES[mistake](monkeypatch)
    first = seed_of_tree()
    assert any(broken(scenario(seed)) for seed in range(first, first + IN_CI))


def test_seeds_follow_from_the_code_alone(tmp_path):
    (tmp_path / "tests/simulation").mkdir(parents=True)
    before = seed_of_tree(tmp_path)
    (tmp_path / "README.md").write_text("of another tree")
    assert seed_of_tree(tmp_path) == before
    (tmp_path / "tests/simulation/run.py").write_text("")
    assert seed_of_tree(tmp_path) != before


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
