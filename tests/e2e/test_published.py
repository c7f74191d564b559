"""Published accuracies on real data. Skipped where MNIST is not in the folder that SINGA_DASK_DATA names."""

import os
from pathlib import Path

import pytest
from support.commands import cluster, example, sets, summary

HERE = Path(os.environ.get("SINGA_DASK_DATA", "/nowhere")) / "mnist"
needs_mnist = pytest.mark.skipif(not HERE.is_dir(), reason="no mnist/ in the folder that SINGA_DASK_DATA names")


@needs_mnist
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("steps", "accuracy"), [(625, 0.97), (3125, 0.988)])
def test_mnist_cnn(singa_dask, tmp_path, no_leaks, steps, accuracy):
    singa_dask("train", example("mnist"), "--cluster", cluster(), *sets(train_steps=steps), timeout=1150)
    assert summary(tmp_path / "runs" / "mnist-allreduce")["test"]["accuracy"] >= accuracy


@needs_mnist
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", ["sandblaster", "downpour", "hogwild", "hybrid"])
def test_mnist_cnn_under_every_strategy(singa_dask, tmp_path, no_leaks, strategy):
    singa_dask("train", example("mnist"), "--cluster", cluster(strategy), timeout=1750)
    told = summary(tmp_path / "runs" / f"mnist-{strategy}")
    assert told["strategy"] == strategy and told["restarts"] == 0
    assert told["test"]["accuracy"] >= 0.985
