"""The exchange by messages, every value in full."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singa_dask.comm.communicator import Communicator, Request
from singa_dask.exchange.base import BucketExchange
from singa_dask.exchange.buckets import Bucket


class FullExchange(BucketExchange):
    """Reduce-scatter, then all-gather, of every value as it is."""

    exact = True

    def __init__(self, comm: Communicator, buckets: Sequence[Bucket]) -> None:
        super().__init__(comm, buckets)
        self._summing: dict[int, Request] = {}
        self._gathering: dict[int, Request] = {}

    @property
    def in_place(self) -> bool:  # type: ignore[override]
        return self.comm.size == 1

    def start_reduce_scatter(self, index: int, gradients: np.ndarray, sums: np.ndarray) -> None:
        bucket, part = self.buckets[index], self.parts[index]
        if sums is not gradients:
            send, recv = gradients[bucket.elements], sums[part]
            self._summing[index] = self.comm.start_reduce_scatter(send, recv, bucket.counts)

    def reduce_scatter(self, index: int, gradients: np.ndarray, sums: np.ndarray) -> None:
        if sums is gradients:
            return
        if index not in self._summing:
            self.start_reduce_scatter(index, gradients, sums)
        self._summing.pop(index).wait()

    def start_all_gather(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        self._gathering[index] = self._start_gather_exactly(index, values, new)

    def all_gather(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        if index not in self._gathering:
            self.start_all_gather(index, values, new)
        self._gathering.pop(index).wait()
