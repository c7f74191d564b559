"""Products of matrices on a GPU. Operands are float32, or rounded to TF32 or bfloat16; sums are float32."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.base import Ops

_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)


class GpuProductOps(Ops):
    """Products by cuBLAS. compute: a name of JobProto.Compute."""

    _kernels: Any
    compute: str

    def gemm(self, a: Array, b: Array, out: Array | None = None, accumulate: bool = False) -> Array:
        if self.compute != "kFloat32":
            return self._multiply(a, b, self.empty((len(a), b.shape[1])) if out is None else out, accumulate)
        # Not matmul: of the two, CuPy documents `out` for dot only.
        if accumulate:
            out += self.xp.dot(a, b)
            return out
        return self.xp.dot(a, b, out=out)

    def matmul(self, a: Array, b: Array) -> Array:
        if self.compute == "kFloat32":
            return self.xp.matmul(a, b)
        return self._multiply(a, b, self.empty((*a.shape[:-1], b.shape[-1])), accumulate=False)

    def _multiply(self, a: Array, b: Array, out: Array, accumulate: bool) -> Array:
        """out = a b, or out += a b, C-contiguous."""
        if not out.flags.c_contiguous:
            raise ValueError(f"the output of a product must be C-contiguous, not of strides {out.strides}")
        if not (out.size and a.shape[-1]):
            if not accumulate:
                out[...] = 0
            return out
        cuda = self.xp.cuda
        kind, how = cuda.runtime.CUDA_R_32F, cuda.cublas.CUBLAS_COMPUTE_32F_FAST_TF32
        if self.compute == "kBFloat16":
            a, b = self._rounded(a), self._rounded(b)
            kind, how = cuda.runtime.CUDA_R_16BF, cuda.cublas.CUBLAS_COMPUTE_32F
        (a, *of_a), (b, *of_b) = self._laid_out(a), self._laid_out(b)
        # cuBLAS has columns first, and so computes out^T = b^T a^T.
        cuda.cublas.gemmStridedBatchedEx(
            *(cuda.device.get_cublas_handle(), of_b[0], of_a[0], b.shape[-1], a.shape[-2], a.shape[-1]),
            *(_ONE.ctypes.data, b.data.ptr, kind, *of_b[1:], a.data.ptr, kind, *of_a[1:]),
            *((_ONE if accumulate else _ZERO).ctypes.data, out.data.ptr, cuda.runtime.CUDA_R_32F, out.shape[-1]),
            *(out.shape[-1] * out.shape[-2], prod(out.shape[:-2]), how, -1),
        )
        return out

    def _rounded(self, x: Array) -> Array:
        """The bits of x in bfloat16, to nearest even; laid out as x."""
        return self._kernels.bfloat16(x, self.xp.empty_like(x, np.uint16))

    def _laid_out(self, x: Array) -> tuple[Array, int, int, int]:
        """x, copied if cuBLAS cannot read it; whether it is turned, leading dimension, stride of a batch."""
        rows, columns = x.shape[-2:]
        *outer, down, along = (stride // x.itemsize for stride in x.strides)
        whole = len(outer) < 2 or all(
            step == length * inner for step, length, inner in zip(outer, x.shape[1:], outer[1:], strict=False)
        )
        batch = outer[-1] if outer else 0
        if whole and (along == 1 or columns == 1) and (down >= columns or rows == 1):
            return x, 0, max(down, columns) if rows > 1 else columns, batch
        if whole and (down == 1 or rows == 1) and (along >= rows or columns == 1):
            return x, 1, along if columns > 1 else rows, batch
        return self.xp.ascontiguousarray(x), 0, columns, rows * columns
