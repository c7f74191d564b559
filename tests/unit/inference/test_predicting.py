"""Predictions for what holds samples: arrays, DataFrames, Dask collections; pickled models, several threads."""

import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from singa_dask import Job, Model, layers
from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.data.columns import Column, Role
from singa_dask.data.schema import Schema
from singa_dask.errors import ConfigError, DataError, NotFinite
from singa_dask.loops.distopt import DistOpt
from singa_dask.updaters import SGD

X = np.random.default_rng(5).normal(size=(23, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def model():
    net = [
        layers.RecordInput(shape=[6]),
        layers.InnerProduct(num_output=5),
        layers.ReLU(),
        layers.InnerProduct(num_output=3),
    ]
    return Model([*net, layers.SoftmaxLoss()], seed=4)


@pytest.fixture(scope="module")
def expected(model):
    return model.predict(X, batchsize=7)


def images(**more):
    return Model(
        [layers.RecordInput(shape=[2, 4, 5]), layers.InnerProduct(num_output=3), layers.SoftmaxLoss()], **more
    )


def two_inputs():
    a, b = layers.RecordInput("a", shape=[6]), layers.RecordInput("b", shape=[2], target_shape=[2])
    joined = layers.Concate("ab", concate_dim=1)(a, b)
    first = layers.SoftmaxLoss("kind")(layers.InnerProduct(num_output=3)(joined), a)
    second = layers.EuclideanLoss("size")(layers.InnerProduct(num_output=2)(joined), b)
    return Model([first, second], seed=1)


def computed(lazy):
    """What a Dask array or DataFrame is; its type, shape and columns must be what it said before."""
    whole = lazy.compute(scheduler="sync")
    if isinstance(lazy, da.Array):
        assert isinstance(whole, np.ndarray) and whole.dtype == lazy.dtype and whole.ndim == lazy.ndim
        assert all(np.isnan(told) or told == size for told, size in zip(lazy.shape, whole.shape, strict=True))
    else:
        assert list(whole.columns) == list(lazy.columns) and (whole.dtypes == lazy.dtypes).all()
    return whole


class NeverComputed:
    """An array whose blocks must not be read."""

    shape, dtype, ndim = (23, 6), np.dtype(np.float32), 2

    def __getitem__(self, where):
        raise AssertionError("computed")


def test_dask_arrays_stay_lazy_and_keep_their_blocks_of_rows(model, expected):
    lazy = model.predict(da.from_array(NeverComputed(), chunks=(10, 6), meta=X[:0]))
    assert (lazy.shape, lazy.dtype, lazy.chunks) == ((23, 3), np.float32, ((10, 10, 3), (3,)))
    assert isinstance(lazy._meta, np.ndarray) and lazy._meta.dtype == np.float32
    np.testing.assert_array_equal(computed(model.predict(da.from_array(X, chunks=(23, 6)))), model.predict(X))
    for columns in (6, 4):  # blocks along other axes are merged
        lazy = model.predict(da.from_array(X, chunks=(10, columns)))
        assert lazy.chunks == ((10, 10, 3), (3,))
        np.testing.assert_allclose(computed(lazy), expected, rtol=1e-5)


def test_images_become_vectors():
    x = np.random.default_rng(1).normal(size=(9, 2, 4, 5)).astype(np.float32)
    lazy = images().predict(da.from_array(x, chunks=(4, 1, 4, 3)))
    np.testing.assert_allclose(computed(lazy), images().predict(x), rtol=1e-5)


def test_unknown_and_empty_blocks(model, expected):
    x = da.from_array(X, chunks=(5, 6))
    for chosen, rows in ((x[x[:, 0] > 0], X[:, 0] > 0), (x[x[:, 0] > 99], X[:, 0] > 99)):
        lazy = model.predict(chosen)
        assert np.isnan(lazy.shape[0]) and lazy.shape[1] == 3
        np.testing.assert_allclose(computed(lazy), expected[rows], rtol=1e-5)
    assert model.predict(X[:0]).shape == (0, 3)


def test_pandas_keep_their_index(model, expected):
    frame = pd.DataFrame(X.astype(np.float64), index=np.arange(23) * 3 + 1)
    found = model.predict(frame)
    assert list(found.index) == list(frame.index) and found.shape == (23, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert model.predict(frame[:0]).shape == (0, 3)
    lazy = model.predict(dd.from_pandas(frame, npartitions=4, sort=False))
    assert isinstance(lazy, dd.DataFrame)
    pd.testing.assert_frame_equal(computed(lazy), found, rtol=1e-5)
    frame["word"] = "red"
    with pytest.raises(DataError, match="the columns word are not numbers"):
        model.predict(frame)


def test_every_output_of_several_inputs():
    model, b = two_inputs(), X[:, :2] + 1
    assert model.outputs == ("kind", "size")
    every = model.predict_all({"a": X, "b": b})
    np.testing.assert_array_equal(model.predict({"a": X, "b": b}), every["kind"])
    np.testing.assert_array_equal(model.predict({"a": X, "b": b}, output="size"), every["size"])
    lazy = {"a": da.from_array(X, chunks=(8, 3)), "b": da.from_array(b, chunks=(8, 2))}
    np.testing.assert_allclose(computed(model.predict(lazy, output="size")), every["size"], rtol=1e-4)
    with pytest.raises(ConfigError, match=r"output: is not an output of this model.*'sizes'.*Did you mean size\?"):
        model.predict(lazy, output="sizes")
    with pytest.raises(ConfigError, match=r"mixes Dask collections with arrays.*dask.array.from_array"):
        model.predict({"a": X, "b": lazy["b"]})


def test_samples_that_do_not_fit_are_told_at_once(model):
    with pytest.raises(DataError, match=r"samples of shape \(5,\) do not fit"):
        model.predict(da.from_array(X[:, :5], chunks=(5, 5)))
    with pytest.raises(ConfigError, match="must be a Dask array of samples"):
        model.predict(da.from_array(X[:, 0], chunks=5))


OTHERS = [X * 1j, np.full(X.shape, "1"), np.full(X.shape, "2024-01-01", "M8[D]"), np.full(X.shape, "1", object)]


@pytest.mark.parametrize("x", OTHERS, ids=lambda x: str(x.dtype))
def test_arrays_of_other_types_are_refused(model, x):
    with pytest.raises(DataError, match=f"x must be numbers. Received: {re.escape(str(x.dtype))} .*texts and"):
        model.predict(x)
    assert (model.predict(X.astype(object)) == model.predict(X)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_what_no_net_can_compute_with_is_refused(model, bad):
    x = X.astype(np.float64)
    x[[9, 11], 2] = x[20, 4] = bad
    what = "NaN" if np.isnan(bad) else "infinite or beyond float32"
    told = rf"column 'recordinput1\[2\]': 2 value\(s\) are {what}, the first in sample 9\. Fill them"
    for given in (x, pd.DataFrame(x)):
        with pytest.raises(NotFinite, match=told):
            model.predict(given, batchsize=4)
    with pytest.raises(NotFinite, match="2 value"):
        model.evaluate(x, np.zeros(23, int))
    with pytest.raises(NotFinite, match="the first in sample 2"):  # of its block
        model.predict(da.from_array(x[:14], chunks=(7, 6))).compute(scheduler="sync")


def test_predictions_that_are_nan_are_counted_with_the_reason(model, caplog):
    broken = pickle.loads(pickle.dumps(model))
    state = broken.state_dict()
    state["innerproduct1_bias"][3] = np.nan
    broken.load_state_dict(state)
    broken.predict(X)
    assert caplog.messages == [
        "23 of 23 predictions are NaN: parameter 'innerproduct1_bias' holds values that are not finite"
    ]


def test_a_lazy_prediction_is_of_the_model_at_that_time_which_is_one_task(expected):
    changing = images(seed=2)
    x = np.random.default_rng(1).normal(size=(9, 2, 4, 5)).astype(np.float32)
    before = changing.predict(x)
    lazy = [changing.predict(da.from_array(x, chunks=(3, 2, 4, 5))) for _ in range(2)]
    changing.load_state_dict({name: array * 2 for name, array in changing.state_dict().items()})
    assert abs(changing.predict(x) - before).max() > 1e-3
    for found in dask.compute(*lazy, scheduler="sync"):
        np.testing.assert_allclose(found, before, rtol=1e-5)
    keys = {key for collection in lazy for key in dict(collection.__dask_graph__()) if "model-" in str(key)}
    assert len(keys) == 1


def test_a_pickled_model_goes_on_as_the_model_would(expected):
    own, labels = images(seed=3), np.arange(9) % 3
    x = np.random.default_rng(1).normal(size=(9, 2, 4, 5)).astype(np.float32)
    for again in (pickle.loads(pickle.dumps(own)), pickle.loads(pickle.dumps(own))):
        np.testing.assert_array_equal(again.predict(x), own.predict(x))
    opt = DistOpt(SGD(lr=0.1), own, SoloCommunicator())
    opt.backward_and_update(own(x, labels))
    again = pickle.loads(pickle.dumps(own))
    assert again.number == own.number == 1
    np.testing.assert_array_equal(again.predict(x), own.predict(x))


def test_a_model_with_layers_of_ones_own_is_pickled_with_them():
    class Twice(layers.Layer):
        def setup(self, *src):
            return self.sources(src)[0]

        def forward(self, ctx, *x):
            return x[0] * 2

    model = Model([layers.RecordInput(shape=[6]), layers.InnerProduct(num_output=3), Twice()])
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(model))))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_a_partitioned_model_says_how_to_be_pickled():
    def pickled(comm):
        net = [layers.RecordInput(shape=[6]), layers.InnerProduct(num_output=4), layers.SoftmaxLoss()]
        model = Model(net, partition_dim=1)
        DistOpt(SGD(lr=0.1), model, comm)
        with pytest.raises(ConfigError, match=r"partitioned over 2 ranks.*Pickle its state_dict\(\)"):
            pickle.dumps(model)

    run_threads(2, pickled)


def test_threads_predict_at_the_same_time(model):
    x = np.random.default_rng(0).normal(size=(4000, 6)).astype(np.float32)
    blocks = np.split(x, 80)
    expected = [model.predict(block) for block in blocks]
    with ThreadPoolExecutor(4) as pool:
        for found, alone in zip(pool.map(model.predict, blocks), expected, strict=True):
            np.testing.assert_array_equal(found, alone)


def described(model, *columns):
    """The model with the description of data that have these columns."""
    text = Schema(columns).to_json()
    again = pickle.loads(pickle.dumps(model))
    again.described = dict.fromkeys(model.net.input_layers, text)
    return pickle.loads(pickle.dumps(again))


def test_classes_and_columns_have_the_names_of_the_data(model):
    names = ("a", "b", "c", "d", "e", "f")
    features = Column("x", Role.FEATURE, "float32", (6,), mean=(0.0,) * 6, std=(1.0,) * 6, names=names)
    named = described(model, features, Column("kind", Role.LABEL, "int64", (), classes=("red", "green", "blue")))
    assert named.classes == ("red", "green", "blue") and model.classes is None
    frame = pd.DataFrame(X, columns=names).assign(kind="red")
    found = named.predict(frame[["kind", *names[::-1]]])
    assert list(found.columns) == ["red", "green", "blue"]
    np.testing.assert_array_equal(found, model.predict(X))
    assert list(model.predict(frame[list(names)]).columns) == ["0", "1", "2"]
    lazy = named.predict(dd.from_pandas(frame, npartitions=2))
    np.testing.assert_allclose(computed(lazy), found, rtol=1e-5)
    for table in (frame.drop(columns="c"), dd.from_pandas(frame.drop(columns="c"), npartitions=2)):
        with pytest.raises(DataError, match="was trained with the columns c, which are missing"):
            named.predict(table)


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (Column("y", Role.TARGET, "float32", (2,), mean=(0.0, 0.0), std=(1.0, 1.0), names=("u", "v")), ["u", "v"]),
        (Column("y", Role.TARGET, "float32", (2,), mean=(0.0, 0.0), std=(1.0, 1.0)), ["y_0", "y_1"]),
        (Column("price", Role.TARGET, "float32", ()), ["output_0", "output_1"]),
    ],
)
def test_values_of_a_target_have_its_names(target, names):
    features = Column("x", Role.FEATURE, "float32", (6,), mean=(0.0,) * 6, std=(1.0,) * 6)
    model = two_inputs()
    assert described(model, features, target).known.names("size") == names
    assert model.known.names("size") == ["output_0", "output_1"] and model.known.names("kind") == ["0", "1", "2"]


