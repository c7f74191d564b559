"""Cases of collectives on any communicator, against NumPy, on inputs that depend on the rank.

CASES: by name, functions of `run`, which runs fn(comm, *args) on each rank of a group and returns what each returned.
"""

from functools import partial
from itertools import product

import numpy as np
import pytest

from singa_dask.comm.communicator import part_of
from singa_dask.errors import ClusterError


def _unequal(size):
    """How many elements each rank of a group has."""
    return [4, 0, 9, 2][:size] if size > 1 else [7]


def _inputs(size, n, dtype):
    return [np.random.default_rng(100 + rank).normal(size=n).astype(dtype) for rank in range(size)]


def _every_collective(comm, dtype):
    counts = _unequal(comm.size)
    start, total = sum(counts[: comm.rank]), sum(counts)
    own = slice(start, start + counts[comm.rank])
    x = _inputs(comm.size, total, dtype)[comm.rank]
    got = {}

    got["reduce_scatter"] = np.full(counts[comm.rank], np.nan, dtype)
    comm.reduce_scatter(x.copy(), got["reduce_scatter"], counts)

    got["all_gather"] = np.full(total, np.nan, dtype)
    got["all_gather"][own] = x[own]
    comm.all_gather(got["all_gather"], counts)

    got["gather"] = np.full(total, np.nan, dtype) if comm.rank == comm.size - 1 else None
    comm.gather(x[own].copy(), got["gather"], counts, root=comm.size - 1)

    got["all_reduce"] = x.copy()
    comm.all_reduce(got["all_reduce"])

    got["broadcast"] = x.copy()
    comm.broadcast(got["broadcast"], root=comm.size - 1)

    comm.barrier()
    return got, dict(comm.nbytes), dict(comm.seconds), comm.wait_s


def every_collective_agrees_with_numpy(run, dtype):
    results = run(_every_collective, dtype)
    size = len(results)
    counts = _unequal(size)
    starts = np.cumsum([0, *counts])
    xs = _inputs(size, sum(counts), dtype)
    total = sum(xs[1:], xs[0])
    runs = np.concatenate([x[a:b] for x, a, b in zip(xs, starts, starts[1:], strict=False)])
    close = {"rtol": 1e-6 if dtype is np.float32 else 1e-14, "atol": 1e-6 if dtype is np.float32 else 1e-14}
    for rank, (got, nbytes, seconds, wait_s) in enumerate(results):
        np.testing.assert_allclose(got["reduce_scatter"], total[starts[rank] : starts[rank + 1]], **close)
        np.testing.assert_allclose(got["all_reduce"], total, **close)
        np.testing.assert_array_equal(got["all_gather"], runs)
        np.testing.assert_array_equal(got["broadcast"], xs[-1])
        assert (got["gather"] is None) == (rank < size - 1)
        item = np.dtype(dtype).itemsize
        assert nbytes["all_reduce"] == nbytes["broadcast"] == sum(counts) * item
        assert nbytes["reduce_scatter"] == nbytes["all_gather"] == (sum(counts) - counts[rank]) * item
        assert nbytes["gather"] == counts[rank] * item
        assert set(seconds) == set(nbytes) == {*got, "barrier"}
        assert all(spent > 0 for spent in seconds.values()) or size == 1
        assert wait_s == sum(seconds.values())
    np.testing.assert_array_equal(results[-1][0]["gather"], runs)
    # Bit for bit the same on every rank, or replicas drift apart.
    assert len({got["all_reduce"].tobytes() for got, *_ in results}) == 1


def _message(sender, receiver, size, dtype):
    return np.random.default_rng([sender, receiver]).integers(0, 200, size).astype(dtype)


ROWS = [[0, 0, 0, 0], [3, 3, 3, 3], [7, 0, 1, 2], [0, 70_001, 0, 5]]
KINDS = ["u1", "f2", "u4", "f4", "f8", "?"]


def _counts(row, size):
    """What every rank sends to each."""
    return [np.roll(row, rank).tolist()[:size] for rank in range(size)]


def _all_to_all(comm):
    found = []
    for row, dtype in product(ROWS, KINDS):
        counts, before = _counts(row, comm.size), comm.nbytes["all_to_all"]
        sent, expected = counts[comm.rank], [line[comm.rank] for line in counts]
        send = np.concatenate([_message(comm.rank, r, n, dtype) for r, n in enumerate(sent)])
        recv = np.full(sum(expected), 99, dtype)
        comm.all_to_all(send, sent, recv, expected)
        counted = comm.nbytes["all_to_all"] - before == send.nbytes - sent[comm.rank] * send.itemsize
        found.append((recv, counted))
    return found, comm.wait_s


def every_part_of_an_all_to_all_arrives(run):
    results = run(_all_to_all)
    size = len(results)
    for rank, (found, wait_s) in enumerate(results):
        for (row, dtype), (recv, counted) in zip(product(ROWS, KINDS), found, strict=True):
            lines = enumerate(_counts(row, size))
            expected = np.concatenate([_message(s, rank, line[rank], dtype) for s, line in lines])
            np.testing.assert_array_equal(recv, expected, err_msg=f"{row} of {dtype} at rank {rank}")
            assert counted, f"{row} of {dtype} at rank {rank}"
        assert wait_s > 0 or size == 1


def _too_long_a_run(comm):
    """Rank 0 sends the last rank more than that one has place for."""
    sent, received = [8] * comm.size, [8] * comm.size
    sent[-1] = 1000 if comm.rank == 0 else 8
    comm.timeout_s = 2.0
    place = np.zeros(sum(received) + 1000, np.uint8)
    try:
        comm.all_to_all(np.ones(sum(sent), np.uint8), sent, place[: sum(received)], received)
    except ClusterError as error:
        comm.abort(str(error))
    return place[sum(received) :].any()


