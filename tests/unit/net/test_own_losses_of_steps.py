"""Losses of one's own compare all steps of sequences that have labels or targets of each step, as in a loop."""

from __future__ import annotations

import numpy as np
import pytest
from support.gradients import check_gradients, loss_of
from support.partitioned import assert_equal_to_serial, net_of

from singa_dask import Job, Model, Module, autograd, load_model, train
from singa_dask.algorithms import BP
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import GRU, Embedding, InnerProduct, Loss, LossLayer, Metric, MSELoss, RecordInput, Step
from singa_dask.net import Batch, Net
from singa_dask.ops import Ops
from singa_dask.tensors.tensor import Tensor
from singa_dask.updaters import SGD

ROWS, STEPS, SYMBOLS, VALUES = 5, 4, 6, 3
DRAW = np.random.default_rng(0)
X = DRAW.integers(0, SYMBOLS, (ROWS, STEPS))
TARGETS = DRAW.normal(size=(ROWS, STEPS, VALUES))
LABELS = DRAW.integers(0, VALUES, (ROWS, STEPS))
LAST = DRAW.normal(size=(ROWS, VALUES))


def squares(x, t):
    assert x.shape == t.shape
    return autograd.mean((x - t) ** 2, axis=list(range(1, len(x.shape))))


def growing(x, t, factor):
    """The steps count by their numbers."""
    return autograd.mean((x - t) ** 2 * np.arange(1, STEPS + 1)[:, None] * factor, axis=(1, 2))


def contrast(x, t):
    """The loss of a row depends on the others."""
    return autograd.mean((x - autograd.mean(x, axis=0, keepdims=True) - t) ** 2, axis=(1, 2))


def entropy(x, y):
    chosen = autograd.take_along_axis(autograd.softmax(x), autograd.reshape(y, (-1, STEPS, 1)), axis=2)
    return -autograd.mean(autograd.log(chosen), axis=(1, 2))


class Pinball(LossLayer):
    """Of the documentation."""

    num_sources, target_sources = (2, 2), (1,)

    def setup(self, *src):
        return self.sources(src)[0]

    def forward(self, ctx, *x):
        q, error = self.conf.get("quantile", 0.5), x[1].reshape(x[0].shape) - x[0]
        ctx.slope = (error < 0) - ctx.ops.asarray(q, error.dtype)
        ctx.losses = -ctx.slope * error
        return x[0]

    def backward(self, ctx, dy):
        return ctx.slope / ctx.step.total_rows, None

    def metrics(self, ctx):
        return {"loss": Metric(float(ctx.losses.sum()), len(ctx.losses))}


class Margin(Pinball):
    """The score of the label of each step is to be large: -tanh."""

    num_sources, label_sources, target_sources = (2, 2), (1,), ()

    def forward(self, ctx, *x):
        labels = x[1].reshape(*x[0].shape[:-1], 1).astype(np.int64)
        y = np.tanh(np.take_along_axis(x[0], labels, axis=-1))
        ctx.slope, ctx.losses = np.zeros_like(x[0]), -y
        np.put_along_axis(ctx.slope, labels, y**2 - 1, axis=-1)
        return x[0]


class Halved(MSELoss):
    type = "kUserLayer"

    def backward(self, ctx, dy):
        return tuple(None if each is None else each / 2 for each in super().backward(ctx, dy))

    def metrics(self, ctx):
        return {"loss": Metric(super().metrics(ctx)["loss"].total / 2, len(ctx.slope))}


LOSSES = {
    "function": (Loss(squares), TARGETS),
    "function with a setting": (Loss(growing, factor=2.0), TARGETS),
    "function of one value a step": (Loss(squares), TARGETS[..., :1]),
    "function that mixes rows": (Loss(contrast), TARGETS),
    "function of labels": (Loss(entropy, labels=1), LABELS),
    "class": (Pinball(quantile=0.3), TARGETS),
    "class of labels": (Margin(), LABELS),
    "class of another loss": (Halved(), TARGETS),
    "function of one target": (Loss(squares), LAST),
    "class of one target": (Pinball(quantile=0.3), LAST),
}


class Forecast(Module):
    def __init__(self, loss, values):
        self.symbols, self.gru = Embedding(vocab_size=SYMBOLS, feature_dim=3), GRU(dim_hidden=4)
        self.values, self.loss = InnerProduct(num_output=values), loss

    def forward(self, x, y):
        h = self.gru(self.symbols(x))
        return self.loss(self.values(h[:, -1] if isinstance(h, Tensor) and y.shape == LAST.shape else h), y)


def layers_of(name, **settings):
    """settings: of the input layer, in place of the shapes, which jobs take from shards."""
    loss, y = LOSSES[name]
    shape = settings or {"shape": [1], "label_shape" if y.dtype.kind == "i" else "target_shape": y.shape[1:]}
    values = y.shape[-1] if y.dtype.kind == "f" else VALUES
    net = Forecast(type(loss).from_proto(loss.proto), values)
    return net, [RecordInput("data", time_steps=STEPS, **shape), net], y


def stored(y):
    """As shards give them: maps with a channel."""
    return y[..., None] if y.ndim == 3 else y


@pytest.mark.parametrize("name", LOSSES)
def test_a_net_computes_what_a_loop_computes(name):
    net, layers, y = layers_of(name)
    model = Model(layers, dtype=np.float64)
    loss = float(model(X, y))
    model.net.backward()
    gradients = model.net.flat.named(model.net.flat.grads.copy())
    kept = [layer.kept for _, layer in net.named_layers().values() if layer.kept and layer.kept.parameters]
    autograd.training = True
    try:
        own = net(*(Tensor.of(array, kept[0].device) for array in (X, y)))
        assert own.item() == pytest.approx(loss, rel=1e-12)
        for param, gradient in autograd.backward(own):
            np.testing.assert_allclose(gradients[param.name], gradient.to_numpy(), rtol=1e-9, atol=1e-12)
    finally:
        autograd.training = False


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_the_loss(name):
    _, layers, y = layers_of(name)
    net = Net(net_of(layers), Phase.kTrain, Ops(np.float64))
    net.initialise(0)
    feed = {"data": Batch(X, stored(y))}
    check_gradients(net, lambda: loss_of(net, feed, Step(Phase.kTrain, total_rows=ROWS)), 3)


@pytest.mark.parametrize("name", LOSSES)
def test_workers_that_share_the_rows_train_as_one(name):
    _, layers, y = layers_of(name)
    assert_equal_to_serial(net_of(layers), BP(), [{"data": (X, stored(y))}] * 2)


@pytest.mark.parametrize("name", ["function", "class", "class of labels"])
def test_a_job_predicts_each_step(tmp_path, name):
    of_labels = {"label_shape": [STEPS]} if LOSSES[name][1] is LABELS else {}
    _, layers, y = layers_of(name, batchsize=ROWS, **of_labels)
    job = Job(name="steps", layers=layers, updater=SGD(lr=0.1), train_steps=2)
    run = train(job, data=(X, y), processes=False, workspace=tmp_path)
    assert load_model(run.workspace).predict(X).shape == (ROWS, STEPS, VALUES)
