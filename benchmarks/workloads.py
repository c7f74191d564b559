"""The nets that are timed: those of examples/ and one like VGG, with a mini-batch of random data and momentum SGD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask import layers
from singa_dask.job import Job, load_job
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers import Layer
from singa_dask.net import Net
from singa_dask.ops import Ops
from singa_dask.updaters import SGD

EXAMPLES = Path(__file__).parent.parent / "examples"
LEARNING_RATE, MOMENTUM = 0.01, 0.9
# With this one gradients stay as they are, so that every round has as much to send.
TINY_RATE = 1e-6
WARM_UP = 5


@dataclass(frozen=True)
class Workload:
    """job: of a folder of examples/, or what makes it. shape: of a sample, (height, width, channels)."""

    name: str
    job: str | Callable[[], JobProto]
    batch: int
    shape: tuple[int, int, int]


def vgg_job() -> JobProto:
    """Pairs of 3 x 3 convolutions of 64, 128 and 256 filters, each pair halved by pooling, and a small classifier
    (the shape of Simonyan and Zisserman 2015, for images of 32 x 32)."""
    chain: list[Layer] = [layers.RecordInput(backend="hdf5", path="none", batchsize=32, shape=[3, 32, 32])]
    for filters in (64, 128, 256):
        for _ in range(2):
            convolution = layers.Convolution(num_filters=filters, kernel=3, pad=1, param=_filled("kUniformSqrtFanIn"))
            chain += [convolution, layers.ReLU()]
        chain.append(layers.Pooling(pool="MAX", kernel=2, stride=2))
    chain += [layers.InnerProduct(num_output=256, param=_filled("kUniformSqrtFanIn")), layers.ReLU()]
    chain += [layers.InnerProduct(num_output=10, param=_filled("kUniformSqrtFanIn")), layers.SoftmaxLoss("loss")]
    return Job(name="vgg", layers=chain, updater=SGD(lr=LEARNING_RATE), train_steps=1).proto


def _filled(init: str) -> list[dict[str, Any]]:
    return [{"init": {"type": init}}, {"init": {"type": "kConstant", "value": 0}}]


WORKLOADS = {
    w.name: w
    for w in (
        Workload("mlp-64", "mnist-mlp", 64, (28, 28, 1)),
        Workload("mlp-256", "mnist-mlp", 256, (28, 28, 1)),
        Workload("mnist-cnn", "mnist", 64, (28, 28, 1)),
        Workload("cifar10-cnn", "cifar10", 100, (32, 32, 3)),
        Workload("vgg", vgg_job, 32, (32, 32, 3)),
    )
}


def job_of(workload: Workload) -> JobProto:
    """The workload's job with the workload's sample shape and momentum SGD at a fixed rate."""
    job = workload.job() if callable(workload.job) else load_job(EXAMPLES / workload.job / "job.conf")
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
