"""Every error that singa_dask raises on purpose.

SingaError
├── ConfigError        the job cannot run as written; holds one Problem per fault
├── DataError          a shard, manifest or data set is missing, damaged or inconsistent
├── CheckpointError    a checkpoint is missing, damaged or of another net
├── ClusterError       workers are missing, a group cannot form, a rank was lost
│   ├── CommTimeout    a collective did not finish in time
│   ├── MpiUnusable    there is no MPI library that can form groups here
│   ├── DriverUnreachable  workers cannot reach the driver
│   └── SchedulerLost  the Dask scheduler does not answer any more
└── TrainingError      training failed (a layer raised an exception, the loss is not finite)
"""

from __future__ import annotations

import difflib
import errno
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeVar

_K = TypeVar("_K")
_LISTED = 60
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)


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


class NotFinite(DataError):
    """Samples have values with which no net can compute.

    column: of the values; what: they are; count: of them; first: the position of the first sample; hint: the way out.
    """

    def __init__(self, column: str, what: str, count: int, first: int, hint: str) -> None:
        super().__init__(column, what, count, first, hint)
        self.first = first

    def __str__(self) -> str:
        column, what, count, first, hint = self.args
        return f"column {column!r}: {count:,} value(s) are {what}, the first in sample {first:,}. {hint}"

    def after(self, rows: int) -> NotFinite:
        """The same, where so many samples come before those that were looked at."""
        column, what, count, first, hint = self.args
        return NotFinite(column, what, count, first + rows, hint)


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


class DriverUnreachable(ClusterError):
    """Workers cannot reach the driver: trying again would not help."""


class TrainingError(SingaError):
    """Training failed: a layer raised an exception, or the loss is not finite."""


def consequence(error: BaseException) -> int:
    """How far an error is from the root cause: 0 for a rank's own, 1 for a timeout of its group or of its network, 2
    for what a broken group makes its ranks raise."""
    if isinstance(error, CommTimeout | DriverUnreachable):
        return 1
    return 2 if isinstance(error, ClusterError) and not isinstance(error, MpiUnusable) else 0


def root_cause(errors: Mapping[_K, BaseException]) -> _K:
    """The key of the error that caused the others; of equal ones, the first.

    >>> root_cause({0: ClusterError("aborted"), 1: CommTimeout("no answer"), 2: ValueError("bad batch")})
    2
    """
    return min(errors, key=lambda key: consequence(errors[key]))


def reason(error: BaseException) -> str:
    """What an error says in its first line; its name if it says nothing."""
    said = error.strerror if isinstance(error, OSError) else None
    return next(iter((said or str(error)).splitlines()), "") or type(error).__name__


def no_room(error: BaseException) -> bool:
    """Whether a file could not be written because its disk is full, or its user has no more room there."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def disk_full(path: object, error: OSError) -> str:
    """What to say of a file or folder for which there is `no_room`."""
    return f"{path}: its disk is full ({os.strerror(error.errno or 0)}). Free space, or write elsewhere."


def way_out(error: BaseException, otherwise: str) -> str:
    """What helps if memory or open files have run out, which is not the file's fault; for other errors `otherwise`."""
    if isinstance(error, MemoryError):
        return "Use fewer processes, or more memory."
    if isinstance(error, OSError) and error.errno in _TOO_MANY_FILES:
        return "Raise the limit: ulimit -n NUMBER."
    return otherwise


def lack(error: BaseException) -> str | None:
    """What the machine lacks, and the way out: memory, room on a disk or open files; None for other errors."""
    if isinstance(error, MemoryError):
        said = f" ({reason(error)})" if str(error) else ""
        return f"memory ran out{said}. Use a smaller batchsize, fewer processes, or more memory."
    if not isinstance(error, OSError):
        return None
    path = error.filename
    if no_room(error):
        return disk_full(path, error) if path else f"the {disk_full('', error).removeprefix(': its ')}"
    help_ = way_out(error, "")
    return f"{f'{path}: ' if path else ''}{reason(error)}. {help_}" if help_ else None


def enumerated(items: Sequence[str]) -> str:
    """The items as a list in a sentence.

    >>> enumerated(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def nearest(value: str, valid: Iterable[str]) -> str:
    """A hint with the valid name nearest to `value`, or with all valid names if none is near.

    >>> nearest("kSDG", ["kSGD", "kAdam"])
    'Did you mean kSGD?'
    """
    names = sorted(valid)
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        if (same := unicodedata.normalize(form, value)) != value and same in names:
            return f"Did you mean {same} in the Unicode form {form} (unicodedata.normalize)?"
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.6)
    if not close:
        folded = {name.lower(): name for name in names}
        close = [folded[m] for m in difflib.get_close_matches(value.lower(), folded, n=1, cutoff=0.6)]
    if close:
        return f"Did you mean {close[0]}?"
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"Valid: {', '.join(names[:_LISTED])}{more}." if names else ""


def check_count(key: str, value: Any) -> None:
    """Raise ConfigError unless a parameter is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ConfigError(Problem(key, "must be an integer of at least 1", repr(value)))
