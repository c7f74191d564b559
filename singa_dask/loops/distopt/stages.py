"""What becomes of a bucket under DistOpt: the sum over all ranks, with the same bits on every rank."""

from __future__ import annotations

from typing import Any

from singa_dask.exchange.base import BucketExchange
from singa_dask.exchange.staging import InPlace


class SumStages:
    """The Stages of DistOpt: reduce-scatter and all-gather, with nothing between them. Every rank then updates itself.

    The sum arrives in `staging.values`, which may be memory that all ranks share. clip: largest magnitude of a
    gradient that is sent; None does not clip.
    """

    def __init__(self, exchange: BucketExchange, staging: InPlace, ops: Any) -> None:
        self.exchange, self.staging = exchange, staging
        self.at_once = staging.at_once
        self.clip: float | None = None
        self._ops = ops
        apart = exchange.in_place or staging.values is not staging.gradients
        self._sums = staging.values if apart else staging.empty()

    def prepare(self, bucket: int) -> None:
        if not self.at_once:
            self._ops.use()  # the thread of the collectives may be older than the model
        elements = self.exchange.buckets[bucket].elements
        self.staging.send(elements)
        if self.clip is not None:
            gradients = self.staging.gradients[elements]
            gradients.clip(-self.clip, self.clip, out=gradients)
        self.exchange.prepare(bucket, self.staging.gradients)

    def start(self, bucket: int) -> None:
        self.exchange.start_reduce_scatter(bucket, self.staging.gradients, self._sums)

    def update(self, bucket: int) -> None:
        """Sum this rank's part, and start to send it."""
        self.exchange.reduce_scatter(bucket, self.staging.gradients, self._sums)
        self.exchange.start_all_gather(bucket, self.staging.values, self._sums)

    def gather(self, bucket: int) -> None:
        self.exchange.all_gather(bucket, self.staging.values, self._sums)
        self.staging.receive(self.exchange.buckets[bucket].elements)

    def finish(self) -> None:
        pass
