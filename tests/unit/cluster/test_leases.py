"""Who has a Dask worker, by a clock that the test sets."""

import pytest

from singa_dask.cluster import leases


@pytest.fixture
def clock(monkeypatch):
    """Seconds, to be set."""
    now = [100.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(leases, "_leases", {})
    return now


def test_a_reservation_holds_until_it_expires(clock):
    assert leases.reserve("w1", "a", 5.0) == "" and leases.holder("w1") == "a"
    for seconds, holder in ((100.0, "a"), (104.9, "a"), (105.0, "")):
        clock[0] = seconds
        assert leases.holder("w1") == holder and leases.reserve("w1", "b", 5.0) == holder
    assert leases.holder("w1") == "b"


def test_the_run_of_a_group_is_known_as_long_as_the_group_holds_the_worker(clock):
    run = leases.run_key("digits", "/runs/digits#1")
    assert leases.parts_of_run(run) == ("digits", "/runs/digits#1") and leases.parts_of_run("") == ("", "")
    assert run != leases.run_key("digits", "/runs/digits#1"), "each start has its own"
    leases.reserve("w1", "a", 5.0, run)
    assert (leases.run_of("w1"), leases.run_of("w2")) == (run, "")
    clock[0] = 105.0
    assert leases.run_of("w1") == ""


def test_a_group_may_reserve_again_and_begins_anew_and_other_workers_of_its_process_are_free(clock):
    for seconds in (100.0, 103.0):
        clock[0] = seconds
        assert leases.reserve("w1", "a", 5.0) == "" and leases.holder("w2") == ""
    clock[0] = 107.0
    assert leases.holder("w1") == "a" and leases.reserve("w2", "b", 5.0) == ""


def test_a_task_takes_its_own_reservation_up_once(clock):
    assert not leases.take_up("w1", "a", "task"), "nobody has reserved it: this is another process"
    leases.reserve("w1", "a", 5.0)
    assert not leases.take_up("w1", "b", "task")
    assert leases.task_of("w1", "a") is None
    assert leases.take_up("w1", "a", "task") and not leases.take_up("w1", "a", "second")
    assert leases.task_of("w1", "a") == "task" and leases.task_of("w1", "b") is None


def test_a_task_holds_until_it_ends(clock):
    leases.reserve("w1", "a", 5.0)
    leases.take_up("w1", "a", "task")
    clock[0] = 1000.0
    leases.release("w1", "a")  # of a reservation only
    assert leases.holder("w1") == "a" and leases.reserve("w1", "b", 5.0) == "a"
    for _ in range(2):
        leases.end("w1")
        assert leases.holder("w1") == "" and leases.task_of("w1", "a") is None


def test_a_reservation_is_released_by_its_group_only(clock):
    leases.reserve("w1", "a", 5.0)
    for group, holder in (("b", "a"), ("a", ""), ("a", "")):
        leases.release("w1", group)
        assert leases.holder("w1") == holder
    assert leases.reserve("w1", "b", 5.0) == ""
