"""The rows of metrics.jsonl."""

from singa_dask.training.history import metrics_of, row_of

EVENT = {
    "kind": "metrics",
    "group": 1,
    "time": 5.0,
    "phase": "train",
    "step": 8,
    "metrics": {"loss": 0.5, "accuracy": 0.75},
    "samples_per_s": 100.0,
    "wait": [0.1, 0.2],
    "loading": [0.3, 0.4],
    "server": {"staleness": 1.5},
}


def test_every_measured_value_has_a_column():
    row = row_of(EVENT)
    assert row == {
        "group": 1,
        "phase": "train",
        "step": 8,
        "time": 5.0,
        "samples_per_s": 100.0,
        "loss": 0.5,
        "accuracy": 0.75,
        "wait_rank0": 0.1,
        "wait_rank1": 0.2,
        "loading_rank0": 0.3,
        "loading_rank1": 0.4,
        "server_staleness": 1.5,
    }
    assert list(row)[:7] == ["group", "phase", "step", "time", "samples_per_s", "loss", "accuracy"]
    assert metrics_of(row) == EVENT["metrics"]


def test_a_metric_never_replaces_another_column():
    metrics = {"step": 0.5, "wait_rank0": 0.25, "server_load": 1.0, "stepwise": 2.0}
    row = row_of({**EVENT, "metrics": metrics})
    assert (row["step"], row["wait_rank0"]) == (8, 0.1)
    assert metrics_of(row) == {
        "metric_step": 0.5,
        "metric_wait_rank0": 0.25,
        "metric_server_load": 1.0,
        "stepwise": 2.0,
    }
