"""Classifier and Regressor: what users of scikit-learn type."""

import pickle
import subprocess
import sys

import numpy as np
import pandas
import pytest
from dask.dataframe import from_pandas
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from singa_dask import Classifier, ClusterTopology, Job, Module, Regressor, autograd, layers, updaters
from singa_dask.errors import ConfigError, DataError

DRAW = np.random.default_rng(0)
IRIS = load_iris(return_X_y=True)
NAMES = load_iris().target_names
FEW = {"epochs": 20, "random_state": 0}


def weights(estimator):
    return np.concatenate([value.ravel() for value in estimator.model_.state_dict().values()])


def test_digits_in_a_pipeline_with_a_grid_search():
    x, y = load_digits(return_X_y=True)
    pipeline = make_pipeline(FunctionTransformer(np.sqrt), Classifier(epochs=8, random_state=0))
    search = GridSearchCV(pipeline, {"classifier__learning_rate": [0.00001, 0.002]}, cv=2).fit(x[:400], y[:400])
    assert search.best_params_ == {"classifier__learning_rate": 0.002}
    assert search.score(x[400:], y[400:]) > 0.85


def test_images_get_a_convolutional_net():
    data = load_digits()
    x, y = data.images[:300, ..., None], data.target[:300]
    classifier = Classifier(epochs=6, random_state=0).fit(x, y)
    assert "conv1_weight" in classifier.model_.state_dict()
    assert classifier.score(x, y) > 0.6
    with pytest.raises(ValueError, match=r"X has samples of shape \(8, 8, 2\), but it was fitted to \(8, 8, 1\)"):
        classifier.predict(np.zeros((3, 8, 8, 2)))


def test_labels_may_be_texts():
    x, y = IRIS
    classifier = Classifier(epochs=60, random_state=0).fit(x, NAMES[y])
    assert classifier.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert classifier.score(x, NAMES[y]) > 0.9
    assert set(classifier.predict(x[:5])) == {"setosa"}
    assert classifier.model_.classes == ("setosa", "versicolor", "virginica")
    probabilities = classifier.predict_proba(x)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    order = np.random.default_rng(0).permutation(len(x))
    np.testing.assert_allclose(classifier.predict_proba(x[order]), probabilities[order], rtol=1e-4, atol=1e-7)


def test_what_a_fit_leaves():
    pandas = pytest.importorskip("pandas")
    x, y = IRIS
    frame = pandas.DataFrame(x, columns=load_iris().feature_names)
    classifier = Classifier(**FEW, validation=0.2).fit(frame, y)
    assert classifier.n_features_in_ == 4 and classifier.n_iter_ == 20
    assert classifier.feature_names_in_.tolist() == load_iris().feature_names
    history = classifier.history_
    assert set(history["phase"]) == {"train", "validate"} and history["step"].max() > 20
    assert classifier.result_.summary["status"] == "completed"
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame[frame.columns[::-1]])


def test_a_random_state_decides_everything():
    fits = [weights(Classifier(epochs=5, random_state=state).fit(*IRIS)) for state in (1, 1, 2)]
    np.testing.assert_array_equal(fits[0], fits[1])
    assert not np.array_equal(fits[0], fits[2])


def test_weights_of_samples_count_as_repetitions():
    x, y = IRIS
    counts = DRAW.integers(0, 3, len(y))
    repeated = Classifier(**FEW, batch_size=1000).fit(np.repeat(x, counts, axis=0), np.repeat(y, counts))
    weighted = Classifier(**FEW, batch_size=1000).fit(x, y, sample_weight=counts)
    np.testing.assert_allclose(weighted.predict_proba(x), repeated.predict_proba(x), rtol=1e-3, atol=1e-5)
    assert (
        np.abs(weighted.predict_proba(x) - Classifier(**FEW, batch_size=1000).fit(x, y).predict_proba(x)).max() > 0.01
    )


