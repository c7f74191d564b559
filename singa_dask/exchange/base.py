"""What an exchange of gradients and values is: the two halves of an all-reduce, with the update between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from singa_dask.comm.checks import check_counts
from singa_dask.comm.communicator import Communicator, Request
from singa_dask.exchange.buckets import Bucket


class BucketExchange(ABC):
    """Gradients in, this rank's part of their sum out; its part of the new values in, all values out; per bucket b:

        exchange.prepare(b, gradients)
        exchange.start_reduce_scatter(b, gradients, sums)     optional
        exchange.reduce_scatter(b, gradients, sums)           sums[part] = sum over ranks of gradients[part]
        new[part] = ...                                       this rank's new values of its part
        exchange.start_all_gather(b, values, new)             optional
        exchange.all_gather(b, values, new)                   values[bucket] = every rank's new[part]

    All arrays are flat and hold all parameters. `prepare` does not wait, and may run while another thread makes the
    other calls for earlier buckets. Several buckets may be under way, in the same order on all ranks
    (`stages_after`). Updating by parts is ZeRO stage 1 (Rajbhandari et al. 2020) and SINGA's AllReduce topology.

    parts: where this rank's part of each bucket lies. exact: no value is rounded or left out. in_place: `sums` may be
    `gradients`. residual: what this rank has not sent yet, flat; None where everything is sent.
    """

    exact: bool
    in_place: bool = False
    overflows: int = 0
    residual: np.ndarray | None = None

    def __init__(self, comm: Communicator, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            check_counts(bucket.counts, comm.size)
        self.comm = comm
        self.buckets = tuple(buckets)
        self.parts = tuple(bucket.part(comm.rank) for bucket in buckets)

    @property
    def transport(self) -> str:
        """How gradients travel, for display."""
        return self.comm.kind

    def warm_up(self) -> None:  # noqa: B027 - most have nothing to compile
        """Compile what the first step needs."""

    def begin(self, step: int) -> None:  # noqa: B027 - most do the same in every step
        """Begin a step, on every rank."""

    def prepare(self, index: int, gradients: np.ndarray) -> None:  # noqa: B027 - most send gradients as they are
        """Make bucket `index`, which is complete, ready to be sent. Its gradients then stay as they are."""

    def start_reduce_scatter(self, index: int, gradients: np.ndarray, sums: np.ndarray) -> None:  # noqa: B027 - optional
        """Start the reduce_scatter of bucket `index`, which is called later with the same arrays."""

    @abstractmethod
    def reduce_scatter(self, index: int, gradients: np.ndarray, sums: np.ndarray) -> None:
        """This rank's part of bucket `index` of `sums` becomes the sum of every rank's `gradients` there."""

    def start_all_gather(self, index: int, values: np.ndarray, new: np.ndarray) -> None:  # noqa: B027 - optional
        """Start the all_gather of bucket `index`, which is called later with the same arrays."""

    @abstractmethod
    def all_gather(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        """Every rank's part of bucket `index` of `new` reaches every rank's `values`, which may be `new` itself."""

    def gather_exactly(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        """As all_gather, with every value in full."""
        self._start_gather_exactly(index, values, new).wait()

    def _start_gather_exactly(self, index: int, values: np.ndarray, new: np.ndarray) -> Request:
        part, bucket = self.parts[index], self.buckets[index]
        if values is not new:
            values[part] = new[part]
        return self.comm.start_all_gather(values[bucket.elements], bucket.counts)

    def take_over(self, residual: np.ndarray) -> np.ndarray:
        """Adopt the residual of another exchange. Returns what this one cannot keep, in an array of its own."""
        return residual.copy()
