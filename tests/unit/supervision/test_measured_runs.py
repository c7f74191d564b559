"""Metrics by name in the record of a run, and its pictures."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn import metrics as sk

from singa_dask import Job, load_model, train
from singa_dask.cli import main
from singa_dask.data import write_shards
from singa_dask.layers import EuclideanLoss, InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.monitor.progress import Display
from singa_dask.updaters import SGD

DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((60, 4)).astype(np.float32)
LABELS = (X[:, 0] > 0) + (X[:, 1] > 0.5).astype(int)
TARGETS = (X @ DRAW.standard_normal((4, 2)) * [1, 20] + [0, 300]).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "classes", X, LABELS, classes=["low", "middle", "high"])
    write_shards(folder / "values", X, TARGETS)
    return folder


def run(data, workspace, *metrics, loss=(), outputs=3, curves=True, **store):
    layers = [
        RecordInput("data", path=str(data), batchsize=20, **store),
        InnerProduct("ip", "data", num_output=outputs),
    ]
    layers += loss or [SoftmaxLoss("loss", ["ip", "data"])]
    steps = {"train_steps": 6, "test_freq": 6, "test_steps": 3}
    job = Job(name="points", layers=layers, updater=SGD(lr=0.05), metric=metrics, **steps)
    return train(job, processes=False, workspace=workspace, display=Display(), curves=curves)


@pytest.fixture(scope="module")
def result(folder):
    """Of a run with metrics and pictures of classes."""
    return run(folder / "classes", folder / "run", "f1", "confusion", "top2")


@pytest.fixture(scope="module")
def matrix(result):
    return sk.confusion_matrix(LABELS, load_model(result.checkpoint).predict(X).argmax(axis=1)).tolist()


def test_metrics_by_name_are_recorded_as_any(result, matrix):
    predicted = load_model(result.checkpoint).predict(X)
    assert result.test["f1"] == pytest.approx(sk.f1_score(LABELS, predicted.argmax(axis=1), average="macro"))
    assert set(result.test) == {"loss", "accuracy", "f1", "top2"}
    rows = [json.loads(line) for line in (result.workspace / "metrics.jsonl").read_text().splitlines()]
    assert [row["f1"] for row in rows if row["phase"] == "test"][-1] == result.test["f1"]
    assert not any("confusion" in row for row in rows)
    summary = json.loads((result.workspace / "summary.json").read_text())
    assert summary["confusion"] == {"test": {"classes": ["low", "middle", "high"], "matrix": matrix}}
    assert sorted(path.name for path in result.workspace.glob("*-test.png")) == ["confusion-test.png"]


def test_the_command_measures_and_draws(result, tmp_path):
    arguments = ["test", result.workspace / "job.conf", "--checkpoint", result.checkpoint, "--pictures", tmp_path]
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == 0 and f"f1 {result.test['f1']:.4f}" in done.output, done.output
    assert str(tmp_path / "confusion-test.png") in done.output and (tmp_path / "confusion-test.png").exists()


def test_models_measure_by_name(result, matrix):
    model = load_model(result.checkpoint)
    measured = model.evaluate(X, LABELS, metrics=["precision", "confusion"])
    predicted = model.predict(X).argmax(axis=1)
    expected = sk.precision_score(LABELS, predicted, average="macro", zero_division=0)
    assert measured["confusion"] == matrix and measured["precision"] == pytest.approx(expected)


def test_pictures_stay_in_the_folder_of_the_run_whatever_layers_are_called(folder, tmp_path):
    losses = [SoftmaxLoss(name, ["ip", "data"]) for name in ("a", "b/c")]
    made = run(folder / "classes", tmp_path / "run", "confusion", loss=losses)
    pictures = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("**/*confusion*.png"))
    assert pictures == ["run/a.confusion-test.png", "run/b_c.confusion-test.png"]
    assert set(made.summary["confusion"]) == {"test.a", "test.b/c"}


def test_a_regression_leaves_a_parity_plot(folder, tmp_path):
    of = {"loss": [EuclideanLoss("loss", ["ip", "data"])], "outputs": 2}
    made = run(folder / "values", tmp_path / "run", "r2", "rmse", normalise=True, normalise_target=True, **of)
    predicted = load_model(made.checkpoint).predict(X).astype(np.float64)
    assert made.test["r2"] == pytest.approx(sk.r2_score(TARGETS, predicted), rel=1e-4)
    assert made.test["rmse"] == pytest.approx(sk.root_mean_squared_error(TARGETS, predicted), rel=1e-5)
    assert sorted(path.name for path in made.workspace.glob("*-test.png")) == ["parity-test.png"]
    assert made.summary["confusion"] == {} and "parity" not in made.summary
    made.checkpoint.unlink()  # so that the next run takes the folder
    again = run(folder / "values", tmp_path / "run", curves=False, **of)
    assert not list(again.workspace.glob("*.png"))
