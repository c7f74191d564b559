"""Which mini-batches' gradients the parameters of a run contain, and why others are missing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from singa_dask.errors import CheckpointError
from singa_dask.server.ledger import Assignment, Contained, Ledger, Ranges, difference, pairs
from singa_dask.supervision.driver import Result
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.forms import BEGUN, REWOUND
from singa_dask.training.saving_host import saved_elsewhere
from singa_dask.training.workspace import Workspace


@dataclass(frozen=True)
class Missing:
    """Steps [first, stop) that a group has trained and the parameters lack.

    partly: whether some elements contain them. why: "" if the record of the run does not explain it.
    """

    first: int
    stop: int
    partly: bool
    why: str


@dataclass(frozen=True)
class GroupAudit:
    """One worker group in one assignment. Ranges of steps are (first, stop).

    assignment: the number of worker groups that shared the data, and their first step. start, trained: the group's
    first step, and the step up to which it has trained. contained: that all parameters contain, once or more. twice:
    that some contain more than once.
    """

    assignment: Assignment
    group: int
    start: int
    trained: int
    contained: tuple[tuple[int, int], ...]
    missing: tuple[Missing, ...]
    twice: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Audit:
    """What the newest checkpoint of a run contains.

    status: that of the run: "completed", "interrupted", "failed" or "unfinished".
    damaged: files of the run that could not be read, and so are left out.
    """

    workspace: Path
    checkpoint: Path
    step: int
    status: str
    groups: tuple[GroupAudit, ...]
    damaged: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether no gradient is contained twice, and none is missing without a reason."""
        return not any(group.twice or any(not gap.why for gap in group.missing) for group in self.groups)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        contained = _count(r for group in self.groups for r in group.contained)
        twice = _count(r for group in self.groups for r in group.twice)
        gaps = [gap for group in self.groups for gap in group.missing]
        lost, explained = (_count((g.first, g.stop) for g in gaps if bool(g.why) is why) for why in (False, True))
        parts = [f"{_batches(contained)} contained{' once' * (twice == 0)}"]
        parts += [f"{_batches(twice)} more than once"] * (twice > 0)
        parts += [f"{_batches(lost)} missing without a reason"] * (lost > 0)
        parts += [f"{_batches(explained)} missing for the reasons above"] * (explained > 0)
        return f"{'clean' if self.clean else 'not clean'}: {', '.join(parts)}"

    def to_json(self) -> str:
        """Everything as JSON."""
        groups = [{**asdict(group), "assignment": group.assignment._asdict()} for group in self.groups]
        facts = {**asdict(self), "workspace": str(self.workspace), "checkpoint": str(self.checkpoint)}
        return json.dumps({**facts, "groups": groups, "clean": self.clean, "verdict": self.verdict}, indent=2)

    def __str__(self) -> str:
        return self.verdict


def audit(run: str | Path | Result) -> Audit:
    """Compare what the worker groups of a run have trained with what the parameters of its newest checkpoint contain.

    run: a Result, the workspace of a run, or its name in runs/.
    Raises ConfigError if there is no such run, CheckpointError if it has no valid checkpoint, or one without a ledger.
    """
    workspace = Workspace(run.workspace) if isinstance(run, Result) else Workspace.of(run)
    found, faults = checkpoints.newest(workspace.checkpoints)
    if found is None:
        why = " ".join(faults) or saved_elsewhere(workspace.folder)
        raise CheckpointError(f"{workspace.checkpoints}: no valid checkpoint to audit. {why}".rstrip())
    if not found.ledger.assignments:
        raise CheckpointError(f"{found.path}: has no ledger. Train again with this version of singa_dask.")
    record = _Record(workspace)
    groups = tuple(
        group for assignment in found.ledger.assignments for group in _groups(found.ledger, assignment, record)
    )
    return Audit(workspace.folder, found.path, found.step, record.status, groups, record.damaged)