def test_one_number_has_the_name_of_the_target():
    data = layers.RecordInput(shape=[6], target_shape=[1])
    model = Model([data, layers.InnerProduct(num_output=1), layers.EuclideanLoss()])
    features = Column("x", Role.FEATURE, "float32", (6,), mean=(0.0,) * 6, std=(1.0,) * 6)
    named = described(model, features, Column("price", Role.TARGET, "float32", ()))
    assert list(named.predict(pd.DataFrame(X)).columns) == ["price"] and named.classes is None


def tagger():
    """A class for each of 4 time steps."""
    data = layers.RecordInput("data", shape=[3], sequence=4)
    net = [data, layers.LSTM(dim_hidden=5), layers.InnerProduct(num_output=2), layers.SoftmaxLoss()]
    job = Job(name="tagger", layers=net, updater=SGD(lr=0.1), train_steps=1, unroll_len=4)
    return Model(job.proto.neuralnet, seed=3)


def test_a_layer_with_time_steps_has_an_axis_of_them():
    model = tagger()
    x = np.random.default_rng(2).normal(size=(6, 4, 3)).astype(np.float32)
    found = model.predict(x, batchsize=4)
    assert found.shape == (6, 4, 2)
    changed = x.copy()
    changed[1, 2:] += 1  # later time steps do not change earlier ones, nor other samples
    same = np.isclose(model.predict(changed), found, atol=1e-6).all(axis=-1)
    assert same[[0, 2, 3, 4, 5]].all() and same[1].tolist() == [True, True, False, False]
    np.testing.assert_allclose(model.predict(da.from_array(x, chunks=(2, 4, 3))).compute(), found, rtol=1e-5)
