"""Every error that singa_dask raises on purpose.

SingaError
├── ConfigError        the job cannot run as written; holds one Problem per fault
├── DataError          a shard, manifest or data set is missing, damaged or inconsistent
├── CheckpointError    a checkpoint is missing, damaged or of another net
├── ClusterError       workers are missing, a group cannot form, a rank was lost
│   ├── CommTimeout    a collective did not finish in time
│   ├── MpiUnusable    there is no MPI library that can form groups here
│   └── SchedulerLost  the Dask scheduler does not answer any more
└── TrainingError      training failed (a layer raised an exception, the loss is not finite)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

_K = TypeVar("_K")


class SingaError(Exception):
    """Base of every error that singa_dask raises on purpose."""


@dataclass(frozen=True)
class Problem:
    """One fault of a job: the `key`, the `message`, the `received` value and the way out (`hint`).

    file, line, column: the place of the key, or of the nearest block around it, in the text of the job.

    >>> print(Problem("cluster.nworker_groups", "must be at least 1", received="0", hint="Leave it out for 1."))
    cluster.nworker_groups: must be at least 1. Received: 0. Leave it out for 1.
    """

    key: str
    message: str
    received: str | None = None
    hint: str | None = None
    line: int | None = None
    column: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        where = "" if self.file is None else f"{self.file}:"
        where += "" if self.line is None else f"{self.line}:{self.column or 1}:"
        where += " " if where else ""
        end = "" if self.message.endswith("?") else "."
        text = f"{where}{self.key}: {self.message.rstrip('.')}{end}"
        if self.received is not None:
            text += f" Received: {self.received}."
        if self.hint:
            text += f" {self.hint}"
        return text


class ConfigError(SingaError):
    """The job cannot run as written. `problems` holds every fault found."""

    def __init__(self, problems: Problem | Iterable[Problem]):
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple:
        return type(self), (self.problems,)


class DataError(SingaError):
    """A shard, manifest or data set is missing, damaged or inconsistent."""


class CheckpointError(SingaError):
    """A checkpoint is missing, damaged or of another net."""


class ClusterError(SingaError):
    """Workers are missing, a group cannot form, or a rank was lost."""


class CommTimeout(ClusterError):
    """A collective did not finish in time."""


class SchedulerLost(ClusterError):
    """The Dask scheduler does not answer any more."""


class MpiUnusable(ClusterError):
    """There is no MPI library that can form groups here: trying again would not help."""


class TrainingError(SingaError):
    """Training failed: a layer raised an exception, or the loss is not finite."""


def consequence(error: BaseException) -> int:
    """How far an error is from the root cause: 0 for a rank's own, 1 for a timeout of its group, 2 for what a broken
    group makes its ranks raise."""
    if isinstance(error, CommTimeout):
        return 1
    return 2 if isinstance(error, ClusterError) and not isinstance(error, MpiUnusable) else 0


def root_cause(errors: Mapping[_K, BaseException]) -> _K:
    """The key of the error that caused the others; of equal ones, the first.

    >>> root_cause({0: ClusterError("aborted"), 1: CommTimeout("no answer"), 2: ValueError("bad batch")})
    2
    """
    return min(errors, key=lambda key: consequence(errors[key]))


def nearest(value: str, valid: Iterable[str]) -> str:
    """A hint with the valid name nearest to `value`, or with all valid names if none is near.

    >>> nearest("kSDG", ["kSGD", "kAdam"])
    'Did you mean kSGD?'
    """
    names = sorted(valid)
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.6)
    if not close:
        folded = {name.lower(): name for name in names}
        close = [folded[m] for m in difflib.get_close_matches(value.lower(), folded, n=1, cutoff=0.6)]
    if close:
        return f"Did you mean {close[0]}?"
    return f"Valid: {', '.join(names)}." if names else ""
