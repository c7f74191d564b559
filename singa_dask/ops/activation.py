"""Activations and their gradients, element by element; `out` may be one of the inputs."""

from __future__ import annotations

from typing import Any

from singa_dask.ops.arrays import Array

# LeCun et al. 1998, "Efficient BackProp": stanh(1) = 1, stanh(-1) = -1.
STANH_OUTER = 1.7159047
STANH_INNER = 0.6666667


class ActivationOps:
    """Activations over `self.xp`; the backward kernels take the activation's output y, not its input."""

    xp: Any

    def relu(self, x: Array, slope: float, out: Array) -> Array:
        """out = x where x > 0, else slope x (slope >= 0)."""
        out[...] = self.xp.where(x > 0, x, slope * x)
        return out

    def relu_backward(self, y: Array, dy: Array, slope: float, out: Array) -> Array:
        """out = dy where y > 0, else slope dy."""
        out[...] = self.xp.where(y > 0, dy, slope * dy)
        return out

    def sigmoid(self, x: Array, out: Array) -> Array:
        """out = 1 / (1 + exp(-x)), computed as (1 + tanh(x / 2)) / 2, which does not overflow."""
        self.xp.multiply(x, 0.5, out=out)
        self.xp.tanh(out, out=out)
        out *= 0.5
        out += 0.5
        return out

    def sigmoid_backward(self, y: Array, dy: Array, out: Array) -> Array:
        """out = dy y (1 - y)."""
        return self.xp.multiply(dy, y * (1 - y), out=out)

    def tanh(self, x: Array, out: Array) -> Array:
        """out = tanh(x)."""
        return self.xp.tanh(x, out=out)

    def tanh_backward(self, y: Array, dy: Array, out: Array) -> Array:
        """out = dy (1 - y^2)."""
        return self.xp.multiply(dy, 1 - y * y, out=out)

    def stanh(self, x: Array, out: Array) -> Array:
        """out = 1.7159047 tanh(0.6666667 x)."""
        self.xp.multiply(x, STANH_INNER, out=out)
        self.xp.tanh(out, out=out)
        out *= STANH_OUTER
        return out

    def stanh_backward(self, y: Array, dy: Array, out: Array) -> Array:
        """out = dy 0.6666667 (1.7159047 - y^2 / 1.7159047)."""
        slope = STANH_INNER * STANH_OUTER - (STANH_INNER / STANH_OUTER) * (y * y)
        return self.xp.multiply(dy, slope, out=out)
