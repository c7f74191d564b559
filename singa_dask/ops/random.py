"""Random numbers as a pure function of (key, index): the same in NumPy, Numba and CuPy, on any worker.

Number `index` of stream `key` is output `index` of SplitMix64 seeded with `key` (Steele, Lea and Flood 2014). Elements
are counted over the group's whole mini-batch, so a mask depends neither on the number of workers nor on the partition.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

from singa_dask.ops.arrays import Array

GAMMA = 0x9E3779B97F4A7C15
MIX1 = 0xBF58476D1CE4E5B9
MIX2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


class Columns(NamedTuple):
    """Where the elements of an array lie in an array with more columns: rows of `width` elements, `stride` apart."""

    width: int
    stride: int


def stream_key(seed: int, number: int, name: str) -> int:
    """The stream of a layer's draws at one step: a 64-bit integer.

    >>> stream_key(0, 1, "drop") == stream_key(0, 1, "drop") != stream_key(0, 2, "drop")
    True
    """
    key = 0
    for part in (seed, number, zlib.crc32(name.encode())):
        key = _mix((key + part + GAMMA) & _MASK)
    return key


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * MIX1) & _MASK
    z = ((z ^ (z >> 27)) * MIX2) & _MASK
    return z ^ (z >> 31)


def random_bits(xp: Any, key: int, first: int, count: int, columns: Columns | None = None) -> Array:
    """Numbers first + 0 .. count - 1 of stream `key`: (count,) of uint64.

    With columns, element i takes number first + (i // width) stride + i % width.
    """
    width, stride = columns or (count, count)
    z = xp.arange(count if width == stride else width, dtype=xp.uint64)
    if width != stride:
        rows = xp.arange(count // max(1, width), dtype=xp.uint64)
        z = (rows[:, None] * xp.uint64(stride) + z).reshape(-1)
    z += xp.uint64((first + 1) & _MASK)
    z *= xp.uint64(GAMMA)
    z += xp.uint64(key)
    z ^= z >> xp.uint64(30)
    z *= xp.uint64(MIX1)
    z ^= z >> xp.uint64(27)
    z *= xp.uint64(MIX2)
    z ^= z >> xp.uint64(31)
    return z


def drop_threshold(ratio: float) -> int:
    """Elements whose upper 32 random bits are below this are dropped."""
    return round(ratio * (1 << 32))


class RandomOps:
    """Counter-based random numbers over `self.xp`."""

    xp: Any

    def dropout(
        self, x: Array, ratio: float, key: int, first: int, out: Array, mask: Array, columns: Columns | None = None
    ) -> Array:
        """out = x mask / (1 - ratio); mask (uint8) is 0 for a random share `ratio` of the elements, 1 for the others.

        Element i of the flattened x takes random number first + i of stream `key`, or that of its place by `columns`.
        """
        bits = random_bits(self.xp, key, first, x.size, columns) >> self.xp.uint64(32)
        mask[...] = (bits >= self.xp.uint64(drop_threshold(ratio))).reshape(x.shape)
        return self.dropout_backward(x, mask, ratio, out)

    def bernoulli(self, p: Array, key: int, first: int, out: Array, columns: Columns | None = None) -> Array:
        """out = 1 with probability p, else 0.   p: any shape -> out: the same; random numbers as in `dropout`."""
        bits = random_bits(self.xp, key, first, p.size, columns) >> self.xp.uint64(40)
        uniform = bits.astype(p.dtype).reshape(p.shape)  # of 24 bits, which float32 holds exactly
        uniform *= 2.0**-24
        out[...] = uniform < p
        return out

    def normal(self, mean: Array, key: int, first: int, out: Array, columns: Columns | None = None) -> Array:
        """out ~ N(mean, 1), by Box and Muller (1958).   mean: any shape -> out: the same; numbers as in `dropout`."""
        xp, bits = self.xp, random_bits(self.xp, key, first, mean.size, columns)
        radius = xp.sqrt(-2 * xp.log1p(-((bits >> xp.uint64(32)).astype(xp.float64) * 2.0**-32)))
        angle = (bits & xp.uint64(0xFFFFFFFF)).astype(xp.float64) * (2 * math.pi * 2.0**-32)
        out[...] = (radius * xp.cos(angle)).reshape(mean.shape)
        out += mean
        return out

    def dropout_backward(self, dy: Array, mask: Array, ratio: float, out: Array) -> Array:
        """out = dy mask / (1 - ratio)."""
        self.xp.multiply(dy, mask, out=out)
        out *= 1 / (1 - ratio)
        return out
