"""Back-propagation, through layers and through time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from singa_dask.algorithms.base import OnGradient, TrainOneBatch
from singa_dask.layers.context import Metric, Step
from singa_dask.net import Net


class BP(TrainOneBatch):
    """Forward through every layer, then backward in reverse order (Rumelhart, Hinton & Williams 1986)."""

    type: ClassVar[str] = "kBP"

    def train_one_batch(
        self, net: Net, feed: Mapping[str, Any], step: Step, on_gradient: OnGradient = None
    ) -> dict[str, Metric]:
        net.carries = self.carries
        net.forward(feed, step)
        net.backward(on_gradient)
        return net.metrics()


class BPTT(BP):
    """Back-propagation through the time steps of an unrolled net (Werbos 1990), truncated at the mini-batch.

    Recurrent layers start from the final state of the previous mini-batch, whose rows continue in this one. Under kBP
    they start every mini-batch from zero.
    """

    type: ClassVar[str] = "kBPTT"
    carries: ClassVar[bool] = True
