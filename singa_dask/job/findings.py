"""Collects the problems of a job."""

from __future__ import annotations

import math

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import JobProto
from singa_dask.job.locate import Locate, Place
from singa_dask.job.paths import Path, format_path, layer_names


class Findings:
    """The problems of one job. Every check adds its own."""

    def __init__(self, job: JobProto, locate: Locate | None = None):
        self.job = job
        self._locate = locate
        self._names = layer_names(job)
        self._found: dict[tuple[str, str], Problem] = {}

    def add(self, path: Path, message: str, received: str | None = None, hint: str | None = None) -> None:
        """Add a problem of the field at `path`, unless it is there already."""
        place = self._locate(path) if self._locate else Place()
        key = format_path(path, self._names) or "job"
        problem = Problem(key, message, received, hint, place.line, place.column, place.file)
        self._found.setdefault((key, message), problem)

    def missing(self, path: Path, example: str, why: str = "is missing") -> None:
        """Add a required field that is missing; `example` shows how to write it."""
        self.add(path, why, hint=f"Write {example}.")

    def raise_any(self) -> None:
        """Raise ConfigError with all problems, in the order of the job's text, if there are any."""
        if self._found:
            raise ConfigError(sorted(self._found.values(), key=_order))


def _order(problem: Problem) -> tuple[float, int]:
    """Problems without a line come last."""
    return (math.inf, 0) if problem.line is None else (problem.line, problem.column or 0)
