"""The ranks that train a model together, as the model sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from singa_dask.comm import SoloCommunicator
from singa_dask.comm.communicator import part_of
from singa_dask.errors import CheckpointError
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.sharded import send_shards
from singa_dask.layers.param import Param
from singa_dask.net.flat import check_names


class Ranks:
    """Every rank makes the same calls in the same order. Without an executor there is only this rank.

    rank, size: this rank, and the number of ranks.
    """

    def __init__(self, executor: CollectiveExecutor | None = None) -> None:
        self._executor = executor or CollectiveExecutor(SoloCommunicator(), threaded=False)
        self._comm = self._executor.comm
        self.rank, self.size = self._comm.rank, self._comm.size

    def numbers(self, own: int) -> tuple[int, ...]:
        """Every rank's number, by rank."""
        if self.size == 1:
            return (own,)
        return tuple(self._executor.run(self._comm.all_gather_number, own).tolist())

    def sum(self, array: np.ndarray) -> np.ndarray:
        """The array; it has become the sum over the ranks."""
        return self._executor.all_reduce(array)

    def whole(self, params: Iterable[Param], own: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Whole arrays of all these parameters, by name. own: arrays of this rank, on the host."""
        return {param.name: self._gathered(param, own[param.name]) for param in params}

    def scattered(self, param: Param, whole: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
        """This rank's shard of rank 0's whole array of a split parameter, which other ranks need not give."""
        own = np.empty(param.size, dtype)
        self._executor.run(send_shards, self._comm, param.shard, whole, own)
        return own.reshape(param.shape)

    def _gathered(self, param: Param, own: np.ndarray) -> np.ndarray:
        if param.shard is None:
            return own
        shards = [param.shard.of(rank) for rank in range(self.size)]
        counts = [shard.size for shard in shards]
        packed, whole = np.empty(sum(counts), own.dtype), np.empty(param.whole_shape, own.dtype)
        packed[part_of(self.rank, counts)] = own.reshape(-1)
        self._executor.run(self._comm.all_gather, packed, counts)
        for rank, shard in enumerate(shards):
            shard.write(whole, packed[part_of(rank, counts)])
        return whole


def own_arrays(params: Sequence[Param], whole: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What this rank has of whole arrays of all these parameters, by name.

    Raises CheckpointError where names or shapes differ.
    """
    check_names([param.name for param in params], whole)
    own = {}
    for param in params:
        array = np.asarray(whole[param.name])
        if array.shape != param.whole_shape:
            raise CheckpointError(
                f"parameter {param.name!r} has shape {param.whole_shape} in this net, but {array.shape} in the given "
                "arrays"
            )
        own[param.name] = array if param.shard is None else param.shard.of_whole(array)
    return own
