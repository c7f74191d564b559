"""What a worker group reports: events for the driver, and the record of its run."""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from singa_dask.comm.objects import all_gather_objects
from singa_dask.job.evaluations import PHASE_NAMES
from singa_dask.layers.context import Metric
from singa_dask.tracing import span
from singa_dask.training.replica import Replica
from singa_dask.training.step_metrics import StepMetrics

PROGRESS_EVERY_S = 0.25


class Reporter:
    """Adds up the metrics of steps; the first rank emits events.

    emit: sends an event to the driver. group: the group's number; batch: samples of its mini-batch.
    servers_elsewhere: whether one of its servers is on another machine than this rank.
    """

    def __init__(
        self,
        replica: Replica,
        emit: Callable[[dict[str, Any]], None],
        group: int,
        batch: int,
        *,
        servers_elsewhere: bool = False,
    ) -> None:
        self._replica, self._emit, self._group, self._batch = replica, emit, group, batch
        self._elsewhere = servers_elsewhere
        self._shown, self._whole = StepMetrics(), StepMetrics()  # since the last display, before it
        self._measured: dict[str, tuple[int, dict[str, float]]] = {}  # by phase: after which step, and the means
        self._details: dict[str, Mapping[str, Any]] = {}  # by phase, of its last evaluation
        self._checkpoint: Path | None = None
        self._best: dict[str, Any] | None = None
        self._last_progress = self._began = 0.0
        self._sent = 0  # bytes to other ranks besides those of the steps since the last display
        self._spent: defaultdict[str, float] = defaultdict(float)  # seconds besides training steps

    @contextmanager
    def spending(self, what: str) -> Iterator[None]:
        """Count the time inside for the record: "evaluating" or "saving"."""
        began, sent = time.perf_counter(), self._exchanged
        try:
            with span(what):
                yield
        finally:
            self._spent[what] += time.perf_counter() - began
            self._sent += self._exchanged - sent

    def emit(self, kind: str, **fields: Any) -> None:
        """Send an event to the driver, on the first rank."""
        if self._replica.comm.rank == 0:
            self._emit({"kind": kind, "group": self._group, "time": time.time(), **fields})

    def start(self, step: int) -> None:
        """Training starts after `step` steps."""
        job, comm = self._replica.job, self._replica.comm
        self._began, self._sent = time.time(), self._exchanged
        self.emit(
            "start",
            step=step,
            steps=job.train_steps,
            batch=self._batch,
            ranks=comm.size,
            pids=comm.all_gather_number(os.getpid()).tolist(),
            groups=job.cluster.nworker_groups,
            exchange=self._replica.exchange.transport,
        )

    def add_step(self, step: int, seconds: float, metrics: Mapping[str, Metric], ranks: np.ndarray) -> None:
        """Add a step, after which `step` steps are done; see StepMetrics.add_step. Emits an event now and then."""
        self._shown.add_step(seconds, metrics, ranks)
        now = time.perf_counter()
        if now - self._last_progress > PROGRESS_EVERY_S:
            self._last_progress = now
            self.emit("progress", **self._current(step))

    def display(self, step: int) -> None:
        """Emit the training metrics since the last display."""
        if self._shown.steps:
            current = self._current(step)
            self._measured["train"] = step, current["metrics"]
            self.emit("metrics", phase="train", **current)
        self._whole.add(self._shown)
        self._shown, self._sent = StepMetrics(), self._exchanged

    def evaluated(
        self, phase: int, step: int, means: dict[str, float], details: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Emit the metrics of an evaluation after `step` steps. details: what the record keeps besides them."""
        name = PHASE_NAMES[phase]
        self._measured[name] = step, means
        self._details[name] = details
        self.emit("metrics", phase=name, step=step, metrics=means)

    def saved(self, checkpoint: Path, step: int) -> None:
        """Emit that a checkpoint was written after `step` steps."""
        self._checkpoint = checkpoint
        self.emit("checkpoint", step=step, path=str(checkpoint), host=socket.gethostname())

    def unsaved(self, step: int, why: str) -> None:
        """Emit that a checkpoint could not be written, after `step` steps."""
        self.emit("unsaved", step=step, text=f"not saved: {why} Training goes on.")

    def unshadowed(self, step: int) -> None:
        """Emit that the group cannot resume from memory."""
        why = "the workers have no memory left for a copy of the parameters and the updater's state"
        self.emit("unsaved", step=step, text=f"{why}: after a loss, the run goes back to a checkpoint.")

    def unkept(self, step: int, why: str) -> None:
        """Emit that no checkpoint is kept in memory."""
        then = "after a loss, the run may have to go back to a checkpoint on the disk"
        self.emit("unsaved", step=step, text=f"not kept in memory: {why}; {then}.")

    def unread(self, step: int) -> None:
        """Emit that the group cannot resume from what lost ranks have left."""
        why = "the memory of lost ranks is on another machine, incomplete, or of another net"
        self.emit("unsaved", step=step, text=f"not restored: {why}. The group resumes from this step.")

    def best(self, step: int, best: Mapping[str, Any] | None, checkpoint: Path) -> None:
        """Emit which evaluation is the best so far, after `step` steps."""
        self._best = {**(best or {}), "checkpoint": str(checkpoint)}
        self.emit("best", step=step, best=self._best, host=socket.gethostname())

    def reduced(self, step: int, rate: float) -> None:
        """Emit that the learning rate was reduced after `step` steps."""
        self.emit("decision", step=step, text=f"learning rate reduced to {rate:.4g}")

    def compiles(self, step: int, folder: Path) -> None:
        """Emit that kernels are being compiled, for the cache in `folder`."""
        what = f"compiling kernels for the processor of {socket.gethostname()}"
        text = f"{what}, which happens once per machine (kept in {folder})"
        self.emit("decision", step=step, text=text)

    def undefined(self, step: int, metric: str) -> None:
        """Emit that a metric on which decisions rest has no value, after `step` steps."""
        text = f"{metric} is undefined (nan) for these data or this net: nothing is decided by it until it has a value"
        self.emit("decision", step=step, text=text)

    def decided(self, step: int, state: Mapping[str, Any]) -> None:
        """Emit what evaluations have decided so far, `Decisions.state`, after `step` steps."""
        self.emit("decided", step=step, state=state)

    def ends_early(self, step: int, why: str) -> None:
        """Emit that the run ends early after `step` steps: all other groups must end too."""
        self.emit("decision", step=step, text=why, ends=True)

    def end(self, step: int, *, interrupted: bool, ended_early: str = "") -> dict[str, Any]:
        """Emit the end; returns the record of the run. ended_early: why, "" if it did not. Collective."""
        replica, whole = self._replica, self._whole
        overflows = np.array([float(replica.overflows)])
        replica.comm.all_reduce(overflows)
        operations, served = replica.operations, not replica.in_process_servers
        record = {
            "step": step,
            "interrupted": interrupted,
            "ended_early": ended_early or None,
            "best": self._best,
            "metrics": {phase: means for phase, (at, means) in self._measured.items() if at == step},
            "details": {phase: dict(details) for phase, details in self._details.items() if details},
            "checkpoint": str(self._checkpoint) if self._checkpoint else None,
            "steps": whole.steps,
            "samples": whole.steps * self._batch,
            "seconds": whole.seconds,
            "began": self._began,
            "evaluating_s": self._spent["evaluating"],
            "saving_s": self._spent["saving"],
            "exchange": replica.exchange.transport,
            "processes": all_gather_objects(replica.comm, _process()),
            "samples_per_s": whole.steps * self._batch / whole.seconds if whole.steps else 0.0,
            **whole.waits(),
            "gpu_memory": whole.memory,
            "exchanged_bytes": _sent_by(operations),
            "operations": operations,
            "overflows": int(overflows[0]),
            "server": {**whole.servers(), "elsewhere": self._elsewhere} if served and whole.steps else None,
        }
        told = {name: value for name, value in record.items() if name != "details"}  # arrays are too much for an event
        self.emit("end", step=step, record=told)
        return record

    @property
    def _exchanged(self) -> int:
        """Bytes that this rank has sent to the others of its group."""
        return _sent_by(self._replica.operations)

    def _current(self, step: int) -> dict[str, Any]:
        shown = self._shown
        current = {
            "step": step,
            "metrics": shown.means(),
            "samples_per_s": shown.steps * self._batch / max(shown.seconds, 1e-9),
            **shown.waits(),
            "gpu_memory": shown.memory,
            "sent": (self._exchanged - self._sent) / max(1, shown.steps),
        }
        return current if self._replica.in_process_servers else {**current, "server": shown.servers()}


def _sent_by(operations: Mapping[str, Mapping[str, float]]) -> int:
    return sum(int(done["bytes"]) for done in operations.values())


def _process() -> dict[str, Any]:
    """Where this rank computes: its machine, and the cores that it may use."""
    return {"host": socket.gethostname(), "cores": sorted(os.sched_getaffinity(0))}
