"""The gradient pipeline by itself: stages that only note what is done with them."""

import threading
import time
from functools import partialmethod
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.errors import ClusterError, TrainingError
from singa_dask.exchange import Bucket
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.pipeline import GradientPipeline, Readiness, stages_after
from singa_dask.net.flat import Entry

BUCKETS = [Bucket(0, 5, (2, 3)), Bucket(5, 9, (4, 0))]
ENTRIES = [Entry(name, (1,), start, 1) for name, start in (("a", 0), ("b", 3), ("c", 5), ("d", 8))]


class Noted:
    """Stages that note their calls, and the thread of each. Every collective one sums its bucket over the ranks."""

    def __init__(self, comm, at_once=True, fails=None):
        self.comm, self.at_once, self.fails = comm, at_once, fails
        self.calls, self.threads = [], []

    def prepare(self, bucket):
        self._note("prepare", bucket)

    def finish(self):
        self._note("finish", None)

    def _note(self, stage, bucket):
        self.calls.append((stage, bucket))
        self.threads.append(threading.get_ident())
        if (stage, bucket) == self.fails:
            raise MemoryError("of this stage")

    def _meet(self, stage, bucket):
        self._note(stage, bucket)
        total = np.array([float(bucket)])
        self.comm.all_reduce(total)
        assert total[0] == bucket * self.comm.size, "the ranks are at different buckets"

    start = partialmethod(_meet, "start")
    update = partialmethod(_meet, "update")
    gather = partialmethod(_meet, "gather")

    def of(self, stage):
        return [bucket for name, bucket in self.calls if name == stage]


def cut(count):
    """As many buckets, of two parameters each."""
    buckets = [Bucket(2 * i, 2 * i + 2, (2,)) for i in range(count)]
    return buckets, [Entry(str(start), (1,), start, 1) for start in range(2 * count)]


def step(comm, stages, count, names, *, threaded, ahead=False, during=lambda: None):
    """One step that completes parameters by these names, in this order."""
    buckets, entries = cut(count)
    executor = CollectiveExecutor(comm, threaded=threaded)
    pipeline = GradientPipeline(executor, buckets, entries, ahead=ahead)

    def compute(on_gradient):
        for name in names if on_gradient else ():
            on_gradient(SimpleNamespace(owner=SimpleNamespace(name=name)))
        during()
        return on_gradient is not None

    try:
        return pipeline.run(stages, compute)
    finally:
        executor.close()


@given(st.data())
def test_all_ranks_pass_all_buckets_through_all_stages_in_one_order(data):
    count, size = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    threaded, ahead, at_once = (data.draw(st.booleans()) for _ in range(3))
    names = [str(i) for i in range(2 * count)]
    # An algorithm of the user's own may tell in any order, and not all.
    told = [data.draw(st.permutations(names))[: data.draw(st.integers(0, 2 * count))] for _ in range(size)]

    def member(comm):
        stages = Noted(comm, at_once)
        overlaps = step(comm, stages, count, told[comm.rank], threaded=threaded, ahead=ahead)
        return stages, overlaps

    found = run_threads(size, member)
    collective = [[call for call in stages.calls if call[0] != "prepare"] for stages, _ in found]
    for (stages, overlaps), calls in zip(found, collective, strict=True):
        assert overlaps == threaded and calls == collective[0]
        assert stages.calls[-1] == ("finish", None)
        for stage in ("prepare", "start", "update", "gather"):
            assert stages.of(stage) == list(reversed(range(count)))
        at = {call: place for place, call in enumerate(stages.calls)}
        assert all(at["prepare", bucket] < at["start", bucket] for bucket in range(count))


@pytest.mark.parametrize(("threaded", "expected"), [(True, 4), (False, 0)])
def test_with_overlap_buckets_pass_while_the_pass_goes_on_and_without_after_it(threaded, expected):
    stages, seen = Noted(SoloCommunicator()), []

    def during():
        while len(stages.calls) < expected:
            time.sleep(1e-3)
        seen.extend(stages.calls)

    step(stages.comm, stages, 3, ["5", "4", "3"], threaded=threaded, during=during)
    assert seen == [(stage, 2) for stage in ("prepare", "start", "update", "gather")][:expected]
    assert len(stages.calls) == 13


