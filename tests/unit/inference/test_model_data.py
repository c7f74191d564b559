"""What a model does with the arrays that it is called on: targets, normalisation, inputs that it can do without."""

import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from support.user_layers import Same

from singa_dask import Job, layers, load_model, train, updaters
from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.errors import ConfigError, DataError
from singa_dask.inference.model import Model
from singa_dask.layers import Concate, EuclideanLoss, InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.layers.partition import even_bounds
from singa_dask.loops.distopt import DistOpt
from singa_dask.updaters import SGD

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
SLOPES = RNG.normal(size=(3, 2))
Y = X @ SLOPES + 0.5


def linear(partition_dim=0, target=2, **store):
    layers = [
        RecordInput("data", shape=[3], target_shape=[target], **store),
        InnerProduct("out", num_output=target, param=[{"init": {"type": "kUniform", "low": -0.5, "high": 0.5}}]),
        EuclideanLoss("loss"),
    ]
    return Model(layers, dtype=np.float64, partition_dim=partition_dim)


def fit(comm, model, x, y, steps=300, lr=0.3):
    bounds = even_bounds(len(x), comm.size)
    own = slice(bounds[comm.rank], bounds[comm.rank + 1])
    opt = DistOpt(SGD(lr=lr), model, comm)
    for _ in range(steps):
        opt.backward_and_update(model(x[own], y[own]))
    return model


@pytest.mark.parametrize("y", [RNG.normal(size=(4, 3)), np.arange(4)])
def test_targets_that_no_layer_would_read_are_refused(y):
    model = Model([RecordInput("data", shape=[3]), InnerProduct(num_output=3), EuclideanLoss("loss")])
    for call in (model, model.evaluate):
        with pytest.raises(DataError, match=r"'loss' takes the samples of 'data' as its target.*target_shape.*\[1\]"):
            call(X[:4], y)
    assert float(model(X[:4])) > 0


def test_numbers_are_not_taken_for_classes():
    model = Model([RecordInput("data", shape=[3]), InnerProduct(num_output=3), SoftmaxLoss("loss")])
    with pytest.raises(DataError, match=r"must be integers.*target_shape.*EuclideanLoss"):
        model(X[:4], Y[:4, 0])


MEAN, STD, TARGET_MEAN, TARGET_STD = [1.0, -2.0, 30.0], [2.0, 0.5, 10.0], [100.0, -7.0], [20.0, 3.0]
STATISTICS = {"mean": MEAN, "std": STD, "target_mean": TARGET_MEAN, "target_std": TARGET_STD}
RAW, RAW_Y = X * STD + MEAN, Y * TARGET_STD + TARGET_MEAN


def same_parameters(model, other):
    model.load_state_dict(other.state_dict())
    return model


def test_a_model_takes_raw_arrays_and_predicts_in_their_units():
    plain = linear()
    model = same_parameters(linear(**STATISTICS), plain)
    np.testing.assert_allclose(model.predict(RAW), plain.predict(X) * TARGET_STD + TARGET_MEAN)
    assert model.evaluate(RAW, RAW_Y)["loss"] == pytest.approx(plain.evaluate(X, Y)["loss"])
    assert float(model(RAW, RAW_Y)) == pytest.approx(float(plain(X, Y)))
    fit(SoloCommunicator(), model, RAW, RAW_Y)
    np.testing.assert_allclose(model.predict(RAW), RAW_Y, atol=1e-4)
    assert model.evaluate(RAW, RAW_Y)["loss"] < 1e-10


