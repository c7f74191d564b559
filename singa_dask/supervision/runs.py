"""What the folders of runs tell: states and results, and in what runs differ."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from singa_dask.errors import ConfigError, Problem
from singa_dask.files import kind_of
from singa_dask.job import Job
from singa_dask.job.values import values_of
from singa_dask.training.history import metrics_of
from singa_dask.training.workspace import Workspace

_PHASES = ("test", "validate", "train")
_FIGURES = ("samples_per_s", "wall_s", "restarts", "exchanged_bytes", "overflows")


class RunRecord:
    """The record of a run in its workspace. Files are read when they are needed.

    state: "running", "completed", "interrupted", "failed", or "lost" if its driver ended without a summary. summary:
    the contents of summary.json; {} while the run is active. faults: sentences on damaged files.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        summary, self.faults = workspace.read_summary()
        self.state: str = "running" if workspace.in_use() else summary.get("status", "lost")
        self.summary: Mapping[str, Any] = {} if self.state == "running" else summary

    @cached_property
    def job(self) -> Job:
        """The job of the run. Raises ConfigError if job.conf is damaged."""
        return Job.from_file(self.workspace.job)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return list(self.workspace.rows())

    @property
    def name(self) -> str:
        return str(self.summary.get("job") or self.job.name)

    @property
    def strategy(self) -> str:
        """The strategy's name in lower case."""
        return str(self.summary.get("strategy") or self.job.topology.strategy.name.lower())

    @property
    def began(self) -> float:
        """When the run began or was resumed, in seconds since 1970."""
        return float(self.summary.get("began") or os.stat(self.workspace.job).st_mtime)

    @property
    def steps(self) -> tuple[int, int]:
        """The step that worker group 0 has reached, and the last one of the job."""
        if self.summary:
            return self.summary.get("step", 0), self.summary.get("train_steps", 0)
        return max((row["step"] for row in self._of("train")), default=0), self.job.proto.train_steps

    @property
    def samples_per_s(self) -> float:
        """Samples per second of the run; while it is active, of worker group 0 in its last line of metrics."""
        if self.summary:
            return float(self.summary.get("samples_per_s", 0.0))
        rates = [row.get("samples_per_s", 0.0) for row in self._of("train")]
        return float(rates[-1]) if rates else 0.0

    @property
    def result(self) -> tuple[str, dict[str, float]]:
        """The last metrics: of the test, else of the validation, else of training; with the name of the phase."""
        for phase in _PHASES:
            if metrics := self.metrics(phase):
                return phase, metrics
        return _PHASES[-1], {}

    def metrics(self, phase: str) -> dict[str, float]:
        """The last metrics of a phase."""
        if self.summary:
            return dict(self.summary.get(phase, {}))
        rows = self._of(phase)
        return metrics_of(rows[-1]) if rows else {}

    def _of(self, phase: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["phase"] == phase and row["group"] == 0]


def runs_in(folder: Path) -> list[RunRecord]:
    """The runs in the folders of `folder`, or the one that it is itself, oldest first. Raises ConfigError if it is no
    folder."""
    if not folder.is_dir():
        what = kind_of(folder)
        message = f"{folder} is {what}, not a folder" if what else f"there is no folder {folder}"
        raise ConfigError(Problem("FOLDER", message, hint="Give the folder that holds the folders of runs."))
    jobs = [folder / "job.conf"] if (folder / "job.conf").is_file() else sorted(folder.glob("*/job.conf"))
    return sorted((RunRecord(Workspace(job.parent)) for job in jobs), key=lambda run: run.began)


@dataclass(frozen=True)
class Difference:
    """A value that differs between runs. values: one per run; None where a run has none."""

    kind: str
    key: str
    values: tuple[str | None, ...]


def differences(runs: Sequence[RunRecord]) -> list[Difference]:
    """In what runs differ: fields of the job, data, versions, and results."""
    tables: dict[str, list[Mapping[str, str]]] = {
        "job": [values_of(run.job.proto) for run in runs],
        "data": [run.summary.get("data", {}) for run in runs],
        "version": [{name: str(of) for name, of in run.summary.get("versions", {}).items()} for run in runs],
        "result": [_results(run) for run in runs],
    }
    found = []
    for kind, table in tables.items():
        for key in dict.fromkeys(key for values in table for key in values):
            values = tuple(of.get(key) for of in table)
            if len({*values}) > 1:
                found.append(Difference(kind, key, values))
    return found


def _results(run: RunRecord) -> dict[str, str]:
    step, steps = run.steps
    found = {"state": run.state, "step": f"{step:,} of {steps:,}"}
    for phase in _PHASES:
        found |= {f"{phase} {name}": f"{value:.4f}" for name, value in run.metrics(phase).items()}
    figures = {name: run.summary[name] for name in _FIGURES if name in run.summary}
    return found | {
        name: f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for name, value in figures.items()
    }
