"""Where tensors live and what type their numbers have. The names are Apache SINGA's."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache, cached_property
from typing import Any

import numpy as np

from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.ops import get_ops
from singa_dask.tensors.state import state

log = logging.getLogger(__name__)


def float_type(dtype: Any) -> np.dtype:
    """This type. Raises ConfigError for 16 bits."""
    if dtype != "bfloat16" and (found := np.dtype(dtype)).name not in ("float16", "bfloat16"):
        return found
    hint = "Use float32 or float64. Between workers, gradients travel in 16 bits with codec: kHalf or kBFloat16."
    raise ConfigError(Problem("dtype", "16-bit computing is not offered", str(dtype), hint))


def in_type(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The values in this type: floats may be rounded. Raises DataError for values that it cannot hold."""
    dtype = np.dtype(dtype)
    if array.dtype.kind not in "biuf":
        raise DataError(f"tensors hold real numbers. Received: an array of {array.dtype}.")
    if np.can_cast(array.dtype, dtype):
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        held = array.astype(dtype)
    same = held == array if dtype.kind in "biu" else np.isfinite(held) | ~np.isfinite(array)
    if not same.all():
        received = array.reshape(-1)[int(np.argmin(same))]
        raise DataError(f"a tensor of {dtype} cannot hold all values. Received: {received} ({array.dtype}).")
    return held


class Device:
    """kind: "cpu" or "gpu". id: of the GPU. dtype: in which it computes. ops: what computes there."""

    def __init__(self, kind: str, device_id: int = 0, dtype: Any = np.float32) -> None:
        self.kind, self.id, self.dtype = kind, device_id, float_type(dtype)

    @cached_property
    def ops(self) -> Any:
        return get_ops(self.kind, self.dtype, device_id=self.id)

    def SetRandSeed(self, seed: int) -> None:
        """Seed initial parameters, dropout and what tensors draw from now on; see autograd.set_seed."""
        state.set_seed(seed)

    def Sync(self) -> None:
        """Return when the device has computed everything that it was given."""
        if self.kind == "gpu":
            self.ops.xp.cuda.Device(self.id).synchronize()

    def SetVerbosity(self, verbosity: int) -> None:
        """Raises ConfigError for a number above 0, with which SINGA measures the time of each operation."""
        if verbosity:
            hint = "Set it to 0. `singa-dask profile --job JOB` measures the layers of a job."
            raise ConfigError(Problem("verbosity", "times of operations are not measured", str(verbosity), hint))

    def SetSkipIteration(self, iterations: int) -> None:
        """Steps that are not measured; see SetVerbosity."""

    def PrintTimeProfiling(self) -> None:
        """Prints what was measured: nothing, see SetVerbosity."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_cpu, (self.dtype,)) if self.kind == "cpu" else (create_cuda_gpu_on, (self.id,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    @property
    def _place(self) -> tuple[str, int, np.dtype]:
        return self.kind, self.id if self.kind == "gpu" else 0, self.dtype

    def __repr__(self) -> str:
        place = self.kind if self.kind == "cpu" else f"gpu:{self.id}"
        return place if self.dtype == np.float32 else f"{place} ({self.dtype})"


def get_default_device() -> Device:
    """The CPU, computing in the default type."""
    return _cpu(state.dtype)


create_cpu_device = get_default_device


def set_default_dtype(dtype: Any) -> None:
    """Let the default device compute in float32 or float64 from now on."""
    state.dtype = float_type(dtype)


@cache
def _cpu(dtype: Any) -> Device:
    return Device("cpu", dtype=dtype)


@cache
def create_cuda_gpu_on(device_id: int) -> Device:
    """GPU number `device_id` of this machine. On a machine without GPUs it is the CPU, and a warning says why.

    Raises ConfigError where the machine has GPUs, but none of this number, or where the GPU cannot be used.
    """
    why = "there is none"
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy is missing, or its driver
        count, why = 0, str(error)
    if count > 0:
        from singa_dask.ops.gpu.preflight import usable_cupy

        usable_cupy(device_id)
        return Device("gpu", device_id)
    log.warning("this machine has no GPU that CuPy can use (%s): computing on the CPU", why)
    return get_default_device()


def create_cuda_gpus_on(device_ids: Iterable[int]) -> list[Device]:
    """These GPUs; see create_cuda_gpu_on."""
    return [create_cuda_gpu_on(device_id) for device_id in device_ids]


def create_cuda_gpus(num: int) -> list[Device]:
    """The first GPUs; see create_cuda_gpu_on."""
    return create_cuda_gpus_on(range(num))


def create_cuda_gpu() -> Device:
    """The first GPU; see create_cuda_gpu_on."""
    return create_cuda_gpu_on(0)
