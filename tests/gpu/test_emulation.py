"""What the emulation of GPUs notices."""

import os
import subprocess
import sys

import numpy as np
import pytest

from singa_dask.ops.gpu.visible import visible_gpus


@pytest.mark.parametrize(("moved", "words"), [(1, "beyond the end"), (-1, "before the beginning")])
def test_a_write_beside_an_array_is_a_fault(cupy, emulated, moved, words):
    y = cupy.zeros(4, np.float32)
    cupy.ElementwiseKernel("int32 moved", "raw float32 y", "y[i + moved] = 1", "beside")(moved, y, size=4)
    del y
    assert emulated.faults() == [f"something was written {words} of a block of 16 bytes"]


def test_fresh_memory_holds_no_numbers(cupy, emulated):
    assert np.isnan(cupy.empty(3, np.float32).get()).all() and np.isnan(cupy.empty(3).get()).all()


def test_work_of_another_stream_has_not_been_done_without_a_wait(cupy, emulated):
    x, stream = cupy.arange(3.0), cupy.cuda.Stream(non_blocking=True)
    with stream:
        y = x * 2
    assert np.isnan(y.get()).all()
    stream.synchronize()
    assert y.get().tolist() == [0, 2, 4]
    with stream:
        z = x * 3
    done = stream.record()
    cupy.cuda.Stream.null.wait_event(done)
    assert z.get().tolist() == [0, 3, 6]


def test_a_copy_in_a_wrong_direction_is_a_fault(cupy, emulated):
    runtime, x, host = cupy.cuda.runtime, cupy.zeros(4, np.float32), np.zeros(4, np.float32)
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidValue"):
        runtime.memcpy(x.data.ptr, host.ctypes.data, 16, runtime.memcpyDeviceToHost)
    (fault,) = emulated.faults()
    assert fault.startswith("a copy has kind 2")


def test_launches_waits_and_copies_are_counted(cupy, emulated):
    emulated.counts()
    (cupy.asarray(np.ones((2, 2), np.float32)) @ cupy.ones((2, 2), np.float32) + 1).get()
    counts = emulated.counts()
    assert {what: counts[what] for what in ("product", "upload", "download", "wait")} == dict.fromkeys(
        ("product", "upload", "download", "wait"), 1
    )
    assert counts["upload bytes"] == counts["download bytes"] == 16 and counts["allocation"] == 4


def test_the_driver_lists_the_gpus_that_cupy_sees(cupy):
    runtime, gpus = cupy.cuda.runtime, visible_gpus()
    assert [gpu.number for gpu in gpus] == [*range(runtime.getDeviceCount())]
    assert len({gpu.identity for gpu in gpus}) == len(gpus)
    for gpu in gpus:
        properties = runtime.getDeviceProperties(gpu.number)
        assert gpu.name == properties["name"].decode()
        assert bytes.fromhex(gpu.identity.rpartition("/")[2]).startswith(properties["uuid"])


def test_hidden_gpus_are_not_listed(emulated):
    program = "from singa_dask.ops.gpu.visible import visible_gpus as v; print(*(g.identity[-2:] for g in v()))"
    shown = {"2,0": "02 00", "1": "01", "": "", "0,7,1": "00"}
    for variable, expected in shown.items():
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": variable}
        ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert ran.stdout.strip() == expected, ran.stderr
