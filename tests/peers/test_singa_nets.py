"""Nets as SINGA's users write them: the same class trains in a loop of its own, in a Model, and in a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import nets, ours
from peers.drawn import ROWS, STEPS, image, integers, sequence
from peers.nets import Net
from peers.singa_examples import rewritten
from support.trained import train_group

from singa_dask import ClusterTopology, Job, Model, autograd, device, layer, layers, model, opt, shard
from singa_dask.layers import RecordInput, SoftmaxLoss
from singa_dask.loops.distopt import DistOpt
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

RATE = {"lr": 0.05, "momentum": 0.9}


class Trained(model.Model):
    def train_one_batch(self, *data: Any) -> Any:
        out = self.forward(*data[:-1])
        loss = autograd.softmax_cross_entropy(out, data[-1])
        self.optimizer(loss)
        return out, loss


class Block(layer.Layer):
    """Its shortcut is in a closure."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = layer.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.conv2 = layer.Conv2d(outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2, self.add = layer.BatchNorm2d(outputs), layer.BatchNorm2d(), layer.Add()
        self.shortcut = None
        if stride > 1:
            conv, norm = layer.Conv2d(inputs, outputs, 1, stride=stride, bias=False), layer.BatchNorm2d()
            self.shortcut = lambda x: norm(conv(x))

    def forward(self, x: Any) -> Any:
        y = autograd.relu(self.norm1(self.conv1(x)))
        kept = x if self.shortcut is None else self.shortcut(x)
        return autograd.relu(self.add(self.norm2(self.conv2(y)), kept))


class ResNet(Trained):
    def __init__(self) -> None:
        super().__init__()
        self.conv = layer.Conv2d(3, 8, 3, padding=1, activation="RELU")
        self.body, blocks = self.stacked(Block(8, 8, 1), Block(8, 12, 2))
        self.register_layers(*blocks)
        self.pool, self.flatten, self.linear = layer.AvgPool2d(4), layer.Flatten(), layer.Linear(5)

    @staticmethod
    def stacked(*blocks: Any) -> Any:
        def run(x: Any) -> Any:
            for block in blocks:
                x = block(x)
            return x

        return run, blocks

    def forward(self, x: Any) -> Any:
        return self.linear(self.flatten(self.pool(self.body(self.conv(x)))))


class Reviews(Trained):
    """Classes of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = layer.CudnnRNN(hidden_size=6, num_layers=2, return_sequences=False)
        self.wide, self.scores = layer.Linear(8), layer.Linear(5)

    def forward(self, x: Any) -> Any:
        return self.scores(autograd.relu(self.wide(self.lstm(x))))


class Translator(Trained):
    """A transformer: an encoder of the given sentence, and a decoder of the answer's words before each word."""

    def __init__(self) -> None:
        super().__init__()
        self.theirs, self.ours = layer.Embedding(9, 8), layer.Embedding(9, 8)
        self.places = layers.PositionalEmbedding(kind="SINUSOIDAL")
        self.inside = layers.Attention(num_heads=2)
        self.own, self.across = layers.Attention(num_heads=2, causal=True), layers.Attention(num_heads=2)
        self.norms = [layers.LayerNorm() for _ in range(4)]
        self.wide, self.narrow, self.scores = layer.Linear(16), layer.Linear(8), layer.Linear(9)

    def forward(self, given: Any, before: Any) -> Any:
        memory = self.places(self.theirs(given))
        memory = self.norms[0](memory + self.inside(memory))
        x = self.places(self.ours(before))
        x = self.norms[1](x + self.own(x))
        x = self.norms[2](x + self.across(x, memory))
        return self.scores(self.norms[3](x + self.narrow(autograd.relu(self.wide(x)))))


NETS = {
    "resnet": (ResNet, Net("ResNet", {"x": image(3, 8, 8), "y": integers(5)})),
    "imdb": (Reviews, Net("LSTM", {"x": sequence(7, 4), "y": integers(5)})),
    "trans": (
        Translator,
        Net("transformer", {"x": sequence(6, high=9), "before": sequence(6, high=9), "y": sequence(6, high=9)}),
    ),
}


