"""Runs of a partitioned net equal those of the net on one worker, also after they were resumed or killed."""

import re

import numpy as np
import pytest
from support.commands import cluster, example, parameters, said, sets, started, summary, wait_until

from tests.e2e.test_survival import last_step, training_processes

QUIET = sets(disp_freq=20, test_freq=0, test_steps=0)
SPLIT = sets(neuralnet__partition_dim=1)


@pytest.mark.long
def test_partitions_equal_one_worker_and_go_on_as_another(singa_dask, tmp_path, no_leaks):
    def train(workspace, *options, steps=40):
        options = (*options, *QUIET, *sets(train_steps=steps, checkpoint_freq=20), "--workspace", workspace)
        ran = singa_dask("train", example(), *options, timeout=100)
        assert ran.code == 0, ran.out + ran.err
        return parameters(tmp_path / workspace)

    alone = sets(cluster__nworkers_per_group=1, cluster__nservers_per_group=1)
    two = sets(cluster__nworkers_per_group=2, cluster__nservers_per_group=2, neuralnet__partition_dim=0)
    serial = train("serial", *alone)
    train("allreduce", "--cluster", cluster(), *SPLIT, steps=20)
    reached = {
        "resumed": train("allreduce", *two, "--set", "neuralnet.layer[ip1].partition_dim=1", "--resume"),
        "sandblaster": train("sandblaster", "--cluster", cluster("sandblaster"), *SPLIT),
    }
    assert summary(tmp_path / "allreduce")["topology"]["nworkers_per_group"] == 2
    for name, found in reached.items():
        assert found.keys() == serial.keys()
        for parameter, value in serial.items():
            np.testing.assert_allclose(found[parameter], value, rtol=1e-4, atol=1e-5, err_msg=f"{name}: {parameter}")


@pytest.mark.long
def test_a_split_group_that_lost_a_worker_ends_with_the_same_parameters(singa_dask, tmp_path, environment, no_leaks):
    steps = 500
    options = ("train", example(), "--cluster", cluster(), *SPLIT, *QUIET)
    options = (*options, *sets(train_steps=steps, checkpoint_freq=100), "--workspace")
    with started(*options, tmp_path / "killed", folder=tmp_path, env=environment) as process:
        wait_until(lambda: last_step(tmp_path) >= 220, process, tmp_path)
        training_processes(process)[1].kill()
        assert process.wait(timeout=60) == 0, said(tmp_path)
    assert int(re.search(r"from step (\d+)", said(tmp_path))[1]) >= 200, "it goes on from memory"
    assert summary(tmp_path / "killed")["restarts"] == 1
    ran = singa_dask(*options, "whole", timeout=60)
    assert ran.code == 0, ran.out + ran.err
    whole = parameters(tmp_path / "whole")
    for name, value in parameters(tmp_path / "killed").items():
        np.testing.assert_array_equal(value, whole[name], err_msg=name)
