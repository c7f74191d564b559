"""What nannies hold of several runs, and of several starts of a run, and which of it counts."""

import asyncio
import time

import pytest

from singa_dask.cluster.held import let_go, memory_of
from singa_dask.comm.shared_memory import Memory
from singa_dask.server import KeptServer, ShadowAddress

RUN, OTHER = "job/folder#id", "job/folder#other.5"
FIRST, SECOND, THIRD = (f"{RUN}.{start}" for start in range(3))


class Machines:
    """Two machines; their nannies. Nanny i holds what server i of a group of two has left."""

    def __init__(self, nannies):
        self.nannies, self.places = nannies, [nannies.start(), nannies.start()]

    def hold(self, run, generation=1, group=0, ranks=(0, 1), *, settled=True, also="", orphan_s=60.0):
        for rank in ranks:
            memory = Memory.create(64)
            described = KeptServer(rank, 2, generation, ShadowAddress(memory.address, (), (), ""))
            holder = self.nannies.holder(self.places[rank], run, f"server group {group}", generation, orphan_s)
            assert holder.hold(described, only=settled, also=also)

    def found(self, run=THIRD, *, earlier=True):
        left = self.nannies.found(run, *self.places, earlier=earlier)
        return left.run, {name: [kept.generation for kept in group] for name, group in left.groups.items()}, left.torn

    def held(self, place=0):
        return sorted((owner.run, owner.generation) for owner in memory_of(self.places[place]))


@pytest.fixture
def machines(nannies):
    return Machines(nannies)


def test_the_newest_start_counts_if_earlier_ones_do_at_all(machines):
    machines.hold(SECOND, 11)
    machines.hold(FIRST, 1)
    machines.hold(OTHER, 21)  # of another run in the same folder
    assert machines.found() == (SECOND, {"server group 0": [11, 11]}, ())
    assert machines.found(earlier=False) == ("", {}, ())


def test_a_start_that_was_lost_before_all_its_servers_were_there_has_left_nothing(machines):
    """Neither has it acknowledged anything."""
    for group in (0, 1):
        machines.hold(FIRST, 1, group)
    machines.hold(SECOND, 11, 0, settled=False)
    machines.hold(SECOND, 11, 1, (0,), settled=False)
    assert machines.found() == (FIRST, {"server group 0": [1, 1], "server group 1": [1, 1]}, ())
    machines.hold(SECOND, 11, 1, (1,), settled=False)
    assert machines.found()[0] == SECOND, "all are there, with the same parameters"


def test_what_is_torn_is_not_replaced_by_older_memory(machines):
    """Accounts of neighbours would not fit."""
    for group in (0, 1):
        machines.hold(FIRST, 1, group)
    machines.hold(SECOND, 11, 0)
    machines.hold(SECOND, 12, 1, (1,))
    assert machines.found() == (SECOND, {"server group 0": [11, 11]}, ("server group 1",))


def test_memory_that_is_held_again_stays_settled(machines):
    machines.hold(FIRST, 1)
    machines.hold(FIRST, 1, settled=False)
    machines.hold(SECOND, 11, ranks=(0,), settled=False)
    assert machines.found()[0] == FIRST


def test_one_start_is_let_go_or_all_others_of_the_run(machines):
    for generation, run in enumerate((FIRST, SECOND, THIRD, OTHER)):
        machines.hold(run, generation)
    let_go(None, machines.places, THIRD, own=False, earlier=True)
    assert machines.held(0) == [(THIRD, 2), (OTHER, 3)]
    let_go(None, machines.places, THIRD)
    assert machines.held(1) == [(OTHER, 3)]


def test_a_run_whose_worker_another_run_has_taken_may_still_go_on_from_memory(machines):
    """It has just lost a process, say, and forms again on others."""
    for run in (FIRST, OTHER):
        machines.hold(run, ranks=(0,), orphan_s=0.1)
    assert machines.held() == [(FIRST, 1), (OTHER, 1)]
    deadline = time.monotonic() + 20
    while machines.held() != [(OTHER, 1)]:
        assert time.monotonic() < deadline, "its process lives, but is of another run by now"
        time.sleep(0.01)


def test_memory_of_another_worker_of_the_machine_stays(machines):
    beside = {"ranks": (1,), "also": machines.places[0], "orphan_s": 0.05}
    machines.hold(FIRST, **beside)
    machines.hold(OTHER, ranks=(0,), orphan_s=0.05)
    machines.hold(FIRST, **beside)
    machines.nannies.run(asyncio.sleep(0.1))
    assert machines.held() == [(FIRST, 1), (OTHER, 1)]


def test_former_generations_stay_until_all_processes_of_the_group_have_theirs(machines):
    for run, generation in ((FIRST, 1), (OTHER, 1), (FIRST, 2)):
        machines.hold(run, generation, settled=False)
    assert machines.held() == [(FIRST, 1), (FIRST, 2), (OTHER, 1)]
    machines.hold(FIRST, 2)
    assert machines.held() == [(FIRST, 2), (OTHER, 1)]


def test_memory_that_is_gone_is_not_held(machines):
    memory = Memory.create(64)
    described = KeptServer(0, 1, 1, ShadowAddress(memory.address, (), (), ""))
    del memory
    assert not machines.nannies.holder(machines.places[0], FIRST, "server group 0").hold(described)
    assert machines.held() == []
