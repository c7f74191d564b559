"""Estimators whose answers are fields: a class or numbers for each pixel."""

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner

from singa_dask import Classifier, Job, Model, Regressor, autograd, layers, load_model, shard, train, updaters
from singa_dask.cli import main
from singa_dask.errors import ConfigError, DataError
from singa_dask.inference.blocks import own_blocks
from singa_dask.inference.run import predict_blocks

DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((80, 6, 5, 2)).astype("f4")
Y = np.concatenate([X, -X.sum(axis=-1, keepdims=True)], axis=-1).argmax(axis=-1)
NAMES = np.array(["ice", "land", "sea"])


def net():
    return [layers.Convolution("scores", num_filters=3, kernel=1)]


def classifier(**settings):
    return Classifier(net(), epochs=30, learning_rate=0.05, random_state=0, **settings)


def test_maps_of_classes():
    fitted = classifier(class_weight="balanced", validation=0.2).fit(X, NAMES[Y])
    assert list(fitted.classes_) == list(NAMES)
    p, best = fitted.predict_proba(X), fitted.predict(X)
    assert p.shape == (80, 6, 5, 3) and best.shape == (80, 6, 5)
    np.testing.assert_array_equal(best, NAMES[p.argmax(axis=-1)])
    assert fitted.score(X, NAMES[Y]) == pytest.approx((best == NAMES[Y]).mean()) and fitted.score(X, NAMES[Y]) > 0.8
    weights = DRAW.random(80)
    assert fitted.score(X, NAMES[Y], weights) == pytest.approx(
        np.average((best == NAMES[Y]).mean(axis=(1, 2)), weights=weights)
    )


def test_maps_of_dask():
    x, y = da.from_array(X, chunks=(20, 6, 5, 2)), da.from_array(Y * 10, chunks=(20, 6, 5))
    fitted = classifier().fit(x, y)
    assert list(fitted.classes_) == [0, 10, 20]
    lazy = fitted.predict(x)
    assert isinstance(lazy, da.Array) and lazy.shape == (80, 6, 5)
    np.testing.assert_array_equal(lazy.compute(), fitted.predict(X))
    assert fitted.score(x, y) > 0.8


def test_numbers_with_fractions_are_no_classes():
    with pytest.raises(ValueError, match=r"y must be classes.*Regressor"):
        classifier().fit(X, X[..., 0])


def test_weights_of_samples_count():
    weights = np.r_[np.ones(40), np.zeros(40)]
    y = Y.copy()
    y[40:] = 0
    fitted = classifier().fit(X, y, sample_weight=weights)
    assert fitted.score(X[:40], Y[:40]) > 0.8


def test_a_job_predicts_maps_to_files(tmp_path):
    test = layers.RecordInput("data", batchsize=20, include=["kTest"])
    job = Job(
        name="maps",
        layers=[layers.RecordInput("data", batchsize=20, exclude=["kTest"]), test, *net(), layers.SoftmaxLoss("loss")],
        updater=updaters.Adam(lr=0.05),
        train_steps=40,
        metric=["iou", "dice"],
        test_freq=40,
    )
    result = train(job, data=(X, Y), validation=(X[:20], Y[:20]), processes=False, workspace=tmp_path / "run")
    measured = result.history.query("phase == 'test'").iloc[-1]
    model = load_model(tmp_path / "run")
    best = model.predict(X[:20]).argmax(axis=-1)
    assert measured.accuracy == pytest.approx((best == Y[:20]).mean())
    assert measured.iou < measured.dice <= 1
    import h5py
    import pandas

    predict_blocks(model, own_blocks(model), tmp_path / "p.h5")
    with h5py.File(tmp_path / "p.h5") as file:
        found = file["loss/class"][()][np.argsort(file["sample"][()])]
        assert (file["loss/label"].shape, found.shape) == ((20, 6, 5), (20, 6, 5))
        assert list(file["loss/probabilities"].attrs["classes"]) == [0, 1, 2]
    predict_blocks(model, own_blocks(model), tmp_path / "p.csv")
    table = pandas.read_csv(tmp_path / "p.csv")
    assert list(table.columns[:5]) == ["sample", "position", "label", "class", "probability"]
    assert len(table) == 600 and (table.label == table["class"]).mean() == pytest.approx(measured.accuracy)


