"""What a process needs for a GPU: each part that is missing or too old is named, with the way out."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from singa_dask.errors import ConfigError
from singa_dask.ops.gpu.faults import gpu_is_lost
from singa_dask.ops.gpu.preflight import usable_cupy
from singa_dask.tensors.device import create_cuda_gpu_on


class Status(Exception):
    """As CuPy's errors of the runtime and the driver."""

    def __init__(self, status):
        super().__init__(f"cudaError {status}")
        self.status = status


def fails(what):
    def call(*args):
        raise RuntimeError(what)

    return call


@pytest.fixture
def machine(monkeypatch):
    """Sets what CuPy says of a machine: two GPUs, and nothing missing, but for what is given."""

    def set_up(version="14.2.0", driver=13000, count=2, **parts):
        runtime = SimpleNamespace(
            CUDARuntimeError=Status,
            runtimeGetVersion=lambda: 13020,
            driverGetVersion=lambda: driver,
            getDeviceCount=count if callable(count) else lambda: count,
        )
        works = {"cublas": lambda: 1, "nvrtc": lambda: (13, 0), "compiled": lambda x: x} | parts
        cuda = SimpleNamespace(
            runtime=runtime,
            driver=SimpleNamespace(CUDADriverError=Status),
            nvrtc=SimpleNamespace(getVersion=works["nvrtc"]),
            device=SimpleNamespace(get_cublas_handle=works["cublas"]),
            Device=lambda number: nullcontext(),
        )
        kernels = {"ElementwiseKernel": lambda *source: works["compiled"], "zeros": lambda *args: None}
        cupy = type("Cupy", (), {"__version__": version, "cuda": cuda, **kernels})
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        return cupy

    return set_up


def test_nothing_is_missing(machine):
    cupy = machine()
    assert usable_cupy(1) is cupy and create_cuda_gpu_on.__wrapped__(1).id == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"version": "13.6.0"}, r"needs CuPy 14 or newer on .*Received: CuPy 13\.6\.0\. Run `pip install"),
        ({"driver": 12040}, r"a driver for CUDA 13 on .*Received: a driver for CUDA 12\.4\. Install .*gpu-cuda12"),
        ({"cublas": fails("no libcublas.so.13\nor")}, r"needs cuBLAS \(no libcublas.so.13\) on .*'\.\[gpu\]'"),
        ({"nvrtc": fails("no libnvrtc.so.13")}, r"needs NVRTC \(no libnvrtc.so.13\) on .*'\.\[gpu\]'"),
        ({"compiled": fails("no cuda_fp16.h")}, r"needs CUDA's headers \(no cuda_fp16.h\) on .*'\.\[gpu\]'"),
        ({"cublas": fails("a"), "compiled": fails("b")}, r"needs cuBLAS \(a\); CUDA's headers \(b\) on "),
        ({"count": 0}, r"CUDA sees no GPU on .* Received: GPU 1\. CUDA_VISIBLE_DEVICES"),
        ({"count": 1}, r"CUDA sees GPU 0 alone on .* Received: GPU 1\. CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_is_missing_is_said_in_one_line(machine, given, words):
    machine(**given)
    with pytest.raises(ConfigError, match=words) as caught:
        usable_cupy(1)
    assert "\n" not in str(caught.value) and "To compute on the CPU" in str(caught.value)


def test_no_driver_is_named_with_the_one_that_is_needed(machine):
    def none():
        raise Status(35)

    machine(driver=0, count=none)
    with pytest.raises(ConfigError, match=r"a driver for CUDA 13 on .*cudaError 35.*docs/gpu\.md"):
        usable_cupy()


def test_a_number_that_the_machine_does_not_have_is_an_error_at_once_and_not_the_cpu(machine):
    machine(count=1)
    with pytest.raises(ConfigError, match=r"GPU 0 alone .*Received: GPU 1\."):
        create_cuda_gpu_on.__wrapped__(1)


def test_a_gpu_is_lost_after_a_fault_that_stays(machine):
    machine()
    assert not gpu_is_lost(Status(2)) and not gpu_is_lost(ValueError("700")), "memory ran out; another error"
    fault = RuntimeError("rank 0")
    fault.__cause__ = Status(700)
    assert gpu_is_lost(fault) and gpu_is_lost(fault.__cause__)
