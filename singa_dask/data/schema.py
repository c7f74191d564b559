"""What a sample is: its columns, how the columns of a table became features, and how the source was read.

It is written down once, when data are first described, and kept in the manifest of shards and in every checkpoint.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from singa_dask.data.columns import Column
from singa_dask.data.encoders import Encoders
from singa_dask.errors import DataError

logger = logging.getLogger(__name__)

# Of the manifest and of descriptions in checkpoints. Others are refused.
VERSION = 6
TYPES = ("number", "integer", "text", "true or false", "date", "zoned date")
RISING, FALLING = "rising", "falling"
SEPARATOR = ", "
_FROM = " from "
MAX_NAMED = 1000


class Along(NamedTuple):
    """What is known of the samples of a column beside their values. dims: the names of their dimensions; courses: how
    the coordinates of these run, see `course_of`; units: of several variables with commas between them."""

    dims: tuple[str, ...] = ()
    courses: Mapping[str, str] = {}
    units: str = ""

    def axes_like(self, trained: Along, what: str, where: str = "the training data") -> tuple[int, ...]:
        """The axes of samples in the order of those there; none where one has no names. Raises DataError if they lie
        along other dimensions or coordinates, or have other units."""
        check_units(trained.units, self.units, what, where)
        check_courses(trained.courses, self.courses, what, where)
        if not (self.dims and trained.dims):
            return ()
        if sorted(self.dims) != sorted(trained.dims):
            hint = "Rename or select the dimensions."
            if {*self.dims} < {*trained.dims}:  # the first dimension counts the samples
                hint = "Is that of the samples missing? Add it to a single field: data.expand_dims('time')."
            raise DataError(
                f"{what}: has samples along {_listed(self.dims)}, but in {where} along {_listed(trained.dims)}. {hint}"
            )
        return tuple(map(self.dims.index, trained.dims))

    def warn_of_places(self, trained: Along, what: str) -> None:
        """Log a warning if the coordinates of a dimension are others than in the training data."""
        for name, course in self.courses.items():
            ends, known = (each.partition(_FROM)[2] for each in (course, trained.courses.get(name, "")))
            if ends and known and ends != known:
                message = (
                    "%s: the coordinates along %r run from %s, but ran from %s in the training data. If the net "
                    "depends on the place, select or convert these coordinates"
                )
                logger.warning(message, what, name, ends, known)

    def check_like(self, trained: Along, what: str, where: str = "the training data") -> None:
        """Raise DataError if the samples would have to be turned to be like those there, as `axes_like`."""
        axes = self.axes_like(trained, what, where)
        if axes != tuple(range(len(axes))):
            told = f"has samples along {_listed(self.dims)}, but in {where} along {_listed(trained.dims)}"
            raise DataError(f"{what}: {told}. Transpose the dimensions.")


@dataclass(frozen=True)
class Reading:
    """How a source was read, so that other files are read in the same way.

    format: of `singa-dask shard`, "" for arrays and tables in memory. Of CSV: separator; header: whether the first
    line names the columns; dates: formats of dates that are not ISO 8601, by column; types: one of TYPES, by column.
    Of arrays: datasets: the path of each, by column; dimensions: the names of those of a sample, with / between them,
    by column; coordinates: how those of these dimensions run, by dimension: see `course_of`; units: those that are
    known, by column.
    """

    format: str = ""
    separator: str = ""
    header: bool = True
    dates: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    datasets: Mapping[str, str] = field(default_factory=dict)
    dimensions: Mapping[str, str] = field(default_factory=dict)
    coordinates: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)

    def along(self, column: str) -> Along:
        """What is known of the samples of a column."""
        dims = self.dimensions.get(column, "")
        return Along(tuple(dims.split("/") if dims else ()), self.coordinates, self.units.get(column, ""))


@dataclass(frozen=True)
class Schema:
    """The description of a data set. encoders: of the columns of a table. fitted: the samples that the statistics, the
    values for missing ones and the categories come from, as text."""

    columns: tuple[Column, ...]
    encoders: Encoders = field(default_factory=Encoders)
    reading: Reading = field(default_factory=Reading)
    fitted: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "columns": list(map(_column_fields, self.columns)),
            "encoders": self.encoders.to_json(),
            "reading": asdict(self.reading),
            "fitted": self.fitted,
        }

    def to_json(self) -> str:
        """The text that checkpoints keep; `manifest_reader.read_description` reads it."""
        return json.dumps({"version": VERSION, **self.fields})


def course_of(values: Any) -> str:
    """How the coordinates of a dimension run: of numbers and times "rising from 0 to 330", or falling; the names of
    others, with commas between them; "" if there is no such order, or if these are too many."""
    values = np.asarray(values)
    if values.ndim != 1 or len(values) < 2:
        return ""
    if values.dtype.kind in "iufM":
        rises = values[1:] > values[:-1]
        way = RISING if rises.all() else FALLING if (values[1:] < values[:-1]).all() else ""
        ends = [str(end) if values.dtype.kind == "M" else f"{end:g}" for end in values[[0, -1]]]
        return way and way + _FROM + " to ".join(ends)
    named = values.dtype.kind in "SUTO" and len(values) <= MAX_NAMED
    return SEPARATOR.join(map(str, values.tolist())) if named else ""


def same_order(dims: Sequence[str], like: Sequence[str]) -> tuple[str, ...]:
    """The dimensions, of which those that `like` has too are in its order; the others stay in place.

    >>> same_order(["band", "lon", "lat"], ["lat", "lon"])
    ('band', 'lat', 'lon')
    """
    shared = iter([dim for dim in like if dim in dims])
    return tuple(next(shared) if dim in like else dim for dim in dims)


def check_grid(own: Mapping[str, int], like: Mapping[str, int], what: str, other: str) -> None:
    """Raise DataError if fields of the same size lie along dimensions of other names: their values would be paired by
    their places. own, like: the sizes of the dimensions of a sample."""
    strange, lacking = ([dim for dim in a if dim not in b] for a, b in ((own, like), (like, own)))
    sizes = Counter(own[dim] for dim in strange) - Counter(like[dim] for dim in lacking)
    if strange and not sizes and min(len(own), len(like)) > 1:
        raise DataError(
            f"{what}: lies along {', '.join(own)}, but {other} along {', '.join(like)}. Rename the dimensions of one, "
            "for example with xarray, after a look at how their coordinates run."
        )


def check_courses(
    trained: Mapping[str, str], own: Mapping[str, str], what: str, where: str = "the training data"
) -> None:
    """Raise DataError if the coordinates of a dimension run otherwise than there."""
    for name, course in own.items():
        way, before = (each.partition(_FROM)[0] for each in (course, trained.get(name, "")))
        if way and before and way != before:
            numbers = {way, before} == {RISING, FALLING}
            hint = f"Reverse the values along {name!r}" if numbers else f"Reorder or select the values along {name!r}"
            raise DataError(
                f"{what}: the coordinates along {name!r} are {way}, but were {before} in {where}. "
                f"{hint}, for example with xarray."
            )


def check_units(known: str, own: str, what: str, where: str) -> None:
    """Raise DataError if both have units, and these differ."""
    both = (known.split(SEPARATOR), own.split(SEPARATOR))
    pairs = zip(*both, strict=True) if len(both[0]) == len(both[1]) else [(known, own)]
    if any(one and other and one != other for one, other in pairs):
        raise DataError(
            f"{what}: has the units {own!r}, but {known!r} in {where}. Convert the values, or remove the attribute "
            "`units` if they mean the same."
        )


def _listed(dims: Sequence[str]) -> str:
    return ", ".join(dims)


def _column_fields(column: Column) -> dict[str, Any]:
    told = {entry.name: getattr(column, entry.name) for entry in fields(column)}
    told |= {"fill": vars(column.fill)} if column.fill else {}
    return {name: value for name, value in told.items() if value or name not in ("names", "dataset", "fill")}