class _Record:
    """What the files of a run tell besides its checkpoint. began, trained: by group, of the current assignment."""

    def __init__(self, workspace: Workspace) -> None:
        summary, fault = workspace.read_summary()
        rows, faults = workspace.metric_lines.read()
        told, others = workspace.event_lines.read()
        self.damaged = (*fault, *faults, *others)
        self.status: str = summary.get("status", "unfinished")
        self.trained = {int(group): report["step"] for group, report in summary.get("groups", {}).items()}
        self.began: dict[int, int] = {}
        for row in rows:
            if row["phase"] == "train":
                group, step = row["group"], row["step"]
                self.trained[group] = max(step, self.trained.get(group, 0))
                self.began[group] = min(step - 1, self.began.get(group, step))
        self._restarts = [
            _Loss(event, _until(event, told[i:])) for i, event in enumerate(told) if event["event"] == "restart"
        ]
        self._went_back = [event["step"] for event in told if event["event"] in ("start", REWOUND) and event["step"]]

    def why(self, group: int, first: int, stop: int, *, partly: bool, last: bool, alone: bool) -> str:
        """Why the steps [first, stop) are missing. last: whether the checkpoint contains no later ones of the group;
        alone: whether it was the only group, whose steps are repeated after a loss."""
        if last and self.status != "completed":
            return f"not in the newest checkpoint of a run that is {self.status}"
        if alone:
            return ""
        for loss in reversed(self._restarts):
            event, until = loss.event, loss.steps.get(group, math.inf)
            if group in event["groups"] and event["step"] <= stop <= until:
                return f"worker group {group} was restarted at step {event['step']}: {event['cause']}"
        for loss in reversed(self._restarts):
            event, until = loss.event, loss.steps.get(group, math.inf)
            if event["servers"] and group not in event["groups"] and first <= until:
                lost = " and ".join(map(str, event["servers"]))
                return f"server group {lost} was lost, with updates that no other had: {event['cause']}"
        if partly and self._went_back:
            return f"the run resumed from a checkpoint that was made during training (step {self._went_back[-1]})"
        return ""


class _Loss(NamedTuple):
    """A restart. steps: by group, those that were made when the group began again; of a group that was not restarted,
    when the first one of the others did. A group that did not begin again is not in it."""

    event: dict[str, Any]
    steps: dict[int, int]


def _until(restart: Mapping[str, Any], later: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    begun = [event for event in later if event["event"] == BEGUN and event["group"] in restart["groups"]]
    own: dict[int, int] = {}
    for event in begun:
        own.setdefault(event["group"], dict(event["steps"])[event["group"]])
    others = {group: step for group, step in (begun[0]["steps"] if begun else ()) if group not in restart["groups"]}
    return others | own


def _groups(ledger: Ledger, assignment: Assignment, record: _Record) -> Iterator[GroupAudit]:
    """The groups of an assignment: those of the job, and those that joined."""
    contained, current = ledger.assignments[assignment], assignment == ledger.assignment
    late = {group for group, step in record.trained.items() if current and step > assignment.first}
    for group in sorted({*range(assignment.groups), *contained, *late}):
        of = contained.get(group, Contained())
        start, end = ledger.start(assignment, group), of.by_any[-1] if of.by_any else 0
        if group >= assignment.groups:  # it began when it joined
            known = [*of.by_any[:1], *([record.began[group]] if current and group in record.began else [])]
            start = max(start, min(known, default=start))
        trained = max(start, end, record.trained.get(group, 0) if current else 0)
        missing = tuple(_missing(assignment, group, [start, trained] if start < trained else [], of, record))
        yield GroupAudit(assignment, group, start, trained, pairs(of.by_all), missing, pairs(of.twice))


def _missing(assignment: Assignment, group: int, trained: Ranges, of: Contained, record: _Record) -> Iterator[Missing]:
    last = of.by_all[-1] if of.by_all else 0
    gaps = [(False, *pair) for pair in pairs(difference(trained, of.by_any))]
    gaps += [(True, *pair) for pair in pairs(difference(of.by_any, of.by_all))]
    for partly, first, stop in sorted(gaps, key=lambda gap: gap[1]):
        why = record.why(group, first, stop, partly=partly, last=first >= last, alone=assignment.groups == 1)
        yield Missing(first, stop, partly, why)


def _count(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(stop - first for first, stop in ranges)


def _batches(count: int) -> str:
    return f"{count:,} mini-batch{'es' * (count != 1)}"
