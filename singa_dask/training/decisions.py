"""What evaluations decide: the best checkpoint, lower learning rates, the early end of a run. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.evaluations import (
    EARLY_STOPPING,
    KEEP_BEST,
    PHASE_NAMES,
    is_minimised,
    plateaus,
    watched_metrics,
)
from singa_dask.job.job_pb2 import JobProto
from singa_dask.job.paths import Path, format_path
from singa_dask.updaters import learning_rate


@dataclass
class Watch:
    """The best value of a metric of evaluations.

    min_delta: an improvement is greater than this. best, step: the best value, and the training steps before it.
    since: evaluations since then; last: training steps before the last one.
    """

    metric: str
    min_delta: float = 0.0
    best: float | None = None
    step: int = 0
    since: int = 0
    last: int = -1

    def see(self, value: float, step: int) -> bool:
        """Take the value after `step` steps; returns whether it is an improvement. NaN never is, and does not count
        before the first value.

        An evaluation that a resumed run repeats does not count twice.
        """
        gain = 0.0 if self.best is None else self.best - value if is_minimised(self.metric) else value - self.best
        improved = gain > self.min_delta if self.best is not None else value == value
        if improved:
            self.best, self.step, self.since = value, step, 0
        elif step > self.last and self.best is not None:
            self.since += 1
        self.last = max(self.last, step)
        return improved


class Verdict(NamedTuple):
    """What follows from an evaluation. improved: of the metric of keep_best. reductions: of the learning rate so far.
    ends: whether the run ends early."""

    improved: bool = False
    reductions: int = 0
    ends: bool = False


class Decisions:
    """The decisions of one run, from its evaluations so far. reductions: of the learning rate. undefined: metrics that
    the last evaluation has found to be NaN, as no one before it had a value."""

    def __init__(self, job: JobProto) -> None:
        self._metrics = watched_metrics(job)
        self._rate = job.updater.learning_rate
        self._plateaus = {(*path, "metric"): conf for path, conf in plateaus(self._rate)}
        settings: dict[Path, Any] = {EARLY_STOPPING: job.early_stopping, **self._plateaus}
        deltas = {path: conf.min_delta for path, conf in settings.items()}
        self._watches = {path: Watch(metric, deltas.get(path, 0.0)) for path, metric in self._metrics.items()}
        self._patience = {path: conf.patience for path, conf in settings.items()}
        self.reductions = 0
        self.undefined: list[str] = []

    @property
    def phases(self) -> list[int]:
        """The phases whose evaluations matter."""
        used = {metric.partition(".")[0] for metric in self._metrics.values()}
        return [phase for phase, name in PHASE_NAMES.items() if name in used]

    def check(self, phase: int, measured: Iterable[str]) -> None:
        """Raise ConfigError if an evaluation of `phase` does not measure what a decision rests on."""
        names, problems = [f"{PHASE_NAMES[phase]}.{name}" for name in measured], []
        for path, metric in self._metrics.items():
            if metric.partition(".")[0] == PHASE_NAMES[phase] and metric not in names:
                hint = f"Write one of: {', '.join(names) or 'none, this net measures nothing'}."
                problems.append(Problem(format_path(path, {}), "is not measured by this net", metric, hint))
        if problems:
            raise ConfigError(problems)

    def see(self, phase: int, step: int, means: Mapping[str, float]) -> Verdict:
        """Decide after an evaluation after `step` steps. Raises ConfigError as `check`."""
        self.check(phase, means)
        self.undefined = []
        improved = ends = False
        for path, watch in self._watches.items():
            of, _, name = watch.metric.partition(".")
            if of != PHASE_NAMES[phase]:
                continue
            first = watch.last < 0
            better = watch.see(means[name], step)
            if first and watch.best is None and watch.metric not in self.undefined:
                self.undefined.append(watch.metric)
            improved = improved or (better and path == KEEP_BEST)
            out_of_patience = watch.since >= self._patience.get(path, watch.since + 1)
            ends = ends or (out_of_patience and path == EARLY_STOPPING)
            if out_of_patience and path in self._plateaus:
                watch.since = 0
                self.reductions += self.rate(step, more=1) < self.rate(step)
        return Verdict(improved, self.reductions, ends)

    @property
    def best(self) -> dict[str, Any] | None:
        """The best evaluation by the metric of keep_best, for the record; None without one."""
        watch = self._watches.get(KEEP_BEST)
        if watch is None or watch.best is None:
            return None
        return {"metric": watch.metric, "value": watch.best, "step": watch.step}

    def rate(self, step: int, more: int = 0) -> float:
        """The learning rate at a step, after so many more reductions."""
        return learning_rate(self._rate).rate(step, self.reductions + more)

    @property
    def reason(self) -> str:
        """Why the run ends early, in words."""
        watch = self._watches[EARLY_STOPPING]
        return f"early stopping: {watch.metric} has not improved since step {watch.step}"

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; JSON."""
        watches = {format_path(path, {}): asdict(watch) for path, watch in self._watches.items()}
        return {"reductions": self.reductions, "watches": watches}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state. What now rests on another metric starts anew."""
        self.reductions = reductions_in(state)
        for path, watch in self._watches.items():
            kept = state.get("watches", {}).get(format_path(path, {}), {})
            if kept.get("metric") == watch.metric:
                self._watches[path] = Watch(**{**kept, "min_delta": watch.min_delta})


def reductions_in(state: Mapping[str, Any]) -> int:
    """How often the learning rate was reduced, by a saved state."""
    return int(state.get("reductions", 0))
