"""Memory of GPUs is checked before the first step, and workers tell how much of it they take."""

import gc
import re

import numpy as np
import pytest
from support.counted_steps import replica_of, steps_of
from support.trained import points_job, train_group, write_points

from singa_dask.comm import run_threads
from singa_dask.errors import ConfigError
from singa_dask.job import Job
from singa_dask.ops import get_ops
from singa_dask.training.memory import check_memory, need_of
from singa_dask.training.nets import make_nets

WIDE = """
name: "wide" train_one_batch { alg: kBP }
cluster { nworkers_per_group: %d nservers_per_group: %d }
updater { type: kAdam learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "none" batchsize: 600 shape: 100 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 1000 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


@pytest.fixture
def memory(emulated, cupy):
    """Sets the memory that each GPU has beside what it holds."""
    count = cupy.cuda.runtime.getDeviceCount()

    def leave(nbytes):
        gc.collect()
        for device in range(count):
            with cupy.cuda.Device(device):
                free, whole = cupy.cuda.runtime.memGetInfo()
            emulated.memory(device, whole - free + nbytes)

    yield leave
    for device in range(count):
        emulated.memory(device, 80 << 30)


def checked(batch, workers, shared=0):
    """What `check_memory` says to workers, of which the first `shared` are on one GPU."""
    job = Job.from_text(WIDE % (workers, workers), (f"neuralnet.layer[data].store_conf.batchsize={batch}",)).proto

    def member(comm):
        ops = get_ops("gpu", device_id=0 if comm.rank < shared else comm.rank)
        try:
            check_memory(job, comm, ops, in_process_servers=True, on_device=not shared)
        except ConfigError as error:
            return str(error)
        return ""

    (said,) = set(run_threads(workers, member, timeout_s=60))
    return said


@pytest.mark.parametrize(("workers", "shared"), [(1, 0), (3, 0), (3, 2)])
def test_the_error_names_a_gpu_what_it_has_and_the_batch_that_fits(memory, workers, shared):
    nbytes = 5_000_000 if not shared else 10_000_000  # two workers of one GPU have half of it each
    memory(nbytes)
    said = checked(600 * workers, workers, shared)
    assert re.match(
        r"neuralnet: needs [\d.]+ MB per worker \(parameters 0.4 MB, gradients 0.4 MB, updater state ", said
    )
    name = r"GPU 0 of \S+ \(emulated GPU\), of rank 0, has 5.0 MB free: [\d.]+ MB are missing. With batchsize (\d+) "
    batch = int(re.search(name, said)[1])
    assert checked(batch, workers, shared) == ""
    assert "are missing" in checked(batch + workers, workers, shared)
    memory(1000)
    assert checked(600 * workers, workers, shared).endswith("Use GPUs with more memory.")


def test_a_limit_of_cupy_counts(cupy, memory):
    pool = cupy.get_default_memory_pool()
    try:
        pool.set_limit(size=3_000_000 + pool.used_bytes())
        assert "of rank 0, has 3.0 MB free" in checked(600, 1)
    finally:
        pool.set_limit(size=0)
    assert checked(600, 1) == ""


def test_a_run_on_a_gpu_that_is_too_small_ends_before_its_first_step(tmp_path, memory):
    write_points(tmp_path, train=90, test=90)
    events = []
    memory(1000)
    with pytest.raises(ConfigError, match=r"GPU 0 of \S+ \(emulated GPU\), of rank \d, has [\d.]+ kB free"):
        train_group(points_job(tmp_path, "gpu=[0,0,0]"), tmp_path / "run", events)
    assert events == []


@pytest.mark.parametrize("name", ["mlp-64", "mnist-cnn", "conv1d-64"])
def test_what_a_net_is_said_to_need_is_what_its_steps_take(cupy, memory, name):
    rows = 8
    gc.collect()
    before = np.subtract(*reversed(cupy.cuda.runtime.memGetInfo()))
    replica, data = replica_of(name, "gpu", rows)
    nets = make_nets(replica.job, replica.net.ops, 0, 1, allocate=False)
    need = need_of(nets, replica.job, 1, in_process_servers=True, shares=False, on_device=True, batch=rows)
    now = np.subtract(*reversed(cupy.cuda.runtime.memGetInfo()))
    memory(int(1.05 * need.total) - int(now - before))
    list(steps_of(replica, data, range(2)))
    held = np.subtract(*reversed(cupy.cuda.runtime.memGetInfo())) - before
    assert held > 0.5 * need.total, "the rest is of the net for tests, and of layers that compute in place"


def test_what_arrays_take_is_asked_of_the_pool_of_cupy(cupy):
    ops, allocator = get_ops("gpu"), cupy.cuda.get_allocator()
    before = ops.held_memory()
    try:
        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
        array = ops.empty((1 << 20,))
        assert ops.held_memory() == before + array.nbytes
        del array
        assert ops.held_memory() == before + (4 << 20), "CuPy keeps it for the next one"
    finally:
        cupy.cuda.set_allocator(allocator)
        cupy.get_default_memory_pool().free_all_blocks()
    assert get_ops("cpu").held_memory() == 0
