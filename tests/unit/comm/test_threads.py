"""How a group of threads fails."""

import threading
import time

import numpy as np
import pytest

from singa_dask.comm import run_threads
from singa_dask.errors import ClusterError, CommTimeout, DataError


def test_a_member_that_raises_breaks_the_others():
    seen = []

    def member(comm):
        if comm.rank == 1:
            raise DataError("no data")
        try:
            comm.barrier()
        except ClusterError as error:
            seen.append((comm.rank, str(error)))
            raise

    with pytest.raises(DataError, match="no data"):
        run_threads(3, member)
    assert sorted(rank for rank, _ in seen) == [0, 2] and all("rank 1 failed: no data" in text for _, text in seen)


def test_after_an_abort_nothing_works():
    def member(comm):
        comm.abort("enough")
        with pytest.raises(ClusterError, match="enough"):
            comm.barrier()

    run_threads(2, member)


def _failures(size, late, fn, timeout_s):
    """The error that every rank ends with; rank `late` begins when the others failed."""
    failed = threading.Semaphore(0)

    def member(comm):
        for _ in range(size - 1 if comm.rank == late else 0):
            assert failed.acquire(timeout=30.0)
        with pytest.raises(ClusterError) as failure:
            fn(comm)
        failed.release()
        return failure.value

    return run_threads(size, member, timeout_s=timeout_s)


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_timeout_names_the_rank_that_is_late(late):
    def member(comm):
        comm.all_reduce(np.ones(4))

    for error in _failures(3, late, member, timeout_s=0.3):
        assert isinstance(error, CommTimeout) and f"rank {late} is lost or late" in str(error)


def test_each_rank_has_its_own_timeout():
    def member(comm):
        comm.timeout_s = 0.3 if comm.rank == 1 else 20.0
        comm.barrier()

    for error in _failures(3, 2, member, timeout_s=20.0):
        assert isinstance(error, CommTimeout) and "rank 1: barrier did not finish within 0.3 s" in str(error)


@pytest.mark.parametrize(
    "other",
    [
        lambda comm: comm.all_reduce(np.ones(2)),
        lambda comm: comm.all_reduce(np.ones(3, np.float32)),
        lambda comm: comm.broadcast(np.ones(3)),
        lambda comm: comm.all_to_all(np.ones(2), [1, 1], np.ones(2), [1, 1]),
        lambda comm: comm.barrier(),
    ],
    ids=["size", "dtype", "operation", "counts", "barrier"],
)
def test_an_error_says_which_operations_differ(other):
    def member(comm):
        return other(comm) if comm.rank else comm.all_reduce(np.ones(3))

    with pytest.raises(ClusterError, match="different operations: all_reduce float64 3; "):
        run_threads(2, member)


def test_the_root_cause_is_raised_though_its_consequence_came_first():
    def member(comm):
        if comm.rank == 0:
            return comm.all_reduce(np.ones(1))  # waits in vain
        while not comm.aborted:
            time.sleep(0.001)
        raise DataError("no data")

    with pytest.raises(DataError, match="no data"):
        run_threads(2, member, timeout_s=0.05)


@pytest.mark.parametrize("counts", [[1], [2, -1], [1, 1, 0]])
def test_wrong_counts_are_refused(counts):
    calls = [
        lambda comm: comm.reduce_scatter(np.ones(2), np.ones(1), counts),
        lambda comm: comm.all_gather(np.ones(1), counts),
        lambda comm: comm.gather(np.ones(1), np.ones(1), counts),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="counts must be"):
            run_threads(2, call)
