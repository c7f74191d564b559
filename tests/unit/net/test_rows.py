"""Whether the rows of layers of the user's own depend on each other."""

import numpy as np
import pytest
from support import formulas
from support.user_layers import Centred, FromFirst, Halves, Labelled, Root, Running, Same, Scaled, SquaredError, Unlike

from singa_dask import Model, autograd
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import (
    GELU,
    BatchNorm,
    CSVOutput,
    EuclideanLoss,
    InnerProduct,
    Lambda,
    Loss,
    LossLayer,
    MSELoss,
    RecordInput,
    ReLU,
    Sharding,
)
from singa_dask.layers.base import OutputLayer
from singa_dask.net.rows import must_see_all, warn_of_mixing


def own(function, **attributes):
    return type("Own", (Same,), {"forward": lambda self, ctx, *x: function(ctx, x[0]), **attributes})


MIX = {
    "centred": Centred,
    "running sums": Running,
    "of a built-in layer": FromFirst,
    "the next row": own(lambda ctx, x: np.roll(x, 1, axis=0)),
    "shares of a column": own(lambda ctx, x: np.exp(x) / np.exp(x).sum(axis=0)),
    "ranks": own(lambda ctx, x: x.argsort(axis=0).argsort(axis=0) + 0.0),
    "a loss of all rows": Unlike,
    "declared rowwise": own(lambda ctx, x: x / x.max(), rowwise=True),
    "as trained": own(lambda ctx, x: x - x.mean(axis=0) if ctx.step.phase == Phase.kTrain else x),
}
STAND_ALONE = {
    "whole samples": Root,
    "several outputs": Halves,
    "features": Scaled,
    "labels": Labelled,
    "a loss": SquaredError,
    "built in": ReLU,
    "noise of the step": own(lambda ctx, x: x + np.random.default_rng(ctx.step.seed).normal(size=x.shape)),
    "noise of its own": own(lambda ctx, x: x + DRAW.normal(size=x.shape)),
    "together with other workers": own(lambda ctx, x: x - ctx.group.sum(x.mean(axis=0))),
    "declared takes": own(lambda ctx, x: x - x.mean(axis=0), takes=(Sharding.BATCH,)),
    "a loss with declared takes": type("OfParts", (Unlike,), {"takes": (Sharding.BATCH,)}),
    "a loss that divides by its rows": type(
        "Divided", (SquaredError,), {"backward": lambda self, ctx, dy: SquaredError.backward(self, ctx, dy)}
    ),
    "fails": own(lambda ctx, x: x[10]),
}
DRAW = np.random.default_rng(0)


@pytest.mark.parametrize("name", [*MIX, *STAND_ALONE])
def test_rows_that_depend_on_each_other_are_found(name):
    kind = {**MIX, **STAND_ALONE}[name]
    made = kind("own", ["x"] * (2 if issubclass(kind, LossLayer) else 1))
    assert must_see_all(made, ((6,),) * len(made.proto.srclayers)) is (name in MIX)


@pytest.mark.parametrize("kind", [EuclideanLoss, GELU, CSVOutput, type("OwnOutput", (OutputLayer,), {})])
def test_built_in_layers_and_outputs_are_not_tried(monkeypatch, kind):
    calls = []
    for call in "setup", "forward":
        monkeypatch.setattr(kind, call, lambda self, *args: calls.append(self), raising=False)
    assert not must_see_all(kind("own", ["x", "x"]), ((6,), (6,)))
    assert not calls


FEATURES = RecordInput("data", shape=[6], target_shape=[2])


@pytest.mark.parametrize(
    ("layer", "mixing"),
    [
        (Lambda(formulas.centred, "top"), True),
        (Centred("top"), True),
        (Running("top"), True),
        (MIX["shares of a column"]("top"), True),
        (MIX["as trained"]("top"), False),
        (Lambda(formulas.swish, "top"), False),
        (Root("top"), False),
        (BatchNorm("top"), False),
    ],
)
def test_predictions_that_depend_on_the_mini_batch_are_told_once(caplog, layer, mixing):
    model = Model([FEATURES, layer, InnerProduct(num_output=2), MSELoss()])
    x, y = np.random.default_rng(0).normal(size=(20, 6)), np.zeros((20, 2))
    for _ in range(2):
        model.predict(x, batchsize=5)
        model.evaluate(x, y, batchsize=10)
    told = [record.getMessage() for record in caplog.records]
    assert sum("layer 'top': its rows depend on each other" in each for each in told) == mixing


def over_the_rows(x, t):
    return autograd.mean((x - autograd.mean(x, axis=0, keepdims=True) - t) ** 2)


def squared(x, t):
    return autograd.mean((x - t) ** 2, axis=1)


@pytest.mark.parametrize(
    ("loss", "mixing"),
    [
        (Loss(over_the_rows, "top"), True),
        (Unlike("top"), True),
        (Loss(squared, "top"), False),
        (MSELoss("top"), False),
    ],
)
def test_evaluations_of_a_loss_of_all_rows_are_told_once_and_predictions_are_not(caplog, loss, mixing):
    model = Model([FEATURES, InnerProduct(num_output=2), loss])
    x, y = np.random.default_rng(0).normal(size=(20, 6)), np.zeros((20, 2))
    told = "layer 'top': its rows depend on each other"
    model.predict(x, batchsize=5)
    assert told not in caplog.text
    for _ in range(2):
        model.evaluate(x, y, batchsize=10)
    assert caplog.text.count(told) == mixing
    warn_of_mixing(model.known.net)
    assert caplog.text.count(told + ", so evaluations are means over mini-batches") == mixing
