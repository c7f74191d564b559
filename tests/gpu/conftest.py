"""What is tested on GPUs: on those of this machine, or on those that `make gpu-check` emulates."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from singa_dask.errors import ConfigError
from singa_dask.ops.gpu.ops import GpuOps

EMULATED = bool(os.environ.get("CUDA_ON_CPU"))


@pytest.fixture(scope="session")
def cupy():
    """CuPy, on a GPU of this machine or on an emulated one."""
    try:
        GpuOps()
    except ConfigError as error:
        if EMULATED:
            raise
        pytest.skip(f"no GPU, and none emulated as `make gpu-check` does: {error}")
    return sys.modules["cupy"]


@pytest.fixture
def emulated(emulation):
    """The emulation, for tests that ask it what happened, or have it fail."""
    if emulation is None:
        pytest.skip("needs the emulation of `make gpu-check`")
    return emulation


@pytest.fixture(scope="session")
def emulation():
    """The emulation, where there is one."""
    if not EMULATED:
        return None
    from cuda_on_cpu import emulation

    return emulation


@pytest.fixture(autouse=True)
def no_faults_of_gpus(emulation):
    """What the emulation notices fails the test in which it happened."""
    yield
    if emulation and "cupy" in sys.modules:
        assert emulation.faults() == []


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def gpu(request, cupy):
    return GpuOps(request.param)


@pytest.fixture
def gpus(cupy):
    """How many GPUs there are for workers that talk over NCCL, up to 4."""
    return min(cupy.cuda.runtime.getDeviceCount(), 4)
