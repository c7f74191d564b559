"""Answers of all kinds: shares of classes, booleans, classes that look like numbers; and jobs that evaluate."""

import numpy as np
import pytest

from singa_dask import Classifier, Job, Regressor, layers, load_model, train, updaters
from singa_dask.errors import ConfigError
from singa_dask.monitor.progress import Display

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 3)).astype(np.float32)
JOB = """
name: "j" train_steps: 4 early_stopping { patience: 2 } keep_best: "validate.loss"
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kReduceOnPlateau base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "nowhere" batchsize: 10 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 1 } }
  layer { name: "loss" type: kEuclideanLoss srclayers: "ip" srclayers: "data" }
}
"""


def trained(loss, outputs, y, workspace):
    net = [layers.RecordInput(batchsize=20), layers.InnerProduct(num_output=outputs), loss]
    job = Job(name="targets", layers=net, updater=updaters.Adam(lr=0.01), train_steps=3, seed=0)
    return train(job, data=(X, y), processes=False, workspace=workspace, display=Display(), curves=False)


def test_a_net_that_was_trained_on_shares_of_classes_predicts(tmp_path):
    shares = np.abs(DRAW.normal(size=(60, 3)))
    shares /= shares.sum(axis=1, keepdims=True)
    trained(layers.SoftmaxLoss(), 3, shares, tmp_path)
    np.testing.assert_allclose(load_model(tmp_path).predict(X).sum(axis=1), 1, rtol=1e-5)
    net = [layers.InnerProduct(num_output=3), layers.SoftmaxLoss()]
    fitted = Regressor(net, epochs=1, random_state=0).fit(X, shares)
    np.testing.assert_allclose(fitted.predict(X).sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("columns", [0, slice(2)])
def test_truth_values_are_targets_of_a_bceloss(tmp_path, columns):
    y = X[:, columns] > 0
    outputs = 1 if y.ndim == 1 else 2
    found = [trained(layers.BCELoss(), outputs, of, tmp_path / of.dtype.name) for of in (y, y.astype(np.float32))]
    np.testing.assert_array_equal(*(each.history.loss for each in found))
    net = [layers.InnerProduct(num_output=outputs), layers.BCELoss()]
    fitted = Regressor(net, epochs=40, learning_rate=0.05, random_state=0).fit(X, y)
    assert ((fitted.predict(X) > 0.5) == y).mean() > 0.9


@pytest.mark.parametrize("y", [np.array(["10", "9"] * 30), np.array([10, 9] * 30), np.array([True, False] * 30)])
def test_factors_of_classes_that_look_like_numbers(y):
    first, second = y[:2].tolist()
    fitted = Classifier(epochs=1, class_weight={first: 3, second: 0.5}).fit(X, y)
    losses = [layer for layer in fitted.model_.net.proto.layer if layer.HasField("softmaxloss_conf")]
    factors = losses[0].softmaxloss_conf.class_weight
    assert dict(zip(fitted.classes_.tolist(), factors, strict=True)) == {first: 3, second: 0.5}
    with pytest.raises(ConfigError, match=r"class_weight: names a class that y does not have\. Received: 'eleven'"):
        Classifier(epochs=1, class_weight={first: 3, "eleven": 1}).fit(X, y)


def test_more_training_of_a_job_that_evaluates(tmp_path):
    (tmp_path / "job.conf").write_text(JOB)
    regressor = Regressor(tmp_path / "job.conf", validation=0.2)
    assert regressor.fit(X, X[:, 0]).partial_fit(X, X[:, 0]).n_iter_ == 2
    assert Regressor(epochs=2, validation=0.2, patience=1).fit(X, X[:, 0]).partial_fit(X, X[:, 0]).n_iter_ > 2


@pytest.mark.parametrize(("shape", "place"), [((60,), "4"), ((60, 1), "4, 0"), ((60, 2), "4, 0")])
def test_targets_that_are_missing_are_named(shape, place):
    y = np.zeros(shape)
    y[[4, 7]] = np.nan
    with pytest.raises(ValueError, match=rf"Input y contains NaN: y\[{place}\] is missing \(\d such\)\. Leave out"):
        Regressor(epochs=1).fit(X, y)
