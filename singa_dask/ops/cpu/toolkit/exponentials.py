"""exp, sigmoid and SiLU for use in kernels; in float32 by powers of 2, so that loops over them vectorise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

_f32, _i32 = np.float32, np.int32

# The flags of kernels would let LLVM combine the two parts of ln 2, and factors whose product is too small.
_EXACT: Any = {"fastmath": {"contract"}, "error_model": "numpy"}


def exp_of_negative(x):
    """exp(x) for x <= 0 or NaN, in float32 0 where there is no normal number."""
    raise NotImplementedError


def sigmoid_of(x):
    """1 / (1 + exp(-x)), with numbers below the normal ones."""
    raise NotImplementedError


def silu_of(x):
    """x sigmoid(x), likewise."""
    raise NotImplementedError


@register_jitable(**_EXACT)
def _reduced(x):
    """n and 1 + r + r^2 P(r), x = n ln 2 + r, with the polynomial of Cephes' expf (Moshier 1989): exp(x) is 2^n times
    the latter."""
    n = _f32(np.rint(x * _f32(1.44269504088896341)))
    r = x - n * _f32(0.693359375) + n * _f32(2.12194440e-4)
    p = _f32(1.9875691500e-4) * r + _f32(1.3981999507e-3)
    p = p * r + _f32(8.3334519073e-3)
    p = p * r + _f32(4.1665795894e-2)
    p = p * r + _f32(1.6666665459e-1)
    p = p * r + _f32(5.0000001201e-1)
    return _i32(n), p * (r * r) + (r + _f32(1))


@register_jitable(**_EXACT)
def _power_of_2(n):
    return _i32(_i32(n + _i32(127)) << _i32(23)).view(_f32)


@register_jitable(**_EXACT)
def _factors(x):
    """Two normal numbers whose product is exp(x), for -120 <= x <= 0 or NaN."""
    n, rest = _reduced(x)
    half = _i32(n >> _i32(1))
    return rest * _power_of_2(half), _power_of_2(_i32(n - half))


@overload(exp_of_negative, jit_options=_EXACT)
def _exp_of_negative(x):
    if x != types.float32:
        return lambda x: math.exp(x)

    def by_powers(x):
        n, rest = _reduced(x)
        return _f32(0) if x < _f32(-87.33654) else rest * _power_of_2(n)

    return by_powers


@overload(sigmoid_of, jit_options=_EXACT)
def _sigmoid(x):
    if x != types.float32:

        def plain(x):
            small = math.exp(-abs(x))
            return (1 if x >= 0 else small) / (1 + small)

        return plain

    def by_powers(x):
        least = _f32(-120)  # where exp is 0, and x exp(x), too
        size = -abs(x)
        one, other = _factors(least if size < least else size)
        small = one * other
        return (_f32(1) if x >= 0 else small) / (_f32(1) + small)

    return by_powers


@overload(silu_of, jit_options=_EXACT)
def _silu(x):
    if x != types.float32:

        def by_halves(x):
            x = -1500.0 if x < -1500 else x
            root = math.exp(-abs(x) / 2)
            factor = root if x < 0 else 1.0
            return x * factor / (1 + root * root) * factor

        return by_halves

    def by_powers(x):
        least = _f32(-120)
        x = least if x < least else x
        size = -abs(x)
        one, other = _factors(least if size < least else size)
        total = _f32(1) + one * other
        return x * (one if x < 0 else _f32(1)) / total * (other if x < 0 else _f32(1))

    return by_powers
