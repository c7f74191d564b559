"""Activations and their gradients, element by element; `out` may be one of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf
from typing import Any

import numpy as np

from singa_dask.ops.arrays import Array

# LeCun et al. 1998, "Efficient BackProp": stanh(1) = 1, stanh(-1) = -1.
STANH_OUTER = 1.7159047
STANH_INNER = 0.6666667
# erf(x) = x P(u) / Q(u), u = (x / ERF_LIMIT)^2, with x cut to [-ERF_LIMIT, ERF_LIMIT] and the result to [-1, 1]: a
# least-squares fit, reweighted until the largest error was 6e-14. No coefficient is negative, so that float32 loses
# nothing. The constant term is first.
ERF_LIMIT = 5.9
ERF_P = (
    *(1.128379167095156, 7.5867336707570665, 78.47283928858035, 276.59956865954405, 1152.3297507706347),
    *(2486.1026119252037, 5394.777873305917, 6732.047719367571, 7106.0255302851265, 2417.6312555479044),
    80.52187087615279,
)
ERF_Q = (
    *(1.0, 18.326900988363253, 161.02427428450733, 897.109975712454, 3526.771759939293, 10276.00611015486),
    *(22586.31844861884, 37070.013688864434, 43197.717769749914, 30171.20963097809, 3920.5238246094127),
)
ROOT_HALF = 0.7071067811865476  # sqrt(1/2)
NORMAL = 0.3989422804014327  # 1 / sqrt(2 pi)
# GELU by tanh(TANH_SLOPE (x + TANH_CUBE x^3)).
TANH_SLOPE = 0.7978845608028654  # sqrt(2 / pi)
TANH_CUBE = 0.044715


class ActivationOps:
    """Activations over `self.xp`.

    The backward kernels take the activation's output y, not its input. Activations for which y does not determine the
    slope dy/dx compute it with y.
    """

    xp: Any

    def relu(self, x: Array, slope: float, out: Array, limit: float = inf) -> Array:
        """out = min(x, limit) where x > 0, else slope x (slope >= 0)."""
        xp = self.xp
        out[...] = xp.where(x > 0, xp.minimum(x, limit), slope * x)
        return out

    def relu_backward(self, y: Array, dy: Array, slope: float, out: Array, limit: float = inf) -> Array:
        """out = dy where 0 < y < limit, 0 where y = limit, else slope dy."""
        xp = self.xp
        out[...] = xp.where(y > 0, dy * (y < limit), slope * dy)
        return out

    def sigmoid(self, x: Array, out: Array) -> Array:
        """out = 1 / (1 + exp(-x)); exp(x) where exp(-x) overflows."""
        xp = self.xp
        with np.errstate(over="ignore"):
            total = xp.exp(-x)
            far = total == inf
            small = xp.exp(x) if far.any() else None
        total += 1
        xp.divide(1, total, out=out)
        if small is not None:
            xp.copyto(out, small, where=far)
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

    def elu(self, x: Array, alpha: float, out: Array) -> Array:
        """out = x where x > 0, else alpha (exp(x) - 1)   (alpha >= 0)."""
        xp = self.xp
        out[...] = xp.where(x > 0, x, alpha * xp.expm1(xp.minimum(x, 0)))
        return out

    def elu_backward(self, y: Array, dy: Array, alpha: float, out: Array) -> Array:
        """out = dy where y > 0, else dy (y + alpha)."""
        return self.xp.multiply(dy, self.xp.where(y > 0, 1, y + alpha), out=out)

    def silu(self, x: Array, out: Array, slope: Array) -> Array:
        """out = x s with s = sigmoid(x), slope = s + out (1 - s)."""
        xp = self.xp
        self.sigmoid(x, slope)
        xp.multiply(x, slope, out=out)
        far = x < -64
        if far.any():  # exp(x) = exp(x + 64) exp(-64): where exp(x) has few digits, x exp(x) has more
            z = xp.clip(x, -1500, -64)
            xp.copyto(out, z * xp.exp(z + 64) * exp(-64), where=far)
        slope += out * (1 - slope)
        return out

    def gelu(self, x: Array, out: Array, slope: Array) -> Array:
        """out = x F(x), slope = F(x) + x f(x), F and f the distribution function and density of the normal
        distribution."""
        xp = self.xp
        self.erf(x * ROOT_HALF, slope)
        slope += 1
        slope *= 0.5
        xp.multiply(x, slope, out=out)
        slope += x * xp.exp(-0.5 * x * x) * NORMAL
        return out

    def gelu_tanh(self, x: Array, out: Array, slope: Array) -> Array:
        """out = x (1 + tanh(u)) / 2 = x s, u = sqrt(2 / pi) (x + 0.044715 x^3), s = sigmoid(2 u);
        slope = s + x s (1 - s) 2 u'."""
        square = x * x
        self.sigmoid(2 * TANH_SLOPE * x * (1 + TANH_CUBE * square), slope)
        self.xp.multiply(x, slope, out=out)
        slope += out * (1 - slope) * (2 * TANH_SLOPE * (1 + 3 * TANH_CUBE * square))
        return out

    def erf(self, x: Array, out: Array) -> Array:
        """out = the error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
        x = self.xp.clip(x, -ERF_LIMIT, ERF_LIMIT)
        u = self.xp.square(x * (1 / ERF_LIMIT))
        self.xp.divide(x * _polynomial(ERF_P, u), _polynomial(ERF_Q, u), out=out)
        return self.xp.clip(out, -1, 1, out=out)


def _polynomial(coefficients: Sequence[float], u: Array) -> Array:
    """The sum of coefficients[k] u^k."""
    total = u * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        total += coefficient
        total *= u
    total += coefficients[0]
    return total
