"""Images of a batch copied between zeros, and back. Contiguous float32, by address."""

from __future__ import annotations

from typing import Any, NamedTuple

from singa_dask.ops.cpu.toolkit.intrinsics import emitted
from singa_dask.ops.cpu.toolkit.numba_kernel import linked
from singa_dask.ops.cpu.toolkit.numba_parts import cgutils
from singa_dask.ops.cpu.toolkit.vectors import I64, Vectors

_FLOAT = 4


class Images(NamedTuple):
    """NHWC images: the address of the first one, and their sizes."""

    address: int
    height: int
    width: int
    channels: int


@emitted
def clear(v: Vectors, target: Any, count: Any) -> None:
    """Set `count` elements from the address `target` on to zero."""
    cgutils.memset(v.builder, v.address(target), v.builder.mul(count, I64(_FLOAT)), 0)


@emitted
def _copy(v: Vectors, source: Any, target: Any, count: Any) -> None:
    """Copy `count` elements from one address to another."""
    cgutils.raw_memcpy(v.builder, v.address(target), v.address(source), count, I64(_FLOAT))


@linked
def pad(x: Images, count, top, left, padded: Images):
    """Copy `count` images x to (top, left) of `padded`, between zeros."""
    line, run = padded.width * x.channels, x.width * x.channels
    clear(padded.address, count * padded.height * line)
    for b in range(count):
        for h in range(x.height):
            to = (b * padded.height + top + h) * line + left * x.channels
            _copy(x.address + _FLOAT * (b * x.height + h) * run, padded.address + _FLOAT * to, run)


@linked
def crop(padded: Images, top, left, x: Images, count):
    """Copy `count` images x from (top, left) of `padded`."""
    line, run = padded.width * x.channels, x.width * x.channels
    for b in range(count):
        for h in range(x.height):
            begin = (b * padded.height + top + h) * line + left * x.channels
            _copy(padded.address + _FLOAT * begin, x.address + _FLOAT * (b * x.height + h) * run, run)
