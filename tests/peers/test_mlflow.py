"""What MLflow has of a run; skipped where it is not installed (`make test-peers`)."""

import pytest
from support.logged import trained

from singa_dask import MlflowTracker

mlflow = pytest.importorskip("mlflow", reason="needs MLflow")


def test_mlflow_has_a_run_with_its_job_its_metrics_and_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    where = f"file:{tmp_path / 'mlruns'}"
    for name in ("first", "second"):
        trained(tmp_path / name, MlflowTracker(where, experiment="points", run_name=name))
    client = mlflow.MlflowClient(where)
    runs = client.search_runs([client.get_experiment_by_name("points").experiment_id])
    assert {run.info.run_name for run in runs} == {"first", "second"}
    for run in runs:
        assert run.info.status == "FINISHED"
        assert run.data.params["neuralnet.layer.out.innerproduct_conf.num_output"] == "2"
        assert {"train/loss", "train/samples_per_s", "test/accuracy"} <= run.data.metrics.keys()
        history = client.get_metric_history(run.info.run_id, "train/loss")
        assert [metric.step for metric in history] == [2, 4]


def test_a_run_that_fails_and_has_many_fields_is_written_too(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    where = f"file:{tmp_path / 'mlruns'}"
    tracker = MlflowTracker(where)
    tracker.log_hyperparams({f"field[{i}]": "x" * 7000 if i == 3 else str(i) for i in range(250)})
    tracker.log_metrics({"train/loss": float("nan")}, step=1)
    tracker.finalize("failed")
    client = mlflow.MlflowClient(where)
    (run,) = client.search_runs([client.get_experiment_by_name("singa_dask").experiment_id])
    assert run.info.status == "FAILED" and len(run.data.params) == 250 and run.data.params["field.7"] == "7"
