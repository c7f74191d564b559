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
from singa_dask.ops.vectors import I64, VECTOR, Vectors

ROWS = 5
_VECTORS = 4 if VECTOR == 16 else 2
PANEL = max(VECTOR, 1) * _VECTORS


def _emit_tile(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    a, a_step, length, b, c, c_step, width = arguments
    v = Vectors(builder)
    total = [[v.variable(v.zero) for _ in range(_VECTORS)] for _ in range(ROWS)]
    with cgutils.for_range(builder, length) as loop:
        line = v.address(builder.add(b, builder.mul(loop.index, I64(4 * PANEL))))
        right = [v.load(v.at(line, I64(i * VECTOR))) for i in range(_VECTORS)]
        column = builder.add(a, builder.shl(loop.index, I64(2)))
        for r in range(ROWS):
            left = v.splat(builder.load(v.address(builder.add(column, builder.mul(I64(r), a_step))), align=4))
            for place, part in zip(total[r], right, strict=True):
                builder.store(v.fma(left, part, builder.load(place)), place)
    for i in range(_VECTORS):
        mask = v.first_lanes(builder.sub(width, I64(i * VECTOR)))
        for r in range(ROWS):
            row = v.address(builder.add(c, builder.mul(I64(r), c_step)))
            v.store(builder.load(total[r][i]), v.at(row, I64(i * VECTOR)), mask)
    return context.get_dummy_value()


@intrinsic
def _tile(typingctx, a, a_step, length, b, c, c_step, width):  # pragma: no cover - Numba calls it
    """c[r, :width] = sum over q < length of a[r, q] b[q, :width] for the ROWS rows r.

    a, b, c: addresses of float32 elements; a_step, c_step: bytes from row to row; b: a panel.
    """
    return types.void(*[types.int64] * 7), _emit_tile


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
def product(a, panels, out):
    """out = a (the packed matrix).   a: (M, K), out: (M, N) for M >= ROWS; rows are contiguous."""
    rows, columns = out.shape
    length = a.shape[1]
    for p in range(panels.shape[0]):
        b = panels.ctypes.data + 4 * p * length * PANEL
        for begin in range(0, rows, ROWS):
            r = min(begin, rows - ROWS)  # the last tile may overlap the one before
            c = out.ctypes.data + r * out.strides[0] + 4 * p * PANEL
            left = a.ctypes.data + r * a.strides[0]
            width = min(PANEL, columns - p * PANEL)
            _tile(left, a.strides[0], length, b, c, out.strides[0], width)  # type: ignore[call-arg]