def test_weights_of_classes():
    x = DRAW.normal(size=(300, 2))
    y = (x[:, 0] + DRAW.normal(size=300) > 1.5).astype(int)
    found = [
        Classifier(**FEW, class_weight=how).fit(x, y).predict(x).mean() for how in (None, "balanced", {0: 1, 1: 50})
    ]
    assert found[0] < found[1] < found[2]


def test_several_targets_and_their_units():
    x = DRAW.normal(size=(300, 3))
    y = np.stack([1000 + 50 * x[:, 0], 0.001 * x[:, 1] - 3], axis=1)
    regressor = Regressor(epochs=60, random_state=0).fit(x, y)
    assert regressor.score(x, y) > 0.98
    one = Regressor(**FEW).fit(x, y[:, 0])
    assert one.predict(x).shape == (300,) and abs(one.predict(x).mean() - 1000) < 20
    assert Regressor(epochs=1).fit(x, np.zeros((300, 4, 6))).predict(x).shape == (300, 4, 6)


@pytest.mark.parametrize("first", [False, True])
def test_the_score_of_fields_is_the_mean_over_channels(first):
    x = DRAW.normal(size=(60, 5, 5))
    y, weight = np.stack([x, 3 * x**2, 0 * x], axis=-1), DRAW.random(60)
    regressor = Regressor(epochs=3, random_state=0).fit(x, np.moveaxis(y, -1, 1) if first else y)
    rows = np.moveaxis(regressor.predict(x), 1, -1) if first else regressor.predict(x)
    expected = r2_score(y.reshape(-1, 3), rows.reshape(-1, 3), sample_weight=weight.repeat(25))
    assert regressor.score(x, np.moveaxis(y, -1, 1) if first else y, weight) == pytest.approx(expected)


@pytest.mark.parametrize("estimator", [Classifier, Regressor])
def test_it_can_be_cloned_and_pickled(estimator):
    fitted = estimator(**FEW).fit(*IRIS)
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.predict(IRIS[0]), fitted.predict(IRIS[0]))
    fresh = clone(fitted)
    assert fresh.get_params() == fitted.get_params() and not hasattr(fresh, "model_")
    with config_context(enable_metadata_routing=True):
        asking = estimator().set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        assert str(clone(asking).get_metadata_routing()) == str(asking.get_metadata_routing())
    with pytest.raises(NotFittedError):
        fresh.predict(IRIS[0])


@pytest.mark.parametrize("estimator", [Classifier, Regressor])
def test_more_samples_can_follow(estimator):
    x, y = IRIS
    classes = {"classes": [0, 1, 2]} if estimator is Classifier else {}
    part = estimator(learning_rate=0.01, batch_size=15, random_state=0).partial_fit(x[::2], y[::2], **classes)
    first = part.score(x, y)
    for _ in range(9):
        part.partial_fit(x[1::2], y[1::2])
    assert part.n_iter_ == 10 and part.score(x, y) > max(0.85, first)


@pytest.mark.parametrize("lazy", [False, True])
def test_fields_come_back_in_the_layout_of_the_targets(lazy):
    x = DRAW.normal(size=(120, 2))
    last = x[:, 0][:, None, None, None] * np.arange(1, 4) + 10 * np.arange(3) + np.zeros((6, 6, 1))
    for fields in (last, np.moveaxis(last, -1, 1)):
        given = x, fields
        if lazy:
            array = pytest.importorskip("dask.array")
            given = [array.from_array(values, chunks=(40, *values.shape[1:])) for values in given]
        predicted = Regressor(epochs=20, learning_rate=0.05, random_state=0).fit(*given).predict(given[0])
        assert predicted.shape == fields.shape and np.abs(np.asarray(predicted) - fields).mean() < 1.5


