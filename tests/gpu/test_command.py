"""`singa-dask train` with `gpu`: on the GPUs, or what it says where there are none."""

import os
import sys

import pytest
from support import commands
from support.commands import cluster, example, sets, summary

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def train(tmp_path):
    environment = {**os.environ, "SINGA_DASK_CACHE": str(tmp_path / "cache")}

    def run(*options):
        arguments = ("train", example(), "--cluster", cluster(), "--workspace", "run", *options)
        return commands.run(*arguments, cwd=tmp_path, env=environment, timeout=280)

    return run


def test_three_workers_on_the_gpus_there_are(train, gpu_library, tmp_path):
    if gpu_library != "cupy":
        pytest.skip("needs a GPU")
    count = min(sys.modules["cupy"].cuda.runtime.getDeviceCount(), 3)
    ran = train("--set", f"gpu={list(range(count))}".replace(" ", ""))
    assert ran.code == 0, ran.err
    told = summary(tmp_path / "run")
    assert told["test"]["accuracy"] >= 0.97
    assert ("wire reduce_scatter" in told["groups"]["0"]["operations"]) == (count == 3)


def test_a_gpu_that_is_not_there_is_an_error_before_the_first_step(train, gpu_library):
    """Without CuPy, without a driver and with a number that no machine has."""
    ran = train("--set", "gpu=[99]", *sets(train_steps=2))
    assert ran.code == 2, ran.err
    assert "\nerror: device: " in "\n" + ran.err and "To compute on the CPU: " in ran.err
    assert "Traceback" not in ran.err and "step" not in ran.out