@pytest.mark.parametrize("dim", [0, 1])
def test_ranks_learn_targets_and_predict_in_their_units_as_one_does(dim):
    def trained(comm):
        model = fit(comm, linear(dim, **STATISTICS), RAW, RAW_Y, steps=5)
        return model.predict(RAW[comm.rank :: comm.size]), model.state_dict()

    expected, parameters = trained(SoloCommunicator())
    for rank, (predicted, state) in enumerate(run_threads(3, trained)):
        np.testing.assert_allclose(predicted, expected[rank::3])
        for name, array in parameters.items():
            np.testing.assert_allclose(state[name], array, rtol=1e-10)


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ({"mean_value": 3, "std_value": 2}, lambda x: (x - 3) / 2),
        ({"mean": [3], "std": [2]}, lambda x: (x - 3) / 2),
        ({"mean": [1, 2, 3]}, lambda x: x - [1, 2, 3]),
        ({"std": list(range(1, 13))}, lambda x: x / np.arange(1, 13).reshape(2, 2, 3)),
    ],
)
@pytest.mark.parametrize("order", ["net", "job"])
def test_images_are_normalised_by_one_value_per_channel_or_per_value_in_the_order_of_the_net(store, expected, order):
    layers = [RecordInput("data", shape=[3, 2, 2], has_label=False, **store), Same("same")]
    images = RNG.integers(0, 255, (4, 2, 2, 3)).astype(np.uint8)
    x = np.moveaxis(images, -1, 1) if order == "job" else images
    np.testing.assert_allclose(Model(layers, dtype=np.float64).predict(x), expected(images.astype(float)))


def test_a_file_of_statistics_is_read_once(tmp_path):
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["mean"], file["std"] = np.array(MEAN), np.array(STD)
    files = dict.fromkeys(("mean_file", "std_file"), str(tmp_path / "s.h5"))
    model = linear(**files)
    (tmp_path / "s.h5").unlink()
    np.testing.assert_allclose(model.predict(RAW), linear().predict(X))


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ({"normalise": True}, "'data'.store_conf.normalise.*read only when a job starts.*store_conf.mean"),
        ({"normalise_target": True}, "store_conf.normalise_target.*store_conf.target_mean"),
        ({"mean": [1, 2]}, r"'data'.store_conf.mean: must have one value, one per channel \(3\).*2 values"),
        ({"target_std": [0, 1]}, "store_conf.target_std.*not 0"),
        ({"std_value": 0}, "store_conf.std_value.*not 0"),
        ({"mean_file": "nowhere.h5"}, "nowhere.h5"),
    ],
)
def test_a_model_without_the_numbers_of_its_normalisation_is_refused(store, says):
    with pytest.raises((ConfigError, DataError), match=says):
        linear(**store)


def test_reproduced_samples_are_in_their_units():
    layers = [RecordInput("data", shape=[3], has_label=False, mean=MEAN, std=STD), Same("same"), EuclideanLoss()]
    model = Model(layers, dtype=np.float64)
    np.testing.assert_allclose(model.predict(RAW), RAW)
    assert model.evaluate(RAW)["loss"] == 0


def two_inputs():
    layers = [
        RecordInput("x", shape=[3], has_label=False),
        RecordInput("y", shape=[2], has_label=False),
        RecordInput("w", shape=[1], has_label=False),
        InnerProduct("out", "x", num_output=2, param=[{"init": {"type": "kUniform", "low": -0.5, "high": 0.5}}]),
        EuclideanLoss("loss", ["out", "y", "w"]),
    ]
    return Model(layers, dtype=np.float64)


def test_predicting_needs_neither_targets_nor_weights():
    model, w = two_inputs(), np.ones((40, 1))
    expected = model.predict({"x": X, "y": Y, "w": w})
    np.testing.assert_array_equal(model.predict({"x": X}), expected)
    np.testing.assert_array_equal(model.predict(X), expected)
    assert model.evaluate({"x": X, "y": expected, "w": w})["loss"] == 0
    for call in (model.evaluate, model):
        with pytest.raises(DataError, match=r"input layers x, y, w. Received: x"):
            call({"x": X})
    with pytest.raises(DataError, match=r"input layers x. Received: y"):
        model.predict({"y": Y})


