"""What codecs have kept back goes to a checkpoint and comes back, to as many ranks or to others."""

import numpy as np
import pytest

from singa_dask.comm import run_threads
from singa_dask.exchange import Bucket, FullExchange
from singa_dask.exchange.buckets import even_counts
from singa_dask.exchange.make import bucket_exchange
from singa_dask.exchange.residuals import gather_residuals, share_residuals
from singa_dask.exchange.sharded import holdings
from singa_dask.net.flat import Entry, FlatParams

ENTRIES = [Entry("a", (2, 3), 0, 6), Entry("b", (5,), 16, 5)]
INSIDE = np.r_[0:6, 16:21]


def flat_of():
    return FlatParams(np.zeros(32, np.float32), np.zeros(32, np.float32), ENTRIES, (), 32)


def numbers(seed):
    """A flat array with zeros between the parameters."""
    array = np.zeros(32, np.float32)
    array[INSIDE] = np.random.default_rng(seed).normal(size=INSIDE.size)
    return array


def empty():
    return FlatParams(np.zeros(0, np.float32), np.zeros(0, np.float32), [], (), 0)


def exchange_of(comm, *, full=False):
    buckets = [Bucket(0, 16, even_counts(16, comm.size)), Bucket(16, 32, even_counts(16, comm.size))]
    if full:
        return FullExchange(comm, buckets)
    return bucket_exchange(comm, buckets, {"name": "kTopK", "sparsity": 0.4})


def gathered(comm, *, full=False):
    """What rank r of the group has kept back: numbers(r) of gradients, its parts of numbers(9) of pushes."""
    exchange = exchange_of(comm, full=full)
    if not full:
        exchange.residual[...] = numbers(comm.rank)
    pushes = np.zeros(32, np.float32)
    for part in exchange.parts:
        pushes[part] = numbers(9)[part]
    held = holdings(flat_of(), empty(), exchange)
    kept = gather_residuals(exchange, comm, flat_of(), held, numbers(8), pushes)
    return {key: {name: whole(array) for name, array in arrays.items()} for key, arrays in kept.items()}


def whole(gathered):
    blocks = list(gathered.blocks())
    return np.concatenate(blocks).reshape(gathered.shape) if blocks else None


def shared(comm, saved):
    held = holdings(flat_of(), empty(), exchange_of(comm))
    return share_residuals(comm, saved if comm.rank == 0 else {}, {}, flat_of(), empty(), held), held


def test_the_first_rank_has_what_every_rank_kept_back():
    first, *others = run_threads(3, gathered)
    assert sorted(first) == ["pushes", "rank 0", "rank 1", "rank 2", "values"]
    assert not any(array is not None for other in others for arrays in other.values() for array in arrays.values())
    for key, seed in (("rank 0", 0), ("rank 1", 1), ("rank 2", 2), ("values", 8), ("pushes", 9)):
        assert first[key].keys() == {"a", "b"} and first[key]["a"].shape == (2, 3)
        np.testing.assert_array_equal(flat_of().flattened(first[key]), numbers(seed))


def test_an_exchange_that_keeps_nothing_back_has_zeros():
    (found, _) = run_threads(2, lambda comm: gathered(comm, full=True))
    assert not any(array.any() for key in ("rank 0", "rank 1") for array in found[key].values())
    np.testing.assert_array_equal(flat_of().flattened(found["pushes"]), numbers(9))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_rank_gets_its_own_back_or_the_first_one_all(size):
    saved, *_ = run_threads(3, gathered)
    states = run_threads(size, shared, saved)
    total = sum(numbers(rank) for rank in range(3))
    for rank, (state, held) in enumerate(states):
        expected = numbers(rank) if size == 3 else total if rank == 0 else np.zeros(32)
        np.testing.assert_allclose(state.residual, expected, rtol=1e-6)
        np.testing.assert_array_equal(state.values, numbers(8))
        for h in held:
            np.testing.assert_array_equal(state.pushes[h.elements], numbers(9)[h.elements])
    np.testing.assert_array_equal(sum(state.pushes for state, _ in states), numbers(9))


def test_a_checkpoint_without_residuals_has_none():
    assert [state for state, _ in run_threads(2, shared, {})] == [None, None]
