"""The workloads as jobs of singa_dask. As a program: the layers of one on standard output, for `plain_net`."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from singa_dask import layers, shard
from singa_dask.data import resolve
from singa_dask.data.columns import DTYPES
from singa_dask.data.fetch import cache_dir
from singa_dask.job import Job, load_job
from singa_dask.job.job_pb2 import JobProto, LayerProto, LayerType, Phase, StoreProto, UnrollConnType
from singa_dask.layers import layer_class
from singa_dask.layers.base import Layer
from singa_dask.net import Net
from singa_dask.ops import Ops
from singa_dask.updaters import SGD
from tools.workloads import EXAMPLES, LEARNING_RATE, MOMENTUM, WORKLOADS, PlainLayer, Workload

SEED = 1
FIELDS = tuple(f"{dtype}-{channels}" for dtype in DTYPES for channels in ("last", "first"))


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


def conv1d_job() -> JobProto:
    """Three convolutions of 5 records over sequences of 256 records of 16 values, two of them with stride 2."""
    data = layers.RecordInput("data", backend="hdf5", path="none", batchsize=64, sequence=256, shape=[16])
    job = _convolutions("conv1d", data, ((32, 1), (64, 2), (64, 2)), kernel=5, pad=2)
    # Each record has a label; the last one is that of the sequence.
    job.neuralnet.layer[-1].unroll_conn_type[:] = [UnrollConnType.kUnrollOneToOne, UnrollConnType.kUnrollFirstToLast]
    return job


def conv3d_job() -> JobProto:
    """Three convolutions of 3 x 3 x 3 over volumes of 16 x 16 x 16, one of them with stride 2."""
    data = layers.RecordInput("data", backend="hdf5", path="none", batchsize=8, shape=[1, 16, 16, 16])
    return _convolutions("conv3d", data, ((16, 1), (32, 2), (32, 1)), kernel=3, pad=1)


def _convolutions(name: str, data: Layer, filters: Sequence[tuple[int, int]], **window: int) -> JobProto:
    """Convolutions of (filters, stride) with ReLU, and 10 scores."""
    chain = [data]
    for count, stride in filters:
        filled = _filled("kUniformSqrtFanIn")
        chain += [layers.Convolution(num_filters=count, stride=stride, param=filled, **window), layers.ReLU()]
    chain += [layers.InnerProduct(num_output=10, param=_filled("kUniformSqrtFanIn")), layers.SoftmaxLoss("loss")]
    return Job(name=name, layers=chain, updater=SGD(lr=LEARNING_RATE), train_steps=1).proto


def alexnet_fc_job() -> JobProto:
    """The layers of AlexNet behind pool5."""
    job = load_job(EXAMPLES / "alexnet" / "job.conf")
    found = {layer.name: layer for layer in job.neuralnet.layer}
    data = layers.RecordInput("data", backend="hdf5", path="none", batchsize=64, shape=[256, 6, 6]).proto
    names = ("ip6", "relu6", "drop6", "ip7", "relu7", "drop7", "ip8", "loss")
    kept = [data, *(found[name] for name in names)]
    kept[1].srclayers[:] = ["data"]
    del job.neuralnet.layer[:]
    job.neuralnet.layer.extend(kept)
    return job


MADE = {"vgg": vgg_job, "alexnet-fc": alexnet_fc_job, "conv1d": conv1d_job, "conv3d": conv3d_job}


def job_of(workload: Workload) -> JobProto:
    """The example's job with the workload's sample shape and momentum SGD at a fixed rate."""
    made = MADE.get(workload.example)
    file = EXAMPLES / f"{workload.example}.conf"
    job = made() if made else load_job(file if file.exists() else EXAMPLES / workload.example / "job.conf")
    job.seed = SEED
    # Every mini-batch is the same one, and begins anew.
    job.train_one_batch.alg = job.train_one_batch.kBP
    job.updater.Clear()
    job.updater.type = job.updater.kSGD
    job.updater.momentum = MOMENTUM
    job.updater.learning_rate.type = job.updater.learning_rate.kFixed
    job.updater.learning_rate.base_lr = LEARNING_RATE
    for layer in job.neuralnet.layer:
        if layer.HasField("store_conf"):
            store, (*size, channels) = layer.store_conf, workload.shape
            store.shape[:] = [channels, *([] if store.sequence else size)]
            for given in ("normalise", "normalise_target", "validation_share"):
                store.ClearField(given)
            if workload.field:
                store.target_shape[:] = size
        if layer_class(layer).recurrent:
            _replace(layer, workload)
        for param in layer.param:
            param.ClearField("lr_scale")
            param.ClearField("wd_scale")
    _leave_out(job, LayerType.kImagePreprocess)
    return job


def _leave_out(job: JobProto, kind: int) -> None:
    """Remove the layers of a type; who reads them reads what they read."""
    replaced = {layer.name: layer.srclayers[0] for layer in job.neuralnet.layer if layer.type == kind}
    kept = [layer for layer in job.neuralnet.layer if layer.type != kind]
    del job.neuralnet.layer[:]
    job.neuralnet.layer.extend(kept)
    for layer in job.neuralnet.layer:
        layer.srclayers[:] = [replaced.get(source, source) for source in layer.srclayers]


def _replace(layer: LayerProto, workload: Workload) -> None:
    """Put the workload's cell in the place of a recurrent layer."""
    layer.ClearField(layer_class(layer).conf_field)
    del layer.param[:]
    layer.type = LayerType.Value(workload.cell)
    getattr(layer, layer_class(layer).conf_field).dim_hidden = workload.units


