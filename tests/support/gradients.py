"""Numeric gradients of whole nets."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net


def loss_of(net: Net, feed: Mapping[str, Batch], step: Step) -> float:
    """The sum of the net's losses, per row of the mini-batch."""
    net.forward(feed, step)
    return sum(metric.total for name, metric in net.metrics().items() if name.endswith("loss")) / step.total_rows


def check_gradients(net: Net, loss: Callable[[], float], per_entry: int) -> np.ndarray:
    """The gradients of a backward pass are the central differences of `loss`, which runs the forward pass, at
    `per_entry` elements of every parameter. Returns them."""
    loss()
    net.backward()
    got, eps = net.flat.grads.copy(), 1e-6
    assert got.any()
    for entry in net.flat.entries:
        for i in np.unique(np.linspace(entry.start, entry.stop - 1, per_entry).astype(int)):
            saved = net.flat.values[i]
            net.flat.values[i] = saved + eps
            above = loss()
            net.flat.values[i] = saved - eps
            below = loss()
            net.flat.values[i] = saved
            assert got[i] == pytest.approx((above - below) / (2 * eps), rel=1e-5, abs=1e-8), f"{entry.name}[{i}]"
    return got
