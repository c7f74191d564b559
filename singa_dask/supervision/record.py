"""The record of a run: what its worker groups have told, its summary and its pictures."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from singa_dask.errors import ConfigError
from singa_dask.monitor.curves import draw_curves
from singa_dask.monitor.figures import load_drawing
from singa_dask.monitor.progress import Display
from singa_dask.profiling.facts import package_versions
from singa_dask.supervision.pictures import Details, draw_pictures, matrices
from singa_dask.supervision.summary import of_group, rate
from singa_dask.training.history import row_of
from singa_dask.training.prepare import Prepared
from singa_dask.training.workspace import Workspace

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Record:
    """What is known of a run so far, also if it fails, and left in its workspace.

    steps, reports: by worker group. restarts: as Restart. curves: whether curves.png is drawn at the end.
    """

    prepared: Prepared
    workspace: Workspace
    display: Display
    curves: bool = True
    steps: dict[int, int] = field(default_factory=dict)
    checkpoint: str | None = None
    best: dict[str, Any] | None = None
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)
    restarts: list[dict[str, Any]] = field(default_factory=list)
    _began: float = field(default_factory=time.time)
    _started: float = field(default_factory=time.monotonic)
    _unwritten: bool = False  # whether metrics wait in memory

    def tell(self, event: str, **about: Any) -> None:
        """Add an event of the driver."""
        try:
            self.workspace.tell(event, **about)
        except OSError as fault:  # must not end the run
            self._incomplete(fault)

    def end(self, group: int, report: dict[str, Any]) -> None:
        """A worker group ends. This may come after the group's own report, which has more."""
        self.reports[group] = self.reports.get(group, {}) | report

    def measure(self, event: dict[str, Any]) -> None:
        """Add the metrics of an event. The user hears of a disk that is full."""
        if self.curves:
            load_drawing()
        self.workspace.append(row_of(event))
        fault, before = self.workspace.unwritten, self._unwritten
        self._unwritten = fault is not None
        if fault is not None and not before:
            self.display.note(f"{self.workspace.folder}: metrics wait in memory until they can be written ({fault})")

    def write(self, error: BaseException | None, stopped: str) -> None:
        """Write the summary of a run that may not come to its end."""
        try:
            self.workspace.write_summary(self.summary(error, stopped))
        except OSError as fault:
            self._incomplete(fault)

    def close(self, error: BaseException | None, stopped: str) -> dict[str, Any]:
        """Write all; returns the summary."""
        summary = self.summary(error, stopped)
        try:
            self.workspace.must_write()
            self.workspace.write_summary(summary)
            if self.curves:
                title = f"{self.prepared.job.name}, {self.prepared.topology.strategy.value}"
                draw_curves(list(self.workspace.rows()), self.workspace.curves, title)
                draw_pictures(self._details, self.prepared.job, self.prepared.described, self.workspace.folder)
        except (OSError, ValueError, ConfigError) as fault:  # must not hide how the run itself ended
            self._incomplete(fault)
        return summary

    def _incomplete(self, fault: Exception) -> None:
        logger.error("%s: the record of this run is incomplete: %s", self.workspace.folder, fault)

    @property
    def _details(self) -> Details:
        details: Details = self.reports.get(0, {}).get("details", {})
        return details

    def summary(self, error: BaseException | None, stopped: str) -> dict[str, Any]:
        """How the run went. stopped: by whom it was asked to stop."""
        job, topology, lead = self.prepared.job, self.prepared.topology, self.reports.get(0, {})
        if isinstance(error, KeyboardInterrupt):
            stopped = stopped or "Ctrl-C"
        if error is not None and not stopped:
            status = "failed"
        else:
            status = "interrupted" if stopped and lead.get("interrupted", True) else "completed"
        metrics, reports = lead.get("metrics", {}), self.reports.values()
        return {
            "status": status,
            "error": None if error is None else str(error) or type(error).__name__,
            "stopped_by": stopped if status == "interrupted" else None,
            "output_lost": self.display.lost,
            "run": self.workspace.id,
            "job": job.name,
            "strategy": topology.strategy.name.lower(),
            "topology": asdict(topology),
            "train_steps": job.train_steps,
            "step": lead.get("step", self.steps.get(0, 0)),
            "ended_early": lead.get("ended_early"),
            "best": self.best,
            "train": metrics.get("train", {}),
            "validate": metrics.get("validate", {}),
            "test": metrics.get("test", {}),
            "confusion": matrices(self._details, job, self.prepared.described),
            "samples_per_s": rate(reports, bool(self.restarts)),
            "exchanged_bytes": sum(report["exchanged_bytes"] for report in reports),
            "overflows": sum(report["overflows"] for report in reports),
            "wall_s": round(time.monotonic() - self._started, 3),
            "restarts": len(self.restarts),
            "restarted": self.restarts,
            "groups": {number: of_group(report) for number, report in sorted(self.reports.items())},
            "checkpoint": self.checkpoint,
            "began": self._began,
            "seed": job.seed,
            "data": self.prepared.data,
            "versions": package_versions(),
        }
