"""kThreshold in jobs: a threshold of gradients says nothing about differences of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singa_dask.comm.codecs import Codec, Threshold, TopK
from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.buckets import Bucket
from singa_dask.exchange.coded import CodedValues


class ThresholdValues(CodedValues):
    """Back travel as many of the largest differences as elements arrived, or would have from this rank itself.

    shared: whether other worker groups update the same values. All values then travel back in full, since no element
    that only another group has changed arrived here.
    """

    _encoder: Threshold

    def __init__(
        self,
        comm: Communicator,
        buckets: Sequence[Bucket],
        codec: Threshold,
        dtype: Any = np.float32,
        *,
        shared: bool = False,
        **elements: Any,
    ) -> None:
        super().__init__(comm, buckets, codec, dtype, **elements)
        self._shared = shared
        self._changed = [0] * len(buckets)

    def prepare(self, index: int, gradients: np.ndarray) -> None:
        super().prepare(index, gradients)
        self._changed[index] = self._encoder.exceeding(gradients[self.parts[index]])

    def _arrived(self, index: int, payloads: Sequence[np.ndarray]) -> None:
        self._changed[index] += sum(map(self._encoder.elements, payloads))

    def start_all_gather(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        if self._shared:
            self._returning[index] = self._start_gather_exactly(index, values, new), []
        else:
            super().start_all_gather(index, values, new)

    def _codecs_back(self, index: int) -> Sequence[Codec]:
        changed = np.zeros(self.comm.size)
        changed[self.comm.rank] = self._changed[index]
        self.comm.all_reduce(changed)
        counts = self.buckets[index].counts
        return [TopK(min(1.0, max(int(n), 1) / max(count, 1))) for n, count in zip(changed, counts, strict=True)]
