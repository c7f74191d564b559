"""The jobs of the points: those of examples/ with fewer rows or units, and nets that a seed draws, on random data.

Data are written once, as shards. A step takes some 3 to 150 ms here, so that a point is measured in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from tools.jobs import SEED
from tools.workloads import EXAMPLES, MOMENTUM, SYMBOLS, TINY_RATE

from singa_dask import layers, shard, updaters
from singa_dask.data.fetch import cache_dir
from singa_dask.job import Job, load_job
from singa_dask.job.job_pb2 import JobProto, LayerType, Phase
from singa_dask.layers import layer_class
from singa_dask.layers.base import Layer

IMAGE, DIGIT = (3, 32, 32), (1, 28, 28)
VALUES = 1 << 22  # of the samples in the shards, about
CLASSES = 10
# Gradients stay as they are with such a rate, so that all steps have as much to do.
UPDATERS = {
    "sgd": updaters.SGD(lr=TINY_RATE, momentum=MOMENTUM),
    "nesterov": updaters.Nesterov(lr=TINY_RATE, momentum=MOMENTUM),
    "adagrad": updaters.AdaGrad(lr=TINY_RATE),
    "adam": updaters.Adam(lr=TINY_RATE),
}


def drawn_jobs(seed: int) -> dict[str, JobProto]:
    """The jobs by name, the same ones for the same seed: 10 of examples/ and 14 that are drawn."""
    draw = np.random.default_rng(seed)
    jobs = [
        _example("mnist", 128),
        _example("cifar10", 64),
        _example("mnist-mlp", 64),
        _example("autoencoder", 100),
        _mlp("alexnet-fc-4", (2304,), (1024, 1024), 64, "sgd", classes=250),  # a quarter as wide
        _mlp("mlp-narrow", DIGIT, (256, 128), 256, "sgd"),
        _cnn("vgg-small", IMAGE, ((16, 3, True), (16, 3, False), (32, 3, True)), (64,), 64, "sgd"),
        _sequences("rnn", "kRNN", 256, 48, 30),
        _sequences("gru", "kGRU", 160, 32, 30),
        _sequences("lstm", "kLSTM", 128, 32, 25),
    ]
    for number in range(7):
        widths = [int(draw.choice([400, 768, 1024, 1536])) for _ in range(draw.integers(2, 5))]
        shape = (int(draw.choice([300, 784])),)
        batch = int(draw.choice([64, 96, 128, 256]))
        jobs.append(_mlp(f"mlp-{number}", shape, widths, batch, str(draw.choice(list(UPDATERS)))))
    for number in range(5):
        shape = IMAGE if draw.integers(2) else DIGIT
        convolutions = [
            (int(draw.choice([16, 24, 32, 48])), int(draw.choice([3, 5])), bool(place == 0 or draw.integers(2)))
            for place in range(draw.integers(1, 4))
        ]
        widths = [int(draw.choice([64, 256, 500])) for _ in range(draw.integers(0, 2))]
        batch = int(draw.choice([32, 48, 64, 96]))
        jobs.append(_cnn(f"cnn-{number}", shape, convolutions, widths, batch, str(draw.choice(list(UPDATERS)))))
    for number in range(2):
        cell, units = str(draw.choice(["kRNN", "kGRU", "kLSTM"])), int(draw.choice([160, 240, 320]))
        jobs.append(_sequences(f"sequences-{number}", cell, units, int(draw.choice([32, 64])), 25))
    return {job.name: job for job in jobs}


def _example(example: str, batch: int) -> JobProto:
    """A job of examples/ with this mini-batch, on random data."""
    job = _quiet(load_job(EXAMPLES / example / "job.conf"))
    job.updater.CopyFrom(UPDATERS["adagrad" if example == "autoencoder" else "sgd"].proto)
    for layer in job.neuralnet.layer:
        if layer.HasField("store_conf"):
            store = layer.store_conf
            shape = tuple(store.shape)
            store.Clear()
            store.backend, store.path = "hdf5", str(_samples(shape))
            store.batchsize.append(batch)
            store.shape[:] = shape
            store.has_label = example != "autoencoder"
    return job


def _sequences(name: str, cell: str, units: int, batch: int, steps: int) -> JobProto:
    """examples/char-rnn with this recurrent layer, on random symbols."""
    job = _quiet(load_job(EXAMPLES / "char-rnn" / "job.conf"))
    job.name = name
    job.neuralnet.unroll_len = steps
    job.updater.CopyFrom(UPDATERS["sgd"].proto)
    for layer in job.neuralnet.layer:
        if layer.HasField("char_rnn_conf"):
            conf = layer.char_rnn_conf
            conf.path, conf.batchsize, conf.unroll_len = str(_symbols()), batch, steps
        elif layer_class(layer).recurrent:
            layer.ClearField(layer_class(layer).conf_field)
            del layer.param[:]
            layer.type = LayerType.Value(cell)
            getattr(layer, layer_class(layer).conf_field).dim_hidden = units
    return job


def _quiet(job: JobProto) -> JobProto:
    """Without evaluations and checkpoints."""
    training = [layer for layer in job.neuralnet.layer if Phase.kTrain not in layer.exclude]
    kept = [layer for layer in training if not layer.include or Phase.kTrain in layer.include]
    copies = [type(layer).FromString(layer.SerializeToString()) for layer in kept]
    del job.neuralnet.layer[:]
    job.neuralnet.layer.extend(copies)
    for field in ("test_freq", "test_steps", "validate_freq", "validate_steps", "checkpoint_freq", "checkpoint_path"):
        job.ClearField(field)
    job.seed = SEED
    return job


def _mlp(
    name: str, shape: Sequence[int], widths: Sequence[int], batch: int, updater: str, classes: int = CLASSES
) -> JobProto:
    chain: list[Layer] = [_input(shape, batch)]
    for width in widths:
        chain += [layers.InnerProduct(num_output=width, param=_filled()), layers.ReLU()]
    chain += [layers.InnerProduct(num_output=classes, param=_filled()), layers.SoftmaxLoss("loss")]
    return _job(name, chain, updater)


def _cnn(
    name: str,
    shape: Sequence[int],
    convolutions: Sequence[tuple[int, int, bool]],
    widths: Sequence[int],
    batch: int,
    updater: str,
) -> JobProto:
    """convolutions: of each the filters, the kernel, and whether a pooling that halves it follows."""
    chain: list[Layer] = [_input(shape, batch)]
    for filters, kernel, pooled in convolutions:
        size = {"num_filters": filters, "kernel": kernel, "pad": kernel // 2}
        chain += [layers.Convolution(**size, param=_filled()), layers.ReLU()]
        if pooled:
            chain.append(layers.Pooling(pool="MAX", kernel=2, stride=2))
    for width in widths:
        chain += [layers.InnerProduct(num_output=width, param=_filled()), layers.ReLU()]
    chain += [layers.InnerProduct(num_output=CLASSES, param=_filled()), layers.SoftmaxLoss("loss")]
    return _job(name, chain, updater)


def _input(shape: Sequence[int], batch: int) -> Layer:
    return layers.RecordInput("data", backend="hdf5", path=str(_samples(shape)), batchsize=batch, shape=list(shape))


def _filled() -> list[dict[str, Any]]:
    return [{"init": {"type": "kUniformSqrtFanIn"}}, {"init": {"type": "kConstant", "value": 0}}]


def _job(name: str, chain: Sequence[Layer], updater: str) -> JobProto:
    return Job(name=name, layers=chain, updater=UPDATERS[updater], train_steps=1, seed=SEED).proto


def _samples(shape: Sequence[int]) -> Path:
    """Shards of random samples of this shape, images of bytes, with labels."""
    folder = cache_dir() / "benchmarks" / f"plan-{'x'.join(map(str, shape))}"
    if not folder.exists():
        draw, count = np.random.default_rng(SEED), max(2048, VALUES // prod(shape))
        if len(shape) == 3:
            x = draw.integers(0, 256, (count, *shape), np.uint8).transpose(0, 2, 3, 1)
        else:
            x = draw.random((count, *shape), np.float32)
        shard(np.ascontiguousarray(x), np.arange(count) % CLASSES, folder, nshards=2, shuffle=False)
    return folder


def _symbols() -> Path:
    folder = cache_dir() / "benchmarks" / "plan-symbols"
    if not folder.exists():
        text = np.random.default_rng(SEED).integers(0, SYMBOLS, VALUES // 4)
        symbols = [chr(65 + symbol) for symbol in range(SYMBOLS)]
        shard(text.astype(np.uint8)[:, None], out=folder, classes=symbols, shuffle=False)
    return folder
