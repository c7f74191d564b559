"""One call of a layer beside the same call in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.layer_cases import Bench


def assert_same_call(ours: Bench, y: Any, inputs: Sequence[Any], params: Sequence[Any] = ()) -> None:
    """Output and gradients. y: their output from their tensors `inputs` and `params`."""
    np.testing.assert_allclose(ours.forward()[0], y.detach().numpy(), rtol=1e-5, atol=1e-5)
    (weights,) = ours.weights()
    ours.forward()
    gradients = ours.backward([weights])
    y.backward(y.new_tensor(weights))
    for dx, x in zip(gradients, inputs, strict=True):
        np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-5, atol=2e-5)
    for param, theirs in zip(ours.layer.params if params else (), params, strict=True):
        if not param.statistic:
            expected = theirs.grad.numpy()
            scale = max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(param.grad, expected, rtol=1e-5, atol=5e-5 * scale, err_msg=param.name)


def assert_same_loss(ours: Bench, loss: Any, x: Any) -> None:
    """Loss, the mean over the rows, and gradient. loss: theirs, of their prediction `x`."""
    ours.ctx.step = type(ours.ctx.step)(total_rows=ours.rows)
    loss.backward()
    ours.forward()
    assert ours.layer.metrics(ours.ctx)["loss"].mean == pytest.approx(loss.item(), rel=1e-5)
    dx, *_ = ours.backward([np.zeros(x.shape)])
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-5, atol=1e-6)
