"""What this process needs in order to compute on a GPU, and what of it is missing."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from singa_dask.errors import ConfigError, Problem

OLDEST_CUPY = 14
_WITHOUT = 'To compute on the CPU: device "cpu", in a job gpu=[].'
_DRIVERS = "docs/gpu.md says which driver that is"


def usable_cupy(device_id: int = 0) -> Any:
    """CuPy, which can compute on the GPU of this number.

    Raises ConfigError that says in one line what is missing or too old, and what to install or change.
    """
    cupy = _imported()
    count = _counted(cupy)
    if not 0 <= device_id < count:
        seen = "no GPU" if count == 0 else "GPU 0 alone" if count == 1 else f"GPUs 0 to {count - 1}"
        raise _problem(f"CUDA sees {seen}", "CUDA_VISIBLE_DEVICES hides and renumbers them.", f"GPU {device_id}")
    if missing := _missing(cupy, device_id):
        hint = f"Run `pip install '.[{_extra(cupy)}]'` in a clone of singa_dask, which installs them."
        raise _problem(f'"gpu" needs {"; ".join(missing)}', hint)
    return cupy


def _imported() -> Any:
    try:
        cupy = import_module("cupy")
    except ImportError as error:
        raise _problem(
            '"gpu" needs CuPy', "Run `pip install '.[gpu]'` in a clone of singa_dask.", why=error
        ) from error
    if int(cupy.__version__.split(".")[0]) < OLDEST_CUPY:
        hint = "Run `pip install '.[gpu]'` in a clone of singa_dask, after removing the old one."
        raise _problem(f'"gpu" needs CuPy {OLDEST_CUPY} or newer', hint, f"CuPy {cupy.__version__}")
    return cupy


def _counted(cupy: Any) -> int:
    """How many GPUs CUDA sees."""
    runtime = cupy.cuda.runtime
    needed = runtime.runtimeGetVersion() // 1000
    try:
        driver = runtime.driverGetVersion()
        if 0 < driver // 1000 < needed:
            found = f"a driver for CUDA {driver // 1000}.{driver % 1000 // 10}"
            hint = f"Install a newer one ({_DRIVERS}), or the CuPy of `.[gpu-cuda12]`."
            raise _problem(f'"gpu" needs a driver for CUDA {needed}', hint, found)
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        needs = f"an NVIDIA GPU with a driver for CUDA {needed}"
        raise _problem(f'"gpu" needs {needs}', f"{_DRIVERS}.", why=error) from error


@cache
def _missing(cupy: Any, device_id: int) -> tuple[str, ...]:
    """The parts of CUDA that CuPy does not find, each with what it says of it."""
    parts: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("cuBLAS", lambda: cupy.cuda.device.get_cublas_handle()),
        ("NVRTC", lambda: cupy.cuda.nvrtc.getVersion()),
        ("CUDA's headers", lambda: _compile(cupy)),
    )
    found = []
    with cupy.cuda.Device(device_id):
        for name, look in parts:
            try:
                look()
            except Exception as error:
                lines = str(error).splitlines() or [type(error).__name__]
                found.append(f"{name} ({next((line for line in lines if 'error' in line), lines[0])})")
                if name == "NVRTC":  # without it, nothing can be compiled
                    break
    return tuple(found)


def _compile(cupy: Any) -> None:
    """CuPy's smallest kernel, which includes its headers and CUDA's."""
    cupy.ElementwiseKernel("float32 x", "float32 y", "y = x", "preflight")(cupy.zeros(1, "float32"))


def _extra(cupy: Any) -> str:
    return "gpu" if cupy.cuda.runtime.runtimeGetVersion() >= 13000 else "gpu-cuda12"


def _problem(message: str, hint: str, received: str | None = None, why: Exception | None = None) -> ConfigError:
    text = f"{message} on {socket.gethostname()}" + (f": {why}" if why else "")
    return ConfigError(Problem("device", text, received, f"{hint} {_WITHOUT}"))
