"""Collections that a call is given: their columns, by name, and their rows, in one order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from singa_dask.data.columns import X
from singa_dask.data.containers import columns_of, in_types_of_numpy, is_lazy, is_sparse, is_table
from singa_dask.data.labelled import (
    along_of,
    as_samples,
    in_order,
    is_labelled,
    variables_of,
    with_gaps,
)
from singa_dask.data.listed import names_in, together
from singa_dask.data.manifest import Manifest
from singa_dask.data.native import check_at_hand, native
from singa_dask.data.rows import in_same_rows
from singa_dask.data.schema import Along, check_orders
from singa_dask.data.sources.stored import Stored
from singa_dask.errors import ConfigError, DataError, Problem

DATES = ("datetime64", "timestamp", "date")  # how the types of dates begin


@dataclass
class Given:
    """A collection that was given. what: the argument; raw: its raw columns; columns: of a DataFrame; along: what a
    DataArray says of its samples."""

    what: str
    value: Any
    raw: list[str]
    columns: list[Any] | None = None
    along: Along = field(default_factory=Along)

    @property
    def lazy(self) -> bool:
        return is_lazy(self.value)

    @property
    def array(self) -> bool:
        return hasattr(self.value, "dtype") and hasattr(self.value, "shape") and not hasattr(self.value, "index")

    @property
    def rows(self) -> int | None:
        """How many samples, if that is known."""
        rows = math.nan if self.lazy and not self.array else self.value.shape[0]
        return None if math.isnan(rows) else int(rows)

    @property
    def named(self) -> dict[str, str]:
        """The raw columns by the names that the user knows."""
        return dict(zip(map(str, self.columns or self.raw), self.raw, strict=True))

    @property
    def dates(self) -> list[str]:
        """The names of the columns of dates."""
        kinds = [self.value.dtypes[column] for column in self.columns] if self.columns else [self.value.dtype]
        return [name for name, kind in zip(self.named, kinds, strict=True) if str(kind).startswith(DATES)]

    @property
    def names(self) -> str | dict[Any, str]:
        return self.raw[0] if self.columns is None else dict(zip(self.columns, self.raw, strict=True))


def given_of(
    value: Any,
    what: str,
    taken: set[str] = frozenset(),  # type: ignore[assignment]
    like: Any = None,
    *,
    cut: bool = False,
) -> list[Given]:
    """The collections of an argument. like: the first DataArray of X, if it has one. cut: whether samples are patches
    of it."""
    one_of = partial(_one, like=like, cut=cut)
    check_at_hand(what, value)
    value = native(with_gaps(value))
    value = variables_of(value, what) if is_labelled(value) and hasattr(value, "data_vars") else value
    if is_labelled(value):
        return [one_of(value, what, what.lower() if what in "Xy" else what)]
    if isinstance(value, Mapping):
        if not value:
            raise ConfigError(Problem(what, "must hold at least one array", "an empty mapping"))
        return [one_of(each, what, _free(str(name), what, taken)) for name, each in value.items()]
    if hasattr(value, "columns") and value.ndim == 2:  # a DataFrame; a Series of Dask has columns too
        columns = list(value.columns)
        if len({str(column) for column in columns}) < len(columns):
            raise DataError(f"{what}: two columns have the same name: {', '.join(map(str, columns))}. Rename one.")
        return [Given(what, value, [_free(str(column), what, taken) for column in columns], columns)]
    if hasattr(value, "index") and hasattr(value, "name"):  # a Series
        if what == "X":
            return given_of(value.to_frame(name="x" if value.name is None else value.name), what, taken)
        name = "y" if value.name is None else str(value.name)
        return [Given(what, value, [_free(name, what, taken) if what == "y" else what])]
    return [one_of(value, what, what.lower() if what in "Xy" else what)]


def _free(name: str, what: str, taken: set[str]) -> str:
    return f"{what}.{name}" if name in taken else name


def _one(value: Any, what: str, name: str, like: Any, *, cut: bool) -> Given:
    value, along, _ = together(value, what)
    if is_labelled(value):
        value = value if like is None else in_order(value, like, name)
        along = along_of(as_samples(value) if cut and value.ndim == 2 else value, what)
    value = value.tocsr() if is_sparse(value) else native(value)
    if isinstance(value, Stored):
        along = value.along(lone=cut and value.ndim == 2)
    array = hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "__getitem__")
    if not array and not is_table(value):
        value = np.asarray(value)
    if isinstance(value, np.generic) or len(value.shape) == 0:
        raise DataError(f"{what}: must have the samples along its first axis, but it is one value.")
    return Given(what, value, [name], along=along)


def as_array_of(one: Given, like: Manifest | None) -> Given:
    """A table in memory as the array of the columns with the names of the values of a sample, if the training samples
    `like` came from an array with such names; all else as it is. Raises DataError if one is missing."""
    if like is None or like.encoders or one.columns is None or one.lazy:
        return one
    known = like.schema.reading.along(X)
    if len(known.dims) != 1 or not known.coordinates:
        return one
    try:
        table = columns_of(one.value, names_in(known, one.columns, 1), one.what)
    except ValueError as error:
        raise DataError(str(error)) from error
    return Given(one.what, in_types_of_numpy(table), [X])


def in_rows(given: list[Given]) -> None:
    """Give the collections their rows in the same order, and DataArrays as arrays. Raises DataError where they have
    others."""
    counts = Counter(one.what for one in given)
    names = [f"{one.what}[{one.raw[0]!r}]" if counts[one.what] > 1 else one.what for one in given]
    if any(isinstance(one.value, Stored) for one in given):
        check_orders([(name, one.along) for name, one in zip(names, given, strict=True)])
    values = in_same_rows(zip(names, (one.value for one in given), strict=True))
    for one, value in zip(given, values, strict=True):
        one.value = value.data if is_labelled(value) else value
        if is_table(one.value) and not one.lazy and one.columns is None:
            one.value = one.value.to_numpy()


def only(given: list[Given], what: str) -> Given:
    """The one column of an argument, which no user has named. Raises ConfigError where there are more."""
    if len(given) != 1 or len(given[0].raw) != 1:
        raise ConfigError(Problem(what, "must be one array or Series", f"{sum(len(g.raw) for g in given)} columns"))
    given[0].raw = [f"({what})"]
    return given[0]
