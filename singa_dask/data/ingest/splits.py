"""Which rows of a block are for validation and test, by the values of a column."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np

from singa_dask.data.ingest.facts import Kind
from singa_dask.data.ingest.options import GROUPS, SHARES, Splits
from singa_dask.data.ingest.values import DAY, decoded, exact_series
from singa_dask.data.sources.datasets import SPLITS
from singa_dask.data.sources.files import Block
from singa_dask.data.sources.source import THE_DATE, Source
from singa_dask.errors import ConfigError, DataError, Problem, nearest

TRAIN, VALIDATION, TEST = range(3)
DAY_NS = 86_400 * 10**9
_NANOSECONDS = re.compile(r"(\.\d{6})(\d{1,3})")  # which the datetime of Python does not have
# Of a key of share_rows, next to those of stage.py.
SHARE = 1
# The results of a function of (index, block) for these blocks.
Visit = Callable[[Callable[[int, Block], Any], Sequence[Block]], Mapping[int, Any]]


@dataclass(frozen=True)
class Rules:
    """How rows are divided. columns: the raw ones, by the names of the options. limits: of the hashes of groups, the
    first of a split and the first beyond it, by option."""

    splits: Splits
    columns: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    seed: int = 0

    def order(self, index: int, raw: Mapping[str, Any], order: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
        """The rows of a block, given in random order, those of training first, then validation and test; and how many
        are in each. Raises ConfigError, DataError."""
        if not len(order):
            return order, (0, 0, 0)
        place = np.zeros(len(order), np.int8)
        options = self.splits
        if options.split_column:
            place = _named(options.split_column, raw[self.columns[options.split_column]])
        for split, name in ((VALIDATION, "validation"), (TEST, "test")):  # a sample of both is for the test
            if f"{name}_groups" in self.limits:
                first, stop = self.limits[f"{name}_groups"]
                column = options.groups(f"{name}_groups")[0]
                distinct, of = _groups(column, raw[self.columns[column]])
                hashes = _hashes(self.seed, distinct)
                place[((hashes >= np.uint64(first)) & (hashes < np.uint64(stop)))[of]] = split
            if getattr(options, f"{name}_from") is not None:
                place[self._since(raw, f"{name}_from")] = split
        rest = order[place[order] == TRAIN]
        end = len(rest)
        counts = share_rows((self.seed, index, SHARE), end, (options.validation, options.test))
        for split, count in ((TEST, counts[1]), (VALIDATION, counts[0])):
            place[rest[end - count : end]] = split
            end -= count
        return order[np.argsort(place[order], kind="stable")], tuple(np.bincount(place, minlength=3).tolist())

    def times(self, raw: Mapping[str, Any], time: str | None) -> np.ndarray | None:
        """The values from one of which on rows are in a split if they are divided so; else those of column `time`: as
        integers (rows,) or (rows, 2), days and nanoseconds of times, or other numbers (rows,)."""
        column = self.columns.get(self.splits.split_by or THE_DATE)
        if column is not None:
            values = _encoded(column, raw[column])[0]
        elif time is not None:
            values = exact_series(time, raw[time])[0]
        else:
            return None
        if values.dtype.kind in "mM":
            return np.stack(_whole_parts(values), axis=1)
        whole = values.dtype.kind in "biu" and int(values.max(initial=0)) <= np.iinfo(np.int64).max
        return values.astype(np.int64 if whole else np.float64)

    def _since(self, raw: Mapping[str, Any], key: str) -> np.ndarray:
        """Which rows are in the split that begins with a value."""
        column = self.columns[self.splits.split_by or THE_DATE]
        values, known = _encoded(column, raw[column])
        if known is Kind.TEXT:
            hint = "Name a column of dates or numbers; dates of other forms are read with --date."
            raise ConfigError(Problem("split_by", "holds texts, which have no order", repr(column), hint))
        ends: dict[str, Any] = {
            each: _end(each, getattr(self.splits, each), known, column)
            for each in ("validation_from", "test_from")
            if getattr(self.splits, each) is not None
        }
        if len(ends) == 2 and ends["validation_from"] >= ends["test_from"]:
            received = str(self.splits.validation_from)
            hint = f"The rows from there to {self.splits.test_from} are for validation."
            raise ConfigError(Problem("validation_from", "must be before test_from", received, hint))
        end = ends[key]
        if isinstance(end, tuple):
            days, rest = _parts(values)
            return (days > end[0]) | ((days == end[0]) & (rest >= end[1]))
        whole = values.dtype.kind in "iu" and math.isfinite(end)
        return values >= (math.ceil(end) if whole else end)  # integers are not rounded


def share_rows(key: tuple[int, ...], rows: int, shares: tuple[float, ...]) -> tuple[int, ...]:
    """How many of `rows` go to each share: rows * share on average, and exactly if that is an integer."""
    counts: list[int] = []
    draws = np.random.PCG64(np.random.SeedSequence(key)).random_raw(len(shares))
    for share, bits in zip(shares, draws, strict=True):
        # The small number keeps 0.1 * 30 from becoming 2.9999999999999996.
        counts.append(min(int(rows * share + 1e-9 + int(bits) / 2**64 * (1 - 1e-8)), rows - sum(counts)))
    return tuple(counts)


def check_columns(splits: Splits, source: Source) -> None:
    """Raises ConfigError for columns that the source does not have."""
    for name in splits.columns:
        if name not in source.split:
            hint = nearest(name, source.split) or "Splits by columns are for tables, and for datasets with names."
            raise ConfigError(
                Problem(splits.key(name), f"needs a column that {source.name} does not have", repr(name), hint)
            )


def limited(rules: Rules, source: Source, visit: Visit) -> Rules:
    """The rules with the limits of the groups. visit: calls a function of every block.

    Raises ConfigError for groups that are too few.
    """
    names = {key: name for key in GROUPS if (name := rules.splits.groups(key)[0])}
    columns = {name: source.split[name] for name in names.values()}
    if not names:
        return rules
    found = visit(partial(_own_groups, columns, rules.seed), [_only(block, columns) for block in source.blocks])
    limits: dict[str, tuple[int, int]] = {}
    for name in columns:
        hashes = np.unique(np.concatenate([of[name] for of in found.values()]))
        start = 0
        for key in (key for key in GROUPS if names.get(key) == name):
            count = max(1, round(rules.splits.groups(key)[1] * len(hashes)))
            if start + count >= len(hashes):
                message = f"leaves none of the {len(hashes):,} groups of {name!r} to train"
                hint = "Use a smaller share, or another column."
                raise ConfigError(Problem(key, message, repr(getattr(rules.splits, key)), hint))
            limits[key] = int(hashes[start]), int(hashes[start + count])
            start += count
    return replace(rules, limits=limits)


def _only(block: Any, columns: Mapping[str, str]) -> Any:
    """The block with these columns alone, if it can read them alone."""
    return block.only([*dict.fromkeys(columns.values())]) if hasattr(block, "only") else block


def _own_groups(columns: Mapping[str, str], seed: int, _: int, block: Block) -> dict[str, np.ndarray]:
    raw = block.read()
    return {name: _hashes(seed, _groups(column, raw[column])[0]) for name, column in columns.items()}


def _groups(name: str, raw: Any) -> tuple[Sequence[str], np.ndarray]:
    """The groups of a block as texts, equal for equal values in every block, and the place of each row's group."""
    values, kind = _encoded(name, raw)
    if kind is Kind.TEXT:
        distinct, of = np.unique(_texts(name, raw), return_inverse=True)
        return distinct.tolist(), of
    distinct, of = np.unique(values, return_inverse=True)
    if distinct.dtype.kind in "mM":
        return [f"{day} {rest}" for day, rest in zip(*_whole_parts(distinct), strict=True)], of
    # 2 is the group 2.0 of other blocks; integers that no float64 has stay whole.
    return [repr(float(value) if float(value) == value else value) for value in distinct.tolist()], of