def test_columns_of_dask_are_taken_by_their_names_and_encoded_as_at_first():
    pandas, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    kind = DRAW.choice(["p", "q"], 200)
    table = pandas.DataFrame({"a": DRAW.normal(size=200), "b": DRAW.normal(size=200), "kind": kind})
    y = 3 * table["a"] - table["b"] + 5 * (kind == "q")

    def lazily(table):
        return dd.from_pandas(table, npartitions=2)

    numbers = table[["a", "b"]]
    eager = Regressor(epochs=30, learning_rate=0.02, random_state=0).fit(numbers, y)
    expected = eager.predict(numbers)
    np.testing.assert_allclose(
        eager.predict(lazily(table[["kind", "b", "a"]])).compute(), expected, rtol=1e-3, atol=1e-5
    )
    with pytest.raises(ValueError, match=r"X lacks the columns a, to which it was fitted\. Valid: b, kind"):
        eager.predict(lazily(table[["b", "kind"]]))
    more = Regressor(learning_rate=0.02, random_state=0)
    for _ in range(3):
        more.partial_fit(lazily(table), lazily(y.rename("t")))
    before = np.asarray(more.predict(lazily(table)).compute())
    changed = table[["kind", "b", "a"]][table["kind"] == "q"]
    more.set_params(learning_rate=1e-9).partial_fit(lazily(changed), lazily(y[table["kind"] == "q"].rename("t")))
    np.testing.assert_allclose(more.predict(lazily(table)).compute(), before, rtol=1e-3, atol=1e-3)
    with pytest.raises(DataError, match="column 'kind': the category 'r' is not in the training samples"):
        more.partial_fit(lazily(table.assign(kind="r")), lazily(y.rename("t")))


def test_dask_answers_may_have_the_forms_of_pandas():
    pandas, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    table = pandas.DataFrame({"a": DRAW.normal(size=60), "b": DRAW.normal(size=60)})
    table["kind"] = np.where(table["a"] > 0, "yes", "no")
    table["some"] = table["kind"].where(table["a"] > -1)
    lazy = dd.from_pandas(table, npartitions=2)
    x = lazy[["a", "b"]]
    assert Regressor(epochs=1).fit(x, lazy[["a", "b"]]).predict(x).compute().shape == (60, 2)
    assert Classifier(epochs=1).fit(x, lazy[["kind"]]).classes_.tolist() == ["no", "yes"]
    for missing in (lazy["some"], lazy["a"].where(lazy["a"] > 0).to_dask_array(lengths=True)):
        with pytest.raises(ValueError, match=r"Input y has missing labels\. Leave out"):
            Classifier(epochs=1).fit(x, missing)


@pytest.mark.parametrize("lazy", [False, True])
def test_samples_without_weight_do_not_count_in_the_normalisation_either(lazy):
    x, weight = DRAW.normal(size=(300, 2)), np.ones(340)
    y = 3 * x[:, 0] - x[:, 1]
    weight[300:] = 0
    given = np.r_[x, np.full((40, 2), 1e6)], np.r_[y, np.full(40, 1e8)], weight
    if lazy:
        array = pytest.importorskip("dask.array")
        given = [array.from_array(values, chunks=(85, *values.shape[1:])) for values in given]
    regressor = Regressor(epochs=30, learning_rate=0.02, random_state=0).fit(*given)
    assert regressor.score(x, y) > 0.95
    with pytest.raises((ValueError, DataError), match=r"at least one non-zero|weights of all samples are 0"):
        regressor.fit(given[0], given[1], sample_weight=0 * given[2])


class Hidden(Module):
    def __init__(self):
        self.hidden, self.out = layers.InnerProduct(num_output=8), layers.InnerProduct(num_output=3)

    def forward(self, x):
        return self.out(autograd.tanh(self.hidden(x)))


class WithLoss(Module):
    def __init__(self):
        self.out, self.loss = layers.InnerProduct(num_output=3), layers.SoftmaxLoss()

    def forward(self, x, labels):
        return self.loss(self.out(x), labels)


NET = {
    "hidden layers": lambda: [layers.InnerProduct(num_output=8), layers.Tanh(), layers.InnerProduct(num_output=3)],
    "a whole net": lambda: [
        layers.RecordInput(batchsize=10, std_value=2.0),
        layers.InnerProduct(num_output=3),
        layers.SoftmaxLoss(),
    ],
    "a module": Hidden,
    "a module in a list": lambda: [Hidden()],
    "a module with a loss": WithLoss,
}


