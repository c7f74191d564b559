"""Training in this process: what a run leaves, how it ends, its metrics by name and its pictures."""

import json
import shutil
import signal
from importlib.metadata import PackageNotFoundError
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn import metrics as sk
from support.shards import write_shards

import singa_dask
from singa_dask import load_model
from singa_dask.cli import main
from singa_dask.errors import ConfigError, TrainingError
from singa_dask.job import ClusterTopology, Job
from singa_dask.layers import EuclideanLoss, InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.monitor.progress import Display
from singa_dask.profiling import facts
from singa_dask.supervision.driver import train
from singa_dask.tracing import Recorder
from singa_dask.training.checkpoint import load
from singa_dask.updaters import SGD


class Watching(Display):
    """Raises a signal at an event that `at` tells."""

    def __init__(self, at=lambda event: False):
        self.events, self.at = [], at

    def handle(self, event):
        self.events.append(event)
        if self.at(event):
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    draw, folder = np.random.default_rng(0), tmp_path_factory.mktemp("points")
    labels = draw.integers(0, 2, 90)
    features = draw.normal(size=(90, 3)) + 2 * labels[:, None]
    write_shards(folder, features.astype(np.float32), labels)

    def make(lr=0.1, **fields):
        fields = {"train_steps": 8, "checkpoint_freq": 4, "disp_freq": 2, "test_freq": 4, "test_steps": 3} | fields
        layers = [RecordInput(path=str(folder), batchsize=30), InnerProduct(num_output=2), SoftmaxLoss()]
        return Job(name="points", layers=layers, updater=SGD(lr=lr, momentum=0.9), **fields)

    return make


@pytest.fixture
def run(tmp_path, python_handles_signals):
    def here(job, workspace="run", display=None, **options):
        options = {"curves": False, **options}
        return train(job, processes=False, workspace=tmp_path / workspace, display=display or Display(), **options)

    return here


@pytest.fixture
def summary(tmp_path):
    """What was recorded of the run in this folder."""
    return lambda name="run": json.loads((tmp_path / name / "summary.json").read_text())


def test_a_run_in_this_process_leaves_what_any_run_leaves(job, run, summary):
    watching = Watching()
    result = run(job(), display=watching, curves=True)
    assert result.summary["status"] == "completed" and result.test["accuracy"] > 0.8 and result.curves.exists()
    assert summary()["test"] == result.test
    rows = [json.loads(line) for line in (result.workspace / "metrics.jsonl").read_text().splitlines()]
    steps = {phase: [row["step"] for row in rows if row["phase"] == phase] for phase in ("test", "train")}
    assert steps == {"test": [0, 4, 8], "train": [2, 4, 6, 8]}
    assert {event["kind"] for event in watching.events} >= {"start", "metrics", "checkpoint", "end"}
    saved = sorted(path.name for path in (result.workspace / "checkpoint").iterdir())
    assert saved == ["step-00000004.h5", "step-00000008.h5"]


def test_curves_are_drawn_only_where_asked(job, run):
    assert not run(job(), curves=False).curves.exists()


def test_a_run_is_traced_only_where_asked(job, run, monkeypatch):
    pytest.importorskip("perfetto", reason="`make setup` installs it")
    from support.traces import check_trace

    traced = run(job(), "traced", trace="3:6").workspace / "trace.pftrace"
    seen = check_trace(traced, {"worker group 0, rank 0"}, range(3, 6))
    assert {"load 0 to 31", "evaluating", "saving"} <= {span.name for span in seen}
    monkeypatch.setattr(Recorder, "__init__", Mock(side_effect=AssertionError("nothing is recorded")))
    assert not (run(job()).workspace / "trace.pftrace").exists()
    assert not (run(job(), "traced").workspace / "trace.pftrace").exists(), "it is of the run before"


@pytest.mark.parametrize(
    ("trace", "says"), [("3:9", "the steps 0 to 7, not 3 to 8"), ("x", "must be the steps from:to")]
)
def test_steps_that_cannot_be_traced_are_refused_before_the_first(job, run, tmp_path, trace, says):
    with pytest.raises(ConfigError, match=f"^trace: .*{says}"):
        run(job(), trace=trace)
    assert not (tmp_path / "run").exists()


def at_step_2(event):
    return event["kind"] == "metrics" and event["step"] == 2


def test_ctrl_c_ends_it_with_a_checkpoint_from_which_it_goes_on_bit_by_bit(job, run):
    whole = run(job(), "whole")
    result = run(job(), display=Watching(at_step_2))
    assert result.interrupted and result.summary["step"] == 3 and result.checkpoint.name == "step-00000003.h5"
    again = run(job(), resume=True)
    assert (again.summary["status"], again.summary["step"]) == ("completed", 8)
    one, other = (load(r.checkpoint).parameters for r in (whole, again))
    for name in one:
        np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]))


