"""The places of a job's fields in its text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import JobProto
from singa_dask.job.paths import Path, format_path, layer_names


@dataclass(frozen=True)
class Place:
    """A place in a job's text. `file` is None for text without a file; an override has no line."""

    file: str | None = None
    line: int | None = None
    column: int | None = None


Locate = Callable[[Path], Place]


class Positions:
    """The place of every field of a job that was assembled from several texts. `file` is the main one."""

    def __init__(self, places: Mapping[Path, Place] | None = None, file: str | None = None):
        self._places: dict[Path, Place] = dict(places or {})
        self._file = file

    def find(self, path: Path) -> Place:
        """The place of the field, else of the nearest block around it, else the file alone."""
        for length in range(len(path), 0, -1):
            place = self._places.get(path[:length])
            if place is not None:
                return place
        return Place(self._file)

    def replace(self, path: Path, other: Positions) -> None:
        """Replace the places of the field at `path` and of everything below it by those in `other`."""
        kept = {p: place for p, place in self._places.items() if p[: len(path)] != path}
        self._places = kept | {p: place for p, place in other._places.items() if p[: len(path)] == path}


_LAYER_KEY = re.compile(r"layer '(?P<name>[^']+)'(?:\.(?P<field>[\w.]+))?")


def locate_problems(error: ConfigError, job: JobProto, locate: Locate) -> ConfigError:
    """The same error, with places for the problems of layers, whose keys are like "layer 'conv1'"."""
    names = layer_names(job)
    paths = {name: path for path, name in names.items()}

    def located(problem: Problem) -> Problem:
        match = _LAYER_KEY.fullmatch(problem.key)
        if problem.line is not None or match is None or match["name"] not in paths:
            return problem
        path = paths[match["name"]] + tuple((match["field"] or "").split("." if match["field"] else None))
        place = locate(path)
        return replace(problem, key=format_path(path, names), file=place.file, line=place.line, column=place.column)

    return ConfigError(map(located, error.problems))
