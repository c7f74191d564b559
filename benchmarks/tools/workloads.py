"""The nets that are timed, as a table: those of examples/ and one like VGG, with a mini-batch of random data and
momentum SGD.

Peers build theirs from `plain_net`; nothing here imports singa_dask, so that it does not count as their memory.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLES = Path(__file__).parents[2] / "examples"
LEARNING_RATE, MOMENTUM = 0.01, 0.9
# With this one gradients stay as they are, so that every round has as much to send.
TINY_RATE = 1e-6
WARM_UP = 5


@dataclass(frozen=True)
class Workload:
    """example: a folder of examples/ or a job file in one, or a net that jobs.py makes. shape: of a sample, with the
    channels last, or (time steps,) of symbols. cell, units: what takes the place of the example's recurrent layer.
    field: whether the net predicts a number per pixel, not a class."""

    name: str
    example: str
    batch: int
    shape: tuple[int, ...]
    cell: str = ""
    units: int = 0
    field: bool = False

    @property
    def symbols(self) -> bool:
        """Whether samples are sequences of symbols, each of which is to be predicted."""
        return len(self.shape) == 1

    @property
    def sequence(self) -> bool:
        """Whether samples are sequences of records."""
        return len(self.shape) == 2

    @property
    def images(self) -> bool:
        """Whether the net has convolutions, whose memory formats differ."""
        return len(self.shape) == 3 and not self.name.startswith("mlp")


WORKLOADS = {
    w.name: w
    for w in (
        Workload("mlp-64", "mnist-mlp", 64, (28, 28, 1)),
        Workload("mlp-256", "mnist-mlp", 256, (28, 28, 1)),
        Workload("mnist-cnn", "mnist", 64, (28, 28, 1)),
        Workload("cifar10-cnn", "cifar10", 100, (32, 32, 3)),
        Workload("vgg", "vgg", 32, (32, 32, 3)),
        Workload("rnn-256", "char-rnn", 50, (50,), "kRNN", 256),
        Workload("rnn-512", "char-rnn", 50, (50,), "kRNN", 512),
        Workload("gru-256", "char-rnn", 50, (50,), "kGRU", 256),
        Workload("gru-512", "char-rnn", 50, (50,), "kGRU", 512),
        Workload("lstm-256", "char-rnn", 50, (50,), "kLSTM", 256),
        Workload("resnet20-64", "cifar10/resnet20", 64, (32, 32, 3)),
        Workload("transformer-12", "char-gpt", 12, (64,)),
        Workload("unet-16", "heat", 16, (32, 32, 2), field=True),
        Workload("conv1d-64", "conv1d", 64, (256, 16)),
        Workload("conv3d-8", "conv3d", 8, (16, 16, 16, 1)),
    )
}
SYMBOLS = 65
# What is partitioned: the mini-batch is the whole group's. The fully connected part of AlexNet reads what pool5 makes.
PARTITIONED = {
    "mlp-64": WORKLOADS["mlp-64"],
    "alexnet-fc": Workload("alexnet-fc", "alexnet-fc", 64, (6, 6, 256)),
}


@dataclass(frozen=True)
class PlainLayer:
    """A layer for those who do not know singa_dask. kind: its class there; conf: its settings; source: shape of the
    sample that it reads; values: its initial parameters; name, sources: of the layer and those that it reads; params:
    the names of its parameters."""

    kind: str
    conf: Mapping[str, Any]
    source: tuple[int, ...]
    values: Sequence[np.ndarray]
    name: str
    sources: Sequence[str]
    params: Sequence[str]


def data_of(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """One mini-batch: features (batch, height, width, channels) in [0, 1) and labels 0..9, or a field of targets.

    Of sequences that are read whole a label for each record, all alike. Of symbols (batch, time steps + 1); as labels
    those behind the first, one time step after another.
    """
    draw = np.random.default_rng(0)
    if workload.symbols:
        (steps,) = workload.shape
        text = draw.integers(0, SYMBOLS, (workload.batch, steps + 1))
        return text.astype(np.float32), text[:, 1:].T.reshape(-1)
    features = draw.random((workload.batch, *workload.shape), np.float32)
    if workload.field:
        return features, draw.random((workload.batch, *workload.shape[:-1]), np.float32)
    labels = draw.integers(0, 10, workload.batch)
    return features, np.tile(labels[:, None], workload.shape[0]) if workload.sequence else labels


def plain_net(workload: Workload) -> list[PlainLayer]:
    """The layers between data and loss, from a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("jobs.py")), workload.name]
    return pickle.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