def a_run_that_is_too_long_for_its_place_is_not_written_past_its_end(run):
    assert not any(run(_too_long_a_run))


def _started(comm):
    counts = _unequal(comm.size)
    own = part_of(comm.rank, counts)
    x = _inputs(comm.size, sum(counts), np.float32)[comm.rank]
    total, out = np.zeros(counts[comm.rank], np.float32), np.arange(comm.size) + 10 * comm.rank
    requests = [comm.start_reduce_scatter(x, total, counts)]
    ones, arrived = [1] * comm.size, np.zeros(comm.size, int)
    requests.append(comm.start_all_to_all(out, ones, arrived, ones))
    gathered = np.zeros(sum(counts), np.float32)
    gathered[own] = x[own]
    comm.all_gather(gathered, counts)
    again = np.zeros(comm.size, int)
    requests.append(comm.start_all_to_all(np.full(comm.size, comm.rank), ones, again, ones))
    for request in reversed(requests):
        request.wait()
    return total, arrived, gathered, again, dict(comm.nbytes)


def operations_that_were_started_go_on_beside_others(run):
    results = run(_started)
    size = len(results)
    counts = _unequal(size)
    xs = _inputs(size, sum(counts), np.float32)
    runs = [part_of(rank, counts) for rank in range(size)]
    for rank, (total, arrived, gathered, again, nbytes) in enumerate(results):
        np.testing.assert_allclose(total, sum(xs[1:], xs[0])[runs[rank]], rtol=1e-6, atol=1e-6)
        assert arrived.tolist() == [10 * other + rank for other in range(size)]
        assert again.tolist() == list(range(size))
        np.testing.assert_array_equal(gathered, np.concatenate([x[run] for x, run in zip(xs, runs, strict=True)]))
        assert nbytes["all_to_all"] == 2 * 8 * (size - 1)


def _in_parts(comm, colors):
    part = comm.split(colors[comm.rank])
    x = np.array([2.0**comm.rank])
    part.all_reduce(x)
    ranks = np.zeros(part.size, np.int64)
    ranks[part.rank] = comm.rank
    part.all_gather(ranks, [1] * part.size)
    part.close()
    whole = np.array([1])
    comm.all_reduce(whole)
    return part.rank, part.size, ranks.tolist(), float(x[0]), int(whole[0])


def ranks_of_one_color_are_a_group_of_their_own(run, colors):
    results = run(_in_parts, colors)
    size = len(results)
    for rank, found in enumerate(results):
        members = [r for r in range(size) if colors[r] == colors[rank]]
        expected = members.index(rank), len(members), members, float(sum(2**r for r in members)), size
        assert found == expected


def _abort_whole_and_part(comm):
    ends, goes_on = comm.split(0), comm.split(comm.rank)
    goes_on.abort("only this part")
    comm.barrier()
    comm.abort("enough")
    with pytest.raises(ClusterError, match="enough"):
        ends.barrier()
    return comm.rank


def an_abort_of_the_whole_ends_its_parts_and_not_the_other_way_round(run):
    ranks = run(_abort_whole_and_part)
    assert ranks == list(range(len(ranks)))


def _wrong_buffers(comm):
    failures = []
    good = [4] * comm.size
    calls = [
        lambda: comm.all_reduce(np.zeros((2, 2), np.float32)),
        lambda: comm.all_reduce(np.zeros(8, np.float32)[::2]),
        lambda: comm.all_gather(np.zeros(4 * comm.size + 1, np.float32), good),
        lambda: comm.all_gather(np.zeros(4 * comm.size, np.float32), [*good, 4]),
        lambda: comm.all_gather(np.zeros(0, np.float32), [-1, *[1] * (comm.size - 1)]),
        lambda: comm.reduce_scatter(np.zeros(4 * comm.size, np.float32), np.zeros(5, np.float32), good),
        lambda: comm.all_to_all(np.zeros(4 * comm.size, "u1"), good, np.zeros(4 * comm.size - 1, "u1"), good),
        lambda: comm.all_to_all(np.zeros(4 * comm.size + 1, "u1"), good, np.zeros(4 * comm.size, "u1"), good),
        lambda: comm.all_to_all(np.zeros(4 * comm.size, "u1"), good, np.zeros(4 * comm.size, "i1"), good),
    ]
    for call in calls:
        try:
            call()
        except ValueError as error:
            failures.append(str(error))
    comm.barrier()
    return len(failures), len(calls)


def wrong_buffers_are_refused_before_any_rank_waits(run):
    for refused, called in run(_wrong_buffers):
        assert refused == called


COLORS = [0, 0, 0, 0], [7, 3, 7, 3], [1, 1, 0, 0], [3, 2, 1, 0]

CASES = {
    "every collective, float32": partial(every_collective_agrees_with_numpy, dtype=np.float32),
    "every collective, float64": partial(every_collective_agrees_with_numpy, dtype=np.float64),
    "all-to-all": every_part_of_an_all_to_all_arrives,
    "too long a run": a_run_that_is_too_long_for_its_place_is_not_written_past_its_end,
    "started operations": operations_that_were_started_go_on_beside_others,
    **{f"colors {colors}": partial(ranks_of_one_color_are_a_group_of_their_own, colors=colors) for colors in COLORS},
    "aborts": an_abort_of_the_whole_ends_its_parts_and_not_the_other_way_round,
    "wrong buffers": wrong_buffers_are_refused_before_any_rank_waits,
}
