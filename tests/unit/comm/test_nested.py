"""Ranks that are threads of processes. The processes are threads here too, with a communicator of their own."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singa_dask.comm import NestedCommunicator, SoloCommunicator, run_members, run_threads
from singa_dask.errors import ClusterError, CommTimeout, DataError
from singa_dask.exchange import Bucket, FullExchange

SHAPES = [(processes, threads) for processes in (1, 2, 3) for threads in (1, 2, 3)]


def run_nested(processes, threads, fn, *args, timeout_s=10.0):
    """What fn(comm, *args) returned on every rank, and every process's outer communicator."""

    def process(outer):
        return run_members(NestedCommunicator.create(outer, threads), fn, *args), outer

    done = run_threads(processes, process, timeout_s=timeout_s)
    return [result for results, _ in done for result in results], [outer for _, outer in done]


def _inputs(size, n, dtype):
    return [np.random.default_rng(100 + rank).normal(size=n).astype(dtype) for rank in range(size)]


def _every_operation(comm, counts, root, dtype):
    total, own = sum(counts), slice(sum(counts[: comm.rank]), sum(counts[: comm.rank + 1]))
    x = _inputs(comm.size, total, dtype)[comm.rank]
    got = {}

    kept = x.copy()
    got["reduce_scatter"] = np.full(counts[comm.rank], np.nan, dtype)
    comm.reduce_scatter(kept, got["reduce_scatter"], counts)
    assert kept.tobytes() == x.tobytes()

    got["all_gather"] = np.full(total, np.nan, dtype)
    got["all_gather"][own] = x[own]
    comm.all_gather(got["all_gather"], counts)

    got["gather"] = np.full(total, np.nan, dtype) if comm.rank == root else None
    comm.gather(x[own].copy(), got["gather"], counts, root)

    for name, operation in (("all_reduce", comm.all_reduce), ("broadcast", lambda x: comm.broadcast(x, root))):
        got[name] = x.copy()
        operation(got[name])

    comm.barrier()
    return comm.rank, got, dict(comm.nbytes), comm.wait_s


