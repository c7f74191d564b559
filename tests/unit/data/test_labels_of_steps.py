"""Labels of each time step of a sequence: what shards hold of them, and what reads them."""

from __future__ import annotations

import numpy as np
import pytest

from singa_dask import Classifier, Job, Model, Module, load_model, shard, train
from singa_dask.data import Manifest
from singa_dask.data.columns import Column, Role
from singa_dask.data.shards import ShardFolder
from singa_dask.errors import ConfigError, DataError
from singa_dask.inference.classes import labels_of_shards
from singa_dask.layers import LSTM, Embedding, InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.updaters import SGD

SAMPLES, STEPS, CLASSES = 20, 5, 4
DRAW = np.random.default_rng(0)
X, Y = DRAW.integers(0, 9, (SAMPLES, STEPS)), DRAW.integers(0, CLASSES, (SAMPLES, STEPS))
Y[:CLASSES, 0] = range(CLASSES)
ENDS = np.where(np.arange(STEPS) < DRAW.integers(2, 6, (SAMPLES, 1)), Y, -100)


def column(y, out, **options):
    (manifest,) = shard(X[: len(y)], y, out, labels=True, shuffle=False, **options).values()
    reader = ShardFolder(manifest).reader(0)
    reader.check_windows(np.arange(len(reader.shard.windows)))
    return next(each for each in manifest.columns if each.name == "y"), reader.column("y")[:]


@pytest.mark.parametrize("options", [{}, {"classes": ["no", "person", "place", "time"]}, {"outputs": CLASSES}])
@pytest.mark.parametrize(("y", "dtype"), [(Y, "uint8"), (ENDS, "int32")])
def test_a_negative_number_marks_the_steps_that_do_not_count(tmp_path, options, y, dtype):
    found, values = column(y, tmp_path, **options)
    assert (found.shape, found.dtype, found.num_classes) == ((STEPS,), dtype, CLASSES)
    np.testing.assert_array_equal(values, y)
    again, _ = column(y[:3], tmp_path / "more", like=Manifest.load(tmp_path))
    assert again.num_classes == CLASSES


@pytest.mark.parametrize("y", [np.where(Y == 1, -1, ENDS), np.where(ENDS == 1, 9, ENDS)])
def test_of_other_numbers_the_names_of_the_classes_are_made(tmp_path, y):
    found, values = column(y, tmp_path)
    assert found.classes == tuple(map(str, np.unique(y)))
    np.testing.assert_array_equal(np.unique(y)[values], y)


def test_other_negative_numbers_in_shards_are_damage(tmp_path):
    manifest = next(iter(shard(X, ENDS, tmp_path, labels=True).values()))
    reader = ShardFolder(manifest).reader(0)
    labels = next(each for each in manifest.columns if each.name == "y")
    with pytest.raises(DataError, match=r"the label -1 in 'y', which has 4 classes"):
        reader._check_labels(labels, np.array([[0, -1, -100]]), 0)


class Tagger(Module):
    def __init__(self):
        self.symbols, self.lstm = Embedding(vocab_size=9, feature_dim=4), LSTM(dim_hidden=3)
        self.scores, self.loss = InnerProduct(num_output=CLASSES), SoftmaxLoss(ignore_label=-100)

    def forward(self, x, y):
        return self.loss(self.scores(self.lstm(self.symbols(x))), y)


def test_a_job_reads_them_and_predicts_as_its_model(tmp_path):
    data = RecordInput("data", time_steps=STEPS, label_shape=[STEPS], batchsize=10)
    job = Job(name="tagger", layers=[data, Tagger()], updater=SGD(lr=0.5), train_steps=2)
    trained = load_model(train(job, data=(X, ENDS), processes=False, workspace=tmp_path).workspace)
    model = Model([RecordInput("data", shape=[1], time_steps=STEPS, label_shape=[STEPS]), Tagger()])
    model.load_state_dict(trained.state_dict())
    np.testing.assert_allclose(trained.predict(X), model.predict(X), rtol=1e-6)
    assert float(model(X, ENDS)) == pytest.approx(trained.evaluate(X, ENDS)["loss"], rel=1e-5)


def test_the_shape_that_a_job_gives_is_that_of_the_shards(tmp_path):
    shard(X, Y, tmp_path, labels=True)
    data = RecordInput("data", path=str(tmp_path), time_steps=STEPS, label_shape=[3], batchsize=10)
    job = Job(name="tagger", layers=[data, Tagger()], updater=SGD(lr=0.5), train_steps=2)
    with pytest.raises(ConfigError, match=r"label_shape.* has labels of shape \[5\]\. Received: \[3\]"):
        train(job, processes=False, workspace=tmp_path / "run")


def test_an_estimator_predicts_the_class_of_each_step():
    y = np.array(["no", "person", "place", "time"])[(X + np.roll(X, 1, axis=1)) % CLASSES]
    net = [Embedding(vocab_size=9, feature_dim=8), LSTM(dim_hidden=16), InnerProduct(num_output=CLASSES)]
    fitted = Classifier(net=net, epochs=1, normalise=False).fit(X, y)
    assert fitted.predict(X).shape == y.shape
    assert fitted.predict_proba(X).shape == (*y.shape, CLASSES)
    assert fitted.score(X, y) == pytest.approx((fitted.predict(X) == y).mean())


def test_predicted_files_name_no_class_where_a_label_does_not_count():
    column = Column("y", Role.LABEL, "int64", (), classes=("no", "yes"))
    assert labels_of_shards(np.array([1, -100, 0]), column).filled("").tolist() == ["yes", "", "no"]
