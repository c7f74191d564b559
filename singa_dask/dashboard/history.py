"""What the page Training knows of runs, from the events of their worker groups and drivers. Without IO."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

RUNS = 20  # are remembered
ROWS, ROWS_AFTER = 4096, 512  # of a run, and of one that has ended
MARKS = EVALUATIONS = 256  # of a run
EVERY_S = 0.25  # between two rows of a worker group, until there are too many
ACTIVE = ("starting", "running")


class Row(NamedTuple):
    """A measurement of a worker group.

    at: seconds since the run began. starts: whether the group has just started, so that no line leads here. phase:
    "train", "validate" or "test". metrics: those that have a value. wait, loading: shares of the time, by rank.
    nbytes: that the group sends in a step. None where there are no servers, or nothing is sent.
    """

    at: float
    group: int
    step: int
    metrics: Mapping[str, float]
    starts: bool = False
    phase: str = "train"
    samples_per_s: float = 0.0
    wait: tuple[float, ...] = ()
    loading: tuple[float, ...] = ()
    staleness: float | None = None
    nbytes: float | None = None


class Mark(NamedTuple):
    """Something that happened. kind: restart, back, join, end, checkpoint or note."""

    at: float
    kind: str
    text: str


class RunHistory:
    """A run that is active, or was.

    began: seconds since 1970, as all `now`, by the clock of the scheduler. client: the Dask client of its driver.
    version: changes with all else. cuts: changes when rows are left out that were there before. evaluated, marked: how
    many evaluations and marks there have been. metrics: the names of all.
    """

    def __init__(self, job: str, strategy: str, workspace: str, steps: int, client: str, began: float) -> None:
        self.job, self.strategy, self.workspace, self.steps = job, strategy, workspace, steps
        self.client, self.began, self.state = client, began, ACTIVE[0]
        self.version = self.cuts = self.evaluated = self.marked = 0
        self.metrics: list[str] = []
        self.rows: list[Row] = []
        self.latest: dict[int, Row] = {}
        self.evaluations: deque[Row] = deque(maxlen=EVALUATIONS)
        self.marks: deque[Mark] = deque(maxlen=MARKS)
        self.restarts, self.result = 0, ""
        self._every_s = EVERY_S
        self._starting: set[int] = set()
        self._known: set[int] = set()
        self._kept_at: dict[int, float] = {}

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def step(self) -> int:
        """Of the worker group that has made most."""
        return max((row.step for row in self.latest.values()), default=0)

    def take(self, event: Mapping[str, Any], now: float) -> None:
        """Add an event of a worker group (training/reporter.py) or of the driver (supervision/watched.py)."""
        self.version += 1
        at, group = now - self.began, event.get("group", 0)
        match event["kind"]:
            case "start":
                self._start(at, group, event)
            case "progress" | "metrics":
                self._measure(at, group, event)
            case "checkpoint":
                self._mark(at, "checkpoint", f"checkpoint of step {event['step']}")
            case "decision" | "unsaved":
                self._mark(at, "note", f"step {event['step']}: {event['text']}")
            case "end":
                self._mark(at, "end", f"group {group} ends at step {event['step']}")
            case "restart":
                self.restarts += 1
                groups = ", ".join(map(str, event["groups"]))
                self._mark(at, "restart", f"step {event['step']}, group {groups}: {event['cause']}")
            case "over":
                self.over(event["status"], event["result"])

    def over(self, state: str, result: str = "") -> None:
        """The run has ended."""
        self.state, self.version = state, self.version + 1
        self.result = result or self.result
        while len(self.rows) > ROWS_AFTER and self._cut():
            pass

    def _start(self, at: float, group: int, event: Mapping[str, Any]) -> None:
        self.state = ACTIVE[1]
        self._starting.add(group)
        if group in self._known:
            self._mark(at, "back", f"group {group} is back at step {event['step']}")
        elif group >= event.get("groups", 1):
            self._mark(at, "join", f"group {group} joins at step {event['step']}")
        self._known.add(group)

    def _measure(self, at: float, group: int, event: Mapping[str, Any]) -> None:
        metrics = {name: value for name, value in event["metrics"].items() if math.isfinite(value)}
        self.metrics += [name for name in metrics if name not in self.metrics]
        row = Row(at, group, event["step"], metrics, phase=event.get("phase", "train"))
        if row.phase != "train":
            self.evaluations.append(row)
            self.evaluated += 1
            self.result = f"{row.phase} " + "  ".join(f"{name} {value:.4f}" for name, value in row.metrics.items())
            return
        servers = event.get("server") or {}
        row = row._replace(
            starts=group in self._starting,
            samples_per_s=event["samples_per_s"],
            wait=tuple(event["wait"]),
            loading=tuple(event["loading"]),
            staleness=servers.get("staleness"),
            nbytes=len(event["wait"]) * event["sent"] + servers.get("bytes", 0.0) or None,
        )
        self.latest[group] = row
        if row.starts or at - self._kept_at.get(group, -self._every_s) >= self._every_s:
            self._starting.discard(group)
            self._kept_at[group] = at
            # Which rank waits is shown as it is now.
            self.rows.append(row._replace(wait=(), loading=()))
            if len(self.rows) > ROWS:
                self._cut()

    def _mark(self, at: float, kind: str, text: str) -> None:
        self.marks.append(Mark(at, kind, text))
        self.marked += 1

    def _cut(self) -> bool:
        """Leave out every second row of each group; returns whether there are fewer now."""
        seen: dict[int, int] = {}
        kept, starts, before = [], set[int](), len(self.rows)
        for row in self.rows:
            seen[row.group] = seen.get(row.group, -1) + 1
            if row.starts:
                starts.add(row.group)
            if seen[row.group] % 2 == 0:
                kept.append(row._replace(starts=row.group in starts))
                starts.discard(row.group)
        self.rows, self.cuts, self._every_s = kept, self.cuts + 1, 2 * self._every_s
        return len(kept) < before


class LatestRuns:
    """The latest runs on a Dask cluster, by the topics of their events."""

    def __init__(self) -> None:
        self._runs: dict[str, RunHistory] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._runs

    def __getitem__(self, topic: str) -> RunHistory:
        return self._runs[topic]

    @property
    def version(self) -> int:
        """Changes with every run."""
        return sum(run.version for run in self._runs.values()) + len(self._runs)

    def newest_first(self) -> list[tuple[str, RunHistory]]:
        return [*reversed(self._runs.items())]

    def begin(self, topic: str, now: float, **about: Any) -> None:
        """A run begins. about: see Run. The oldest one is forgotten, if possible one that has ended."""
        self._runs[topic] = RunHistory(**about, began=now)
        if len(self._runs) > RUNS:
            ended = [key for key, run in self._runs.items() if not run.active]
            del self._runs[(ended or [*self._runs])[0]]

    def lose(self, client: str) -> None:
        """A Dask client has gone: runs that it drove have no driver any more."""
        for run in self._runs.values():
            if run.client == client and run.active:
                run.over("lost")