@pytest.mark.parametrize("at_once", [True, False])
def test_the_computing_thread_prepares_what_is_to_be_prepared_at_once(at_once):
    stages = Noted(SoloCommunicator(), at_once)
    step(stages.comm, stages, 2, "3210", threaded=True)
    here = {call for call, thread in zip(stages.calls, stages.threads, strict=True) if thread == threading.get_ident()}
    assert here == {("finish", None)} | ({("prepare", 0), ("prepare", 1)} if at_once else set())


@pytest.mark.parametrize("threaded", [True, False])
@pytest.mark.parametrize("stage", ["start", "update", "gather"])
def test_a_failing_stage_fails_the_step_of_all_ranks(stage, threaded):
    def member(comm):
        stages = Noted(comm, fails=(stage, 1) if comm.rank == 1 else None)
        try:
            step(comm, stages, 3, "543210", threaded=threaded)
        except BaseException as error:
            return error, stages.of("finish")

    (other, ended), (own, _) = run_threads(2, member)
    assert type(own) is MemoryError
    assert type(other) is ClusterError and "MemoryError: of this stage" in str(other) and not ended


def test_what_the_pass_raises_is_raised_and_no_more_buckets_leave():
    stages = Noted(SoloCommunicator())
    with pytest.raises(ZeroDivisionError):
        step(stages.comm, stages, 2, ["3", "2"], threaded=False, during=lambda: 1 / 0)
    assert stages.calls == []


def test_a_gradient_that_is_complete_twice_is_refused():
    stages = Noted(SoloCommunicator())
    with pytest.raises(TrainingError, match="'3' was reported complete twice"):
        step(stages.comm, stages, 2, ["3", "3"], threaded=True)
    assert stages.of("finish") == []


@pytest.mark.parametrize(
    ("names", "leave"),
    [
        ("dcba", [[], [1], [], [0]]),  # each with its last parameter
        ("badc", [[], [], [], [1, 0]]),  # from the last to the first, in whatever order they are complete
        ("dc", [[], [1]]),
    ],
)
def test_a_bucket_leaves_when_it_and_those_behind_it_are_complete(names, leave):
    readiness = Readiness(BUCKETS, ENTRIES)
    for _ in range(2):
        readiness.begin()
        assert [readiness.complete(name) for name in names] == leave
        assert readiness.rest() == [bucket for bucket in (1, 0) if [bucket] not in leave and [1, 0] not in leave]
        assert readiness.rest() == []


def test_a_parameter_in_no_bucket_takes_no_part():
    """As one of which every worker has a slice of its own."""
    readiness = Readiness([BUCKETS[1]], ENTRIES)
    readiness.begin()
    assert [readiness.complete(name) for name in "aacd"] == [[], [], [], [0]]


@given(st.integers(1, 9), st.booleans(), st.booleans())
def test_every_bucket_goes_through_every_stage_and_two_are_on_their_way_at_most(count, ahead, overlaps):
    buckets = list(reversed(range(count)))
    calls = [call for bucket in buckets for call in stages_after(bucket, count, ahead=ahead, overlaps=overlaps)]
    for stage in ("start", "update", "gather"):
        assert [bucket for name, bucket in calls if name == stage] == buckets
    at = {call: place for place, call in enumerate(calls)}
    for bucket in buckets:
        assert at["start", bucket] < at["update", bucket] < at["gather", bucket]
        if bucket + 2 < count:  # whose place the bucket takes
            assert at["update", bucket + 2] < at["start", bucket]
            assert at["gather", bucket + 2] < at["update", bucket]
        if bucket and (overlaps or not ahead):
            assert at["gather", bucket] < at["start", 0]
