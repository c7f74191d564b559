"""Operations keep their order, beside the computing or after it; the faster way is found out, by all ranks alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.comm import Communicator, SoloCommunicator, run_threads
from singa_dask.errors import ClusterError
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.group import CommGroup
from singa_dask.exchange.overlap import LASTS, TURNS, WARM_UP, OverlapTuner
from singa_dask.ops import Ops


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def executor_of(comm: Communicator, **options) -> Iterator[CollectiveExecutor]:
    executor = CollectiveExecutor(comm, **options)
    try:
        yield executor
    finally:
        executor.close()


def train(
    executor: CollectiveExecutor, comm: Communicator, clock: Clock, steps: int, beside_s: float, after_s: float
) -> list[bool]:
    """Steps of two buckets, and between them a sum that the pass itself needs; which of them went beside."""
    went = []
    for _ in range(steps):
        executor.begin_step()
        went.append(executor.overlaps)
        buckets = [np.ones(3), np.ones(5)]
        futures = []
        if executor.overlaps:
            futures.append(executor.submit(comm.all_reduce, buckets[0]))
        assert executor.all_reduce(np.full((1, 2), 2.0)).tolist() == [[2.0 * comm.size] * 2]
        futures += [executor.submit(comm.all_reduce, bucket) for bucket in buckets[len(futures) :]]
        for future in futures:
            executor.wait(future)
        assert all((bucket == comm.size).all() for bucket in buckets)
        clock.now += beside_s if went[-1] else after_s
        executor.end_step()
    return went


def test_ranks_that_find_differently_go_the_same_way():
    def member(comm: Communicator) -> list[bool]:
        clock = Clock()
        with executor_of(comm, threaded=True, tuner=OverlapTuner(clock)) as executor:
            # The first rank finds overlap a little faster, the second much slower.
            return train(executor, comm, clock, WARM_UP + 2 * TURNS + 5, *((1.0, 1.5), (4.0, 2.0))[comm.rank])

    first, second = run_threads(2, member)
    assert first == second
    assert all(first[:WARM_UP]) and sum(first[WARM_UP:-5]) == TURNS and not any(first[-5:])


@pytest.mark.parametrize("threaded", [True, False])
def test_what_layers_wait_for_counts_and_is_polled_like_the_rest(threaded):
    def member(comm: Communicator) -> tuple[float, bool]:
        with executor_of(comm, threaded=threaded) as executor:
            group = CommGroup(executor, comm.split(0), Ops())
            hurried = executor.submit(lambda: group.comm.hurried).result()
            if comm.rank == 0:
                time.sleep(0.2)
            assert group.sum(np.ones(3)).tolist() == [2.0] * 3
            assert group.comm.hurried
            return executor.wait_s, hurried

    (first, hurried), (second, _) = run_threads(2, member)
    assert second > 0.1 and first < second
    assert hurried is not threaded


def test_without_a_trial_every_step_overlaps():
    def member(comm: Communicator) -> list[bool]:
        with executor_of(comm, threaded=True) as executor:
            return train(executor, comm, Clock(), WARM_UP + 2 * TURNS, 2.0, 1.0)

    assert all(map(all, run_threads(2, member)))


def test_without_a_thread_none_does_and_nothing_is_tried():
    comm, clock = SoloCommunicator(), Clock()
    executor = CollectiveExecutor(comm, threaded=False, tuner=OverlapTuner(clock))
    assert not any(train(executor, comm, clock, LASTS // 10, 1.0, 2.0))


def test_what_is_not_beside_is_done_by_the_caller_at_once():
    trial = OverlapTuner(Clock())
    with executor_of(SoloCommunicator(), threaded=True, tuner=trial) as executor:
        assert executor.run(threading.get_ident) != threading.get_ident()
        trial.first = False
        assert executor.submit(threading.get_ident).result(timeout=0) == threading.get_ident()


def test_what_comes_behind_an_operation_under_way_waits_for_it():
    """A sum that the backward pass needs, in a step that does not overlap, must not overtake the bucket before it."""
    trial, go, done = OverlapTuner(Clock()), threading.Event(), []
    with executor_of(SoloCommunicator(), threaded=True, tuner=trial) as executor:
        first = executor.submit(lambda: (go.wait(10), done.append(1)))
        trial.first = False
        second = executor.submit(done.append, 2)
        assert not second.done()
        go.set()
        for future in (first, second):
            executor.wait(future)
        assert done == [1, 2]


@pytest.mark.parametrize("threaded", [False, True])
def test_an_operation_that_fails_fails_those_behind_it(threaded):
    def member(comm: Communicator) -> None:
        with executor_of(comm, threaded=threaded) as executor:
            with pytest.raises(ZeroDivisionError):
                executor.run(lambda: 1 / 0)
            with pytest.raises(ClusterError, match="division by zero"):
                executor.run(comm.barrier)

    run_threads(2, member)


class Driven(SoloCommunicator):
    """Whose operations are complete when they have been driven so often."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.times, self.polled, self.over = times, 0, threading.Event()

    def progress(self) -> bool:
        self.polled += 1
        if self.polled >= self.times:
            self.over.set()
        return not self.over.is_set() and not self.aborted