@pytest.mark.parametrize("kind", NET)
def test_the_net_may_be_a_list_of_layers_or_a_module(kind):
    classifier = Classifier(NET[kind](), epochs=60, learning_rate=0.02, random_state=0).fit(*IRIS)
    assert classifier.score(*IRIS) > 0.9
    assert len(classifier.model_.state_dict()) == (2 if kind in ("a whole net", "a module with a loss") else 4)


def test_the_net_may_be_a_job_or_its_file(tmp_path):
    job = Job(name="mine", layers=NET["a whole net"](), updater=updaters.SGD(lr=0.1), train_steps=150)
    (tmp_path / "job.conf").write_text(job.to_text())
    scores = [Classifier(net, random_state=0).fit(*IRIS) for net in (job, tmp_path / "job.conf")]
    assert scores[0].n_iter_ == 10  # 150 steps of 10
    np.testing.assert_array_equal(*map(weights, scores))
    assert Classifier(job, epochs=2).fit(*IRIS).n_iter_ == 2
    assert job.proto.neuralnet.layer[0].store_conf.path == ""


def test_without_a_workspace_nothing_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    Classifier(epochs=1).fit(*IRIS)
    assert list(tmp_path.iterdir()) == []


def test_features_are_normalised_unless_that_is_switched_off():
    x, y = IRIS
    moved = 1000 * x + 5
    found = {
        scaled: [Classifier(**FEW, normalise=scaled).fit(data, y).predict_proba(data) for data in (x, moved)]
        for scaled in (True, False)
    }
    np.testing.assert_allclose(*found[True], rtol=1e-2, atol=1e-3)
    assert np.abs(found[False][0] - found[False][1]).max() > 0.1


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Classifier(cluster=ClusterTopology.allreduce(2)).fit(*IRIS), ConfigError, "cluster: .*client=Client"),
        (
            lambda: Classifier(updater=updaters.SGD(lr=1), learning_rate=1.0).fit(*IRIS),
            ConfigError,
            "learning_rate: is given, and an updater too",
        ),
        (lambda: Classifier(patience=3).fit(*IRIS), ConfigError, r"patience: is of a validation.*validation=0\.1"),
        (lambda: Classifier(validation=2.0).fit(*IRIS), ConfigError, "validation: a share must lie between 0 and 1"),
        (lambda: Classifier().fit(*IRIS, sample_weight=np.zeros(150)), ValueError, "at least one non-zero"),
        (lambda: Classifier().partial_fit(*IRIS), ValueError, "classes must be passed on the first call"),
        (lambda: Classifier().partial_fit(*IRIS, classes=[0, 1]), ValueError, "y holds 2, which is not one of the"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_importing_the_package_imports_no_scikit_learn():
    program = "import sys, singa_dask; print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_without_scikit_learn_the_error_names_the_extra():
    program = "import sys; sys.modules['sklearn'] = None; from singa_dask import Classifier"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Classifier needs scikit-learn: pip install 'singa_dask[estimators]'" in done.stderr


def test_patience_ends_the_fit_and_the_best_parameters_are_kept():
    x, y = (array[:700] for array in load_digits(return_X_y=True))
    y = np.where(DRAW.random(len(y)) < 0.4, DRAW.integers(0, 10, len(y)), y)  # noise, which is learnt by heart
    settings = {"epochs": 60, "validation": 0.2, "learning_rate": 0.01, "random_state": 0}
    stopped = Classifier(patience=3, **settings).fit(x, y)
    history = stopped.history_
    losses = history["loss"][history["phase"] == "validate"].to_numpy()
    assert stopped.n_iter_ < 30
    assert losses.argmin() < len(losses) - 3
    assert stopped.score(x, y) < Classifier(**settings).fit(x, y).score(x, y)


def test_dask_arrays_stay_lazy():
    da = pytest.importorskip("dask.array")
    x, y = IRIS
    lazy, names = da.from_array(x, chunks=(40, 2)), da.from_array(NAMES[y], chunks=40)
    classifier = Classifier(epochs=60, random_state=0).fit(lazy, names)
    assert classifier.classes_.tolist() == NAMES.tolist() == list(classifier.model_.classes)
    predicted = classifier.predict(lazy)
    assert isinstance(predicted, da.Array) and predicted.dtype == NAMES.dtype and predicted.chunks == names.chunks
    assert (predicted.compute() == classifier.predict(x)).all() and (predicted == names).mean().compute() > 0.9
    regressor = Regressor(epochs=60, random_state=0).fit(lazy, 2 * lazy[:, :2])
    assert regressor.predict(lazy).shape == (150, 2)
    np.testing.assert_allclose(regressor.predict(lazy).compute(), 2 * x[:, :2], atol=1)
    whole = Regressor(epochs=60, random_state=0).fit(lazy, da.from_array(y, chunks=40))
    np.testing.assert_allclose(whole.predict(lazy).compute(), whole.predict(x), rtol=1e-5)


def test_classes_of_collections_may_be_any_numbers():
    """In shards the answers are places among the classes. Those of the classes 2 and 3 are 1 and 2, names too."""
    da = pytest.importorskip("dask.array")
    x = np.concatenate([DRAW.normal(size=(60, 2)) - 4, DRAW.normal(size=(60, 2)) + 4])
    y = np.repeat([2, 3], 60)
    lazy = da.from_array(x, chunks=(50, 2)), da.from_array(y, chunks=50)
    part = Classifier(learning_rate=0.05, random_state=0).partial_fit(*lazy, classes=(1, 2, 3))
    for _ in range(4):
        part.partial_fit(*lazy)
    assert part.classes_.tolist() == [1, 2, 3]
    assert part.predict_proba(x).shape == (120, 3) and (part.predict(x) == y).mean() > 0.95


def test_dask_dataframes_stay_lazy():
    pandas, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    x, y = pandas.DataFrame(IRIS[0], columns=list("abcd")), pandas.Series(NAMES[IRIS[1]], name="kind")
    lazy = dd.from_pandas(x, npartitions=3)
    classifier = Classifier(epochs=60, random_state=0).fit(lazy, dd.from_pandas(y, npartitions=3))
    assert classifier.feature_names_in_.tolist() == list("abcd") and classifier.n_features_in_ == 4
    predicted = classifier.predict(lazy)
    assert isinstance(predicted, dd.Series) and predicted.npartitions == 3
    assert (predicted.compute() == y).mean() > 0.9
    assert list(classifier.predict_proba(lazy).columns) == NAMES.tolist()
    number = Regressor(epochs=60, random_state=0).fit(lazy, lazy["a"] * 10).predict(lazy)
    assert np.abs(number.compute() - x["a"] * 10).mean() < 2


def test_a_workspace_keeps_the_run_and_callbacks_are_told(tmp_path):
    told = []
    classifier = Classifier(epochs=1, callbacks=[told.append], workspace=tmp_path / "run").fit(*IRIS)
    assert classifier.result_.checkpoint.exists() and (tmp_path / "run/job.conf").exists() and told


@pytest.mark.parametrize("weights", [None, "balanced", {7: 2.0}])
def test_classes_that_are_outputs_of_the_net_keep_their_numbers(weights):
    x, y = np.repeat(np.eye(2), 30, axis=0), np.repeat([2, 7], 30)
    net = [layers.InnerProduct(num_output=10)]
    classifier = Classifier(net, epochs=60, learning_rate=0.2, class_weight=weights, random_state=0).fit(x, y)
    assert classifier.classes_.tolist() == list(range(10))
    scores = classifier.predict_proba(x)
    assert scores.shape == (60, 10) and (scores.argmax(axis=1) == y).all()
    assert (classifier.predict(x) == y).all() and classifier.score(x, y) == 1
    assert Classifier([layers.InnerProduct(num_output=2)], epochs=1).fit(x, y).classes_.tolist() == [2, 7]


def test_targets_are_taken_by_the_names_of_their_columns():
    draw = np.random.default_rng(0)
    x = pandas.DataFrame(draw.normal(size=(60, 3)), columns=list("abc"))
    y = pandas.DataFrame({"u": 3 * x.a, "v": 50 * x.b})
    turned = y[["v", "u"]]
    fitted = Regressor(epochs=2, random_state=0, validation=(x, y)).fit(x, y)
    assert fitted.score(x, turned) == fitted.score(x, y)
    other = Regressor(epochs=2, random_state=0, validation=(x, turned)).fit(x, y)
    np.testing.assert_array_equal(other.history_.loss, fitted.history_.loss)
    np.testing.assert_array_equal(
        *(Regressor(random_state=0).partial_fit(x, y).partial_fit(x, each).predict(x) for each in (y, turned))
    )
    with pytest.raises(ValueError, match="y lacks the columns v"):
        fitted.score(x, y.rename(columns={"v": "w"}))
    with pytest.raises(DataError, match="y: has the columns v, u, and the net knows no names"):
        fitted.model_.evaluate(x, turned)


def test_a_model_of_a_table_of_numbers_knows_its_columns():
    x = pandas.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=list("abc"))
    fitted = Regressor(epochs=2, random_state=0).fit(x, x.a * 2)
    np.testing.assert_array_equal(fitted.model_.predict(x[["c", "b", "a"]]), fitted.model_.predict(x))
    with pytest.raises(DataError, match="column 'a': is not there"):
        fitted.model_.predict(x.set_axis(list("xyz"), axis=1))


