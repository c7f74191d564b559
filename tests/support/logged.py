"""A short run whose settings and metrics go to a tracker."""

from pathlib import Path
from typing import Any

import numpy as np
from support.shards import write_shards

from singa_dask import Job, Logger, train
from singa_dask.layers import InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.monitor.progress import Display
from singa_dask.updaters import SGD


def trained(folder: Path, tracker: Any) -> None:
    """Two steps are displayed, and the end is tested; the workspace is `run` in the folder."""
    draw = np.random.default_rng(0)
    write_shards(folder / "points", draw.normal(size=(60, 3)).astype(np.float32), draw.integers(0, 2, 60))
    data = RecordInput(path=str(folder / "points"), batchsize=30)
    layers = [data, InnerProduct(num_output=2, name="out"), SoftmaxLoss()]
    steps = {"train_steps": 4, "disp_freq": 2, "test_freq": 4, "test_steps": 2}
    job = Job(name="points", layers=layers, updater=SGD(lr=0.1), **steps)
    train(job, workspace=folder / "run", processes=False, callbacks=[Logger(tracker)], display=Display())
