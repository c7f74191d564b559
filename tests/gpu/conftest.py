"""What is tested on GPUs where there are any, else on stand-ins for CuPy and NCCL that run on the processor."""

from __future__ import annotations

import os
import shutil
import sys

import numpy as np
import pytest
from support import cupy_on_cpu, nccl_on_cpu

from singa_dask.errors import ConfigError
from singa_dask.ops.gpu.ops import GpuOps


def pytest_report_header() -> str:
    try:
        GpuOps()
    except ConfigError as error:
        return f"GPU tests: on stand-ins ({error})"
    return "GPU tests: on the GPU"


@pytest.fixture(scope="session")
def gpu_library():
    """What stands for CuPy in this session."""
    try:
        GpuOps()
        yield "cupy"
        return
    except ConfigError as error:
        if os.environ.get("CUDA_ON_CPU"):
            raise
        if shutil.which("g++") is None:
            pytest.skip(f"neither a GPU ({error}) nor g++")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", cupy_on_cpu.module())
        yield "cupy_on_cpu"


@pytest.fixture(scope="session")
def emulation():
    """The emulation of `make gpu-check`, where there is one: it is real for CuPy."""
    if not os.environ.get("CUDA_ON_CPU"):
        return None
    from cuda_on_cpu import emulation

    return emulation


@pytest.fixture(scope="session")
def cupy(gpu_library):
    """CuPy itself, on a GPU of this machine or on an emulated one."""
    if gpu_library != "cupy":
        pytest.skip("needs a GPU, or the emulation of `make gpu-check`")
    return sys.modules["cupy"]


@pytest.fixture
def emulated(cupy, emulation):
    """The emulation, for tests that ask it what happened, or have it fail."""
    if emulation is None:
        pytest.skip("needs the emulation of `make gpu-check`")
    return emulation


@pytest.fixture(autouse=True)
def no_faults_of_gpus(emulation):
    """What the emulation notices fails the test in which it happened."""
    yield
    if emulation and "cupy" in sys.modules:
        assert emulation.faults() == []


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def gpu(request, gpu_library):
    return GpuOps(request.param)


@pytest.fixture
def gpus(gpu_library, monkeypatch):
    """How many GPUs there are for workers that talk over NCCL, up to 4; 3 of the stand-in."""
    if gpu_library == "cupy":
        return min(sys.modules["cupy"].cuda.runtime.getDeviceCount(), 4)
    nccl_on_cpu.install(monkeypatch)
    return 3
