"""Losses of a user's own: what is measured, and what they must count."""

import re

import numpy as np
import pytest

from singa_dask import Classifier, Job, Model, Module, Regressor, autograd, updaters
from singa_dask.errors import ConfigError
from singa_dask.layers import (
    EuclideanLoss,
    InnerProduct,
    Loss,
    LossLayer,
    Metric,
    MSELoss,
    RecordInput,
    SoftmaxLoss,
)

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 3))
Y = X @ [1, 2, -1.0] * 10 + 5
WEIGHTS = (X[:, 0] > 0).astype(float)


class Absolute(LossLayer):
    num_sources, target_sources = (2, 2), (1,)

    def setup(self, *src):
        return self.sources(src)[0]

    def forward(self, ctx, *x):
        ctx.error = x[0] - x[1].reshape(x[0].shape)
        return x[0]

    def backward(self, ctx, dy):
        return ctx.ops.xp.sign(ctx.error) / ctx.step.total_rows, None

    def metrics(self, ctx):
        return {"loss": Metric(float(abs(ctx.error).sum()), len(ctx.error))}


class Halved(EuclideanLoss):
    type = "kUserLayer"


class OwnSoftmax(SoftmaxLoss):
    type = "kUserLayer"


def squared(x, t):
    return (x - t) * (x - t)


def weighted(x, t, weight):
    return weight * (x - t) * (x - t)


def weighted_or_not(x, t, weight=None):
    return squared(x, t) if weight is None else weighted(x, t, weight)


class Net(Module):
    def __init__(self, loss, outputs=1):
        self.output, self.loss = InnerProduct(num_output=outputs), loss

    def forward(self, x, y):
        return self.loss(self.output(x), y)


def data(**store):
    return RecordInput("data", shape=[3], target_shape=[1], target_mean=[5.0], target_std=[2.0], **store)


@pytest.mark.parametrize("loss", [Absolute, Halved, lambda: Loss(squared)], ids=["layer", "derived", "function"])
def test_metrics_of_targets_are_those_of_built_in_losses(loss):
    models = [Model([data(), Net(made())], seed=0) for made in (MSELoss, loss)]
    expected, found = (model.evaluate(X, Y, metrics=["mae", "r2"], batchsize=7) for model in models)
    assert {name: found[name] for name in ("mae", "r2")} == {name: expected[name] for name in ("mae", "r2")}
    assert found["mae"] == pytest.approx(np.abs(models[1].predict(X)[:, 0] - Y).mean(), rel=1e-5)


def test_a_run_measures_and_watches_them():
    net = [RecordInput("data"), Net(Absolute())]
    job = Job(name="own", layers=net, updater=updaters.Adam(lr=0.01), train_steps=6, validate_freq=2, metric=["mae"])
    job.proto.keep_best = "validate.mae"
    fitted = Regressor(job, validation=0.2, batch_size=8, random_state=0).fit(X, Y)
    rows = fitted.history_[fitted.history_.phase == "validate"]
    assert len(rows) == 3 and np.isfinite(rows.mae).all()


def test_a_loss_of_other_predictions_has_none():
    with pytest.raises(
        ConfigError, match="mae compares numbers: it needs a loss of one prediction for each value of a"
    ):
        Model([data(), Net(Loss(lambda x, t: (x[:, :1] - t) ** 2), outputs=2)]).evaluate(X, Y, metrics=["mae"])


@pytest.mark.parametrize("loss", [Absolute(), Loss(squared)], ids=["layer", "function"])
def test_weights_that_a_loss_would_not_count_are_refused(loss):
    words = "is a loss of your own that reads no weights, and the samples have weights or a mask."
    with pytest.raises(ConfigError, match=re.escape(words)):
        Regressor(Net(loss), epochs=1).fit(X, Y, WEIGHTS)


def test_the_remedy_is_of_the_kind_of_loss():
    for loss, words in (Absolute(), r"num_sources = \(2, 3\)"), (Loss(squared), r"def loss\(x, y, weight\)"):
        with pytest.raises(ConfigError, match=words):
            Regressor(Net(loss), epochs=1).fit(X, Y, WEIGHTS)


