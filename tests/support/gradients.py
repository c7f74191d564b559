"""Numeric gradients of whole nets."""

from collections.abc import Callable

import numpy as np
import pytest

from singa_dask.net import Net


def check_gradients(net: Net, loss: Callable[[], float], per_entry: int) -> None:
    """net.flat.grads are the central differences of `loss`, at `per_entry` elements of every parameter."""
    got, eps = net.flat.grads.copy(), 1e-6
    for entry in net.flat.entries:
        for i in np.unique(np.linspace(entry.start, entry.stop - 1, per_entry).astype(int)):
            saved = net.flat.values[i]
            net.flat.values[i] = saved + eps
            above = loss()
            net.flat.values[i] = saved - eps
            below = loss()
            net.flat.values[i] = saved
            assert got[i] == pytest.approx((above - below) / (2 * eps), rel=1e-5, abs=1e-8), f"{entry.name}[{i}]"