def test_a_model_without_shards_names_the_shape_of_the_labels():
    model = Model([layers.RecordInput(shape=[2, 6, 5], label_shape=[6, 5]), *net(), layers.SoftmaxLoss()])
    assert float(model(X, Y)) > 0
    with pytest.raises(ConfigError, match="its source has labels of positions"):
        Model([layers.RecordInput(shape=[2, 6, 5], label_shape=[6, 5]), *net(), layers.MSELoss()])


def test_without_a_net_fields_get_a_unet():
    fitted = Classifier(epochs=1, random_state=0).fit(X[:, :, :4], Y[:, :, :4])
    assert fitted.predict(X[:, :, :4]).shape == (80, 6, 4)
    x = np.moveaxis(DRAW.standard_normal((20, 8, 8, 2)), -1, 1)
    fitted = Regressor(epochs=1, random_state=0).fit(x, 2 * x)
    assert fitted.predict(x).shape == x.shape
    assert "skip1" in fitted.model_.net.layers
    with pytest.raises(ConfigError, match="no net is proposed"):
        Classifier(epochs=1).fit(X[:, :, :4], Y[:, :3, :4])


def test_a_class_that_is_ignored_needs_no_score(tmp_path):
    labels = np.where(DRAW.random(Y.shape) < 0.2, 255, Y)
    column = shard(X, labels, tmp_path / "shards")[""].column("y")
    assert column.classes == ("0", "1", "2", "255")
    data = layers.RecordInput("data", path=str(tmp_path / "shards"), batchsize=20)
    jobs = [
        Job(
            name="j",
            layers=[data, *net(), layers.SoftmaxLoss("loss", **loss)],
            updater=updaters.SGD(lr=1),
            train_steps=9,
        )
        for loss in ({"ignore_label": 3}, {})
    ]
    result = train(jobs[0], processes=False, workspace=tmp_path / "run")
    assert load_model(result.workspace).predict(X).shape == (80, 6, 5, 3)
    with pytest.raises(ConfigError, match=r"the data of 'data' have 4 classes. Received: 3 outputs"):
        train(jobs[1], processes=False, workspace=tmp_path / "other")


def test_the_command_says_that_labels_are_of_positions(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y.astype("u1"))
    command = ["shard", "npz", "--source", str(tmp_path / "a.npz"), "--out", str(tmp_path / "shards")]
    assert "y  label    uint8 (6, 5), 3 classes" in CliRunner().invoke(main, command).output


def test_a_label_is_ignored_by_the_number_of_its_class(tmp_path):
    draw = np.random.default_rng(0)
    x, y = draw.random((12, 4, 4, 2)).astype("f4"), draw.integers(0, 3, (12, 4, 4))
    y[:, 0] = 255
    last = [layers.Convolution(num_filters=3, kernel=1), layers.SoftmaxLoss(ignore_label=255)]
    job = Job(name="m", layers=[layers.RecordInput(batchsize=4), *last], updater=updaters.SGD(lr=0.1), train_steps=1)
    with pytest.raises(ConfigError, match=r"ignore_label is the name of class 3 in .* Received: 255\. Write 3\."):
        train(job, data=(x, y), processes=False, workspace=tmp_path / "run")


def test_maps_with_an_axis_of_one_are_scored_as_those_without():
    x = np.random.default_rng(0).random((6, 4, 4, 2)).astype("f4")
    y = (x[..., :1] > 0.5).astype(int)
    fitted = Classifier(epochs=1).fit(x, y)
    assert fitted.score(x, y) == fitted.score(x, y[..., 0]) == fitted.score(x, y[..., 0].tolist())
    with pytest.raises(ValueError, match=r"y must be maps of the shape \(6, 4, 4\)\. Received: \(6, 4, 2\)"):
        fitted.score(x, y[..., 0][..., :2])


