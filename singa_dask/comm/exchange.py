"""The two halves of an all-reduce, with the own run of each bucket between them for the updater."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singa_dask.comm.buckets import Bucket
from singa_dask.comm.buffers import check_counts
from singa_dask.comm.communicator import Communicator


class BucketExchange:
    """Gradients in, own run of their sum out; own run of the new values in, all values out; bucket by bucket.

        exchange.reduce_scatter(b, grads, own)            own[run] = sum over ranks of grads[run]
        values[run] -= ...                                this rank updates its run of the bucket
        exchange.all_gather(b, values)                    every rank has all runs of the bucket

    The arrays are flat and of all parameters. Sharding the update this way is ZeRO stage 1 (Rajbhandari et al. 2020)
    and SINGA's AllReduce topology.
    """

    def __init__(self, comm: Communicator, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            check_counts(bucket.counts, comm.size)
        self.comm = comm
        self.buckets = tuple(buckets)
        self.runs = tuple(bucket.run(comm.rank) for bucket in buckets)

    def reduce_scatter(self, index: int, grads: np.ndarray, own: np.ndarray) -> None:
        """The own run of bucket `index`, in `own`, becomes the sum of every rank's `grads` there."""
        bucket, run = self.buckets[index], self.runs[index]
        self.comm.reduce_scatter(grads[bucket.elements], own[run], bucket.counts)

    def all_gather(self, index: int, values: np.ndarray) -> None:
        """Every rank's run of bucket `index` of `values` reaches every rank, in place."""
        bucket = self.buckets[index]
        self.comm.all_gather(values[bucket.elements], bucket.counts)
