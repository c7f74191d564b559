"""Encoders: from the columns of a table to a vector of features, and the same again when a net predicts.

They are fitted once, when shards are written, and kept as JSON in the manifest and in checkpoints.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from singa_dask.data.ingest.facts import Facts, Kind
from singa_dask.data.ingest.values import as_texts, encode_series
from singa_dask.errors import DataError, nearest

KINDS = ("number", "onehot", "ordinal", "date", "zoned date", "timedelta")
DATES = ("date", "zoned date")
MISSING = -1
MAX_SHOWN = 60


@dataclass(frozen=True)
class Encoder:
    """How one column of a table becomes features.

    number: as it is. date: days since `origin`, itself days since 1970. zoned date: the same in UTC, of dates with a
    time zone. timedelta: days. onehot: 1 at the place of the category, else
    0. ordinal: the place. fill: what replaces a missing value, a category or a number; None if it is an error.
    unknown: what an unknown category becomes: "error", or "zeros" (ordinal: -1).
    """

    column: str
    kind: str
    categories: tuple[str, ...] = ()
    fill: float | str | None = None
    unknown: str = "error"
    origin: float = 0.0

    @property
    def categorical(self) -> bool:
        return self.kind in ("onehot", "ordinal")

    @property
    def holds(self) -> Kind:
        """What the column of the table must hold; numbers may be categories too."""
        return Kind.TEXT if self.categorical else Kind(self.kind)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        if self.kind == "onehot":
            return tuple(f"{self.column}={category}" for category in self.categories)
        return (self.column,)

    @property
    def fill_of_number(self) -> float:
        """What replaces a missing feature that is a number; NaN if nothing does."""
        if self.categorical or self.fill is None:
            return math.nan
        return float(self.fill) - (self.origin if self.kind in DATES else 0)

    @cached_property
    def places(self) -> dict[str, int]:
        return {category: place for place, category in enumerate(self.categories)}

    def recode(self, values: Sequence[str]) -> np.ndarray:
        """Places among the categories of a block's own dictionary, and at the end that of a missing value: (values +
        1,) int32. -1 for unknown categories, and for missing values that nothing replaces."""
        last = MISSING if self.fill is None else self.places.get(str(self.fill), MISSING)
        return np.array([*(self.places.get(value, MISSING) for value in values), last], np.int32)

    def features(self, values_N: np.ndarray, out_NW: np.ndarray) -> None:
        """Encode numbers, days since 1970, or places of categories."""
        if self.kind == "onehot":
            out_NW[...] = 0
            known = np.flatnonzero(values_N >= 0)
            out_NW[known, values_N[known]] = 1
            return
        out_NW[:, 0] = values_N - self.origin if self.kind in DATES else values_N
        if isinstance(self.fill, float):
            out_NW[np.isnan(out_NW[:, 0]), 0] = self.fill_of_number

    def to_json(self) -> dict[str, Any]:
        entries: dict[str, Any] = {"column": self.column, "kind": self.kind}
        entries |= {"categories": list(self.categories), "unknown": self.unknown} if self.categorical else {}
        entries |= {"origin": self.origin} if self.kind in DATES else {}
        return entries if self.fill is None else {**entries, "fill": self.fill}


class Encoders(tuple[Encoder, ...]):
    """The encoders of all columns of a table, in the order of the features."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features: (D,)."""
        return tuple(name for encoder in self for name in encoder.names)

    @cached_property
    def width(self) -> int:
        """The number of features, D."""
        return len(self.names)

    def apply(self, frame: Any, filled: Counter[str] | None = None) -> np.ndarray:
        """The features of a pandas DataFrame, or of a mapping from columns to arrays: (rows, D) float32.

        filled: counts the missing values of each column, which are replaced.
        Raises DataError for absent columns, missing values that nothing replaces, and unknown categories.
        """
        named = {str(name): name for name in frame}  # names may be numbers, or tuples
        for encoder in self:
            if encoder.column not in named:
                hint = nearest(encoder.column, named)
                raise DataError(f"column {encoder.column!r}: is not there, but the net was trained with it. {hint}")
        rows = len(frame[named[self[0].column]])
        out = np.empty((rows, self.width), np.float32)
        start = 0
        for encoder in self:
            stop = start + len(encoder.names)
            values, facts = encode_series(encoder.column, frame[named[encoder.column]])
            encoder.features(_checked(encoder, values, facts), out[:, start:stop])
            if filled is not None:
                filled[encoder.column] += facts.missing
            start = stop
        return out

    def to_json(self) -> list[dict[str, Any]]:
        return [encoder.to_json() for encoder in self]

    @classmethod
    def from_json(cls, entries: Any) -> Encoders:
        """Raises DataError if the entries are not those of encoders."""
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            raise DataError(f"encoders: must be a list. Received: {_shown(entries)}. Copy the data set again.")
        return cls(_encoder(place, entry) for place, entry in enumerate(entries))


