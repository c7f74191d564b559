"""The first half of an all-reduce through a codec: what the others have of a run goes to its owner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np

from singa_dask.comm.buffers import run_of
from singa_dask.comm.codec import Codec
from singa_dask.comm.communicator import Communicator, Finish
from singa_dask.exchange.buckets import Bucket


class CodedScatter:
    """Payloads to the owners of the runs of a bucket, and their sum there.

        total_j = own_j + sum over r != j of decode(payload_rj)       payload_rj: of rank r for rank j's run

    codec, decoder: the same twice, each with scratch of its own; the one for the thread that prepares a bucket, the
    other for that in which earlier ones are exchanged meanwhile. aside: elements, sorted, that travel as they are.
    sizes_known: whether all ranks know the sizes of payloads without being told.
    """

    def __init__(
        self,
        comm: Communicator,
        buckets: Sequence[Bucket],
        codec: Codec,
        dtype: np.dtype,
        aside: np.ndarray | None = None,
    ) -> None:
        self.comm, self.dtype = comm, dtype
        self.codec, self.decoder = codec, deepcopy(codec)
        self.aside = [inside(aside, bucket.elements) for bucket in buckets]
        self._exact: dict[int, np.ndarray] = {}
        self._buckets = tuple(buckets)
        self.longest = max((count for bucket in buckets for count in bucket.counts), default=0)
        # Either way one bucket may be arriving while the one before it is decoded.
        longest = comm.size * codec.max_nbytes(self.longest, dtype)
        self._received, self._gathered = np.empty((2, 2, longest), np.uint8)
        self._under_way: dict[int, tuple[Finish, list[np.ndarray]]] = {}
        # Of every bucket, since the next one is encoded while this one travels.
        self._sent = [np.empty(sum(self._most(bucket)), np.uint8) for bucket in buckets]
        self._sizes: dict[int, list[int]] = {}
        self.sizes_known = codec.nbytes(1, dtype) is not None  # on all ranks or on none; else they are told

    def begin(self, step: int) -> None:
        """Before the first bucket of a step, on every rank."""
        self.codec.begin(step)
        self.decoder.begin(step)

    @property
    def overflows(self) -> int:
        """Values so far that the codec could not hold."""
        return self.codec.overflows + self.decoder.overflows

    def set_aside(self, index: int, grads: np.ndarray) -> None:
        """Take out of the gradients of bucket `index` what travels as it is; zeros stay."""
        self._exact[index] = grads[self.aside[index]]
        grads[self.aside[index]] = 0

    def sum_aside(self, index: int) -> np.ndarray:
        """The sum over all ranks of what they have set aside."""
        exact = self._exact.pop(index)
        if exact.size:
            self.comm.all_reduce(exact)
        return exact

    def prepare(self, index: int, encode: Callable[[int, np.ndarray], np.ndarray]) -> None:
        """Encode what the others get of bucket `index`, in the thread that has computed it.

        encode: (rank, place) -> the payload for that rank, first in the place.
        """
        sizes, end = [], 0
        for rank in range(self.comm.size):
            payload = self._sent[index][:0]
            if rank != self.comm.rank:
                payload = encode(rank, self._sent[index][end:])
            sizes.append(payload.size)
            end += payload.size
        self._sizes[index] = sizes

    def gathered(self, index: int) -> np.ndarray:
        """Where the payloads of the way back of a bucket have place, until the next but one."""
        return self._gathered[index % 2]

    def start(self, index: int) -> None:
        """Send a bucket that this rank has prepared; the one before it may still be arriving."""
        comm, sizes = self.comm, self._sizes.pop(index)
        arriving = self._arriving(sizes, self._buckets[index].counts[comm.rank])
        received = self._received[index % 2][: sum(arriving)]
        payloads = [received[run_of(rank, arriving)] for rank in range(comm.size) if rank != comm.rank]
        finish = comm.start_all_to_all(self._sent[index][: sum(sizes)], sizes, received, arriving)
        self._under_way[index] = finish, payloads

    def __call__(self, index: int, total: np.ndarray) -> list[np.ndarray]:
        """total += what the others have of the own run of a bucket, in rank order. Returns the payloads that it came
        in."""
        if index not in self._under_way:
            self.start(index)
        finish, payloads = self._under_way.pop(index)
        finish()
        for payload in payloads:
            self.decoder.decode(payload, total, add=True)
        return payloads

    def _most(self, bucket: Bucket) -> list[int]:
        """The most bytes that each rank can be sent of a bucket."""
        most = [self.codec.max_nbytes(count, self.dtype) for count in bucket.counts]
        most[self.comm.rank] = 0
        return most

    def _arriving(self, sizes: Sequence[int], count: int) -> list[int]:
        """Bytes that every rank sends here."""
        comm = self.comm
        if self.sizes_known:
            one = self.codec.max_nbytes(count, self.dtype)
            return [one if rank != comm.rank else 0 for rank in range(comm.size)]
        told, ones = np.empty(comm.size, np.int64), [1] * comm.size
        comm.all_to_all(np.array(sizes, np.int64), ones, told, ones)
        return told.tolist()


def inside(indices: np.ndarray | None, elements: slice) -> np.ndarray:
    """Those of the sorted indices that lie in this run of elements."""
    if indices is None:
        return np.empty(0, np.int64)
    return indices[within(indices, elements)]


def within(indices: np.ndarray, elements: slice) -> np.ndarray:
    """Which of the indices lie in this run of elements. (n,) of bool."""
    return (indices >= elements.start) & (indices < elements.stop)