def _check(processes, threads, counts, root, dtype):
    results, outers = run_nested(processes, threads, _every_operation, counts, root, dtype)
    assert [rank for rank, *_ in results] == list(range(processes * threads))
    xs = _inputs(len(results), sum(counts), dtype)
    starts = np.cumsum([0, *counts])
    runs = np.concatenate([x[a:b] for x, a, b in zip(xs, starts, starts[1:], strict=False)])
    # The order in which it is promised to be added up: every process's threads, then the processes.
    shares = [sum(xs[p + 1 : p + threads], xs[p].copy()) for p in range(0, len(xs), threads)]
    total = sum(shares[1:], shares[0].copy())
    for rank, got, nbytes, wait_s in results:
        np.testing.assert_array_equal(got["reduce_scatter"], total[starts[rank] : starts[rank + 1]])
        np.testing.assert_array_equal(got["all_reduce"], total)
        np.testing.assert_array_equal(got["all_gather"], runs)
        np.testing.assert_array_equal(got["broadcast"], xs[root])
        assert got["gather"] is None or np.array_equal(got["gather"], runs)
        assert (got["gather"] is None) == (rank != root)
        whole, own = (n * np.dtype(dtype).itemsize for n in (sum(counts), counts[rank]))
        assert nbytes["gather"] == own and nbytes["barrier"] == 0
        assert nbytes["all_reduce"] == nbytes["broadcast"] == whole
        assert nbytes["reduce_scatter"] == nbytes["all_gather"] == whole - own
        assert wait_s > 0
    for process, outer in enumerate(outers):  # each process has spoken once per operation
        own = sum(counts[process * threads : (process + 1) * threads])
        item = np.dtype(dtype).itemsize
        assert outer.nbytes["all_reduce"] == sum(counts) * item
        assert outer.nbytes["reduce_scatter"] == (sum(counts) - own) * item


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("processes", "threads"), SHAPES)
def test_every_operation_agrees_with_numpy(processes, threads, dtype):
    size = processes * threads
    for counts in ([0] * size, [5] * size, [(3 * rank) % 7 for rank in range(size)]):
        for root in {0, size - 1, size // 2}:
            _check(processes, threads, counts, root, dtype)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_every_operation_agrees_with_numpy_for_any_counts(data):
    processes, threads = data.draw(st.sampled_from(SHAPES))
    size = processes * threads
    counts = data.draw(st.lists(st.integers(0, 40), min_size=size, max_size=size))
    _check(processes, threads, counts, data.draw(st.integers(0, size - 1)), np.float32)


def _steps(comm, counts, steps):
    exchange = FullExchange(comm, [Bucket(0, sum(counts), tuple(counts))])
    values, own = np.zeros(sum(counts), np.float32), np.zeros(sum(counts), np.float32)
    for step in range(steps):
        exchange.reduce_scatter(0, np.full(values.size, comm.rank + step, "f4"), own)
        values[exchange.parts[0]] += own[exchange.parts[0]]
        exchange.all_gather(0, values, values)
        agreed = np.array([float(comm.rank)])
        comm.all_reduce(agreed)
        assert agreed[0] == sum(range(comm.size))
    return values


def test_many_steps_of_different_sizes_reuse_what_they_work_in():
    def member(comm):
        values = [_steps(comm, [n] * comm.size, 20) for n in (7, 300, 1, 0, 300)]
        return values, sum(buffer.size for buffer in comm._buffers.values())

    results, _ = run_nested(2, 3, member)
    for values, held in results[::3]:
        for got in values:
            np.testing.assert_array_equal(got, np.full(got.size, 20 * sum(range(6)) + 6 * sum(range(20))))
        assert held == 6 * 300 + 3 * 300  # the sum, and this process's share of it, of the largest call
    assert all(held == 0 for i, (_, held) in enumerate(results) if i % 3)


def test_outer_may_be_a_group_of_one():
    results = run_members(NestedCommunicator.create(SoloCommunicator(), 3), _steps, [2, 0, 5], 4)
    for values in results:
        np.testing.assert_array_equal(values, np.full(7, 4 * 3 + 3 * 6))


def test_the_outer_communicator_is_called_by_the_leader_only():
    callers = set()

    class Outer(SoloCommunicator):
        def all_reduce(self, buffer):
            callers.add(threading.get_ident())
            super().all_reduce(buffer)

    def member(comm):
        for _ in range(10):
            comm.all_reduce(np.ones(3))
        return threading.get_ident()

    idents = run_members(NestedCommunicator.create(Outer(), 3), member)
    assert callers == {idents[0]}


# How it fails


def _failures(processes, threads, fn, timeout_s):
    """The error that every rank ends with, and the seconds that it took."""

    def member(comm):
        start = time.monotonic()
        try:
            fn(comm)
        except Exception as error:
            comm.abort(str(error))
            return error, time.monotonic() - start
        return None, time.monotonic() - start

    return run_nested(processes, threads, member, timeout_s=timeout_s)[0]


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_a_thread_that_raises_breaks_all_others_at_once(bad):
    def member(comm):
        if comm.rank == bad:
            raise DataError("no data")
        comm.all_reduce(np.ones(4))

    failures = _failures(2, 2, member, timeout_s=20.0)
    assert isinstance(failures[bad][0], DataError)
    for rank, (error, seconds) in enumerate(failures):
        assert seconds < 5.0
        assert rank == bad or (type(error) is ClusterError and "no data" in str(error))


def test_run_members_raises_what_came_first():
    def member(comm):
        if comm.rank == 2:
            raise DataError("no data")
        comm.barrier()

    with pytest.raises(DataError, match="no data"):
        run_members(NestedCommunicator.create(SoloCommunicator(), 3), member)


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_thread_that_is_late_is_a_timeout_of_all_in_its_process(late):
    def member(comm):
        if comm.rank == late:
            time.sleep(1.0)
        comm.all_reduce(np.ones(4))

    failures = _failures(1, 3, member, timeout_s=0.3)
    for rank, (error, seconds) in enumerate(failures):
        assert isinstance(error, CommTimeout) and f"rank {late} is lost or late" in str(error)
        assert seconds < 0.9 or rank == late


def test_a_late_process_is_a_timeout():
    def member(comm):
        if comm.rank > 1:
            time.sleep(1.5)
        comm.reduce_scatter(np.ones(8), np.ones(2), [2] * 4)

    failures = _failures(2, 2, member, timeout_s=0.3)
    # The thread that waits for the one in time hears of it either way.
    assert any(isinstance(error, CommTimeout) for error, _ in failures[:2])
    assert all(isinstance(error, ClusterError) for error, _ in failures)
    assert all(seconds < 1.5 for _, seconds in failures[:2])


def test_each_rank_has_its_own_patience():
    """The thread that waits for the leader gives up while the leader waits for another process, and takes it along."""

    def member(comm):
        comm.timeout_s = 0.3 if comm.rank == 1 else 20.0
        if comm.rank < 2:
            comm.barrier()
        else:
            time.sleep(1.0)

    failures = _failures(2, 2, member, timeout_s=20.0)
    assert isinstance(failures[1][0], CommTimeout) and "barrier did not finish within 0.3 s" in str(failures[1][0])
    assert isinstance(failures[0][0], ClusterError) and failures[0][1] < 0.9


def test_a_longer_patience_reaches_the_outer_communicator_and_is_taken_back():
    def member(comm):
        comm.timeout_s = 20.0
        if comm.rank < 2:
            time.sleep(0.6)
        comm.all_reduce(np.ones(1))
        return True

    results, outers = run_nested(2, 2, member, timeout_s=0.2)
    assert all(results) and all(outer.timeout_s == 0.2 for outer in outers)


class _FailingOuter(SoloCommunicator):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def all_reduce(self, buffer):
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"), [(CommTimeout("rank 0: nobody came"), CommTimeout), (OSError("no wire"), ClusterError)]
)
def test_an_outer_operation_that_fails_fails_for_all_threads(error, kind):
    def member(comm):
        with pytest.raises(type(error) if comm.rank == 0 else kind, match=r"nobody came|no wire"):
            comm.all_reduce(np.ones(2))
        with pytest.raises(kind, match=r"nobody came|no wire"):
            comm.barrier()

    run_members(NestedCommunicator.create(_FailingOuter(error), 3), member)


