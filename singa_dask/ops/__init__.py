"""Arrays and kernels: `get_ops(device, dtype)` is the one place that knows the array library."""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.ops.base import Ops
from singa_dask.ops.window import Window

__all__ = ["Ops", "Window", "get_ops"]


def get_ops(device: str = "cpu", dtype: Any = np.float32, *, device_id: int = 0, threads: int = 1) -> Ops:
    """The kernels for a device: "cpu" (NumPy and Numba) or "gpu" (CuPy), computing in `dtype`.

    device_id: which of several GPUs; it becomes the calling thread's. threads: of the kernels on the CPU; limit BLAS
    to one thread where there are several.
    Raises ConfigError for an unknown device, and for "gpu" where CuPy or a GPU is missing.
    """
    if device == "cpu":
        from singa_dask.ops.cpu.ops import CpuOps

        return CpuOps(dtype, threads)
    if device == "gpu":
        from singa_dask.ops.gpu.ops import GpuOps

        return GpuOps(dtype, device_id)
    raise ConfigError(
        Problem("device", "there is no such device", received=repr(device), hint=nearest(device, ["cpu", "gpu"]))
    )