def _texts(name: str, raw: Any) -> np.ndarray:
    values = np.asarray(raw)
    return decoded(name, values) if values.dtype.kind == "S" else values.astype(str)


def _hashes(seed: int, groups: Sequence[str]) -> np.ndarray:
    digests = [hashlib.blake2b(f"{seed} {group}".encode(), digest_size=8).digest() for group in groups]
    return np.frombuffer(b"".join(digests), np.uint64)


def _named(name: str, raw: Any) -> np.ndarray:
    """The splits that a column names."""
    _, kind = _encoded(name, raw)
    distinct, of = np.unique(_texts(name, raw), return_inverse=True)
    splits = ["train", *SHARES]
    places = []
    for value in distinct.tolist():
        known = SPLITS.get(value.strip().lower()) if kind is Kind.TEXT else None
        if known is None:
            hint = f"Write {', '.join(splits)}."
            raise ConfigError(Problem("split_column", f"column {name!r} holds no name of a split", repr(value), hint))
        places.append(splits.index(known))
    return np.array(places, np.int8)[of]


def _encoded(name: str, raw: Any) -> tuple[np.ndarray, Kind]:
    """Numbers, times or codes of texts, exactly. Raises DataError if values are missing."""
    if np.ndim(raw) != 1:
        raise DataError(f"column {name!r}: says which split a sample is in, so it must have one value for each.")
    values, facts = exact_series(name, raw)
    missing = np.flatnonzero(values < 0 if facts.dtype == "text" else np.isnan(values))
    if len(missing):
        raise DataError(
            f"column {name!r}: says which split a sample is in, but {len(missing):,} value(s) are missing, the first "
            f"in row {missing[0]:,} of a block. Fill them, or leave out these rows."
        )
    return values, facts.kind


