"""Estimators of sequences: samples (N, T, F), and windows of records in the order of time."""

import pickle

import dask.dataframe as dd
import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.model_selection import TimeSeriesSplit, cross_val_score

from singa_dask import Classifier, Regressor, layers
from singa_dask.errors import ConfigError, DataError

xarray = pytest.importorskip("xarray")

HOURS = np.arange(24 * 50)
DAY = np.sin(2 * np.pi * HOURS / 24)
Y = (20 + 5 * DAY + 2 * DAY * np.cos(2 * np.pi * HOURS / 168)).astype(np.float32)
X = np.stack([Y, 1000 * np.cos(2 * np.pi * HOURS / 24)], 1).astype(np.float32)
W = np.moveaxis(np.lib.stride_tricks.sliding_window_view(X, 24, axis=0), -1, 1)[:-6]
AHEAD = np.lib.stride_tricks.sliding_window_view(Y, 6)[24:]
CUT = 900
FEW = {"epochs": 6, "learning_rate": 0.01, "random_state": 0}
WINDOWS = {"sequence": 24, "horizon": 6}


def recurrent(kind):
    return [kind(dim_hidden=12), layers.InnerProduct(num_output=6)]


NETS = {
    "lstm": lambda: recurrent(layers.LSTM),
    "stacked": lambda: [layers.InnerProduct(num_output=8), layers.GRU(dim_hidden=8), *recurrent(layers.RNN)],
    "attention": lambda: [
        layers.InnerProduct(num_output=12),
        layers.Attention(num_heads=2),
        layers.ReLU(),
        layers.InnerProduct(num_output=6),
    ],
}


