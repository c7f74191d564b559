"""Ops on an NVIDIA GPU: CuPy's arrays and cuBLAS, and CUDA kernels where CuPy would take several passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from math import inf
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.compute import check_compute
from singa_dask.ops.copies import Copies
from singa_dask.ops.gpu import kernels as gpu_kernels
from singa_dask.ops.gpu.attention_ops import GpuAttentionOps
from singa_dask.ops.gpu.codec_kernels import SixteenBitKernels
from singa_dask.ops.gpu.convolution_ops import GpuConvolutionOps, as_read, geometry
from singa_dask.ops.gpu.device_copies import DeviceCopies
from singa_dask.ops.gpu.normalisation_ops import GpuNormalisationOps
from singa_dask.ops.gpu.preflight import usable_cupy
from singa_dask.ops.gpu.product_ops import GpuProductOps
from singa_dask.ops.gpu.recurrent_ops import GpuRecurrentOps
from singa_dask.ops.gpu.sparse_kernels import SparseKernels
from singa_dask.ops.random import Columns, drop_threshold
from singa_dask.ops.update import Where, hyperparameters
from singa_dask.ops.window import Window


@cache
def _kernels(cupy: Any) -> SimpleNamespace:
    return gpu_kernels.build(cupy)


def _by_fours(pieces: Sequence[Array]) -> Iterator[tuple[list[Array], tuple[int, ...], int]]:
    """Four pieces at a time, with their widths, the place of the first and the width of all, and their elements. Where
    there are fewer, the last one fills up, as one of no width."""
    widths = [piece.shape[1] for piece in pieces]
    for start in range(0, len(pieces), 4):
        four, own = list(pieces[start : start + 4]), widths[start : start + 4]
        missing = 4 - len(four)
        numbers = *own, *(0,) * missing, sum(widths[:start]), sum(widths)
        yield four + four[-1:] * missing, numbers, len(four[0]) * sum(own)


class GpuOps(GpuAttentionOps, GpuConvolutionOps, GpuRecurrentOps, GpuNormalisationOps, GpuProductOps):
    """CuPy. Every override computes what its base does, on C-contiguous arrays.

    Raises ConfigError where something is missing that a GPU needs; see usable_cupy.
    """

    device: ClassVar[str] = "gpu"
    sees_values: ClassVar[bool] = False
    launches: ClassVar[bool] = True
    merges_runs: ClassVar[bool] = True

    def __init__(self, dtype: Any = np.float32, device_id: int = 0, compute: str = "kFloat32"):
        super().__init__(dtype)
        cupy = usable_cupy(device_id)
        self.xp, self.device_id, self._device = cupy, device_id, cupy.cuda.Device(device_id)
        self.use()
        self.compute = compute
        check_compute(compute, "" if compute == "kFloat32" else self._obstacle())
        self._kernels = _kernels(cupy)

    def _obstacle(self) -> str:
        """What prevents products of other types than float32."""
        if self.dtype != np.float32:
            return f"is for nets of float32, not of {self.dtype}"
        capability = int(self._device.compute_capability)
        return "" if capability >= 80 else f"needs a GPU of compute capability 8.0, not {capability / 10}"

    def use(self) -> None:
        self._device.use()

    def sixteen_bits(self, kind: str) -> Any:
        return SixteenBitKernels(self._kernels, kind, self.xp)

    @property
    def sparse(self) -> Any:
        return SparseKernels(self._kernels, self.xp)

    def copies(self, memory: np.ndarray) -> Copies:
        with self._device:
            return DeviceCopies(self.xp, memory)

    def free_memory(self) -> tuple[int | None, int]:
        pool = self.xp.get_default_memory_pool()
        with self._device:
            limit, kept = pool.get_limit(), pool.free_bytes()
            free, _ = self.xp.cuda.runtime.memGetInfo()
            return (max(0, limit - pool.used_bytes()) if limit else None), free + kept

    def held_memory(self) -> int:
        with self._device:
            return int(self.xp.get_default_memory_pool().total_bytes())

    def to_host(self, array: Array) -> np.ndarray:
        return self.xp.asnumpy(array)

    def floats(self, scalars: Array) -> list[float]:
        if isinstance(scalars, self.xp.ndarray):
            return self.to_host(scalars).tolist()
        return super().floats(scalars)

    def max_pool(self, x: Array, window: Window, out: Array, argmax: Array) -> Array:
        array, *given = as_read(x)
        self._kernels.max_pool(array, *geometry(window, x.shape), *given, out, argmax)
        return out

    def max_pool_backward(self, dy: Array, argmax: Array, window: Window, dx: Array) -> Array:
        self._kernels.max_pool_backward(dy, argmax, *geometry(window, dx.shape), False, dx)
        return dx

    def add_max_pool_backward(self, dy: Array, argmax: Array, window: Window, dx: Array) -> Array:
        self._kernels.max_pool_backward(dy, argmax, *geometry(window, dx.shape), True, dx)
        return dx

    def average_pool(self, x: Array, window: Window, out: Array) -> Array:
        self._kernels.average_pool(x, *geometry(window, x.shape), out)
        return out

    def average_pool_backward(self, dy: Array, window: Window, dx: Array) -> Array:
        self._kernels.average_pool_backward(dy, *geometry(window, dx.shape), dx)
        return dx

    def join(self, pieces: Sequence[Array], out: Array) -> Array:
        for four, numbers, count in _by_fours(pieces):
            self._kernels.join(*four, *numbers, out, size=count)
        return out

    def cut(self, x: Array, pieces: Sequence[Array]) -> None:
        for four, numbers, count in _by_fours(pieces):
            self._kernels.cut(x, *numbers, *four, size=count)

    def relu(self, x: Array, slope: float, out: Array, limit: float = inf) -> Array:
        return self._kernels.relu(x, slope, limit, out)

    def relu_backward(self, y: Array, dy: Array, slope: float, out: Array, limit: float = inf) -> Array:
        return self._kernels.relu_backward(y, dy, slope, limit, out)

    def elu(self, x: Array, alpha: float, out: Array) -> Array:
        return self._kernels.elu(x, alpha, out)

    def elu_backward(self, y: Array, dy: Array, alpha: float, out: Array) -> Array:
        return self._kernels.elu_backward(y, dy, alpha, out)

    def silu(self, x: Array, out: Array, slope: Array) -> Array:
        self._kernels.silu(x, out, slope)
        return out

    def gelu(self, x: Array, out: Array, slope: Array) -> Array:
        self._kernels.gelu(x, out, slope)
        return out

    def gelu_tanh(self, x: Array, out: Array, slope: Array) -> Array:
        self._kernels.gelu_tanh(x, out, slope)
        return out

    def sigmoid(self, x: Array, out: Array) -> Array:
        return self._kernels.sigmoid(x, out)

    def stanh(self, x: Array, out: Array) -> Array:
        return self._kernels.stanh(x, out)

    def sigmoid_backward(self, y: Array, dy: Array, out: Array) -> Array:
        return self._kernels.sigmoid_backward(y, dy, out)

    def tanh_backward(self, y: Array, dy: Array, out: Array) -> Array:
        return self._kernels.tanh_backward(y, dy, out)

    def stanh_backward(self, y: Array, dy: Array, out: Array) -> Array:
        return self._kernels.stanh_backward(y, dy, out)

    def dropout(
        self, x: Array, ratio: float, key: int, first: int, out: Array, mask: Array, columns: Columns | None = None
    ) -> Array:
        places = map(np.uint64, (key, first, *(columns or (1, 1))))
        self._kernels.dropout(x, np.uint64(drop_threshold(ratio)), 1 / (1 - ratio), *places, out, mask)
        return out

    def dropout_backward(self, dy: Array, mask: Array, ratio: float, out: Array) -> Array:
        return self._kernels.dropout_backward(dy, mask, 1 / (1 - ratio), out)

    def binary_cross_entropy(self, x: Array, t: Array, positive: Array, out: Sequence[Array]) -> None:
        self._kernels.binary_cross_entropy(x, t, positive, positive.size, *out)

    def table_rows(self, x: Array, size: int) -> Array:
        return self._kernels.table_rows(x, size, self.empty(x.shape, np.int64))

    def one_hot(self, rows: Array, out: Array) -> Array:
        return self._kernels.one_hot(rows, out.shape[1], out)

    def embed(self, table: Array, rows: Array, out: Array) -> Array:
        return self._kernels.embed(table, rows, out.shape[1], out)

    def one_hot_columns(self, x: Array) -> Array:
        return None  # the host would have to wait for the answer

    def update(self, rule: str, w: Array, g: Array, states: Sequence[Array], **given: float) -> None:
        numbers = gpu_kernels.update_numbers(rule, *hyperparameters(rule, given))
        getattr(self._kernels, rule)(g, *numbers, w, *states)

    def update_where(
        self, where: Where, rule: str, w: Array, g: Array, states: Sequence[Array], **given: float
    ) -> None:
        numbers = gpu_kernels.update_numbers(rule, *hyperparameters(rule, given))
        getattr(self._kernels, f"{rule}_where")(*where, g, *numbers, w, *states)

    def subtract_where(self, where: Where, w: Array, g: Array) -> None:
        self._kernels.subtract_where(*where, g, w)

    def norm_factor(self, squares: Array, limit: float) -> Array:
        return self._kernels.norm_factor(squares, limit)

    def scale_where(self, where: Where, x: Array, factor: Array) -> None:
        self._kernels.scale_where(*where, factor, x)

    def moving_average(self, average: Array, w: Array, decay: float) -> None:
        self._kernels.moving_average(w, decay, 1 - decay, average)

    def lamb(
        self, w: Array, g: Array, m: Array, v: Array, *,
        lr: float, beta1: float, beta2: float, correction1: float, correction2: float, delta: float,
        weight_decay: float, clip_low: float, clip_high: float,
    ) -> None:  # fmt: skip
        r = self.xp.empty_like(w)
        moments = beta1, 1 - beta1, beta2, 1 - beta2, correction1, correction2
        self._kernels.lamb_moments(w, g, *moments, delta, weight_decay, clip_low, clip_high, m, v, r)
        # Norms on the device: the host does not wait for them.
        self._kernels.lamb_step(r, lr, self.squared_norm(w), self.squared_norm(r), w)