def test_what_was_started_goes_on_while_there_is_nothing_else_to_do():
    comm = Driven(5)
    with executor_of(comm, threaded=True) as executor:
        future = executor.submit(lambda: "started")
        assert comm.over.wait(10) and future.result(10) == "started"


def test_what_was_started_keeps_nobody_waiting():
    comm = Driven(float("inf"))
    with executor_of(comm, threaded=True) as executor:
        first = executor.submit(lambda: 1)
        assert executor.submit(lambda: 2) is not first and first.result(10) == 1
        assert executor.run(lambda: 3) == 3
        executor.submit(lambda: 4)
    assert comm.aborted == "the worker's step was broken off"


# Which of the two ways is faster


def ways(trial: OverlapTuner, clock: Clock, count: int, first: float, second: float) -> Iterator[bool]:
    """Whether each of `count` steps, so long by the one and the other way, went the first way."""
    for _ in range(count):
        trial.begin()
        yield trial.first
        clock.now += first if trial.first else second
        if trial.end():
            trial.choose(trial.seconds)


@given(st.floats(0.001, 1), st.floats(0.001, 1))
def test_the_faster_way_goes_on_after_as_many_turns_of_each(first: float, second: float):
    clock = Clock()
    trial = OverlapTuner(clock)
    warm, turns = WARM_UP, 2 * TURNS
    went = list(ways(trial, clock, warm + LASTS, first, second))
    assert all(went[:warm])
    assert sum(went[warm : warm + turns]) == TURNS
    if not np.isclose(first, second, rtol=1e-6):
        assert set(went[warm + turns :]) == {first < second}


def test_neither_way_is_always_the_later_one_of_a_pair():
    clock = Clock()
    went = list(ways(OverlapTuner(clock), clock, WARM_UP + 2 * TURNS, 1, 1))[WARM_UP:]
    pairs = list(zip(went[::2], went[1::2], strict=True))
    assert pairs.count((True, False)) == pairs.count((False, True)) == TURNS // 2


def test_what_has_changed_is_found_out_by_the_next_trial():
    clock = Clock()
    trial = OverlapTuner(clock)
    assert list(ways(trial, clock, WARM_UP + LASTS, 1, 2))[-1]
    went = list(ways(trial, clock, LASTS, 3, 2))
    assert sum(went[: 2 * TURNS]) == TURNS
    assert not any(went[2 * TURNS :])


def test_one_slow_step_decides_nothing():
    clock = Clock()
    trial = OverlapTuner(clock)
    for number, went in enumerate(ways(trial, clock, WARM_UP + 2 * TURNS + 1, 1, 2)):
        if number == WARM_UP + 4:
            assert went
            clock.now += 100
    assert trial.first