@pytest.mark.parametrize("x", [[X, Y], (X, Y), [X, X], X, np.stack([X, X]), da.from_array(X), xr.DataArray(X)])
def test_inputs_without_their_names_are_asked_for_by_name(x):
    both = [RecordInput("a", shape=[3]), RecordInput("b", shape=[3])]
    model = Model([*both, Concate(srclayers=["a", "b"], concate_dim=1), InnerProduct(num_output=1)])
    said = r"input layers a, b\. Received: a\. Give a mapping with an array for each: \{'a': \.\.\., 'b': \.\.\.\}"
    for call in (model.predict, model.evaluate, model):
        with pytest.raises(DataError, match=said):
            call(x)
    assert model.predict({"a": X, "b": X}).shape == (len(X), 1)


def test_samples_of_different_shapes_are_named():
    model = Model([RecordInput("a", shape=[3]), InnerProduct(num_output=1)])
    for x in ([np.ones(3), np.ones(2)], (np.ones(3), np.ones(3), np.ones((3, 1)))):
        with pytest.raises(DataError, match=rf"x\[0\] \(3,\) and x\[{len(x) - 1}\] .* Pad them"):
            model.predict(x)


def test_several_targets_are_given_by_input_layer():
    layers = [
        RecordInput("a", shape=[3], target_shape=[1]),
        RecordInput("b", shape=[3]),
        InnerProduct("first", "a", num_output=1),
        InnerProduct("second", "b", num_output=4),
        EuclideanLoss("number", ["first", "a"]),
        SoftmaxLoss("class", ["second", "b"]),
    ]
    model = Model(layers)
    labels = {"a": Y[:, 0], "b": np.arange(40) % 4}
    assert model({"a": X, "b": X}, labels).metrics.keys() == {"number.loss", "class.loss", "accuracy"}
    with pytest.raises(DataError, match=r"input layers: a, b. Received: c"):
        model({"a": X, "b": X}, {"c": Y})
    with pytest.raises(DataError, match=r"39 in y\['b'\]"):
        model({"a": X, "b": X}, labels | {"b": np.zeros(39, int)})


def test_an_input_layer_of_targets_alone_is_given_as_x_or_as_y():
    layers = [
        RecordInput("x", shape=[3], has_label=False),
        RecordInput("y", shape=[2], target_shape=[2], target_mean=TARGET_MEAN, target_std=TARGET_STD),
        InnerProduct("out", "x", num_output=2, param=[{"init": {"type": "kUniform", "low": -0.5, "high": 0.5}}]),
        EuclideanLoss("loss", ["out", "y"]),
    ]
    model = Model(layers, dtype=np.float64)
    loss = float(model({"x": X, "y": RAW_Y}))
    assert loss == float(model(X, RAW_Y)) == float(model({"x": X}, {"y": RAW_Y}))
    assert model.evaluate({"x": X, "y": RAW_Y}, batchsize=7)["loss"] == pytest.approx(loss)
    np.testing.assert_allclose(model.evaluate(X, model.predict(X))["loss"], 0, atol=1e-20)
    with pytest.raises(DataError, match="input layers y bring labels or targets: give y"):
        model(X)


def test_tables_are_evaluated_by_their_columns(tmp_path):
    draw = np.random.default_rng(0)
    x = pd.DataFrame({"a": draw.normal(size=60), "kind": np.array(["u", "v"])[draw.integers(0, 2, 60)]})
    y = pd.Series((x.a > 0).astype(int))
    last = [layers.InnerProduct(num_output=2), layers.SoftmaxLoss()]
    job = Job(name="m", layers=[layers.RecordInput(batchsize=20), *last], updater=updaters.SGD(lr=0.5), train_steps=20)
    train(job, data=(x, y), processes=False, workspace=tmp_path / "run", curves=False)
    model = load_model(tmp_path / "run")
    right = model.predict(x).to_numpy().argmax(axis=1) == y
    assert model.evaluate(x[["kind", "a"]], y)["accuracy"] == pytest.approx(right.mean())
    with pytest.raises(DataError, match="y must be numbers"):
        model.evaluate(x, y.map({0: "no", 1: "yes"}))
