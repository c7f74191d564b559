"""Images of a batch into larger ones with zeros around them, and back. Of contiguous float32, by address."""

from __future__ import annotations

from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from singa_dask.ops.cpu.kernels.numba_kernel import linked
from singa_dask.ops.cpu.kernels.vectors import I64, Vectors

_FLOAT = 4


@cast(Any, intrinsic)
def clear(typingctx, target, count):  # pragma: no cover - Numba calls it
    """`count` elements from the address `target` on become zero."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        target, count = arguments
        cgutils.memset(builder, Vectors(builder).address(target), builder.mul(count, I64(_FLOAT)), 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@cast(Any, intrinsic)
def _copy(typingctx, source, target, count):  # pragma: no cover - Numba calls it
    """`count` elements from one address to another."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        source, target, count = arguments
        v = Vectors(builder)
        cgutils.raw_memcpy(builder, v.address(target), v.address(source), count, I64(_FLOAT))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@linked
def pad(x, count, height, width, channels, top, left, padded, padded_height, padded_width):
    """The images x, from (top, left) on, between zeros.   x: (count, height, width, channels)."""
    line, run = padded_width * channels, width * channels
    clear(padded, count * padded_height * line)
    for b in range(count):
        for h in range(height):
            to = (b * padded_height + top + h) * line + left * channels
            _copy(x + _FLOAT * (b * height + h) * run, padded + _FLOAT * to, run)


@linked
def crop(padded, padded_height, padded_width, top, left, x, count, height, width, channels):
    """x = the images of `padded` from (top, left) on; shapes as in `pad`."""
    line, run = padded_width * channels, width * channels
    for b in range(count):
        for h in range(height):
            begin = (b * padded_height + top + h) * line + left * channels
            _copy(padded + _FLOAT * begin, x + _FLOAT * (b * height + h) * run, run)