@pytest.mark.parametrize("columns", [["a", "b"], ["a", "b", "kind"]], ids=["numbers", "texts"])
def test_the_model_of_a_weighted_table_evaluates_with_and_without_weights(columns):
    draw = np.random.default_rng(0)
    table = pandas.DataFrame({"a": draw.normal(size=40), "b": draw.normal(size=40), "kind": ["u", "v"] * 20})[columns]
    table.index += 100
    y, weight = np.where(table.a > 0, "p", "q"), pandas.Series(draw.random(40) + 0.1, table.index)
    fitted = Classifier(epochs=1, random_state=0).fit(table, y, sample_weight=weight)
    model = fitted.model_
    for given in (table, {"data": table}, {"data": table, "sample_weight": np.ones(40)}):
        assert model.evaluate(given, y)["accuracy"] == pytest.approx(fitted.score(table, y))
    turned = weight.sample(frac=1, random_state=0)
    for each in (weight, turned, weight.to_frame("w"), weight.to_numpy(), weight.to_numpy()[:, None]):
        found = model.evaluate({"data": table, "sample_weight": each}, y)["accuracy"]
        assert found == pytest.approx(fitted.score(table, y, weight))
    np.testing.assert_allclose(model.predict({"data": table}), fitted.predict_proba(table))
    with pytest.raises(ConfigError, match="x: has a Dask DataFrame for the input layer 'data'"):
        model.predict({"data": from_pandas(table, npartitions=2)})


WORDS = np.array(["no", "yes"], object)
OTHER_TYPES = {
    "partial_fit": lambda x, y: Classifier(epochs=1).partial_fit(x, y, classes=[0, 1]).partial_fit(x, WORDS[y]),
    "validation": lambda x, y: Classifier(epochs=1, validation=(x, WORDS[y])).fit(x, y),
    "later classes": lambda x, y: Classifier(epochs=1).partial_fit(x, WORDS[y], classes=[0, 1]),
}


@pytest.mark.parametrize("way", OTHER_TYPES)
def test_labels_of_another_type_than_the_classes_are_named(way):
    x, y = IRIS[0][:100], IRIS[1][:100]
    with pytest.raises(ValueError, match="y holds values of another type than the classes"):
        OTHER_TYPES[way](x, y)