def test_positions_with_negative_numbers_do_not_count(caplog):
    partly = Y.astype(np.int16)
    partly[:, :3] = -1
    fitted = classifier(class_weight="balanced").fit(X, partly)
    assert "positions with negative numbers do not count" in caplog.text
    assert fitted.classes_.tolist() == [0, 1, 2] and set(np.unique(fitted.predict(X))) <= {0, 1, 2}
    assert fitted.score(X, partly) == pytest.approx((fitted.predict(X) == Y)[:, 3:].mean())
    weights = DRAW.random(80)
    assert fitted.score(X, partly, weights) == pytest.approx(
        np.average((fitted.predict(X) == Y)[:, 3:].mean(axis=(1, 2)), weights=weights)
    )


@pytest.mark.parametrize("channels", [(), (1,)])
def test_r2_of_fields_is_over_all_positions(channels):
    rows = X[..., 0]
    fields = (rows + 10 * np.arange(rows.shape[2])).reshape(*rows.shape, *channels)
    fitted = Regressor(epochs=3, random_state=0).fit(X[..., :1], fields)
    predicted = fitted.predict(X[..., :1])
    assert predicted.shape == fields.shape
    wanted = 1 - ((fields - predicted) ** 2).sum() / ((fields - fields.mean()) ** 2).sum()
    assert fitted.score(X[..., :1], fields) == pytest.approx(wanted, rel=1e-5)


def test_scores_of_a_loss_of_ones_own_are_no_probabilities():
    flat, answers = X.reshape(80, -1), Y[:, 0, 0]
    given = [layers.InnerProduct(num_output=3), layers.Loss(one_hot_error, labels=1)]
    fitted = Classifier(given, epochs=1, random_state=0).fit(flat, answers)
    assert set(fitted.predict(flat)) <= {0, 1, 2}
    for x in (flat, da.from_array(flat, chunks=(40, -1))):
        with pytest.raises(ValueError, match="scores of the classes, and no probabilities"):
            np.asarray(fitted.predict_proba(x))


def one_hot_error(x, y):
    return autograd.sum((x - autograd.one_hot(y, 3)) ** 2, axis=1)


@pytest.mark.parametrize(
    ("trained", "given", "score"),
    [
        (NAMES[Y], NAMES[Y].astype(object), 1),
        (Y * 10, Y * 10.0, 1),
        (Y * 10, (Y * 10).astype(str), "Mix of label input types"),
        (NAMES[Y], Y, "Mix of label input types"),
        (Y + 3, Y > 1, r"y holds bool, and the classes are \[3, 4, 5\]: booleans"),
        (Y > 0, (Y > 0).astype(int), 1),
        (Y > 0, Y + 3, r"y holds int64, and the classes are \[False, True\]: booleans"),
        (np.arange(2).repeat(40), np.arange(2).repeat(40) == 1, 1),
        (np.arange(2).repeat(40) + 1, np.arange(2).repeat(40) == 1, r"the classes are \[1, 2\]: booleans"),
    ],
)
def test_labels_of_another_type_score_as_those_or_are_refused(trained, given, score):
    fitted = Classifier(epochs=1)
    fitted.predict = lambda X: trained
    fitted._labels, fitted._windows, fitted._index = (None, None), None, None
    fitted._describe_answers(trained, None)
    fitted._answer_names = None
    if score == 1:
        assert fitted.score(X, given) == 1
        assert fitted.score(X, np.roll(given, 7)) == (np.roll(trained, 7) == trained).mean()
    else:
        with pytest.raises(ValueError, match=score):
            fitted.score(X, given)


def test_evaluate_ignores_the_labels_that_score_ignores():
    partly = np.where(DRAW.random(Y.shape) < 0.3, -1, Y)
    for name in (lambda y: y, lambda y: np.where(y < 0, y, y * 10 + 5)):
        fitted = Classifier(net(), epochs=1, random_state=0).fit(X, name(partly))
        expected = pytest.approx(fitted.score(X, name(partly)))
        for given in (name(partly), name(partly).astype(float), np.where(partly < 0, -7, name(partly))):
            assert fitted.model_.evaluate(X, given)["accuracy"] == expected
    with pytest.raises(DataError, match="'0' is not one of the classes 5, 15, 25"):
        fitted.model_.evaluate(X, partly > 0)
    fitted = Classifier(net(), epochs=1, random_state=0).fit(X, Y)
    with pytest.raises(DataError, match="-1"):
        fitted.model_.evaluate(X, partly)
