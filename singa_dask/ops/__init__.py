"""Arrays and kernels: `get_ops(device, dtype)` is the one place that knows the array library."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.ops.base import Ops
from singa_dask.ops.compute import check_compute
from singa_dask.ops.window import Window

__all__ = ["Ops", "Window", "get_ops"]

# Environment variable that selects the kernels on the CPU.
KERNELS = "SINGA_DASK_KERNELS"


def get_ops(
    device: str = "cpu", dtype: Any = np.float32, *, device_id: int = 0, threads: int = 1, compute: str = "kFloat32"
) -> Ops:
    """The kernels for a device: "cpu" (NumPy and Numba) or "gpu" (CuPy), computing in `dtype`.

    device_id: the GPU, which becomes the calling thread's. threads: of the kernels on the CPU; with several, limit
    BLAS to one thread. compute: of JobProto, for a GPU and float32.
    SINGA_DASK_KERNELS=numpy in the environment runs the NumPy reference on the CPU, for diagnosis.
    Raises ConfigError for an unknown device or SINGA_DASK_KERNELS, and for "gpu" where CuPy or a GPU is missing;
    for a `compute` other than kFloat32 on a CPU, in float64 and on a GPU that has no such products.
    """
    if device == "cpu":
        check_compute(compute, "" if compute == "kFloat32" else "CPUs multiply in float32")
        return _cpu_ops(dtype, threads)
    if device == "gpu":
        from singa_dask.ops.gpu.ops import GpuOps

        return GpuOps(dtype, device_id, compute)
    raise ConfigError(
        Problem("device", "there is no such device", received=repr(device), hint=nearest(device, ["cpu", "gpu"]))
    )


def _cpu_ops(dtype: Any, threads: int) -> Ops:
    chosen = os.environ.get(KERNELS) or "numba"
    if chosen == "numpy":
        return Ops(dtype)
    if chosen == "numba":
        from singa_dask.ops.cpu.ops import CpuOps

        return CpuOps(dtype, threads)
    hint = "Unset it for Numba's kernels; numpy runs the reference, for diagnosis."
    raise ConfigError(Problem(KERNELS, "must be numba or numpy", received=repr(chosen), hint=hint))
