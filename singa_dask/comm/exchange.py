"""The two halves of an all-reduce, with the own slice between them for the updater."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singa_dask.comm.buffers import check_counts, run_of
from singa_dask.comm.communicator import Communicator


class SliceExchange:
    """Gradients in, own slice of their sum out; own slice of the new values in, all values out.

        g_slice = exchange.reduce_scatter(grads)          sum over ranks, elements [start, stop)
        values[exchange.start:exchange.stop] -= ...       this rank updates its slice
        exchange.all_gather(values)                       every rank has all slices

    counts: elements of every rank's slice, in rank order; they may be 0.
    Sharding the update this way is ZeRO stage 1 (Rajbhandari et al. 2020) and SINGA's AllReduce topology.
    """

    def __init__(self, comm: Communicator, counts: Sequence[int]) -> None:
        check_counts(counts, comm.size)
        self.comm = comm
        self.counts = tuple(counts)
        own = run_of(comm.rank, self.counts)
        self.start, self.stop = own.start, own.stop
        self._scratch: dict[np.dtype, np.ndarray] = {}

    def reduce_scatter(self, grads: np.ndarray) -> np.ndarray:
        """The own slice of the sum of every rank's `grads`. grads: (sum(counts),) -> (counts[rank],).

        The result is a view of `grads` in a group of one, else of a buffer that the next call overwrites.
        """
        if self.comm.size == 1:
            return grads[self.start : self.stop]
        own = self._scratch.get(grads.dtype)
        if own is None:
            own = self._scratch[grads.dtype] = np.empty(self.counts[self.comm.rank], grads.dtype)
        self.comm.reduce_scatter(grads, own, self.counts)
        return own

    def all_gather(self, values: np.ndarray) -> None:
        """Every rank's slice of `values` reaches every rank, in place. values: (sum(counts),)."""
        self.comm.all_gather(values, self.counts)
