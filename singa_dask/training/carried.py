"""The state that recurrent layers carry from one mini-batch to the next, across a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.comm.objects import broadcast_object
from singa_dask.data.plan import share_rows
from singa_dask.exchange.sharded import Gathered, held_by, send_shards
from singa_dask.job.unroll import origin
from singa_dask.layers.partition import ArrayShard, LayerPartition, Sharding
from singa_dask.net import Net
from singa_dask.ops.arrays import Array

_SPLIT = {Sharding.BATCH: 0, Sharding.FEATURES: 1}  # axis of the state, by the sharding of the layer's output


def gather_carried(net: Net, comm: Communicator) -> dict[str, list[Gathered]]:
    """The state, by layer: arrays (B, H) of all rows of the mini-batch and all units. Collective."""
    partitions = _partitions(net)
    return {
        name: [_gathered(comm, partitions[name], net.ops.to_host(array)) for array in arrays]
        for name, arrays in net.state.items()
    }


def own_carried(net: Net) -> dict[str, list[tuple[np.ndarray, int | None]]]:
    """This rank's share of the state, by layer: arrays, and the axis that is divided over the group; None if none
    is."""
    partitions = _partitions(net)
    return {
        name: [(net.ops.to_host(array), _SPLIT.get(partitions[name].makes)) for array in arrays]
        for name, arrays in net.state.items()
    }


def joined_carried(shares: Sequence[Mapping[str, list[tuple[np.ndarray, int | None]]]]) -> dict[str, list[np.ndarray]]:
    """The whole state of a group from the shares of all its ranks."""

    def joined(parts: Sequence[tuple[np.ndarray, int | None]]) -> np.ndarray:
        first, axis = parts[0]
        return first if axis is None else np.concatenate([array for array, _ in parts], axis)

    return {
        name: [joined([share[name][i] for share in shares]) for i in range(len(arrays))]
        for name, arrays in shares[0].items()
    }


def share_carried(net: Net, comm: Communicator, saved: Mapping[str, list[Any]] | None) -> None:
    """Give every worker its shard of the first worker's state. saved: None on the others. Collective."""
    kept = {name: [(array.shape, array.dtype) for array in arrays] for name, arrays in (saved or {}).items()}
    partitions, state = _partitions(net), {}
    for name, arrays in broadcast_object(comm, kept).items():
        state[name] = [
            _own(net, comm, partitions.get(name, LayerPartition()), shape, dtype, saved[name][i] if saved else None)
            for i, (shape, dtype) in enumerate(arrays)
        ]
    net.state = state


def _gathered(comm: Communicator, partition: LayerPartition, array: np.ndarray) -> Gathered:
    axis = _SPLIT.get(partition.makes)
    flat = np.ascontiguousarray(array).reshape(-1)
    if axis is None:
        return Gathered.of_array(comm, held_by(0, array.size, comm.size), array.shape, flat)
    bounds = (0, *accumulate(comm.all_gather_number(array.shape[axis]).tolist()))
    shape = (*array.shape[:axis], bounds[-1], *array.shape[axis + 1 :])
    return Gathered.of_array(comm, ArrayShard(shape, axis, bounds, comm.rank), shape, flat)


def _own(
    net: Net, comm: Communicator, partition: LayerPartition, shape: tuple[int, ...], dtype: np.dtype, array: Any
) -> Array:
    axis = _SPLIT.get(partition.makes)
    if axis is None:
        whole = np.empty(shape, dtype) if array is None else np.asarray(array)
        comm.broadcast(whole.reshape(-1))
        return net.ops.asarray(whole)
    starts = [share_rows(shape[0], rank, comm.size)[0] for rank in range(comm.size)]
    bounds = (*starts, shape[0]) if axis == 0 else partition.bounds(shape[1])
    shard = ArrayShard(shape, axis, bounds, comm.rank)
    own = np.empty(shard.size, dtype)
    send_shards(comm, shard, array, own)
    return net.ops.asarray(own.reshape(shard.local_shape))


def _partitions(net: Net) -> dict[str, LayerPartition]:
    return {origin(layer.proto): layer.partition for layer in net.layers.values() if layer.recurrent}
