"""Matrix products on the CPU: by the row tile where that is faster, else by NumPy's BLAS."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.elementwise import elementwise_kernels
from singa_dask.ops.cpu.gemm import row_products
from singa_dask.ops.cpu.toolkit.threaded_ops import ThreadedOps


class CpuGemmOps(ThreadedOps):
    """Matrix products of CpuOps."""

    # Multiplications that take some twenty microseconds.
    _product_worth_a_thread: ClassVar[int] = 1 << 20

    def gemm(self, a: Array, b: Array, out: Array | None = None, accumulate: bool = False) -> Array:
        rows, columns = a.shape[0], b.shape[1]
        out = self.empty((rows, columns), np.result_type(a, b)) if out is None else out
        count = max(1, min(self._team.size, a.size * columns // self._product_worth_a_thread))
        if by_tile := row_products.product_of(a, b, out):
            by_tile(self._team, count, a, b, out, accumulate)
            return out
        product = super().gemm
        if count == 1:
            return product(a, b, out, accumulate)
        if rows > columns:
            self._team.share(rows, count, lambda share: product(a[share], b, out[share], accumulate))
        else:
            self._team.share(columns, count, lambda share: product(a, b[:, share], out[:, share], accumulate))
        return out

    def affine(self, x: Array, w: Array, b: Array | None, out: Array | None = None) -> Array:
        out = self.gemm(x, w, out)
        if b is not None:
            elementwise_kernels.add_rows(b, out)
        return out

    def column_sums(self, x: Array, out: Array, accumulate: bool = False) -> Array:
        if accumulate:  # a sum of its own first: those of two calls may cancel
            out += self.column_sums(x, self.empty(out.shape, out.dtype))
        else:
            elementwise_kernels.column_sums(x, False, out)
        return out
