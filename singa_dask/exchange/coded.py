"""An exchange of gradients and values that a codec has made smaller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singa_dask.comm import codecs
from singa_dask.comm.buffers import run_of
from singa_dask.comm.codec import ErrorFeedback
from singa_dask.comm.communicator import Communicator, Finish
from singa_dask.comm.sparse import Threshold, TopK
from singa_dask.exchange.buckets import Bucket
from singa_dask.exchange.full import BucketExchange, FullExchange
from singa_dask.exchange.scatter import CodedScatter, inside, within


class CodedExchange(BucketExchange):
    """Both ways through a codec, whatever is lost being made up for later.

    Out, every rank encodes its gradient of the others' runs with error feedback (Seide et al. 2014), and the owner
    adds what arrives to its own. Back, the owner encodes what its new values differ by from those that all ranks have,
    so that what one step loses is part of the next one's difference (Tang et al. 2019). All ranks have the same values
    at any step.

    A threshold is one for gradients: back travel as many of the largest differences as elements arrived or, of the own
    gradient, would have, and all of them where `shared`, since the updates of other groups have not arrived here.
    aside: elements that nothing may be kept back of, which travel as they are (running statistics: what is sent is
    their distance from where they shall be, and would be sent again). still: elements that do not change.
    """

    exact = False
    in_place = True

    def __init__(
        self,
        comm: Communicator,
        buckets: Sequence[Bucket],
        codec: Any,
        dtype: Any = np.float32,
        *,
        aside: np.ndarray | None = None,
        still: np.ndarray | None = None,
        shared: bool = False,
    ) -> None:
        super().__init__(comm, buckets)
        self._still = [inside(still, bucket.elements) for bucket in buckets]
        self.codec, self.dtype = codec, np.dtype(dtype)
        self._out = [
            {rank: ErrorFeedback(codec, count, dtype) for rank, count in enumerate(bucket.counts) if rank != comm.rank}
            for bucket in buckets
        ]
        self._by_count = isinstance(codec, Threshold)
        self._exactly_back = self._by_count and shared
        self._scatter = CodedScatter(comm, buckets, codec, self.dtype, aside)
        self._scratch = np.empty(self._scatter.longest, self.dtype)
        self._arrived = [0] * len(buckets)
        # By bucket: what waits for it, and the payloads that will have come, with their codec and where they belong.
        self._gathering: dict[int, tuple[Finish, list[tuple[Any, np.ndarray, slice]]]] = {}

    def begin(self, step: int) -> None:
        self._scatter.begin(step)

    @property
    def overflows(self) -> int:  # type: ignore[override]
        return self._scatter.overflows

    @property
    def residual(self) -> np.ndarray:
        flat = np.zeros(self.buckets[-1].stop if self.buckets else 0, self.dtype)
        for bucket, feedback in zip(self.buckets, self._out, strict=True):
            for rank, each in feedback.items():
                flat[bucket.run(rank)] = _residual(each)
        return flat

    def take_over(self, residual: np.ndarray) -> np.ndarray:
        rest = residual.copy()
        for bucket, feedback in zip(self.buckets, self._out, strict=True):
            for rank, each in feedback.items():
                _residual(each)[...] = residual[bucket.run(rank)]
                rest[bucket.run(rank)] = 0
        return rest

    def prepare(self, index: int, grads: np.ndarray) -> None:
        bucket, run, out = self.buckets[index], self.runs[index], self._out[index]
        self._scatter.set_aside(index, grads)
        grads[self._still[index]] = 0
        self._scatter.prepare(index, lambda rank, place: out[rank].encode(grads[bucket.run(rank)], place))
        if self._by_count:
            self._arrived[index] = self.codec.exceeding(grads[run])

    def start(self, index: int, grads: np.ndarray, own: np.ndarray) -> None:
        self._scatter.start(index)

    def reduce_scatter(self, index: int, grads: np.ndarray, own: np.ndarray) -> None:
        run, aside, exact = self.runs[index], self._scatter.aside[index], self._scatter.sum_aside(index)
        if own is not grads:
            own[run] = grads[run]
        payloads = self._scatter(index, own[run])
        if self._by_count:
            self._arrived[index] += sum(map(self.codec.elements, payloads))
        mine = within(aside, run)
        own[aside[mine]] = exact[mine]

    def start_all_gather(self, index: int, values: np.ndarray, own: np.ndarray) -> None:
        if self._exactly_back:
            self._gathering[index] = self._start_exactly(index, values, own), []
            return
        comm, bucket, run = self.comm, self.buckets[index], self.runs[index]
        aside = self._scatter.aside[index]
        if aside.size:
            mine = within(aside, run)
            exact = np.zeros(aside.size, self.dtype)
            exact[mine] = own[aside[mine]]
            comm.all_reduce(exact)
            values[aside] = exact
        ways = [self._back(n, count) for n, count in zip(self._all_arrived(index), bucket.counts, strict=True)]
        sizes = [codec.nbytes(count, self.dtype) for codec, count in zip(ways, bucket.counts, strict=True)]
        payloads = self._scatter.gathered(index)[: sum(sizes)]
        place = payloads[run_of(comm.rank, sizes)]
        ways[comm.rank].encode_change(own[run], values[run], place, self._scratch)
        arriving = [(codec, payloads[run_of(rank, sizes)], bucket.run(rank)) for rank, codec in enumerate(ways)]
        del arriving[comm.rank]
        self._gathering[index] = comm.start_all_gather(payloads, sizes), arriving

    def all_gather(self, index: int, values: np.ndarray, own: np.ndarray) -> None:
        if index not in self._gathering:
            self.start_all_gather(index, values, own)
        finish, arriving = self._gathering.pop(index)
        finish()
        for codec, payload, run in arriving:
            codec.decode(payload, values[run], add=True)

    def warm_up(self) -> None:
        """Compile what the codec needs."""
        self.codec.warm_up(self.dtype)

    def _all_arrived(self, index: int) -> list[int]:
        """How many elements of every rank's run have changed; by rank."""
        if not self._by_count:
            return [0] * self.comm.size
        arrived = np.zeros(self.comm.size)
        arrived[self.comm.rank] = self._arrived[index]
        self.comm.all_reduce(arrived)
        return [int(n) for n in arrived]

    def _back(self, arrived: int, count: int) -> Any:
        return TopK(min(1.0, max(arrived, 1) / max(count, 1))) if self._by_count else self._scatter.decoder


def _residual(feedback: Any) -> np.ndarray:
    assert feedback.residual is not None, "an exact codec keeps nothing back"
    return feedback.residual


def bucket_exchange(
    comm: Communicator,
    buckets: Sequence[Bucket],
    settings: Mapping[str, Any],
    dtype: Any = np.float32,
    **options: Any,
) -> BucketExchange:
    """The exchange that a job's cluster block asks for. settings: of `codecs.codec`, with `name`; options: of
    CodedExchange.

    A rank on its own sends nothing, so nothing is lost. Raises ConfigError where the settings are wrong.
    """
    if settings["name"] == "kFull":
        return FullExchange(comm, buckets)
    made = codecs.codec(**settings)
    return FullExchange(comm, buckets) if comm.size == 1 else CodedExchange(comm, buckets, made, dtype, **options)