def _checked(encoder: Encoder, values: np.ndarray, facts: Facts) -> np.ndarray:
    """The values for `Encoder.features`. Raises DataError."""
    name = f"column {encoder.column!r}"
    if facts.infinite:
        raise DataError(f"{name}, row {facts.first_infinite}: is infinite or beyond float32. Remove or replace it.")
    if facts.missing and encoder.fill is None:
        raise DataError(
            f"{name}, row {facts.first_missing}: is missing ({facts.missing:,} of {len(values):,} rows), and the net "
            "was trained without missing values. Fill it, or write the shards with the option missing."
        )
    if not encoder.categorical:
        if facts.kind is Kind.EMPTY:
            return np.full(len(values), np.nan)
        if facts.kind is not encoder.holds:
            message = f"{name}: holds {facts.kind}s, but the net was trained with {encoder.holds}s."
            raise DataError(f"{message} {conversion(encoder, facts.kind)}")
        return values
    if facts.kind is Kind.NUMBER:
        values, facts = as_texts(values, facts)
    elif facts.kind not in (Kind.TEXT, Kind.EMPTY):
        raise DataError(
            f"{name}: holds {facts.kind}s, but the net was trained with categories. Convert it to texts, or with "
            "astype('category') in pandas."
        )
    if facts.kind is Kind.EMPTY:
        facts.values, values = [], np.full(len(values), MISSING, np.int32)
    codes = encoder.recode(facts.values or [])[values]
    if encoder.unknown == "error" and (unknown := (codes == MISSING) & (values != MISSING)).any():
        row = int(unknown.argmax())
        raise DataError(
            f"{name}, row {row}: the category {(facts.values or [])[values[row]]!r} was not in the training data. "
            f"{nearest(str((facts.values or [])[values[row]]), encoder.categories)} "
            'Train with it, leave out the column, or number its values; or write shards with unknown="zeros".'
        )
    return codes


def conversion(encoder: Encoder, held: Kind) -> str:
    """How to make a column that holds another kind suit an encoder."""
    match encoder.holds, held:
        case Kind.DATE, Kind.ZONED:
            return "A zoned date has a time zone: convert it to that of the other dates, and remove it (tz_localize)."
        case Kind.ZONED, Kind.DATE:
            return "A zoned date has a time zone: add it, with tz_localize in pandas, or as 2024-01-31T10:00Z."
        case ((Kind.DATE | Kind.ZONED), _):
            return f"Convert it: pandas.to_datetime in Python, --date {encoder.column}=%d.%m.%Y for a CSV file."
        case Kind.TIMEDELTA, _:
            return "Convert it with its unit: pandas.to_timedelta."
        case Kind.NUMBER, Kind.TIMEDELTA:
            return "Divide it by the unit of the numbers, such as pandas.Timedelta(hours=1)."
        case Kind.NUMBER, Kind.TEXT:
            return "Convert it: pandas.to_numeric; of categories that are numbers or booleans, astype."
    return "Convert it."


def _encoder(place: int, entry: Any) -> Encoder:
    def fault(key: str, expected: str) -> DataError:
        received = entry.get(key) if isinstance(entry, Mapping) else entry
        return DataError(
            f"encoders[{place}].{key}: must be {expected}. Received: {_shown(received)}. Copy the data set again."
        )

    if not isinstance(entry, Mapping):
        raise fault("column", "part of a JSON object")
    column, kind = entry.get("column"), entry.get("kind")
    if not isinstance(column, str):
        raise fault("column", "a text")
    if kind not in KINDS:
        raise fault("kind", f"one of {', '.join(KINDS)}")
    categories = entry.get("categories", [])
    texts = isinstance(categories, list) and all(isinstance(name, str) for name in categories)
    categorical = kind in ("onehot", "ordinal")
    if not texts or len(set(categories)) != len(categories) or bool(categories) != categorical:
        raise fault("categories", "distinct texts" if categorical else "missing")
    fill = entry.get("fill")
    if fill is not None and not (fill in categories if categorical else _is_number(fill)):
        raise fault("fill", "one of the categories" if categorical else "a finite number")
    if entry.get("unknown", "error") not in ("error", "zeros"):
        raise fault("unknown", "error or zeros")
    if not _is_number(entry.get("origin", 0.0)):
        raise fault("origin", "a finite number")
    return Encoder(
        column,
        kind,
        tuple(categories),
        fill if categorical or fill is None else float(fill),
        entry.get("unknown", "error"),
        float(entry.get("origin", 0.0)),
    )


def is_plain_number(category: str) -> bool:
    """Whether a category is a number as `as_texts` writes it."""
    try:
        number = float(category)
    except ValueError:
        return False
    return math.isfinite(number) and category == (str(int(number)) if number.is_integer() else repr(number))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
