"""`singa-dask train` with `gpu`: on the GPUs, or what it says where there are none."""

import os

import numpy as np
import pytest
from support import commands
from support.background import in_mpi, steps, wait_for_step, workers
from support.commands import cluster, events, example, parameters, said, sets, started, summary, wait_until

pytestmark = pytest.mark.timeout(500)
QUIET = {"test_freq": 0, "checkpoint_freq": 0, "disp_freq": 5}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return {**os.environ, "SINGA_DASK_CACHE": str(tmp_path_factory.mktemp("cache"))}


def arguments(workspace, gpu, strategy="allreduce", **values):
    """gpu: what to list, None for nothing."""
    listed = {} if gpu is None else {"gpu": str([*gpu]).replace(" ", "")}
    given = sets(**listed, **QUIET | values)
    return "train", example(), "--cluster", cluster(strategy), "--workspace", workspace, *given


@pytest.fixture
def train(tmp_path, environment):
    def run(*args, code=0, **values):
        return commands.run(*arguments(*args, **values), cwd=tmp_path, env=environment, code=code, timeout=280)

    return run


@pytest.fixture
def devices(cupy):
    """Of three workers, which share what there is."""
    count = min(cupy.cuda.runtime.getDeviceCount(), 3)
    return [i % count for i in range(3)]


def assert_alike(tmp_path, count):
    """The run on GPUs ended as that on the CPU; by NCCL if there are three GPUs."""
    expected, got = parameters(tmp_path / "cpu"), parameters(tmp_path / "gpu")
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
    operations = summary(tmp_path / "gpu")["groups"]["0"]["operations"]
    assert ("device reduce_scatter" in operations) == (count == 3)


def test_three_workers_on_the_gpus_there_are(train, devices, tmp_path):
    count = len(set(devices))
    ran = train("gpu", None if count == 3 else devices, train_steps=40)
    assert count < 3 or "3 workers on GPUs 0, 1 and 2 of " in ran.out + ran.err
    said = "products of float32 by cuBLAS, added up in float32; convolutions by im2col and cuBLAS\n"
    assert (ran.out + ran.err).count(said) == 1
    ran = train("cpu", (), train_steps=40)
    assert "GPU" not in ran.out + ran.err and "cuBLAS" not in ran.out + ran.err
    assert_alike(tmp_path, count)


def test_workers_share_a_gpu_only_if_the_job_says_so(train, emulated):
    ran = train("run", [1], train_steps=2, code=1)
    assert "3 workers need a GPU each, and 1 can have one: tcp://" in ran.err and "gpu=[]" in ran.err
    assert "GPU 1 of " in ran.err and "Traceback" not in ran.err


def test_three_groups_on_the_gpus_there_are(train, devices, tmp_path):
    groups = {"cluster__nworker_groups": 3, "cluster__nworkers_per_group": 1}
    ran = train("gpu", devices, "downpour", train_steps=100, test_freq=100, **groups)
    assert summary(tmp_path / "gpu")["test"]["accuracy"] >= 0.9, ran.out


def test_a_run_whose_worker_is_killed_repeats_at_most_one_step_and_ends_as_without(
    train, devices, environment, tmp_path
):
    often = {"train_steps": 120, "disp_freq": 1}
    with started(*arguments("gpu", devices, **often), folder=tmp_path, env=environment) as run:
        wait_for_step(40, run, tmp_path, within=200)
        next(process for process in workers(run) if in_mpi(process)).kill()
        (reached,) = steps(tmp_path).values()
        wait_until(lambda: run.poll() is not None, run, tmp_path, within=280)
        assert run.wait() == 0, said(tmp_path)
    begun = [event["steps"] for event in events(tmp_path / "gpu") if event["event"] == "begun"]
    assert len(begun) == 2 and begun[1][0][1] >= reached - 1, (begun, reached)
    train("cpu", (), train_steps=120)
    assert_alike(tmp_path, len(set(devices)))


def test_a_gpu_that_is_not_there_is_an_error_before_the_first_step(train):
    """Without CuPy, without a driver and with a number that no machine has."""
    ran = train("run", [99], code=2, train_steps=2)
    assert "\nerror: device: " in "\n" + ran.err and "To compute on the CPU: " in ran.err
    assert "Traceback" not in ran.err and "step" not in ran.out
