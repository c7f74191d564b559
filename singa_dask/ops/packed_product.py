"""Products of few rows with a matrix that is packed once: a register tile in LLVM IR for Numba, and kernels over it.

A matrix (K, N) lies in panels of PANEL columns, (N / PANEL, K, PANEL), the last one filled up. A tile is ROWS rows of
one panel, and stays in registers for the whole sum: 5 x 4 vectors of AVX-512 or 5 x 2 of AVX2. BLAS would pack the
matrix anew in every product.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic

from singa_dask.ops.numba_kernel import kernel
from singa_dask.ops.vectors import I1, I64, VECTOR, Vectors

ROWS = 5
_VECTORS = 4 if VECTOR == 16 else 2
PANEL = max(VECTOR, 1) * _VECTORS


def _emit_tile(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    a, a_row, length, b, c, c_row, rows, width, accumulate = arguments
    v = Vectors(builder)
    masks = [v.first_lanes(builder.sub(width, I64(i * VECTOR))) for i in range(_VECTORS)]
    known = [builder.and_(mask, v.splat(builder.trunc(accumulate, I1))) for mask in masks]
    last = builder.sub(rows, I64(1))
    places = [builder.select(builder.icmp_signed("<", I64(r), last), I64(r), last) for r in range(ROWS)]
    left = [builder.add(a, builder.mul(place, a_row)) for place in places]
    lines = [v.address(builder.add(c, builder.mul(place, c_row))) for place in places]
    total = [[v.variable(v.load(v.at(line, I64(i * VECTOR)), known[i])) for i in range(_VECTORS)] for line in lines]
    below = builder.mul(I64(ROWS), builder.ashr(c_row, I64(2)))
    for line in lines:
        for i in range(_VECTORS):
            v.prefetch(v.at(line, builder.add(below, I64(i * VECTOR))))
    with cgutils.for_range(builder, length) as loop:
        line = v.address(builder.add(b, builder.mul(loop.index, I64(4 * PANEL))))
        right = [v.load(v.at(line, I64(i * VECTOR))) for i in range(_VECTORS)]
        column = builder.shl(loop.index, I64(2))
        for start, sums in zip(left, total, strict=True):
            element = v.splat(builder.load(v.address(builder.add(start, column)), align=4))
            for place, part in zip(sums, right, strict=True):
                builder.store(v.fma(element, part, builder.load(place)), place)
    for line, sums in zip(lines, total, strict=True):
        for i, mask in enumerate(masks):
            v.store(builder.load(sums[i]), v.at(line, I64(i * VECTOR)), mask)
    return context.get_dummy_value()


@intrinsic
def _tile(typingctx, a, a_row, length, b, c, c_row, rows, width, accumulate):  # pragma: no cover - Numba calls it
    """c[r, :width] = sum over q < length of a[r, q] b[q, :width] for r < rows, at most ROWS, or c += it.

    a, b, c: addresses of float32 elements; a_row, c_row: bytes from row to row; b: a panel. Where there are fewer rows
    than ROWS, the last one is computed, and written, more than once. The rows below, which come next, are fetched.
    """
    return types.void(*[types.int64] * 9), _emit_tile


@kernel
def pack(matrix, first, panels):
    """The columns [first, first + N) of the packed matrix are those of `matrix` (K, N), of any strides."""
    length, columns = matrix.shape
    begin = 0
    while begin < columns:
        panel, column = (first + begin) // PANEL, (first + begin) % PANEL
        width = min(PANEL - column, columns - begin)
        for q in range(length):
            for j in range(width):
                panels[panel, q, column + j] = matrix[q, begin + j]
        begin += width


@kernel
def product(a, panels, out, accumulate=False):
    """out = a (the packed matrix), or out += it.   a: (M, K), out: (M, N); rows are contiguous."""
    rows, columns = out.shape
    a_row, c_row = a.strides[0], out.strides[0]
    for p in range(panels.shape[0]):
        b, width = panels.ctypes.data + 4 * p * a.shape[1] * PANEL, min(PANEL, columns - p * PANEL)
        for r in range(0, rows, ROWS):
            left, c = a.ctypes.data + r * a_row, out.ctypes.data + r * c_row + 4 * p * PANEL
            height = min(ROWS, rows - r)
            _tile(left, a_row, a.shape[1], b, c, c_row, height, width, accumulate)  # type: ignore[call-arg]
