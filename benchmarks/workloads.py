"""The nets that are timed: those of examples/, with one mini-batch of random data and plain momentum SGD."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from singa_dask.job import load_job
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.net import Net
from singa_dask.ops import Ops

EXAMPLES = Path(__file__).parent.parent / "examples"
LEARNING_RATE, MOMENTUM = 0.01, 0.9
# With this one gradients stay as they are, so that every round has as much to send.
TINY_RATE = 1e-6
WARM_UP = 5


@dataclass(frozen=True)
class Workload:
    """shape: of a sample, (height, width, channels). std: overrides tiny initial weights, so that losses move."""

    name: str
    example: str
    batch: int
    shape: tuple[int, int, int]


WORKLOADS = {
    w.name: w
    for w in (
        Workload("mlp-64", "mnist-mlp", 64, (28, 28, 1)),
        Workload("mlp-256", "mnist-mlp", 256, (28, 28, 1)),
        Workload("mnist-cnn", "mnist", 64, (28, 28, 1)),
        Workload("cifar10-cnn", "cifar10", 100, (32, 32, 3)),
    )
}


def job_of(workload: Workload) -> JobProto:
    """The example's job with the workload's sample shape and momentum SGD at a fixed rate."""
    job = load_job(EXAMPLES / workload.example / "job.conf")
    h, w, c = workload.shape
    for layer in job.neuralnet.layer:
        if layer.HasField("store_conf"):
            layer.store_conf.shape[:] = [c, h, w]
    job.updater.Clear()
    job.updater.type = job.updater.kSGD
    job.updater.momentum = MOMENTUM
    job.updater.learning_rate.type = job.updater.learning_rate.kFixed
    job.updater.learning_rate.base_lr = LEARNING_RATE
    for layer in job.neuralnet.layer:
        for param in layer.param:
            param.ClearField("lr_scale")
            param.ClearField("wd_scale")
    return job


def data_of(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """One mini-batch: features (batch, height, width, channels) in [0, 1), labels 0..9."""
    draw = np.random.default_rng(0)
    features = draw.random((workload.batch, *workload.shape), np.float32)
    return features, draw.integers(0, 10, workload.batch)


def reference_net(job: JobProto) -> Net:
    """The training net on plain NumPy with its initial parameters: what every contestant starts from."""
    net = Net(job.neuralnet, Phase.kTrain, Ops())
    net.initialise(seed=1)
    return net
