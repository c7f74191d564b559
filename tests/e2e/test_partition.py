"""Nets that are split over workers, by the command: they train as on one worker."""

import numpy as np
import pytest
from support.commands import cluster, example, parameters, sets, summary
from support.hybrid import HYBRID

SPLITS = {0: "train", 1: "test"}


def data():
    """The overrides that replace SINGA's stores and GPUs."""
    options = ["--set", "gpu=[]"]
    for layer, split in SPLITS.items():
        for name, value in (("path", split), ("mean_file", "train")):
            options += ["--set", f"neuralnet.layer[{layer}].store_conf.{name}=dataset:digits/{value}"]
        options += ["--set", f"neuralnet.layer[{layer}].store_conf.backend=hdf5"]
    return options


def assert_same(workspace, serial, atol):
    found, expected = parameters(workspace), parameters(serial)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=atol, err_msg=name)


def test_a_hybrid_job_of_singa(singa_dask, here, tmp_path, no_leaks):
    (tmp_path / "hybrid.conf").write_text(HYBRID)
    assert "nworkers_per_procs: 2 is ignored" in here("check", "hybrid.conf", "--no-data").err
    refused = here("check", "hybrid.conf", code=2)
    assert refused.err.count("error: ") == 1 and "store_conf.backend" in refused.err
    singa_dask("train", "hybrid.conf", *data(), "--workspace", "split")
    assert summary(tmp_path / "split")["topology"]["nworkers_per_group"] == 2
    here("train", "hybrid.conf", *data(), *sets(cluster__nworkers_per_group=1), "--workspace", "serial")
    assert_same(tmp_path / "split", tmp_path / "serial", 1e-6)


@pytest.mark.long
def test_a_split_run_goes_on_with_another_number_of_workers(singa_dask, here, tmp_path, no_leaks):
    few = sets(train_steps=40, checkpoint_freq=20, disp_freq=20, test_freq=0, test_steps=0)
    train = ("train", example(), *few)
    two = sets(cluster__nworkers_per_group=2, cluster__nservers_per_group=2, neuralnet__partition_dim=0)
    here(*train, "--workspace", "serial")
    three = ("--cluster", cluster(), *sets(neuralnet__partition_dim=1, train_steps=20))
    singa_dask(*train, *three, "--workspace", "resumed")
    singa_dask(*train, *two, "--set", "neuralnet.layer[ip1].partition_dim=1", "--workspace", "resumed", "--resume")
    assert summary(tmp_path / "resumed")["topology"]["nworkers_per_group"] == 2
    assert_same(tmp_path / "resumed", tmp_path / "serial", 1e-5)