@pytest.fixture(params=NETS)
def name(request, monkeypatch):
    monkeypatch.setitem(nets.NETS, request.param, NETS[request.param][1])
    return request.param


def in_loop(name: str, start: Any) -> list[float]:
    """The losses of a loop as SINGA has it, in the type of the default device."""
    net, data, losses = NETS[name][0](), ours.batches(name), []
    net.optimizer = opt.SGD(**RATE)
    net.compile(ours.tensors(data, 0)[:-1])
    net.load_state_dict(start)
    try:
        for step in range(STEPS):
            _, loss = net(*ours.tensors(data, step))
            losses.append(loss.item())
    finally:
        net.eval()
    return losses


def in_model(name: str, start: Any) -> list[float]:
    data = ours.batches(name)
    inputs = [RecordInput(key, **ours._described(key, of)) for key, of in NETS[name][1].data.items()]
    made = Model(loss_of(name, inputs), dtype=np.float64)
    made.load_state_dict(start)
    optimiser, losses = DistOpt(opt.SGD(**RATE), made), []
    for step in range(STEPS):
        loss = made({key: ours.rows(array[step]) for key, array in data.items()})
        optimiser.backward_and_update(loss)
        losses.append(float(loss))
    return losses


def in_job(name: str, folder: Path) -> tuple[list[float], Any]:
    """The losses of a job of two workers, which are threads here, and its initial parameters."""
    data = {key: np.concatenate(array) for key, array in ours.batches(name).items()}
    answers, shards = {"y": data.pop("y")}, str(folder / "shards")
    images = {key: "last" if NETS[name][1].data[key].image else "none" for key in data}
    shard(data, answers, shards, shuffle=False, channels=images, labels=["y"])
    given = {"path": shards, "batchsize": ROWS, "shuffle": False}
    inputs = [
        RecordInput(key, column=key, has_label=False, **given, **ours._steps(NETS[name][1].data[key])) for key in data
    ]
    inputs.append(RecordInput("y", column=next(iter(data)), label="y", **given))
    cluster = ClusterTopology.allreduce(2)
    job = Job(
        name=name,
        layers=[loss_of(name, inputs)],
        updater=opt.SGD(**RATE),
        train_steps=STEPS,
        disp_freq=1,
        cluster=cluster,
    )
    prepared = prepare(job)
    start = Model(prepared.job.neuralnet).state_dict()
    saved = checkpoints.Checkpoint(step=0, seed=0, job="", parameters=start)
    prepared.job.checkpoint_path[:] = [str(checkpoints.save(saved, folder / "start.h5"))]
    _, events = train_group(prepared, folder / "run")
    return [ours.summed(event["metrics"]) for event in events if event["kind"] == "metrics"], start


def loss_of(name: str, inputs: list[RecordInput]) -> Any:
    return SoftmaxLoss("loss")(NETS[name][0]()(*inputs[:-1]), inputs[-1])


def test_a_net_trains_alike_in_a_loop_in_a_model_and_in_a_job(name, tmp_path):
    """Loop and Model in float64; the job of two workers in float32."""
    job, start = in_job(name, tmp_path)
    device.set_default_dtype("float64")
    try:
        loop = in_loop(name, start)
    finally:
        device.set_default_dtype("float32")
    assert len(job) == STEPS
    assert abs(loop[-1] - loop[0]) > 1e-3
    np.testing.assert_allclose(loop, in_model(name, start), rtol=0, atol=1e-9)
    np.testing.assert_allclose(job, loop, rtol=2e-5)


def test_imports_of_singas_examples_are_changed(tmp_path):
    script = (
        "from singa import singa_wrap as singa\nfrom singa import layer, opt\nfrom singa.tensor import Tensor\n"
        "if x:\n    from singa import sonnx\nfrom tqdm import tqdm\npath = '/tmp/a', \"/tmp\"\nfrom singam import y\n"
    )
    assert rewritten(script, tmp_path).splitlines() == [
        "from singa_dask import opt as singa",
        "from singa_dask import layer, opt",
        "from singa_dask.tensors.tensor import Tensor",
        "if x:",
        "    from singa_dask import sonnx",
        "tqdm = iter",
        f"path = '{tmp_path}/a', \"{tmp_path}/\"",
        "from singam import y",
    ]