@pytest.mark.parametrize("function", [weighted, weighted_or_not])
def test_a_function_of_three_arguments_counts_weights(function):
    given, states = np.where(WEIGHTS > 0, Y, 500.0), []
    for loss in (MSELoss(), Loss(function)):
        net = [InnerProduct("output", num_output=1), loss]
        fitted = Regressor(net, epochs=2, updater=updaters.SGD(lr=0.1), random_state=0).fit(X, given, WEIGHTS)
        states.append(fitted.model_.state_dict())
    for name, value in states[0].items():
        np.testing.assert_allclose(states[1][name], value, rtol=1e-5, atol=1e-6)
    if function is weighted_or_not:
        assert Regressor(Net(Loss(function)), epochs=1).fit(X, Y).n_iter_ == 1
    else:
        with pytest.raises(ConfigError, match="Loss takes at least 3 srclayers"):
            Regressor([InnerProduct(num_output=1), Loss(function)], epochs=1).fit(X, Y)


@pytest.mark.parametrize(("make", "own"), [(Regressor, Halved), (Classifier, OwnSoftmax)])
def test_a_loss_that_derives_from_one_with_weights_counts_them(make, own):
    answers, spoilt = (Y, 500.0) if make is Regressor else ((Y > 5).astype(int), 0)
    given = np.where(WEIGHTS > 0, answers, spoilt)
    built_in = EuclideanLoss if make is Regressor else SoftmaxLoss
    states = []
    for loss in (built_in(), own()):
        net = [InnerProduct("output", num_output=1 if make is Regressor else 2), loss]
        states.append(make(net, epochs=2, random_state=0).fit(X, given, WEIGHTS).model_.state_dict())
    for name, value in states[0].items():
        np.testing.assert_array_equal(states[1][name], value)


def test_class_weights_that_no_loss_would_count_are_refused():
    net = [InnerProduct(num_output=2), OwnSoftmax()]
    with pytest.raises(ConfigError, match="class_weight: is of a SoftmaxLoss, and the net has none"):
        Classifier(net, class_weight="balanced", epochs=1).fit(X, Y > 5)


def test_an_argument_that_nothing_gives_is_named():
    with pytest.raises(
        ConfigError, match=r"test_own_losses:weighted takes weights: give sample_weight, or let .*=None"
    ):
        Regressor(Net(Loss(weighted)), epochs=1).fit(X, Y)
    with pytest.raises(ConfigError, match="takes 4 arguments: call the layer on as many layers"):
        Model([data(), Net(Loss(of_four))])


def of_four(x, t, weight, other):
    return weighted(x, t, weight) + other


def nll(x, labels, weight):
    return -weight * autograd.take_along_axis(autograd.log_softmax(x), autograd.reshape(labels, (-1, 1)), axis=1)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_loss_of_labels_that_reads_weights_leaves_scores_as_they_are(classes):
    labels, net = np.arange(len(X)) % classes, [InnerProduct("output", num_output=classes), Loss(nll, labels=1)]
    fitted = Classifier(net, epochs=2, random_state=0).fit(X, labels, sample_weight=1 + 9 * WEIGHTS)
    scores = fitted.model_.predict(X)
    assert scores.shape == (len(X), classes)
    assert np.array_equal(fitted.predict(X), scores.argmax(axis=1)) and 0 <= fitted.score(X, labels) <= 1


def margin(x, labels, weight):
    return weight * autograd.softplus(x * (1 - 2 * autograd.reshape(labels, (-1, 1))))


def test_the_weights_do_not_scale_one_score_either():
    weights = RecordInput("weights", shape=[1], mean=[3.0], std=[5.0], has_label=False)
    net = [
        RecordInput("data", shape=[3]),
        weights,
        InnerProduct("output", "data", num_output=1),
        Loss(margin, "loss", ["output", "data", "weights"], labels=1),
    ]
    model = Model(net, seed=0)
    own = model.state_dict()
    expected = X @ own["output_weight"] + own["output_bias"]
    assert model.predict({"data": X}) == pytest.approx(expected.reshape(-1, 1), rel=1e-5, abs=1e-5)
