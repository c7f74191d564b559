"""What a sample is: its columns, how the columns of a table became features, and how the source was read.

It is written down once, when data are first described, and kept in the manifest of shards and in every checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

import numpy as np

from singa_dask.data.columns import Column
from singa_dask.data.encoders import Encoders
from singa_dask.errors import DataError

logger = logging.getLogger(__name__)

# Of the manifest and of descriptions in checkpoints. Others are refused.
VERSION = 9
TYPES = ("number", "integer", "text", "true or false", "date", "zoned date")
SEPARATOR = ", "
STEP, COLUMN = "(step)", "(column)"  # the dimensions of a sample that is a table
MAX_PLACES = 10_000
DTYPES = {"number": "f8", "date": "M8[us]", "text": "U"}  # of coordinates


@dataclass(frozen=True)
class Coordinates:
    """Those along a dimension. type: one of DTYPES; size: how many; values: all, dates in ISO 8601. Of more than
    MAX_PLACES, the first and the last of those that rise or fall, and a hash of others, as a text."""

    type: str
    size: int
    values: tuple[float | str, ...]

    @classmethod
    def of(cls, given: Any) -> Coordinates | None:
        """Those in an array; None if it has not one axis."""
        if np.ndim(given) != 1 or not len(given):
            return None
        values = comparable(given)
        kind, size = {"U": "text", "M": "date"}.get(values.dtype.kind, "number"), len(values)
        values = values.astype(DTYPES[kind])
        if size > MAX_PLACES:
            if not _ways(values):
                return cls("text", size, (hashlib.blake2b(values.tobytes(), digest_size=16).hexdigest(),))
            values = values[[0, -1]]
        return cls(kind, size, tuple((values.astype(str) if kind == "date" else values).tolist()))

    @property
    def array(self) -> np.ndarray:
        """The values."""
        return np.array(self.values, DTYPES[self.type])

    @property
    def ways(self) -> set[str]:
        """Whether numbers or dates are rising or falling; a single one is both."""
        return _ways(self.array)

    @property
    def shown(self) -> list[str]:
        """The values as texts for messages."""
        return [f"{value:g}" if isinstance(value, float) else value for value in self.values]

    def order_like(self, other: Coordinates) -> np.ndarray | None:
        """As `order_like`, for the values."""
        if self.size == other.size == len(self.values):
            return order_like(self.array, other.array)
        return np.arange(self.size) if self == other else None

    def __str__(self) -> str:
        first, *_, last = (*self.shown, self.shown[-1])
        if self.size > len(self.values) == 1:
            return f"{self.size:,} in no order"
        if len(self.ways) == 1:
            return f"{min(self.ways)} from {first} to {last}"
        return SEPARATOR.join([*self.shown[:8], *["..."] * (self.size > 8)])


class Turn(NamedTuple):
    """How samples become like others. axes: theirs in this order, none for as they are; places: then, of an axis, the
    places along it in this order."""

    axes: tuple[int, ...] = ()
    places: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def of(self, values: Any) -> Any:
        """The samples (n, ...) of an array of NumPy or Dask; further axes stay."""
        if self.axes:
            values = values.transpose(0, *(1 + axis for axis in self.axes), *range(1 + len(self.axes), values.ndim))
        for axis, order in self.places:
            values = values[(slice(None),) * (1 + axis) + (list(order),)]
        return values

    @property
    def moved(self) -> set[int]:
        """The axes of the turned samples along which they are turned."""
        return {at for at, axis in enumerate(self.axes) if at != axis} | {axis for axis, _ in self.places}


AS_THEY_ARE = Turn()


class Along(NamedTuple):
    """What is known of the samples of a column beside their values. dims: the names of their dimensions; coordinates:
    by dimension; units: of several variables with commas between them; scalars: as of `scalars_of`."""

    dims: tuple[str, ...] = ()
    coordinates: Mapping[str, Coordinates] = {}
    units: str = ""
    scalars: Mapping[str, str] = {}

    def turn_to(self, trained: Along, what: str, where: str = "the training data") -> Turn:
        """How the samples become like those there. Raises DataError if they lie along other dimensions or coordinates,
        or have other units."""
        check_units(trained.units, self.units, what, where)
        own, trained = self.named_like(trained), trained.named_like(self)
        orders = orders_like(own.coordinates, trained.coordinates, what, where)
        if not (own.dims and trained.dims):
            return AS_THEY_ARE
        if sorted(own.dims) != sorted(trained.dims):
            hint = "Rename or select the dimensions."
            if {*own.dims} < {*trained.dims}:  # the first dimension counts the samples
                hint = "Is that of the samples missing? Add it to a single field: data.expand_dims('time')."
            raise DataError(
                f"{what}: has samples along {_listed(own.dims)}, but in {where} along {_listed(trained.dims)}. {hint}"
            )
        axes = tuple(map(own.dims.index, trained.dims)) if own.dims != trained.dims else ()
        return Turn(axes, tuple((trained.dims.index(dim), order) for dim, order in orders.items()))

    def check_order(self, other: Along, what: str, where: str = "the training data") -> None:
        """Raise DataError as `turn_to`, and if the samples would have to be turned."""
        turn = self.turn_to(other, what, where)
        if turn != AS_THEY_ARE:
            told = f"has samples along {_listed(self.dims)}, but in {where} along {_listed(other.dims)}"
            if not turn.axes:
                names = _listed([other.dims[axis] for axis, _ in turn.places])
                told = f"has the coordinates along {names} in another order than in {where}"
            raise DataError(f"{what}: {told}. Reorder it, or open it with xarray: a DataArray is put in order.")

    def shared(self, other: Along) -> Along:
        """What is known of the dimensions that the other one has too."""
        known = {dim: at for dim, at in self.coordinates.items() if dim in other.dims}
        return Along(tuple(filter(other.dims.__contains__, self.dims)), known)

    def named_like(self, other: Along) -> Along:
        """A table's rows and columns as the dimensions of an array, by the coordinates that are the names of the
        columns, else texts, and as many; without names where the array has none. The steps of records as the only
        other dimension. All else as it is."""
        names = self.coordinates.get(COLUMN)
        others = [dim for dim in other.dims if dim not in self.dims]
        if {*self.dims} - {*other.dims} == {STEP} and len(others) == 1:
            return self._replace(dims=tuple(others[0] if dim == STEP else dim for dim in self.dims))
        if names is None or COLUMN in other.dims:
            return self
        same = len(other.dims) == len(self.dims) and names.type == "text"
        known = {dim: at for dim, at in other.coordinates.items() if same and dim in other.dims}
        found = [dim for dim, at in known.items() if sorted(at.shown) == sorted(names.values)]
        if [*names.values] != [*map(str, range(names.size))]:  # which pandas gives to what has no names
            found += [dim for dim, at in known.items() if at.type == "text" and at.size == names.size]
        if not found:
            return self._replace(dims=(), coordinates={})
        own = dict(zip(known[found[0]].shown, known[found[0]].values, strict=False))
        if own.keys() == {*names.values}:
            names = Coordinates(known[found[0]].type, names.size, tuple(own[str(name)] for name in names.values))
        dims = (*(dim for dim in other.dims if dim != found[0]), found[0])
        told = dict(zip(self.dims, dims, strict=True))
        coordinates = {told[dim]: at for dim, at in ({**self.coordinates, COLUMN: names}).items()}
        return self._replace(dims=dims, coordinates=coordinates)

    def warn_of_places(self, trained: Along, what: str, where: str = "the training data") -> bool:
        """Log a warning if the coordinates of a dimension, or scalar ones, are others than there. Returns whether."""
        there = trained.coordinates
        scalars = [name for name, value in self.scalars.items() if value != trained.scalars.get(name, value)]
        for name in scalars:
            message = "%s: the coordinate %r is %s, but %s in %s. If the net depends on it, select the same one"
            logger.warning(message, what, name, self.scalars[name], trained.scalars[name], where)
        names = [name for name in self.coordinates if name in there]
        same = prod(self.coordinates[name].size for name in names) == prod(there[name].size for name in names)
        others = [name for name in names if same and self.coordinates[name].order_like(there[name]) is None]
        for name in others:
            ends, known = (f"{of[name].shown[0]} to {of[name].shown[-1]}" for of in (self.coordinates, there))
            known += ", with others between," * (ends == known)
            message = (
                "%s: the coordinates along %r run from %s, but ran from %s in %s. If the net depends on the place, "
                "select or convert these coordinates"
            )
            logger.warning(message, what, name, ends, known, where)
        return bool(scalars or others)


@dataclass(frozen=True)
class Reading:
    """How a source was read, so that other files are read in the same way.

    format: of `singa-dask shard`, "" for arrays and tables in memory. Of CSV: separator; header: whether the first
    line names the columns; dates: formats of dates that are not ISO 8601, by column; types: one of TYPES, by column.
    Of arrays: datasets: the path of each, by column; dimensions: the names of those of a sample, with / between them,
    by column; coordinates: those of these dimensions, by dimension; units: those that are known, by column; scalars:
    scalar coordinates by column, as of `scalars_of`.
    Of images: resized: whether those of another size are resized.
    """

    format: str = ""
    separator: str = ""
    header: bool = True
    dates: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    datasets: Mapping[str, str] = field(default_factory=dict)
    dimensions: Mapping[str, str] = field(default_factory=dict)
    coordinates: Mapping[str, Coordinates] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    resized: bool = False

    def along(self, column: str) -> Along:
        """What is known of the samples of a column."""
        dims = tuple(filter(None, self.dimensions.get(column, "").split("/")))
        known = {dim: self.coordinates[dim] for dim in dims if dim in self.coordinates}
        return Along(dims, known, self.units.get(column, ""), self.scalars.get(column, {}))


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


def comparable(given: Any) -> np.ndarray:
    """Coordinates as numbers, dates or texts. Time spans are numbers of days; with what is missing, and with integers
    that float64 rounds, all are texts."""
    values = np.asarray(given)
    if values.dtype.kind == "m":
        values = values / np.timedelta64(1, "D")
    exact = values.dtype.kind not in "iu" or not values.size or max(abs(int(values.min())), int(values.max())) <= 2**53
    if values.dtype.kind in "iufUM" and exact and (values.dtype.kind not in "fM" or np.isfinite(values).all()):
        return values
    texts = (v.decode(errors="backslashreplace") if isinstance(v, bytes) else str(v) for v in values.tolist())
    return np.array([*texts], str)


def of_columns(names: Iterable[Any]) -> dict[str, Coordinates]:
    """The names of the columns of a table as coordinates."""
    known = Coordinates.of(np.array([*map(str, names)], str))
    return {} if known is None else {COLUMN: known}


def scalars_of(given: Mapping[str, Any]) -> dict[str, str]:
    """Coordinates that hold for all samples, such as the level of a field, as texts by name; dates are left out."""
    known = {name: Coordinates.of(np.reshape(value, 1)) for name, value in sorted(given.items())}
    return {name: at.shown[0] for name, at in known.items() if at is not None and at.type != "date"}


def around(dim: str, dims: Sequence[str], others: Mapping[str, tuple[Sequence[str], Any]]) -> Coordinates | None:
    """The coordinates of a dimension that has none of its own name: the only ones that lie along it alone, such as
    time(obs); else texts of what all say of each place, of a latitude(y, x) the smallest and the largest one there.

    dims: of a sample; others: coordinates by name, their dimensions and values.
    """
    known = {name: of for name, of in sorted(others.items()) if dim in of[0] and {*of[0]} <= {*dims}}
    if len(known) == 1 and len(next(iter(known.values()))[0]) == 1:
        return Coordinates.of(next(iter(known.values()))[1])
    told = []
    for name, (own, given) in known.items():
        values = np.moveaxis(np.asarray(given), list(own).index(dim), 0)
        ends = np.sort(comparable(values.ravel()).reshape(len(values), -1), axis=1)[:, [0, -1]]
        texts = [[f"{end:.6g}" if isinstance(end, float) else str(end) for end in pair] for pair in ends.tolist()]
        told.append([f"{name} {' to '.join(dict.fromkeys(pair))}" for pair in texts])
    return Coordinates.of(np.array([SEPARATOR.join(place) for place in zip(*told, strict=True)], str))


def order_like(own: Any, other: Any) -> np.ndarray | None:
    """The places at which own coordinates are the other ones: own[places] == other, for numbers up to a hundredth of
    the smallest step. None if they are not the same ones, or some are there twice and not in the same order."""
    own, other = comparable(own), comparable(other)
    kinds = {own.dtype.kind, other.dtype.kind}
    if own.shape != other.shape or (len(kinds) > 1 and not kinds <= {*"iuf"}):
        return None
    if (own == other).all():
        return np.arange(len(own))
    places, others = np.argsort(own, kind="stable"), np.argsort(other, kind="stable")
    one, two = own[places], other[others]
    if (one[1:] == one[:-1]).any() or (two[1:] == two[:-1]).any() or len(own) < 2:
        return None
    same = np.abs(one - two) <= np.diff(two).min() / 100 if "f" in kinds else one == two
    found = np.empty_like(places)
    found[others] = places
    return found if same.all() else None


def _ways(values: np.ndarray) -> set[str]:
    steps = {"rising": values[1:] > values[:-1], "falling": values[1:] < values[:-1]}
    return {way for way, holds in steps.items() if values.dtype.kind != "U" and holds.all()}


def orders_like(
    own: Mapping[str, Coordinates], other: Mapping[str, Coordinates], what: str, where: str
) -> dict[str, tuple[int, ...]]:
    """By dimension, the places of the other coordinates among its own, where these are in another order. Raises
    DataError if they are others, and do not rise or fall as those."""
    found = {}
    for name, known in own.items():
        before = other.get(name, known)
        order = known.order_like(before)
        if order is None and not known.ways & before.ways:
            raise DataError(
                f"{what}: the coordinates along {name!r} are {known}, but were {before} in {where}. Only the same "
                "values, each there once, are put in order. Select or reorder them, for example with xarray."
            )
        if order is not None and (order[1:] < order[:-1]).any():
            found[name] = tuple(order.tolist())
    return found


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


def check_turned(turned: Mapping[int, str], others: Mapping[str, Sequence[int]], where: str) -> None:
    """Raise DataError if samples were turned along an axis of the same size as one of others that were not. turned: by
    size, what was; others: the shapes of their samples."""
    for what, shape in others.items():
        for size in turned.keys() & {*shape}:
            raise DataError(
                f"{what}: has an axis of {size:,} without coordinates here or there, and {turned[size]} is in another "
                f"order than in {where}. Give both as DataArrays, or both in that order."
            )


def check_orders(given: Sequence[tuple[str, Along]]) -> None:
    """Raise DataError if of what is given together, some has the same dimensions or coordinates in another order. By
    names for messages."""
    for (other, like), (what, own) in combinations(given, 2):
        own.shared(like).check_order(like.shared(own), what, other)


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
    return {name: value for name, value in told.items() if value or name not in ("names", "dataset", "fill", "coded")}
