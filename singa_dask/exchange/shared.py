"""The exchange by memory that all ranks share."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.base import BucketExchange
from singa_dask.exchange.buckets import Bucket


class SharedExchange(BucketExchange):
    """Every value as it is, in memory that all ranks see (`form_shared_memory`): nothing is sent.

    gradients: every rank's, by rank. The new values are written where all ranks read them: `values` is one array for
    all, so reduce_scatter must come after the whole backward pass. The ranks meet when the gradients of a bucket are
    complete, and again when its values are new: seconds of waiting are those of `barrier`. Bytes are counted as
    if they had been sent.
    """

    exact = True
    in_place = True
    transport = "shared memory"

    def __init__(self, comm: Communicator, buckets: Sequence[Bucket], gradients: Sequence[np.ndarray]) -> None:
        super().__init__(comm, buckets)
        self._gradients = gradients

    def reduce_scatter(self, index: int, gradients: np.ndarray, sums: np.ndarray) -> None:
        part = self.parts[index]
        self.comm.barrier()
        began = time.perf_counter()
        if sums is not gradients:
            sums[part] = gradients[part]
        for rank, others in enumerate(self._gradients):
            if rank != self.comm.rank:
                sums[part] += others[part]
        self.comm.seconds["reduce_scatter"] += time.perf_counter() - began
        self._count("reduce_scatter", index, gradients)

    def all_gather(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        self.gather_exactly(index, values, new)

    def gather_exactly(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        self.comm.barrier()
        self._count("all_gather", index, values)

    def _count(self, operation: str, index: int, array: np.ndarray) -> None:
        elements = self.buckets[index].size - (self.parts[index].stop - self.parts[index].start)
        self.comm.nbytes[operation] += elements * array.itemsize