def test_a_second_ctrl_c_aborts_it(job, run, summary):
    with pytest.raises(KeyboardInterrupt):
        run(job(), display=Watching(lambda event: event["kind"] == "metrics"))
    assert summary()["status"] == "interrupted"


@pytest.mark.parametrize(
    ("wrong", "options", "says"),
    [
        ({"cluster": ClusterTopology.allreduce(2)}, {}, "cluster: training in this process is for one worker"),
        ({}, {"client": object()}, "processes: is False, and a client is given"),
    ],
)
def test_only_a_job_for_one_process_is_taken(job, run, wrong, options, says):
    with pytest.raises(ConfigError, match=says):
        run(job(**wrong), **options)


def test_callbacks_are_called_as_it_goes_on_and_one_that_raises_ends_it_with_a_checkpoint(job, run, summary):
    told = []

    def boom(event):
        told.append((event.kind, event.step))
        if event.kind == "step" and event.step == 4:
            raise ValueError("boom")

    with pytest.raises(TrainingError, match=r"/run/checkpoint/step-00000004\.h5") as caught:
        run(job(), callbacks=[boom])
    assert isinstance(caught.value.__cause__, ValueError)
    assert told == [("test", 0), ("step", 2), ("step", 4), ("end", 4)]
    assert (summary()["status"], summary()["step"]) == ("failed", 4)


def test_what_training_raises_is_raised_here_and_recorded(job, run, summary):
    with pytest.raises(TrainingError, match="diverged"):
        run(job(lr=1e38))
    assert summary()["status"] == "failed" and "diverged" in summary()["error"]


def test_versions_of_a_checkout_that_is_not_installed_are_not_known(monkeypatch):
    monkeypatch.setattr(facts, "version", Mock(side_effect=PackageNotFoundError))
    known = facts.package_versions.__wrapped__()
    assert {name for name, version in known.items() if version} == {"python", "singa-dask"}
    assert known["singa-dask"] == singa_dask.__version__


# Metrics by name, and pictures

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


def measured_run(data, workspace, *metrics, loss=(), outputs=3, curves=True, **store):
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
    return measured_run(folder / "classes", folder / "run", "f1", "confusion", "top2")


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


@pytest.mark.parametrize("command", ["test", "predict"])
def test_a_trained_net_is_not_evaluated_on_shards_that_were_written_again(tmp_path, command):
    write_shards(tmp_path / "data", X, LABELS)
    run = measured_run(tmp_path / "data", tmp_path / "run", curves=False)

    def evaluated(*options):
        arguments = [command, run.workspace, *options, *(["--out", tmp_path / "p.csv"] * (command == "predict"))]
        return CliRunner().invoke(main, list(map(str, arguments)))

    assert evaluated().exit_code == evaluated("--set", "neuralnet.layer[0].store_conf.batchsize=[10]").exit_code == 0
    shutil.rmtree(tmp_path / "data")
    write_shards(tmp_path / "data", X[::-1], LABELS[::-1])
    refused = evaluated()
    assert refused.exit_code == 1 and "trained with other shards" in refused.output, refused.output


def test_models_measure_by_name(result, matrix):
    model = load_model(result.checkpoint)
    measured = model.evaluate(X, LABELS, metrics=["precision", "confusion"])
    predicted = model.predict(X).argmax(axis=1)
    expected = sk.precision_score(LABELS, predicted, average="macro", zero_division=0)
    assert measured["confusion"] == matrix and measured["precision"] == pytest.approx(expected)


def test_pictures_stay_in_the_folder_of_the_run_whatever_layers_are_called(folder, tmp_path):
    losses = [SoftmaxLoss(name, ["ip", "data"]) for name in ("a", "b/c")]
    made = measured_run(folder / "classes", tmp_path / "run", "confusion", loss=losses)
    pictures = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("**/*confusion*.png"))
    assert pictures == ["run/a.confusion-test.png", "run/b_c.confusion-test.png"]
    assert set(made.summary["confusion"]) == {"test.a", "test.b/c"}


def test_a_regression_leaves_a_parity_plot(folder, tmp_path):
    of = {"loss": [EuclideanLoss("loss", ["ip", "data"])], "outputs": 2}
    made = measured_run(folder / "values", tmp_path / "run", "r2", "rmse", normalise=True, normalise_target=True, **of)
    predicted = load_model(made.checkpoint).predict(X).astype(np.float64)
    assert made.test["r2"] == pytest.approx(sk.r2_score(TARGETS, predicted), rel=1e-4)
    assert made.test["rmse"] == pytest.approx(sk.root_mean_squared_error(TARGETS, predicted), rel=1e-5)
    assert sorted(path.name for path in made.workspace.glob("*-test.png")) == ["parity-test.png"]
    assert made.summary["confusion"] == {} and "parity" not in made.summary
    made.checkpoint.unlink()  # so that the next run takes the folder
    again = measured_run(folder / "values", tmp_path / "run", curves=False, **of)
    assert not list(again.workspace.glob("*.png"))