@pytest.mark.parametrize("name", NETS)
def test_samples_of_steps_and_features_are_read_step_by_step(name):
    regressor = Regressor(NETS[name](), **FEW).fit(W[:CUT], AHEAD[:CUT])
    state = regressor.model_.state_dict()
    assert next(value.shape for value in state.values() if value.ndim == 2)[-1 if name == "lstm" else 0] == 2
    predicted = regressor.predict(W[CUT:])
    assert predicted.shape == AHEAD[CUT:].shape
    assert regressor.score(W[CUT:], AHEAD[CUT:]) > 0.8
    store, rows = regressor.model_.net.layers["data"].proto.store_conf, W[:CUT].reshape(-1, 2)
    np.testing.assert_allclose(store.mean, rows.mean(0, dtype=float), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(store.std, rows.std(0, dtype=float), rtol=1e-4)


def test_the_order_of_the_steps_counts_and_not_that_of_the_samples():
    order = np.random.default_rng(0).permutation(CUT)
    mixed = W.copy()
    np.random.default_rng(0).permuted(mixed, axis=1, out=mixed)
    right = Regressor(NETS["lstm"](), **FEW).fit(W[order], AHEAD[order]).score(W[CUT:], AHEAD[CUT:])
    wrong = Regressor(NETS["lstm"](), **FEW).fit(mixed[:CUT], AHEAD[:CUT]).score(mixed[CUT:], AHEAD[CUT:])
    assert right > wrong + 0.2


def test_nets_without_time_and_nets_of_images_stay_as_they_are():
    flat = Regressor([layers.InnerProduct("first", num_output=6)], epochs=1).fit(W[:50], AHEAD[:50])
    assert flat.model_.state_dict()["first_weight"].shape == (48, 6)
    images = np.random.default_rng(0).normal(size=(20, 4, 4, 3))
    attention = [layers.Attention(num_heads=1), layers.InnerProduct(num_output=2)]
    model = Classifier(attention, epochs=1).fit(images, np.arange(20) % 2).model_
    assert model.state_dict()["innerproduct1_weight"].shape == (48, 2)


def test_videos_are_sequences_of_images():
    videos = np.random.default_rng(0).normal(size=(20, 5, 4, 4, 1))
    net = [layers.InnerProduct("each", num_output=4), layers.GRU(dim_hidden=4), layers.InnerProduct(num_output=2)]
    assert Classifier(net, epochs=1).fit(videos, np.arange(20) % 2).model_.state_dict()["each_weight"].shape == (16, 4)


def test_classes_weights_dask_and_more_samples():
    import dask.array as da

    up = np.where(AHEAD[:, 0] > 20, "up", "down")
    net = [layers.GRU(dim_hidden=12), layers.InnerProduct(num_output=2)]
    classifier = Classifier(net, **FEW).fit(W[:CUT], up[:CUT], sample_weight=np.ones(CUT))
    assert classifier.score(W[CUT:], up[CUT:]) > 0.9
    assert classifier.partial_fit(W[:CUT], up[:CUT]).score(W[CUT:], up[CUT:]) > 0.9
    lazy = da.from_array(W[CUT:], chunks=(100, 24, 2))
    np.testing.assert_allclose(classifier.predict_proba(lazy).compute(), classifier.predict_proba(W[CUT:]), rtol=1e-4)
    of_dask = Classifier(net, **FEW).fit(
        da.from_array(W[:CUT], chunks=(100, 24, 2)), da.from_array(up[:CUT], chunks=100)
    )
    assert of_dask.score(W[CUT:], up[CUT:]) > 0.9


def forecaster(**options):
    return Regressor([layers.RecordInput(**WINDOWS), *NETS["lstm"]()], **{**FEW, **options})


def test_records_are_read_in_windows():
    forecast = forecaster(validation=0.2).fit(X[:CUT], Y[:CUT])
    predicted = forecast.predict(X[CUT:])
    assert predicted.shape == (len(X) - CUT - 23, 6)
    np.testing.assert_allclose(predicted[-1], forecast.predict(X[-24:])[0], rtol=1e-5)
    true = np.lib.stride_tricks.sliding_window_view(Y[CUT:], 6)[24:]
    error = ((predicted[:-6] - true) ** 2).mean(0) / true.var(0)
    assert forecast.score(X[CUT:], Y[CUT:]) == pytest.approx(1 - error.mean(), abs=1e-5)
    assert forecast.score(X[CUT:], Y[CUT:]) > 0.9
    assert forecast.n_iter_ == FEW["epochs"]
    again = pickle.loads(pickle.dumps(forecast))
    np.testing.assert_array_equal(again.predict(X[CUT:]), predicted)
    assert (cross_val_score(clone(forecast), X, Y, cv=TimeSeriesSplit(2)) > 0.5).all()


def test_several_targets_of_windows_keep_their_layout():
    both = np.stack([Y, -2 * Y], 1)
    net = [layers.RecordInput(**WINDOWS), layers.LSTM(dim_hidden=12), layers.InnerProduct(num_output=12)]
    forecast = Regressor(net, **FEW).fit(X[:CUT], both[:CUT])
    predicted = forecast.predict(X[CUT:])
    assert predicted.shape == (len(X) - CUT - 23, 6, 2)
    np.testing.assert_allclose(predicted[..., 1], -2 * predicted[..., 0], rtol=0.4, atol=4)
    assert forecast.score(X[CUT:], both[CUT:]) > 0.8


def test_the_class_after_a_window():
    up = np.where(Y > 20, "up", "down")
    net = [layers.RecordInput(sequence=24, horizon=1), layers.GRU(dim_hidden=8), layers.InnerProduct(num_output=2)]
    classifier = Classifier(net, **FEW).fit(X[:CUT], up[:CUT])
    found = classifier.predict(X[CUT:])
    assert found.shape == (len(X) - CUT - 23,)
    assert classifier.score(X[CUT:], up[CUT:]) == np.mean(found[:-1] == up[CUT + 24 :]) > 0.9


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f: f().fit(X, Y, sample_weight=np.ones(len(X))), ConfigError, "weights .* count single records"),
        (lambda f: f().fit(X[:20], Y[:20]), ConfigError, "no window of 24 records and a horizon of 6"),
        (lambda f: f().fit(X, Y).predict(X[:23]), ValueError, "X has 23 records, but the net reads windows of 24"),
        (lambda f: f().fit(X, Y).score(X[:29], Y[:29]), ValueError, "are 30 records, but y has 29"),
        (lambda f: f().fit(X, Y).score(X, Y, np.ones(len(X))), ValueError, "sample_weight counts single records"),
        (
            lambda _: Regressor([layers.RecordInput(sequence=24, stride=1), *NETS["lstm"]()]).fit(X, Y),
            *(ConfigError, "horizon: is missing.*horizon=24"),
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(lambda: forecaster(epochs=1))


def test_folds_of_a_table_keep_the_order_of_its_index(caplog):
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(X, index=pd.Timestamp("2020-01-01") + pd.to_timedelta(HOURS, unit="h"), columns=["a", "b"])
    forecast, shuffled = forecaster(epochs=1), np.random.default_rng(0).permutation(CUT)
    with pytest.raises(ValueError, match="X: its index does not rise"):
        forecast.fit(table.iloc[shuffled], Y[shuffled])
    forecast.fit(table[:CUT], Y[:CUT]).predict(table[CUT:])
    assert "gaps" not in caplog.text
    with pytest.raises(ValueError, match="X: its index does not rise"):
        forecast.predict(table[::-1])
    middle = np.r_[:300, 600:CUT]
    forecast.fit(table.iloc[middle], Y[middle])
    assert "X: its index has 1 gap, which windows cross" in caplog.text


def ragged(rows, seed=0):
    """Sequences of 2 to 9 steps, and whether their last step is above the first."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(rng.integers(2, 10), 2)) * [1, 100] for _ in range(rows)]
    return x, np.array([each[-1, 0] > each[0, 0] for each in x])


def test_sequences_may_have_different_lengths():
    x, y = ragged(600)
    net = [layers.LSTM(dim_hidden=16), layers.InnerProduct(num_output=2)]
    classifier = Classifier(net, epochs=15, learning_rate=0.02, random_state=0, validation=ragged(50, 1))
    classifier.fit(x, y, sample_weight=np.ones(600))
    others, true = ragged(200, 2)
    assert classifier.score(others, true) > 0.9
    alone = np.concatenate([classifier.predict_proba([each]) for each in others[:9]])
    np.testing.assert_allclose(classifier.predict_proba(others)[:9], alone, rtol=1e-4, atol=1e-6)
    same = np.stack([each[:2] for each in others])
    np.testing.assert_allclose(classifier.predict_proba(same), classifier.predict_proba(list(same)), rtol=1e-6)
    assert classifier.partial_fit(x, y).score(others, true) > 0.9
    assert len(cross_val_score(classifier, x, y, cv=2)) == 2
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict(others), classifier.predict(others))


def test_numbers_of_sequences_of_different_lengths():
    x, _ = ragged(400)
    y = np.array([each[:, 0].sum() for each in x])
    net = [layers.GRU(dim_hidden=16), layers.InnerProduct(num_output=1)]
    regressor = Regressor(net, epochs=15, learning_rate=0.02, random_state=0).fit(x, y)
    assert regressor.predict(x[:5]).shape == (5,)
    others, _ = ragged(100, 3)
    assert regressor.score(others, [each[:, 0].sum() for each in others]) > 0.8


def few():
    return Classifier([layers.GRU(dim_hidden=4), layers.InnerProduct(num_output=2)], epochs=1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, y: Classifier([layers.InnerProduct(num_output=2)]).fit(x, y), ConfigError, "has no time steps"),
        (lambda x, y: few().fit([*x, np.zeros((3, 4))], [*y, True]), ValueError, "with equal features"),
        (lambda x, y: few().fit([*x, np.zeros((0, 2))], [*y, True]), ValueError, r"X\[60\] has no time steps"),
        (lambda x, y: few().fit([*x, np.full((3, 2), np.nan)], [*y, True]), ValueError, "NaN"),
        (lambda x, y: few().fit(x, y).predict([np.zeros((30, 2))]), ValueError, "has 30 time steps, .* at most 9"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(*ragged(60))


@pytest.mark.parametrize("lengths", [(7, 7), (4, 9)])
def test_columns_of_lists_of_tables_are_taken_by_their_names(lengths):
    draw = np.random.default_rng(0)
    given = [pandas.DataFrame(draw.normal(size=(n, 2)), columns=["a", "b"]) for n in draw.choice(lengths, 40)]
    y = np.array([each.a.iloc[-1] for each in given])
    mixed = [each[["b", "a"]] if i % 2 and i else each for i, each in enumerate(given)]
    net = [layers.GRU(dim_hidden=4), layers.InnerProduct(num_output=1)]
    fitted, others = (Regressor(net, epochs=1, random_state=0).fit(each, y) for each in (given, mixed))
    expected = fitted.predict(given)
    np.testing.assert_array_equal(others.predict(given), expected)
    np.testing.assert_array_equal(fitted.predict(mixed), expected)
    with pytest.raises(ValueError, match=r"X\[0\] lacks the columns b"):
        fitted.predict([each.rename(columns={"b": "c"}) for each in given])


TIMES = pandas.date_range("2024-01-01", periods=60, freq="h")
RECORDS = {
    "DataFrame": lambda x: x,
    "DataFrame of Dask": lambda x: dd.from_pandas(x, npartitions=2, sort=False),
    "DataArray": lambda x: xarray.DataArray(x.to_numpy(), {"time": x.index}, ("time", "f")),
    "Dataset": lambda x: xarray.Dataset({"x": xarray.DataArray(x.to_numpy(), {"time": x.index}, ("time", "f"))}),
    "column of dates": lambda x: x.reset_index(),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_records_that_do_not_rise_in_time_are_refused_in_every_container(kind):
    frame = pandas.DataFrame(X[:60], TIMES, ["a", "b"])
    make = RECORDS[kind]
    y = dd.from_pandas(pandas.Series(Y[:60]), npartitions=2) if kind == "DataFrame of Dask" else Y[:60]
    net = [layers.RecordInput(sequence=4, horizon=1), layers.InnerProduct(num_output=1)]
    with pytest.raises((ValueError, ConfigError), match="in the order of time"):
        Regressor(net, epochs=1).fit(make(frame[::-1]), y)
    if kind != "DataFrame of Dask":  # of which windows are not predicted
        with pytest.raises(ValueError, match="in the order of time"):
            Regressor(net, epochs=1).fit(make(frame), y).predict(make(frame[::-1]))


def test_series_that_training_did_not_have_are_told_apart_by_numbers():
    records = pandas.DataFrame({"station": np.repeat([*"pq"], 20), "a": Y[:40]})
    numbers = records.assign(station=pandas.factorize(records.station)[0])
    window = layers.RecordInput(sequence=3, horizon=1, series="station")
    net = Regressor([window, layers.InnerProduct(num_output=1)], epochs=1)
    with pytest.raises(DataError, match=r"the category 'r' was not in the training data.*number its values"):
        net.fit(records, records.a).predict(records[:20].assign(station="r"))
    assert net.fit(numbers, records.a).predict(numbers.assign(station=numbers.station + 7)).shape == (36, 1)


@pytest.mark.parametrize("more", [-1, 3, 7])
@pytest.mark.parametrize("kind", ["arrays", "tables", "y alone"])
def test_scores_of_windows_need_a_row_of_y_for_each_record(kind, more):
    x, y = np.sin(np.arange(40.0))[:, None], np.cos(np.arange(40 + more))
    table = pandas.DataFrame({"a": x[:, 0]}, pandas.RangeIndex(5, 45)) if kind == "tables" else x
    y = (
        pandas.Series(y, pandas.RangeIndex(5, 45 + more))
        if kind == "tables"
        else y.tolist()
        if kind == "y alone"
        else y
    )
    net = [layers.RecordInput(sequence=4, horizon=2), layers.InnerProduct(num_output=2)]
    fitted = Regressor(net, epochs=1, random_state=0).fit(table, y[:40] if more > 0 else x[:, 0])
    with pytest.raises(ValueError, match=rf"X has 40 records, but y has {40 + more}\. Give y a row for each"):
        fitted.score(table, y)
