"""Partitioned nets by the command."""

import numpy as np
from support.commands import parameters, sets, summary
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


def test_a_hybrid_job_of_singa(singa_dask, here, tmp_path, no_leaks):
    (tmp_path / "hybrid.conf").write_text(HYBRID)
    checked = here("check", "hybrid.conf", "--no-data")
    assert checked.code == 0, checked.err
    assert "nworkers_per_procs: 2 is ignored" in checked.err
    refused = here("check", "hybrid.conf")
    assert refused.code == 2
    assert refused.err.count("error: ") == 1 and "store_conf.backend" in refused.err

    reached = []
    for workers in (2, 1):
        run = ["--workspace", f"n{workers}", *sets(cluster__nworkers_per_group=workers)]
        ran = singa_dask("train", "hybrid.conf", *data(), *run, timeout=100)
        assert ran.code == 0, ran.err
        assert summary(tmp_path / f"n{workers}")["topology"]["nworkers_per_group"] == workers
        reached.append(parameters(tmp_path / f"n{workers}"))
    split, serial = reached
    for name, values in serial.items():
        np.testing.assert_allclose(split[name], values, rtol=1e-4, atol=1e-6, err_msg=name)