def reference_net(workload: Workload) -> Net:
    """The training net on plain NumPy with its initial parameters: what every program starts from."""
    net = Net(job_of(workload).neuralnet, Phase.kTrain, Ops())
    net.initialise(SEED)
    return net


def training_data(example: str) -> StoreProto:
    """Where an example's training samples lie, and what is done to them; the shards are made where there are none.

    example: also a type of FIELDS, such as "float32-first": 20,000 samples of 16 x 16 x 3 values.
    """
    if example in FIELDS:
        return _fields(example)
    layers_of = load_job(EXAMPLES / example / "job.conf").neuralnet.layer
    store = next(layer.store_conf for layer in layers_of if layer.HasField("store_conf"))
    store.path = str(resolve(store.path))
    return store


def _fields(name: str) -> StoreProto:
    dtype, channels = name.split("-")
    folder = cache_dir() / "benchmarks" / name
    if not folder.exists():
        shape = (3, 16, 16) if channels == "first" else (16, 16, 3)
        x = np.random.default_rng(SEED).integers(0, 100, (20_000, *shape)).astype(dtype)
        shard(x, np.arange(20_000) % 10, folder, nshards=2, channels=channels, shuffle=False)
    return StoreProto(path=str(folder), batchsize=[64], mean=[40.0, 50.0, 60.0], std=[20.0, 30.0, 40.0])


def _plain(layer: Layer, source: tuple[int, ...]) -> PlainLayer:
    conf = {}
    if layer.conf_field:
        conf = {field.name: getattr(layer.conf, field.name) for field in layer.conf.DESCRIPTOR.fields}
    values, params = [np.array(param.value) for param in layer.params], [param.name for param in layer.params]
    return PlainLayer(type(layer).__name__, conf, source, values, layer.name, list(layer.proto.srclayers), params)


def plain_layers(net: Net) -> list[PlainLayer]:
    """The layers between data and loss of a training net, with its parameters."""
    return [
        _plain(layer, net.shapes[layer.proto.srclayers[0]])
        for name, layer in net.layers.items()
        if layer.proto.srclayers and name != "loss" and type(layer).__name__ not in ("Frame", "RNNLabel")
    ]


def main(name: str) -> None:
    sys.stdout.buffer.write(pickle.dumps(plain_layers(reference_net(WORKLOADS[name]))))


if __name__ == "__main__":
    main(sys.argv[1])
