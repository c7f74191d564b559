"""What `make storm` and `make faults` read off the events of a run."""

import pytest
from support.programs import imported


@pytest.fixture
def watcher():
    with imported("tools.victims", "benchmarks") as victims:
        yield victims.Watcher()


def test_steps_that_are_made_again_are_counted(watcher):
    watcher.seen[0] = [(0.0, 1), (1.0, 2), (2.0, 3), (5.0, 1), (6.0, 2)]
    watcher.seen[1] = [(0.0, 1), (1.0, 2)]
    assert watcher.repeated == 2


def test_the_steps_of_a_moment_are_the_last_ones_before_it(watcher):
    watcher.seen[0] = [(0.0, 1), (1.0, 2), (2.0, 3)]
    watcher.seen[1] = [(1.5, 7)]
    assert watcher.steps(1.0) == {0: 2}
    assert watcher.steps() == {0: 3, 1: 7}


def test_a_pause_ends_with_the_next_step_of_the_group_that_rested_longest(watcher):
    watcher.seen[0] = [(0.0, 1), (1.0, 2), (4.5, 2), (5.0, 3), (6.0, 4)]
    watcher.starts[0] = [0.0, 4.5]
    watcher.seen[1] = [(0.5, 1), (1.5, 2), (2.5, 3), (3.5, 4)]
    assert watcher.pause(at=2.0) == pytest.approx(3.0)


def test_a_group_is_back_beyond_the_step_that_it_had(watcher):
    watcher.seen[0] = [(0.0, 5), (2.0, 0), (3.0, 5), (4.0, 6)]
    assert watcher.back(at=1.0) == 4.0
    assert watcher.back(at=4.0) is None