# A time: whole days, and what remains of one.
Parts = tuple[Any, Any]


def _parts(times: Any) -> Parts:
    """Dates since 1970, or timedeltas. No unit of NumPy has all of them."""
    since = times - np.datetime64(0, "D") if times.dtype.kind == "M" else times
    return since // DAY, since % DAY


def _whole_parts(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole days, and the nanoseconds that remain, int64."""
    days, rest = _parts(times)
    return days.astype(np.int64), rest.astype("m8[ns]").astype(np.int64)


def _end(key: str, given: Any, kind: Kind, column: str) -> float | Parts:
    """A date or number as the column has them."""
    what = {
        Kind.NUMBER: "a number",
        Kind.TIMEDELTA: "a timedelta, or a number of days",
        Kind.DATE: "a date such as 2010-01-31, without a time zone",
    }.get(kind, "a date such as 2010-01-31, or 2010-01-31T12:00+02:00 (in UTC if it names no zone)")
    try:
        if kind is Kind.TIMEDELTA and isinstance(given, timedelta | np.timedelta64):
            end: Any = given.to_timedelta64() if hasattr(given, "to_timedelta64") else np.timedelta64(given)
        else:
            end = _number(given) if kind in (Kind.NUMBER, Kind.TIMEDELTA) else _date(str(given), kind)
        if end == end:  # no NaN, no NaT
            if isinstance(end, np.datetime64 | np.timedelta64):
                return _parts(end)
            if kind is Kind.NUMBER:
                return end
            days = math.floor(end)
            return days, np.timedelta64(round((end - days) * DAY_NS), "ns")
    except (TypeError, ValueError, OverflowError):
        pass
    raise ConfigError(Problem(key, f"must be {what}, as column {column!r} has them", repr(given)))


def _number(given: Any) -> float:
    """An integer as such, which float64 may not have."""
    if isinstance(given, str):
        with suppress(ValueError):
            return int(given)
    return int(given) if isinstance(given, int | np.integer) else float(given)


def _date(text: str, kind: Kind) -> np.datetime64:
    """A date, in UTC if it has a time zone. Raises ValueError, also for a zone if the column has none."""
    text, rest = _NANOSECONDS.sub(r"\1", text), _NANOSECONDS.search(text)
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return np.datetime64(text)  # 2010, 2010-01
    if date.tzinfo and kind is not Kind.ZONED:
        raise ValueError(text)
    found = np.datetime64(date.astimezone(UTC).replace(tzinfo=None) if date.tzinfo else date)
    return found + np.timedelta64(int(rest[2].ljust(3, "0")), "ns") if rest else found