def test_an_abort_of_the_outer_communicator_ends_a_wait_for_another_thread():
    """As when the driver tells a rank to leave while one of its threads computes for long."""
    outer = SoloCommunicator(timeout_s=20.0)

    def member(comm):
        if comm.rank == 1:
            time.sleep(0.3)
            outer.abort("told to leave")
            time.sleep(0.5)
        with pytest.raises(ClusterError, match="told to leave"):
            comm.barrier()
        return time.monotonic()

    start = time.monotonic()
    left = run_members(NestedCommunicator.create(outer, 3), member)
    assert max(left[0], left[2]) - start < 0.75


def test_an_abort_ends_the_outer_operation_too():
    def member(comm):
        if comm.rank == 0:
            time.sleep(0.2)
            comm.abort("enough")
        with pytest.raises(ClusterError, match="enough"):
            comm.barrier()
        assert "enough" in comm.aborted

    run_nested(3, 2, member)


@pytest.mark.parametrize(
    "other",
    [
        lambda comm: comm.all_reduce(np.ones(2)),
        lambda comm: comm.all_reduce(np.ones(3, np.float32)),
        lambda comm: comm.broadcast(np.ones(3)),
    ],
    ids=["size", "dtype", "operation"],
)
def test_threads_that_do_not_agree_are_told_apart(other):
    def member(comm):
        return other(comm) if comm.rank else comm.all_reduce(np.ones(3))

    with pytest.raises(ClusterError, match="different operations: all_reduce float64 3; "):
        run_members(NestedCommunicator.create(SoloCommunicator(), 2), member)


def test_wrong_arguments_are_refused_before_any_thread_waits():
    def member(comm):
        for call in (
            lambda: comm.all_reduce(np.ones((2, 2))),
            lambda: comm.all_gather(np.ones(5), [1, 1, 1, 1]),
            lambda: comm.all_gather(np.ones(2), [1, 1]),
            lambda: comm.reduce_scatter(np.ones(4), np.ones(2), [1, 1, 1, 1]),
            lambda: comm.broadcast(np.ones(1), root=4),
            lambda: comm.gather(np.ones(1), None, [1, 1, 1, 1], root=comm.rank),
        ):
            with pytest.raises(ValueError, match="Received"):
                call()
        comm.barrier()
        return True

    assert all(run_nested(2, 2, member)[0])


def test_a_process_has_at_least_one_thread():
    with pytest.raises(ValueError, match="nthreads must be at least 1"):
        NestedCommunicator.create(SoloCommunicator(), 0)


def test_a_split_wants_as_many_threads_of_a_color_in_every_process():
    def member(comm):
        with pytest.raises(ValueError, match="as many threads in each of its processes"):
            comm.split(int(comm.rank == 3))

    run_threads(2, lambda outer: run_members(NestedCommunicator.create(outer, 2), member))
