"""A tracker that writes a run's settings and metrics to MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from singa_dask.errors import ConfigError, Problem

_AT_ONCE = 100  # parameters that MLflow takes in one call
_NOT_IN_NAMES = re.compile(r"[^\w./ :-]+")


class MlflowTracker:
    """Writes to a run of MLflow, which begins with the first call and ends with `finalize`: for `Logger`.

    tracking_uri: of the server, by default the one that MLflow is set to (MLFLOW_TRACKING_URI). experiment: is made if
    it does not exist. run_name: by default MLflow draws one.
    What MLflow does not allow in a name becomes a point: "layer[ip1].name" is "layer.ip1.name".
    Raises ConfigError if MLflow is not installed.
    """

    def __init__(
        self, tracking_uri: str | None = None, *, experiment: str = "singa_dask", run_name: str | None = None
    ) -> None:
        try:
            from mlflow import MlflowClient, entities
        except ImportError as error:
            hint = "Run: pip install 'singa-dask[mlflow]'."
            raise ConfigError(Problem("mlflow", f"cannot be imported ({error})", hint=hint)) from error
        self._client, self._entities = MlflowClient(tracking_uri), entities
        self._experiment, self._run_name, self._run_id = experiment, run_name, ""

    def log_hyperparams(self, params: Mapping[str, str]) -> None:
        """Write parameters of the run."""
        made = [self._entities.Param(_name(key), value) for key, value in params.items()]
        for first in range(0, len(made), _AT_ONCE):
            self._client.log_batch(self._run, params=made[first : first + _AT_ONCE])

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics after so many steps."""
        now = time.time_ns() // 1_000_000
        made = [self._entities.Metric(_name(key), value, now, step) for key, value in metrics.items()]
        self._client.log_batch(self._run, metrics=made)

    def finalize(self, status: str) -> None:
        """End the run, which has failed unless the status is "success"."""
        if self._run_id:
            self._client.set_terminated(self._run_id, "FINISHED" if status == "success" else "FAILED")
        self._run_id = ""

    @property
    def _run(self) -> str:
        if not self._run_id:
            found: Any = self._client.get_experiment_by_name(self._experiment)
            number = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
            self._run_id = self._client.create_run(number, run_name=self._run_name).info.run_id
        return self._run_id


def _name(key: str) -> str:
    return _NOT_IN_NAMES.sub(".", key).replace("..", ".").strip(".")
