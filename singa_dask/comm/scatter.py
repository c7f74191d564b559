"""The first half of an all-reduce through a codec: what the others have of a run goes to its owner."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from singa_dask.comm.buckets import Bucket
from singa_dask.comm.buffers import run_of
from singa_dask.comm.codecs import Codec
from singa_dask.comm.communicator import Communicator


class CodedScatter:
    """Payloads to the owners of the runs of a bucket, and their sum there.

        total_j = own_j + sum over r != j of decode(payload_rj)       payload_rj: of rank r for rank j's run

    received: (bytes of the largest bucket,) uint8, of whoever uses it until the next call. sizes_known: whether all
    ranks know the sizes of payloads without being told.
    """

    def __init__(self, comm: Communicator, buckets: Sequence[Bucket], codec: Codec, dtype: np.dtype) -> None:
        self.comm, self.codec, self.dtype = comm, codec, dtype
        self._buckets = tuple(buckets)
        self.longest = max((count for bucket in buckets for count in bucket.counts), default=0)
        self.received = np.empty(comm.size * codec.max_nbytes(self.longest, dtype), np.uint8)
        # Of every bucket, since the next one is encoded while this one travels.
        self._sent = [np.empty(sum(self._most(bucket)), np.uint8) for bucket in buckets]
        self._sizes: dict[int, list[int]] = {}
        self.sizes_known = codec.nbytes(1, dtype) is not None  # on all ranks or on none; else they are told

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

    def __call__(self, index: int, total: np.ndarray) -> int:
        """total += what the others have of the own run of a bucket that all have prepared, in rank order. Returns the
        bytes that it came in."""
        comm, sizes = self.comm, self._sizes.pop(index)
        arriving = self._arriving(sizes, self._buckets[index].counts[comm.rank])
        received = self.received[: sum(arriving)]
        comm.all_to_all(self._sent[index][: sum(sizes)], sizes, received, arriving)
        for rank in range(comm.size):
            if rank != comm.rank:
                self.codec.decode(received[run_of(rank, arriving)], total, add=True)
        return received.size

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
