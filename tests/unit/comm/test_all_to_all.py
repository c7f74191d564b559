"""Every rank sends every rank a run of its own: solo and threads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.errors import ClusterError

DTYPES = ["u1", "f2", "u4", "f4", "i8", "f8", "?", "c16"]
SIZES = [1, 2, 3, 4, 9]


def _message(sender, receiver, size, dtype):
    return np.random.default_rng([sender, receiver]).integers(0, 200, size).astype(dtype)


def _received(comm, counts, dtype):
    """What arrives at this rank, rank s sending counts[s][r] elements to rank r."""
    sent, expected = counts[comm.rank], [row[comm.rank] for row in counts]
    send = np.concatenate([_message(comm.rank, r, n, dtype) for r, n in enumerate(sent)])
    kept, recv = send.copy(), np.full(sum(expected), 99, dtype)
    comm.all_to_all(send, sent, recv, expected)
    assert send.tobytes() == kept.tobytes()
    assert comm.nbytes["all_to_all"] == send.nbytes - sent[comm.rank] * send.itemsize and (
        comm.wait_s > 0 or comm.size == 1
    )
    return recv


def _check(results, counts, dtype):
    for rank, recv in enumerate(results):
        expected = np.concatenate([_message(s, rank, row[rank], dtype) for s, row in enumerate(counts)])
        np.testing.assert_array_equal(recv, expected, strict=True)


@settings(max_examples=60)
@given(st.data())
def test_every_run_arrives_whatever_the_counts(data):
    size = data.draw(st.sampled_from(SIZES))
    row = st.lists(st.sampled_from([0, 0, 1, 2, 17, 300]), min_size=size, max_size=size)
    counts, dtype = data.draw(st.lists(row, min_size=size, max_size=size)), data.draw(st.sampled_from(DTYPES))
    _check(run_threads(size, lambda comm: _received(comm, counts, dtype)), counts, dtype)


def test_a_group_of_one_copies():
    comm = SoloCommunicator()
    _check([_received(comm, [[6]], "c16")], [[6]], "c16")
    with pytest.raises(
        ClusterError, match=r"recv_counts\[0\] must be what rank 0 sends here, 2 elements.*Received: 3"
    ):
        comm.all_to_all(np.ones(2), [2], np.ones(3), [3])
    comm.abort("enough")
    with pytest.raises(ClusterError, match="all_to_all: enough"):
        comm.all_to_all(np.ones(2), [2], np.ones(2), [2])


@pytest.mark.parametrize("size", [3, 4])
def test_many_of_different_sizes_in_a_row(size):
    """No rank may write into what another has not picked up yet."""

    def member(comm):
        for step in range(60):
            sizes = [(step * 7 + rank) % 50 for rank in range(comm.size)]
            recv = np.full(sum(sizes), -1, np.int64)
            own = sizes[comm.rank]
            send = np.repeat(np.arange(comm.size) + 1000 * step + 100 * comm.rank, own)
            comm.all_to_all(send, [own] * comm.size, recv, sizes)
            expected = np.repeat(1000 * step + 100 * np.arange(comm.size) + comm.rank, sizes)
            np.testing.assert_array_equal(recv, expected)

    run_threads(size, member)


@pytest.mark.parametrize("size", [3, 6])
@pytest.mark.parametrize("expected", [1, 3])
def test_counts_that_do_not_fit_end_the_group(size, expected):
    """Rank 0 sends rank 2 two elements, which expects another number of them."""

    def member(comm):
        sent, received = [2] * comm.size, [2] * comm.size
        if comm.rank == 2:
            received[0] = expected
        with pytest.raises(ClusterError) as failure:
            comm.all_to_all(np.ones(sum(sent)), sent, np.ones(sum(received)), received)
        with pytest.raises(ClusterError):
            comm.barrier()
        return str(failure.value)

    texts = run_threads(size, member)
    assert any(f"2 elements. Received: {expected}" in text for text in texts)
    assert any("must be what rank" in text for text in texts)


def test_wrong_arguments_are_refused_before_any_rank_waits():
    def member(comm):
        ones, x = [1] * 4, np.ones(8)
        for call in (
            lambda: comm.all_to_all(np.ones((2, 2)), ones, np.ones(4), ones),
            lambda: comm.all_to_all(np.ones(4), ones, np.ones(8)[::2], ones),
            lambda: comm.all_to_all(np.ones(5), ones, np.ones(4), ones),
            lambda: comm.all_to_all(np.ones(4), ones, np.ones(3), ones),
            lambda: comm.all_to_all(np.ones(3), [1] * 3, np.ones(4), ones),
            lambda: comm.all_to_all(np.ones(4), ones, np.ones(2), [-1, 1, 1, 1]),
            lambda: comm.all_to_all(np.ones(4), ones, np.ones(4, "f4"), ones),
            lambda: comm.all_to_all(x[:4], ones, x[2:6], ones),
        ):
            with pytest.raises(ValueError, match="Received"):
                call()
        comm.all_to_all(x[:4], ones, x[4:], ones)  # neighbours in one array do not overlap
        return True

    assert all(run_threads(4, member))
