"""Which GPUs a process sees, by CUDA's driver."""

import ctypes
import subprocess
import sys

import pytest

from singa_dask.comm.nccl_library import device_identity
from singa_dask.ops.gpu import visible


class Driver:
    """CUDA's, of two GPUs that are told apart by the last byte of their uuids, after zeros."""

    def __init__(self, status=0, count=2):
        self.status, self.count = status, count

    def cuInit(self, flags):
        return self.status

    def cuDeviceGetCount(self, found):
        found._obj.value = self.count
        return self.status

    def cuDeviceGet(self, found, number):
        found._obj.value = 10 + number

    def cuDeviceGetUuid(self, found, device):
        found._obj[:] = b"\x07" + bytes(14) + bytes([device.value])

    def cuDeviceGetName(self, text, length, device):
        text.value = b"NVIDIA H100"


@pytest.fixture
def listed(monkeypatch):
    def with_driver(driver):
        def load(name):
            assert name == "libcuda.so.1"
            if driver is None:
                raise OSError("cannot open shared object file")
            return driver

        monkeypatch.setattr(ctypes, "CDLL", load)
        return visible.visible_gpus.__wrapped__()

    return with_driver


def test_gpus_are_told_apart_by_the_machine_and_the_whole_uuid(listed):
    here = visible.machine()
    assert listed(Driver()) == (
        visible.Gpu(0, f"{here}/07{'00' * 14}0a", "NVIDIA H100"),
        visible.Gpu(1, f"{here}/07{'00' * 14}0b", "NVIDIA H100"),
    )


def test_a_part_of_a_gpu_has_a_uuid_of_its_own(listed):
    driver = Driver(count=1)
    driver.cuDeviceGetUuid_v2 = lambda found, device: found._obj.__setitem__(slice(None), bytes(range(16)))
    assert [gpu.identity.rpartition("/")[2] for gpu in listed(driver)] == [bytes(range(16)).hex()]


@pytest.mark.parametrize("driver", [None, Driver(status=100), Driver(count=0)])
def test_without_a_driver_or_a_gpu_there_are_none(listed, driver):
    assert listed(driver) == ()


def test_machines_without_a_boot_id_are_told_apart_by_their_names(monkeypatch, tmp_path):
    monkeypatch.setattr(visible, "_BOOT", tmp_path / "none")
    monkeypatch.setattr("socket.gethostname", lambda: "node1")
    assert visible.machine.__wrapped__() == "node1"


def test_gpus_of_two_machines_that_have_the_same_uuid_are_two(monkeypatch):
    monkeypatch.setattr("singa_dask.comm.nccl_library.libraries", lambda: None)
    found = set()
    for host in ("node1", "node2"):
        monkeypatch.setattr(visible, "visible_gpus", lambda host=host: (visible.Gpu(0, f"{host}/00"),))
        found.add(device_identity(0))
    assert len(found) == 2 and 0 not in found


def test_looking_for_gpus_imports_no_cupy():
    program = "import sys; from singa_dask.ops.gpu import visible; visible.visible_gpus(); visible.has_cupy(); "
    ran = subprocess.run(
        [sys.executable, "-c", f"{program} print('cupy' in sys.modules)"], capture_output=True, text=True
    )
    assert ran.stdout == "False\n", ran.stderr
