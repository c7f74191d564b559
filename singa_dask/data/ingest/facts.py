"""What one block says about a column, and what all blocks say together."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.flat_hdf5 import read_at

MAX_FLOAT32 = float(np.finfo(np.float32).max)
# Beyond it, float32 cannot hold every integer.
EXACT_FLOAT32 = 1 << 24
CHECKED_NBYTES = 1 << 18
_DAYS = (1000_01_01, 9999_12_31)


class Kind(StrEnum):
    """What a column holds: arrays as they are; of a table numbers, texts by their place in a dictionary, dates as days
    since 1970, zoned dates (with a time zone) the same in UTC, timedeltas as days; integers that may be classes;
    or nothing where every value is missing."""

    ARRAY = "array"
    NUMBER = "number"
    TEXT = "text"
    DATE = "date"
    ZONED = "zoned date"
    TIMEDELTA = "timedelta"
    WHOLE = "whole"
    EMPTY = "empty"


@dataclass
class Facts:
    """What is known of a column in one block.

    rows: of the block. place: among the columns of its kind. missing, infinite: how many, and the first row. values:
    the distinct ones, sorted, or None if they are too many; counts: how often each is in the training rows. low, high:
    the extremes of integers that may be classes, and of weights. ascending, first, last: for labels, whether they are
    sorted. sums: of the training values that are there; there: their numbers. Of an array one for each entry of
    `Column.mean`. rounded: the first value that float32 rounds, if all are integers; of_days: whether all are
    days, written as 20240131.
    """

    kind: Kind
    dtype: str = ""
    rows: int = 0
    shape: tuple[int, ...] = ()
    place: int = 0
    missing: int = 0
    first_missing: int = -1
    infinite: int = 0
    first_infinite: int = -1
    values: list[Any] | None = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    low: float = 0
    high: float = 0
    ascending: bool = False
    first: Any = None
    last: Any = None
    sums: list[float] = field(default_factory=list)
    there: list[int] = field(default_factory=list)
    rounded: int | None = None
    of_days: bool = False

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> Facts:
        return cls(**{**entries, "kind": Kind(entries["kind"]), "shape": tuple(entries["shape"])})


def note_unusable(facts: Facts, values: np.ndarray) -> None:
    """Count what is missing, and what is infinite or beyond float32, in which nets compute. values: (rows, ...)."""
    limit = MAX_FLOAT32 if values.dtype.itemsize > 4 else np.finfo(values.dtype).max
    step = max(1, CHECKED_NBYTES // max(1, values[:1].nbytes))
    for start in range(0, len(values), step):
        part = values[start : start + step]
        # NaN makes both comparisons false.
        if part.size == 0 or (part.min() >= -limit and part.max() <= limit):
            continue
        rows = part.reshape(len(part), -1)
        missing = np.isnan(rows)
        infinite = np.abs(rows) > limit
        for what, mask in (("missing", missing), ("infinite", infinite)):
            count = int(np.count_nonzero(mask))
            if count and getattr(facts, what) == 0:
                setattr(facts, f"first_{what}", start + int(mask.any(axis=1).argmax()))
            setattr(facts, what, getattr(facts, what) + count)


def note_rounded(facts: Facts, values: np.ndarray) -> None:
    """Note integers that float32, in which nets compute, does not have. values: (rows, ...)."""
    if values.dtype.kind not in "iuf" or values.dtype.itemsize < 4 or values.dtype == np.float32 or facts.infinite:
        return
    known = values[~np.isnan(values)] if facts.missing else values.reshape(-1)
    if max(-int(known.min(initial=0)), int(known.max(initial=0))) <= EXACT_FLOAT32:
        return
    if values.dtype.kind == "f" and not (known == np.floor(known)).all():
        return
    with np.errstate(invalid="ignore"):  # float32 has more than int64
        rounded = known.astype(np.float32).astype(values.dtype) != known
    facts.rounded = int(known[rounded.argmax()]) if rounded.any() else None
    if _DAYS[0] <= known.min() and known.max() <= _DAYS[1]:
        month, day = known // 100 % 100, known % 100
        facts.of_days = bool(((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all())


@dataclass(frozen=True)
class ColumnPiece:
    """A column, or several of one kind, in a part. offset: in its file, in bytes; shape: of one row."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Part:
    """One block that has been staged.

    rows: of training, validation and test, in this order; nbytes: of the pieces, one after the other. They are in the
    file `path`, or held: by name, and the order of their rows, None for as they are. facts: by column. For the second
    pass, only places are left of them: of the columns of a table among those of their kind, -1 if all are missing.
    """

    key: str
    rows: tuple[int, ...]
    nbytes: int
    pieces: Mapping[str, ColumnPiece]
    facts: Mapping[str, Facts]
    path: Path = Path()
    held: tuple[Mapping[str, np.ndarray], np.ndarray | None] | None = None
    places: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.rows)

    def read(self, name: str, row: int, out: np.ndarray) -> None:
        """Fill an array with the rows of a piece from `row` on. Raises OSError."""
        if self.held is not None:
            pieces, order = self.held
            rows = slice(row, row + len(out))
            if order is None:
                out[...] = pieces[name][rows]
            else:  # without "clip", take would write to a buffer of its own first
                np.take(pieces[name], order[rows], axis=0, out=out, mode="clip")
        elif out.size:
            with open(self.path, "rb", buffering=0) as file:
                read_at(file.fileno(), self.pieces[name].offset + row * (out.nbytes // len(out)), out)

    @property
    def without_facts(self) -> Part:
        places = {name: -1 if known.kind is Kind.EMPTY else known.place for name, known in self.facts.items()}
        return replace(self, facts={}, places=places)

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "rows": self.rows,
            "nbytes": self.nbytes,
            "pieces": {name: vars(piece) for name, piece in self.pieces.items()},
            "facts": {name: vars(facts) for name, facts in self.facts.items()},
        }

    @classmethod
    def load(cls, path: Path) -> Part | None:
        """The part in a file, if it is complete."""
        try:
            told = json.loads(path.with_suffix(".json").read_text())
            pieces = {n: ColumnPiece(p["dtype"], tuple(p["shape"]), p["offset"]) for n, p in told["pieces"].items()}
            facts = {name: Facts.from_json(known) for name, known in told["facts"].items()}
            part = cls(told["key"], tuple(told["rows"]), told["nbytes"], pieces, facts, path)
            return part if path.stat().st_size == part.nbytes else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class ColumnFacts:
    """The facts of all blocks about one column, in the order of the samples."""

    name: str
    blocks: Sequence[Facts]
    starts: Sequence[int]

    @property
    def filled(self) -> list[Facts]:
        """Of the blocks with values."""
        return [facts for facts in self.blocks if facts.rows and facts.kind is not Kind.EMPTY]

    @property
    def kinds(self) -> set[Kind]:
        return {facts.kind for facts in self.filled}

    @property
    def missing(self) -> int:
        return sum(facts.missing for facts in self.blocks)

    @property
    def infinite(self) -> int:
        return sum(facts.infinite for facts in self.blocks)

    def means(self) -> np.ndarray:
        """Of the training rows; NaN where all their values are missing."""
        known = [facts for facts in self.blocks if facts.sums]
        sums, there = (np.sum([getattr(facts, of) for facts in known], axis=0) for of in ("sums", "there"))
        return np.divide(sums, there, out=np.full_like(sums, np.nan, np.float64), where=there > 0)

    @property
    def first_missing(self) -> int:
        """The number of the first sample whose value is missing."""
        return self._first("missing")

    @property
    def first_infinite(self) -> int:
        """The number of the first sample whose value is infinite."""
        return self._first("infinite")

    def _first(self, what: str) -> int:
        pairs = zip(self.starts, self.blocks, strict=True)
        return next(start + getattr(facts, f"first_{what}") for start, facts in pairs if getattr(facts, what))

    def counts(self) -> Counter | None:
        """How often each value is in the training rows, 0 included; None if they are too many."""
        counts: Counter = Counter()
        for facts in self.blocks:
            if facts.values is None:
                return None
            counts.update(dict(zip(facts.values, facts.counts, strict=True)))
        return counts

    def ascending(self) -> bool:
        """Whether the values are sorted over all blocks."""
        ends = [(facts.first, facts.last) for facts in self.filled]
        return all(facts.ascending for facts in self.filled) and all(
            before[1] <= after[0] for before, after in itertools.pairwise(ends)
        )
