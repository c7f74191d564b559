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

    sent, received: (bytes of the largest bucket,) uint8 each, of whoever uses them until the next call.
    """

    def __init__(self, comm: Communicator, buckets: Sequence[Bucket], codec: Codec, dtype: np.dtype) -> None:
        self.comm, self.codec, self.dtype = comm, codec, dtype
        self.longest = max((count for bucket in buckets for count in bucket.counts), default=0)
        most = comm.size * codec.max_nbytes(self.longest, dtype)
        self.sent, self.received = (np.empty(most, np.uint8) for _ in range(2))
        self.sizes_known = codec.nbytes(1, dtype) is not None  # on all ranks or on none; else they are told

    def __call__(self, bucket: Bucket, encode: Callable[[int, np.ndarray], np.ndarray], total: np.ndarray) -> int:
        """total += what the others have of the own run, in rank order. Returns the bytes that it came in.

        encode: (rank, place) -> the payload for that rank, first in the place.
        """
        comm, sizes, end = self.comm, [], 0
        for rank in range(comm.size):
            payload = encode(rank, self.sent[end:]) if rank != comm.rank else self.sent[:0]
            sizes.append(payload.size)
            end += payload.size
        arriving = self._arriving(sizes, bucket.counts[comm.rank])
        received = self.received[: sum(arriving)]
        comm.all_to_all(self.sent[:end], sizes, received, arriving)
        for rank in range(comm.size):
            if rank != comm.rank:
                self.codec.decode(received[run_of(rank, arriving)], total, add=True)
        return received.size

    def _arriving(self, sizes: Sequence[int], count: int) -> list[int]:
        """Bytes that every rank sends here."""
        comm = self.comm
        if self.sizes_known:
            one = self.codec.max_nbytes(count, self.dtype)
            return [one if rank != comm.rank else 0 for rank in range(comm.size)]
        told, ones = np.empty(comm.size, np.int64), [1] * comm.size
        comm.all_to_all(np.array(sizes, np.int64), ones, told, ones)
        return told.tolist()
