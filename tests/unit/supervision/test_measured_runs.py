"""Metrics by name in the record of a run, and its pictures."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn import metrics as sk

from singa_dask import Job, load_model, train
from singa_dask.cli import main
from singa_dask.data import write_shards
from singa_dask.errors import ConfigError
from singa_dask.job import job_to_text
from singa_dask.layers import EuclideanLoss, InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.monitor.progress import Display
from singa_dask.updaters import SGD

ROWS = 60


@pytest.fixture
def data(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.standard_normal((ROWS, 4)).astype(np.float32)
    labels, weights = (x[:, 0] > 0) + (x[:, 1] > 0.5).astype(int), draw.random(ROWS).astype(np.float32)
    targets = (x @ draw.standard_normal((4, 2)) * [1, 20] + [0, 300]).astype(np.float32)
    write_shards(tmp_path / "classes", x, labels, classes=["low", "middle", "high"], weight=weights)
    write_shards(tmp_path / "values", x, targets)
    return x, labels, targets, weights


@pytest.fixture
def job(tmp_path, data):
    def make(folder, *metric, loss=None, outputs=3, **store):
        source = RecordInput("data", path=str(tmp_path / folder), batchsize=20, **store)
        layers = [source, InnerProduct("ip", "data", num_output=outputs)]
        if loss is None:
            loss = [SoftmaxLoss("loss", ["ip", "data"])]
        fields = {"train_steps": 6, "test_freq": 6, "test_steps": 3, "metric": metric}
        return Job(name="points", layers=[*layers, *loss], updater=SGD(lr=0.05), **fields)

    return make


def run(job, tmp_path, **options):
    return train(job, processes=False, workspace=tmp_path / "run", display=Display(), **options)


def test_metrics_by_name_are_recorded_as_any(job, data, tmp_path):
    result = run(job("classes", "f1", "confusion", "top2"), tmp_path)
    x, labels, *_ = data
    predicted = load_model(result.checkpoint).predict(x)
    assert result.test["f1"] == pytest.approx(sk.f1_score(labels, predicted.argmax(axis=1), average="macro"))
    assert set(result.test) == {"loss", "accuracy", "f1", "top2"}
    rows = [json.loads(line) for line in (result.workspace / "metrics.jsonl").read_text().splitlines()]
    assert [row["f1"] for row in rows if row["phase"] == "test"][-1] == result.test["f1"]
    assert not any("confusion" in row for row in rows)
    matrix = sk.confusion_matrix(labels, predicted.argmax(axis=1)).tolist()
    summary = json.loads((result.workspace / "summary.json").read_text())
    assert summary["confusion"] == {"test": {"classes": ["low", "middle", "high"], "matrix": matrix}}
    assert (result.workspace / "confusion-test.png").exists()
    assert not (result.workspace / "parity-test.png").exists()


def test_pictures_stay_in_the_folder_of_the_run_whatever_layers_are_called(job, tmp_path):
    losses = [SoftmaxLoss(name, ["ip", "data"]) for name in ("a", "b/c")]
    result = run(job("classes", "confusion", loss=losses), tmp_path)
    pictures = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("**/*confusion*.png"))
    assert pictures == ["run/a.confusion-test.png", "run/b_c.confusion-test.png"]
    assert set(result.summary["confusion"]) == {"test.a", "test.b/c"}


def test_a_regression_leaves_a_parity_plot(job, data, tmp_path):
    loss, store = [EuclideanLoss("loss", ["ip", "data"])], {"normalise": True, "normalise_target": True}
    result = run(job("values", "r2", "rmse", loss=loss, outputs=2, **store), tmp_path)
    x, _, targets, _ = data
    predicted = load_model(result.checkpoint).predict(x).astype(np.float64)
    assert result.test["r2"] == pytest.approx(sk.r2_score(targets, predicted), rel=1e-4)
    assert result.test["rmse"] == pytest.approx(sk.root_mean_squared_error(targets, predicted), rel=1e-5)
    assert sorted(path.name for path in result.workspace.glob("*-test.png")) == ["parity-test.png"]
    assert result.summary["confusion"] == {} and "parity" not in result.summary
    (result.workspace / "checkpoint" / "step-00000006.h5").unlink()  # so that the next run takes the folder
    again = run(job("values", loss=loss, outputs=2), tmp_path, curves=False)
    assert not list(again.workspace.glob("*.png"))


def test_weights_are_a_column_of_the_shards(job, data, tmp_path):
    weights = RecordInput("w", path=str(tmp_path / "classes"), batchsize=20, column="weight")
    loss = SoftmaxLoss("loss", ["ip", "data", "w"], class_weight=[1, 2, 0.5])
    result = run(job("classes", "recall", loss=[weights, loss]), tmp_path)
    x, labels, _, w = data
    p = load_model(result.checkpoint).predict(x)  # without weights
    factors = w * np.array([1, 2, 0.5])[labels]
    assert result.test["loss"] == pytest.approx((-np.log(p[np.arange(ROWS), labels]) * factors).mean(), rel=1e-5)
    assert result.test["accuracy"] == (p.argmax(axis=1) == labels).mean()
    assert result.test["recall"] == pytest.approx(
        sk.recall_score(labels, p.argmax(axis=1), average="macro", sample_weight=w)
    )


def test_the_command_measures_and_draws(job, data, tmp_path):
    result = run(job("classes", "auc", "confusion"), tmp_path)
    described = tmp_path / "job.conf"
    described.write_text(job_to_text(job("classes", "auc", "confusion").proto))
    arguments = ["test", described, "--checkpoint", result.checkpoint, "--pictures", tmp_path / "drawn"]
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    assert f"auc {result.test['auc']:.4f}" in done.output
    assert f"drawn: {tmp_path / 'drawn' / 'confusion-test.png'}" in done.output
    assert (tmp_path / "drawn" / "confusion-test.png").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("f2", "metric: is not the name of a metric. Received: f2. Choose from accuracy"),
        ("mae", "mae compares numbers"),
    ],
)
def test_a_wrong_metric_is_refused_before_anything_starts(job, tmp_path, name, words):
    with pytest.raises(ConfigError, match=words):
        run(job("classes", name), tmp_path)
    assert not (tmp_path / "run").exists()


def test_models_measure_by_name(job, data, tmp_path):
    x, labels, *_ = data
    model = load_model(run(job("classes"), tmp_path, curves=False).checkpoint)
    measured = model.evaluate(x, labels, metrics=["precision", "confusion"])
    predicted = model.predict(x).argmax(axis=1)
    assert measured["confusion"] == sk.confusion_matrix(labels, predicted).tolist()
    expected = sk.precision_score(labels, predicted, average="macro", zero_division=0)
    assert measured["precision"] == pytest.approx(expected)
