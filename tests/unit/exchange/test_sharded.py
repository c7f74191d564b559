"""Arrays of which every rank holds a shard are whole on the first rank, block by block, and nowhere else."""

import tracemalloc

import numpy as np
import pytest

from singa_dask.comm import run_threads
from singa_dask.exchange import sharded
from singa_dask.exchange.sharded import Gathered, held_by, read_all, send_shards
from singa_dask.layers.partition import ArrayShard

# The third one has an empty shard.
SHARDS = {
    "rows": ArrayShard((7, 5), axis=0, bounds=(0, 2, 4, 7), rank=0),
    "columns": ArrayShard((7, 5), axis=1, bounds=(0, 1, 3, 5), rank=0),
    "empty": ArrayShard((4, 3, 2), axis=1, bounds=(0, 2, 2, 3), rank=0),
    "channels of images": ArrayShard((12, 5), axis=0, bounds=(0, 1, 2, 3), rank=0, outer=4),
    "middle axis": ArrayShard((2, 6, 3), axis=1, bounds=(0, 2, 4, 6), rank=0),
    "one": held_by(1, 20, 3),
    "nothing": ArrayShard((0, 5), axis=1, bounds=(0, 1, 3, 5), rank=0),
}


@pytest.mark.parametrize("block", [1, 4, 12, 1000])
@pytest.mark.parametrize("name", SHARDS)
def test_what_is_sent_to_the_ranks_comes_back(name, block, monkeypatch):
    monkeypatch.setattr(sharded, "BLOCK", block)
    shard = SHARDS[name]
    whole = np.random.default_rng(0).standard_normal(shard.shape)

    def member(comm):
        out = np.empty(shard.of(comm.rank).size)
        send_shards(comm, shard, whole if comm.rank == 0 else None, out)
        return out, list(Gathered(comm, shard, shard.shape, out.dtype, lambda i, j: out[i:j]).blocks())

    found = run_threads(3, member)
    for rank, (own, blocks) in enumerate(found):
        np.testing.assert_array_equal(own, shard.of(rank).of_whole(whole).reshape(-1))
        assert rank == 0 or not blocks
    blocks = found[0][1]
    assert all(each.size <= block for each in blocks)
    np.testing.assert_array_equal(np.concatenate([np.empty(0), *blocks]), whole.reshape(-1))


def test_without_an_array_the_ranks_get_zeros():
    def member(comm):
        out = np.ones(SHARDS["rows"].of(comm.rank).size)
        send_shards(comm, SHARDS["rows"], None, out)
        return out

    assert not np.concatenate(run_threads(3, member)).any()


def test_an_array_is_read_block_by_block(monkeypatch):
    monkeypatch.setattr(sharded, "BLOCK", 5)
    array, out = np.arange(12.0).reshape(3, 4), np.empty(12)
    read_all(array, out)
    np.testing.assert_array_equal(out, np.arange(12))


@pytest.mark.parametrize("axis", [0, 1])
def test_no_rank_has_more_than_its_shard_and_a_few_blocks(axis, monkeypatch):
    monkeypatch.setattr(sharded, "BLOCK", 4096)
    whole = np.ones((1000, 1000))
    shard = ArrayShard(whole.shape, axis, (0, 300, 1000), 0)
    held = [np.empty(shard.of(rank).size) for rank in range(2)]

    def member(comm):
        send_shards(comm, shard, whole if comm.rank == 0 else None, held[comm.rank])
        gathered = Gathered(comm, shard, whole.shape, whole.dtype, lambda i, j: held[comm.rank][i:j])
        return sum(block.sum() for block in gathered.blocks())

    tracemalloc.start()
    try:
        assert run_threads(2, member) == [whole.size, 0]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * 4096 * 8 < whole.nbytes / 20
