"""How the ranks' gradients become one sum that has the same bits on every rank, bucket by bucket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from singa_dask.comm import Communicator
from singa_dask.comm.buffers import run_of
from singa_dask.comm.codec import Codec
from singa_dask.comm.communicator import Finish
from singa_dask.exchange import Bucket, FullExchange, SharedExchange
from singa_dask.exchange.scatter import CodedScatter
from singa_dask.net.flat import Entry


def even_counts(size: int, nranks: int) -> tuple[int, ...]:
    """How many of `size` elements each rank owns.

    >>> even_counts(8, 3)
    (2, 3, 3)
    """
    return tuple(size * (rank + 1) // nranks - size * rank // nranks for rank in range(nranks))


def fused_buckets(entries: Sequence[Entry], size: int, threshold: int, nranks: int) -> list[Bucket]:
    """The flat gradients as SINGA sends them: parameters above `threshold` elements alone, smaller ones fused.

    Counted from the end, where backward passes begin; fused ones are sent once they are more than `threshold`.
    """
    bounds = [size]
    behind = size
    for entry in reversed(entries):
        alone = entry.size > threshold
        if alone and behind < bounds[-1]:
            bounds.append(behind)
        if alone or bounds[-1] - entry.start > threshold:
            bounds.append(entry.start)
        behind = entry.start
    bounds = sorted({0, *bounds})
    return [Bucket(a, b, even_counts(b - a, nranks)) for a, b in pairwise(bounds)]


class Sum(ABC):
    """In bucket b of the flat `grads`, the sum over all ranks takes the place of the own gradients.

        sums.prepare(b, grads)     waits for nobody; earlier buckets may be under way in another thread
        sums.start(b, grads)       may be left out
        sums.sum(b, grads)         the own run of the sum, which leaves
        sums.gather(b, grads)      those of the others

    Stages of several buckets may alternate, in the same order on all ranks, as those of a BucketExchange.
    """

    overflows: int = 0

    def __init__(self, comm: Communicator, buckets: Sequence[Bucket]) -> None:
        self.comm, self.buckets = comm, tuple(buckets)

    def prepare(self, index: int, grads: np.ndarray) -> None:  # noqa: B027 - most send gradients as they are
        """The gradients of bucket `index` are complete."""

    def start(self, index: int, grads: np.ndarray) -> None:  # noqa: B027 - as BucketExchange.start
        """Send bucket `index`, before those before it are summed."""

    @abstractmethod
    def sum(self, index: int, grads: np.ndarray) -> None:
        """Sum the own run of bucket `index`, and send it to the others."""

    @abstractmethod
    def gather(self, index: int, grads: np.ndarray) -> None:
        """Take the runs of the others."""


class FullSum(Sum):
    """Every value as it is: reduce-scatter, then all-gather."""

    def __init__(self, comm: Communicator, buckets: Sequence[Bucket], size: int, dtype: Any) -> None:
        super().__init__(comm, buckets)
        self._exchange = FullExchange(comm, buckets)
        self._summed = np.empty(size, dtype)

    def start(self, index: int, grads: np.ndarray) -> None:
        self._exchange.start(index, grads, self._summed)

    def sum(self, index: int, grads: np.ndarray) -> None:
        self._exchange.reduce_scatter(index, grads, self._summed)
        self._exchange.start_all_gather(index, grads, self._summed)

    def gather(self, index: int, grads: np.ndarray) -> None:
        self._exchange.all_gather(index, grads, self._summed)


class SharedSum(Sum):
    """Every value as it is, in memory that all ranks see: nothing is sent.

    grads: every rank's, by rank; `sum` is called with the own ones. summed: one array for all ranks.
    """

    def __init__(
        self, comm: Communicator, buckets: Sequence[Bucket], grads: Sequence[np.ndarray], summed: np.ndarray
    ) -> None:
        super().__init__(comm, buckets)
        self._exchange = SharedExchange(comm, buckets, grads)
        self._summed = summed

    def sum(self, index: int, grads: np.ndarray) -> None:
        self._exchange.reduce_scatter(index, grads, self._summed)

    def gather(self, index: int, grads: np.ndarray) -> None:
        elements = self.buckets[index].elements
        self._exchange.all_gather(index, self._summed, self._summed)
        grads[elements] = self._summed[elements]


class CodedSum(Sum):
    """Both halves of the all-reduce through a codec; rank j owns run j of a bucket.

        payload_rj = encode(grads_r[run j] + residual_r[run j])         from rank r to rank j: all-to-all
        total_j    = owed_j + grads_j[run j] + sum over r != j of decode(payload_rj)           on rank j, in rank order
        sum[run j] = decode(encode(total_j))                            from rank j to all: all-gather

    residual: what a rank has not sent; owed: what an owner has not passed on; flat, of all elements, kept for the next
    step (Seide et al. 2014; both ways: DoubleSqueeze, Tang et al. 2019). Where they are None it is dropped. aside:
    elements that travel as they are, as CodedScatter has it.
    """

    def __init__(
        self,
        comm: Communicator,
        buckets: Sequence[Bucket],
        codec: Codec,
        dtype: Any,
        residual: np.ndarray | None = None,
        owed: np.ndarray | None = None,
        aside: np.ndarray | None = None,
    ) -> None:
        super().__init__(comm, buckets)
        self.codec, self.dtype, self.residual, self.owed = codec, np.dtype(dtype), residual, owed
        self._scatter = CodedScatter(comm, buckets, codec, self.dtype, aside)
        self._total = np.empty(self._scatter.longest, dtype)
        # By bucket: what waits for it, the payloads that will have come, and what travelled as it is.
        self._gathering: dict[int, tuple[Finish, list[np.ndarray], np.ndarray]] = {}
        self._back = np.empty(codec.max_nbytes(self._scatter.longest, self.dtype), np.uint8)

    @property
    def overflows(self) -> int:  # type: ignore[override]
        return self._scatter.overflows

    def prepare(self, index: int, grads: np.ndarray) -> None:
        bucket, residual = self.buckets[index], self.residual
        self._scatter.set_aside(index, grads)

        def encode(rank: int, place: np.ndarray) -> np.ndarray:
            return _encoded(self.codec, grads[bucket.run(rank)], residual, bucket.run(rank), place)

        self._scatter.prepare(index, encode)

    def start(self, index: int, grads: np.ndarray) -> None:
        self._scatter.start(index)

    def sum(self, index: int, grads: np.ndarray) -> None:
        bucket, exact = self.buckets[index], self._scatter.sum_aside(index)
        own = bucket.run(self.comm.rank)
        total = self._total[: bucket.counts[self.comm.rank]]
        total[...] = grads[own]
        if self.residual is not None:
            total += self.residual[own]
            self.residual[own] = 0
        self._scatter(index, total)
        payload = _encoded(self._scatter.decoder, total, self.owed, own, self._back)
        sizes = self._sizes_of_all(payload.size, bucket)
        gathered = self._scatter.gathered(index)[: sum(sizes)]
        gathered[run_of(self.comm.rank, sizes)] = payload
        payloads = [gathered[run_of(rank, sizes)] for rank in range(self.comm.size)]
        self._gathering[index] = self.comm.start_all_gather(gathered, sizes), payloads, exact

    def gather(self, index: int, grads: np.ndarray) -> None:
        finish, payloads, exact = self._gathering.pop(index)
        finish()
        for rank, payload in enumerate(payloads):
            self._scatter.decoder.decode(payload, grads[self.buckets[index].run(rank)])
        grads[self._scatter.aside[index]] = exact

    def _sizes_of_all(self, size: int, bucket: Bucket) -> list[int]:
        """Bytes that every rank passes on."""
        if self._scatter.sizes_known:
            return [self.codec.max_nbytes(count, self.dtype) for count in bucket.counts]
        told = np.zeros(self.comm.size, np.int64)
        told[self.comm.rank] = size
        self.comm.all_gather(told, [1] * self.comm.size)
        return told.tolist()


def _encoded(codec: Codec, values: np.ndarray, kept: np.ndarray | None, run: slice, out: np.ndarray) -> np.ndarray:
    """The payload, with what has been kept of this run, where anything is."""
    return codec.encode(values, out) if kept is None else codec.encode_sum(values, kept[run], out)
