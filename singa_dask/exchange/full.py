"""The two halves of an all-reduce, with the own run of each bucket between them for the updater."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from singa_dask.comm.buffers import check_counts
from singa_dask.comm.communicator import Communicator, Finish
from singa_dask.exchange.buckets import Bucket


class BucketExchange(ABC):
    """Gradients in, own run of their sum out; own run of the new values in, all values out; bucket by bucket.

        exchange.prepare(b, grads)
        exchange.start(b, grads, own)                     may be left out
        exchange.reduce_scatter(b, grads, own)            own[run] = sum over ranks of grads[run]
        own[run] = ...                                    this rank's new values of the run
        exchange.start_all_gather(b, values, own)         may be left out
        exchange.all_gather(b, values, own)               every rank has them, in `values`

    `prepare` waits for nobody, and may be called while the others are under way for earlier buckets in another thread.
    A bucket may be started before others are updated and gathered, in the same order on all ranks (`due`), so that it
    travels meanwhile.
    The arrays are flat and of all parameters; `own` of reduce_scatter may be `grads` where `in_place`. Sharding the
    update this way is ZeRO stage 1 (Rajbhandari et al. 2020) and SINGA's AllReduce topology.
    """

    def __init__(self, comm: Communicator, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            check_counts(bucket.counts, comm.size)
        self.comm = comm
        self.buckets = tuple(buckets)
        self.runs = tuple(bucket.run(comm.rank) for bucket in buckets)

    exact: bool
    in_place: bool = False
    overflows: int = 0

    def warm_up(self) -> None:  # noqa: B027 - most have nothing to compile
        """Before the first step."""

    def begin(self, step: int) -> None:  # noqa: B027 - most do the same at every step
        """Before the first bucket of a step, on every rank."""

    def prepare(self, index: int, grads: np.ndarray) -> None:  # noqa: B027 - most send gradients as they are
        """The gradients of bucket `index` are complete; before its reduce_scatter, in which they must be the same."""

    def start(self, index: int, grads: np.ndarray, own: np.ndarray) -> None:  # noqa: B027 - nothing may be sent
        """Begin with the reduce_scatter of bucket `index`, which is called later with the same arrays."""

    @abstractmethod
    def reduce_scatter(self, index: int, grads: np.ndarray, own: np.ndarray) -> None:
        """The own run of bucket `index`, in `own`, becomes the sum of every rank's `grads` there."""

    def start_all_gather(self, index: int, values: np.ndarray, own: np.ndarray) -> None:  # noqa: B027 - as `start`
        """Begin with the all_gather of bucket `index`, which is called later with the same arrays."""

    @abstractmethod
    def all_gather(self, index: int, values: np.ndarray, own: np.ndarray) -> None:
        """Every rank's run of bucket `index` of `own` reaches every rank's `values`, which may be `own` itself."""

    def gather_exactly(self, index: int, values: np.ndarray, own: np.ndarray) -> None:
        """As all_gather, with nothing lost."""
        self._start_exactly(index, values, own)()

    def _start_exactly(self, index: int, values: np.ndarray, own: np.ndarray) -> Finish:
        run, bucket = self.runs[index], self.buckets[index]
        if values is not own:
            values[run] = own[run]
        return self.comm.start_all_gather(values[bucket.elements], bucket.counts)

    @property
    def residual(self) -> np.ndarray:
        """What of this rank's gradients has not been sent yet, flat."""
        return np.zeros(self.buckets[-1].stop if self.buckets else 0, np.float32)

    def take_over(self, residual: np.ndarray) -> np.ndarray:
        """Keep what another exchange has not sent; returns what of it this one has no place for."""
        return residual


class FullExchange(BucketExchange):
    """Every value as it is."""

    exact = True

    def __init__(self, comm: Communicator, buckets: Sequence[Bucket]) -> None:
        super().__init__(comm, buckets)
        self._summing: dict[int, Finish] = {}
        self._gathering: dict[int, Finish] = {}

    @property
    def in_place(self) -> bool:  # type: ignore[override]
        return self.comm.size == 1

    def start(self, index: int, grads: np.ndarray, own: np.ndarray) -> None:
        bucket, run = self.buckets[index], self.runs[index]
        if own is not grads:
            send, recv = grads[bucket.elements], own[run]
            self._summing[index] = self.comm.start_reduce_scatter(send, recv, bucket.counts)

    def reduce_scatter(self, index: int, grads: np.ndarray, own: np.ndarray) -> None:
        if own is grads:
            return
        if index not in self._summing:
            self.start(index, grads, own)
        self._summing.pop(index)()

    def start_all_gather(self, index: int, values: np.ndarray, own: np.ndarray) -> None:
        self._gathering[index] = self._start_exactly(index, values, own)

    def all_gather(self, index: int, values: np.ndarray, own: np.ndarray) -> None:
        if index not in self._gathering:
            self.start_all_gather(index, values, own)
        self._gathering.pop(index)()


class SharedExchange(BucketExchange):
    """Every value as it is, in memory that all ranks see (`share_memory`): nothing is sent.

    grads: every rank's gradients, by rank. The new values are written where all ranks read them: `values` is one array
    for all, so reduce_scatter must come after the whole backward pass. The ranks meet when the gradients of a bucket
    are complete, and again when its values are new: seconds of waiting are those of `barrier`. Bytes are counted as if
    they had been sent.
    """

    exact = True
    in_place = True

    def __init__(self, comm: Communicator, buckets: Sequence[Bucket], grads: Sequence[np.ndarray]) -> None:
        super().__init__(comm, buckets)
        self._grads = grads

    def reduce_scatter(self, index: int, grads: np.ndarray, own: np.ndarray) -> None:
        run = self.runs[index]
        self.comm.barrier()
        began = time.perf_counter()
        if own is not grads:
            own[run] = grads[run]
        for rank, others in enumerate(self._grads):
            if rank != self.comm.rank:
                own[run] += others[run]
        self.comm.seconds["reduce_scatter"] += time.perf_counter() - began
        self._count("reduce_scatter", index, grads)

    def all_gather(self, index: int, values: np.ndarray, own: np.ndarray) -> None:
        self.gather_exactly(index, values, own)

    def gather_exactly(self, index: int, values: np.ndarray, own: np.ndarray) -> None:
        self.comm.barrier()
        self._count("all_gather", index, values)

    def _count(self, operation: str, index: int, array: np.ndarray) -> None:
        elements = self.buckets[index].size - (self.runs[index].stop - self.runs[index].start)
        self.comm.nbytes[operation] += elements * array.itemsize
