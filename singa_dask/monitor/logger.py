"""The callback that hands a run's settings and metrics to an experiment tracker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.values import values_of
from singa_dask.supervision.callbacks import Callback, RunEvent
from singa_dask.supervision.runs import RunRecord
from singa_dask.training.workspace import Workspace


class Tracker(Protocol):
    """What Logger calls: the methods of Lightning's loggers. `finalize(status)` may be missing."""

    def log_hyperparams(self, params: Mapping[str, str]) -> Any: ...

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> Any: ...


class Logger(Callback):
    """Hands the fields of the job and all metrics to a tracker, such as Lightning's MLFlowLogger or CSVLogger.

    tracker: an object with `log_hyperparams(params)` and `log_metrics(metrics, step)`. If it has `finalize(status)`,
    this is called at the end with "success" or "failed".
    Metrics are named by phase, "test/loss"; those of worker group 1 and later ones begin with "group-1/".
    Raises ConfigError if a method is missing.
    """

    def __init__(self, tracker: Tracker) -> None:
        for name in ("log_hyperparams", "log_metrics"):
            if not callable(getattr(tracker, name, None)):
                hint = "Give an object with log_hyperparams(params) and log_metrics(metrics, step)."
                raise ConfigError(Problem("tracker", f"has no method {name}", repr(tracker), hint))
        self._tracker, self._told = tracker, False

    def on_step(self, event: RunEvent) -> None:
        self._log(event, {**event.metrics, "samples_per_s": event.samples_per_s})

    def on_test(self, event: RunEvent) -> None:
        self._log(event, event.metrics)

    def on_end(self, event: RunEvent) -> None:
        self._tell_job(event)
        self._told = False  # of the next run
        finalize = getattr(self._tracker, "finalize", None)
        if finalize is not None:
            finalize("success" if event.status == "completed" else "failed")

    def _log(self, event: RunEvent, metrics: Mapping[str, float]) -> None:
        self._tell_job(event)
        group = f"group-{event.group}/" if event.group else ""
        named = {f"{group}{event.phase}/{name}": value for name, value in metrics.items()}
        self._tracker.log_metrics(named, step=event.step)

    def _tell_job(self, event: RunEvent) -> None:
        if not self._told:
            self._told = True
            self._tracker.log_hyperparams(values_of(RunRecord(Workspace(event.workspace)).job.proto))
