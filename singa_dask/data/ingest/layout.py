"""What is known after the first pass: the columns of the data set, and which rows go to which shard."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from singa_dask.data.columns import IDENTITY, MASK, WEIGHT, Column, Role, X
from singa_dask.data.encoders import Encoders
from singa_dask.data.ingest.arrays import answers_column, factor_column, features_column
from singa_dask.data.ingest.facts import ColumnFacts, Kind, Piece, Summary
from singa_dask.data.ingest.fit import check_encoders, fit_encoders
from singa_dask.data.ingest.options import Encoding
from singa_dask.data.ingest.stage import StagePlan
from singa_dask.data.manifest import Manifest
from singa_dask.data.origins import Origin, Origins
from singa_dask.data.schema import Schema, check_courses
from singa_dask.data.sources.source import Source
from singa_dask.errors import ConfigError, DataError, Problem, nearest

MAX_SHARDS = 100_000
MAX_WINDOW_SAMPLES = 256
MAX_WINDOW_NBYTES = 4 << 20
WINDOWS_WANTED = 64
SHARD_NBYTES = 64 << 20
FEW_SHARDS = 1000
SPLITS = ("train", "validation", "test")
SAMPLE_ROWS = 1_000_000


@dataclass(frozen=True)
class Part:
    """A part file. places: of the columns of a table among those of their kind, -1 if all values are missing. codes:
    by column of texts, what the codes of the part become. origin: of its rows."""

    path: Path
    rows: tuple[int, ...]
    pieces: Mapping[str, Piece]
    places: Mapping[str, int]
    codes: Mapping[str, np.ndarray]
    origin: Origin


@dataclass(frozen=True)
class Layout:
    """The second pass. schema: without statistics; pieces: the piece of each column, but for the features of a
    table. nshards: by split, 0 where there is no such split. rules: those of the splits that are not shares."""

    parts: tuple[Part, ...]
    schema: Schema
    pieces: Mapping[str, str]
    window: int
    nshards: tuple[int, ...]
    shuffle: bool
    seed: int
    notes: tuple[str, ...]
    rules: str = ""

    def rows(self, split: int) -> np.ndarray:
        """Rows of every part: (parts,)."""
        return np.array([part.rows[split] for part in self.parts], np.int64)

    def first_rows(self, split: int) -> np.ndarray:
        """The first row of the split in every part: (parts,)."""
        return np.array([sum(part.rows[:split]) for part in self.parts], np.int64)

    def shard_rows(self, split: int, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """The first row and the number of rows that a shard takes of every part: (parts,) each.

        The numbers of samples of two shards differ by 1 at most.
        """
        rows, count = self.rows(split), self.nshards[split]
        ends = np.cumsum(rows)
        if not self.shuffle:
            start, stop = (int(ends[-1]) * index // count for index in (shard, shard + 1))
            first = np.clip(start - (ends - rows), 0, rows)
            return self.first_rows(split) + first, np.clip(stop - (ends - rows), 0, rows) - first
        # Each part is dealt evenly. Those shards get a row more that would be next if rows were dealt one by one.
        even, extra, following = rows // count, rows % count, (ends - rows) % count
        wrapped = np.maximum(following + extra - count, 0)
        more = np.clip(shard - following, 0, extra - wrapped) + np.minimum(shard, wrapped)
        return self.first_rows(split) + shard * even + more, even + ((shard - following) % count < extra)

    @property
    def order(self) -> str:
        """`Manifest.order`, which is equal if other columns of the same samples are written in the same way."""
        if not self.shuffle and not any(self.nshards[1:]):
            return "source"
        told = repr(([part.rows for part in self.parts], self.nshards)) + self.rules
        digest = hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
        return f"{'shuffled' if self.shuffle else 'source'}, seed {self.seed}, blocks {digest}"


def make_layout(
    plan: StagePlan,
    source: Source,
    summaries: Sequence[Summary],
    nshards: int | None,
    window: int | None,
    origins: Origins,
    like: Manifest | None = None,
) -> Layout:
    """Decide from the summaries of all blocks. Raises ConfigError and DataError."""
    starts = [0, *np.cumsum([summary.total for summary in summaries]).tolist()]
    if not starts[-1]:
        raise DataError(f"{source.name}: holds no samples. Check what is read.")
    facts = {
        name: ColumnFacts(name.removeprefix("y/"), [summary.facts[name] for summary in summaries], starts[:-1])
        for name in summaries[0].facts
    }
    notes = list(source.notes)
    columns: list[Column] = []
    pieces: dict[str, str] = {}
    codes: dict[str, list[np.ndarray]] = {}
    encoders = Encoders()
    if source.table:
        tables = [facts[name] for name in source.x]
        if like is None:
            encoders = fit_encoders(tables, plan.encoding, partial(_sample, plan, summaries), notes)
        else:
            encoders = like.encoders
            check_encoders(tables, encoders)
        columns.append(Column(X, Role.FEATURE, "float32", (encoders.width,), names=encoders.names))
        for encoder in encoders:
            if encoder.categorical:
                codes[encoder.column] = [encoder.recode(known.values or []) for known in facts[encoder.column].blocks]
    else:
        for name in source.x:
            own = source.stored[name]
            known = None if like is None else like.column(own)
            how = plan.encoding.fill_of(name)
            column = features_column(own, facts[name], source.channels.get(name), how, known)
            columns.append(replace(column, classes=source.classes.get(name)))
            pieces[own] = f"x/{name}"
    for name in source.y:
        own = source.stored[name]
        column, recoded = answers_column(own, facts[f"y/{name}"], source, ordered=not plan.shuffle, notes=notes)
        if source.table and column.shape == ():
            column = replace(column, names=(name,))
        columns.append(column)
        pieces[own] = f"y/{name}"
        if recoded is not None:
            codes[f"y/{name}"] = recoded
    for own, given, role in ((WEIGHT, source.weight, Role.WEIGHT), (MASK, source.mask, Role.MASK)):
        if given is not None:
            columns.append(factor_column(own, role, facts[own], columns))
            pieces[own] = own
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise ConfigError(Problem("columns", "must have different names", ", ".join(names), "Rename one."))
    totals = tuple(np.sum([summary.rows for summary in summaries], axis=0).tolist())
    for column in origins.columns(names, moved=plan.shuffle or any(totals[1:])):
        columns.append(column)
        pieces[column.name] = Role.ROW
    parts = tuple(
        _part(plan, index, summary, codes, origins.next(source.blocks[index], summary.total))
        for index, summary in enumerate(summaries)
    )
    for split, total in zip(SPLITS, totals, strict=True):
        rules = {key: value for key, value in plan.rules.splits.given.items() if key.startswith(split)}
        if (rules or split == "train") and not total:
            key, value = next(iter(rules.items()), (split, ", ".join(map(str, plan.rules.splits.given.values()))))
            hint = "Use a larger share." if key == split else "Choose another value."
            hint = hint if split != "train" else "Use smaller shares, or other values."
            raise ConfigError(Problem(key, f"gets none of {starts[-1]} samples", str(value), hint))
    nbytes = sum(column.nbytes for column in columns)
    made = tuple(columns) if like is None else columns_like(columns, like)
    fitted = "" if like is None else like.schema.fitted.partition("; ")[2]
    if like is None and (encoders or any(column.fill for column in columns)):
        fitted = f"replacements of missing values: the {totals[0]:,} training samples"
        fitted += f"; categories: all {starts[-1]:,}" if encoders else ""
    return Layout(
        parts,
        Schema(made, encoders, source.reading, fitted),
        pieces,
        _checked_window(window, totals[0], nbytes),
        tuple(_number_of_shards(nshards, total, totals, nbytes, like) for total in totals),
        plan.shuffle,
        plan.seed,
        tuple(notes),
        repr(plan.rules.splits.given) if plan.rules.splits.columns else "",
    )


def _part(
    plan: StagePlan, index: int, summary: Summary, codes: Mapping[str, list[np.ndarray]], origin: Origin
) -> Part:
    return Part(
        plan.part(index),
        summary.rows,
        summary.pieces,
        {name: -1 if known.kind is Kind.EMPTY else known.place for name, known in summary.facts.items()},
        {name: by_part[index] for name, by_part in codes.items()},
        origin,
    )


def choose_window(total: int, sample_nbytes: int) -> int:
    """Samples per window, a power of two: at most 256 and 4 MiB, and small enough for 64 windows."""
    most = min(MAX_WINDOW_SAMPLES, MAX_WINDOW_NBYTES // sample_nbytes, total // WINDOWS_WANTED)
    return 1 << (max(1, most).bit_length() - 1)


def _checked_window(window: int | None, total: int, nbytes: int) -> int:
    if window is not None and window < 1:
        raise ConfigError(Problem("window", "must be at least 1 sample", str(window)))
    return window or choose_window(total, nbytes)


def _number_of_shards(
    nshards: int | None, total: int, totals: tuple[int, ...], nbytes: int, like: Manifest | None
) -> int:
    """Of a split with `total` samples; a given number is that of the training split."""
    if nshards is None:
        size = max(SHARD_NBYTES, sum(totals) * nbytes / FEW_SHARDS)
        return min(math.ceil(total * nbytes / size), total)
    most = min(totals[0], MAX_SHARDS) if like is None else MAX_SHARDS
    if not 1 <= nshards <= most:
        raise ConfigError(Problem("nshards", f"must be from 1 to {most} for {totals[0]} samples", str(nshards)))
    return min(total, math.ceil(nshards * total / totals[0]))


def _sample(plan: StagePlan, summaries: Sequence[Summary], column: ColumnFacts) -> np.ndarray:
    """Values of training rows, as many of each block as belong to its share of SAMPLE_ROWS; all if there are fewer."""
    total = sum(summary.rows[0] for summary in summaries)
    found = [np.empty(0)]
    for index, (summary, facts) in enumerate(zip(summaries, column.blocks, strict=True)):
        if facts.kind is Kind.EMPTY:
            continue
        piece = summary.pieces[facts.kind.value]
        values = np.memmap(plan.part(index), piece.dtype, "r", piece.offset, (summary.total, *piece.shape))
        count = math.ceil(summary.rows[0] * min(1.0, SAMPLE_ROWS / total))
        rows = np.linspace(0, summary.rows[0], count, endpoint=False).astype(np.int64)
        found.append(values[rows, facts.place].astype(np.float64))
    return np.concatenate(found)


def prepared_like(source: Source, like: Manifest) -> tuple[Source, Encoding]:
    """The source with the columns, roles and classes of a folder. Raises DataError for absent columns, and for samples
    along other dimensions or coordinates."""
    encoders, reading = like.encoders, like.schema.reading
    for name, own in source.reading.dimensions.items():
        if (trained := reading.dimensions.get(name)) and own != trained:
            told = f"has samples along {own}, but in {_named(like)} along {trained}"
            raise DataError(f"{source.name}: {name!r} {told}. Rename or transpose the dimensions.")
    check_courses(reading.coordinates, source.reading.coordinates, source.name)
    for encoder in encoders:
        if encoder.column not in source.x:
            hint = nearest(encoder.column, source.x)
            raise DataError(f"column {encoder.column!r}: is not there, but {_named(like)} has it. {hint}")
    classes, roles = dict(source.classes), dict(source.roles)
    answers = [column for column in like.columns if column.role in (Role.LABEL, Role.TARGET)]
    for name in source.y:
        for column in answers:
            if column.name == source.stored[name]:
                roles[name] = column.role
                if column.role is Role.LABEL and column.classes is not None:
                    given = column.classes
                    classes[name] = given if isinstance(given, tuple) else tuple(map(str, range(given)))
    x = tuple(encoder.column for encoder in encoders) if encoders else source.x
    encode = {encoder.column: encoder.kind for encoder in encoders if encoder.categorical}
    return replace(source, x=x, classes=classes, roles=roles), Encoding(encode=encode)


def columns_like(columns: Sequence[Column], like: Manifest) -> tuple[Column, ...]:
    """The columns with the classes of the folder. Raises DataError if they differ in more than type and values."""
    made = []
    for column in columns:
        if column.role in (*IDENTITY, Role.WEIGHT, Role.MASK):
            made.append(column)
            continue
        before = like.column(column.name)
        for what in ("role", "shape", "channels", "names"):
            ours, theirs = getattr(column, what), getattr(before, what)
            if ours != theirs:
                raise DataError(f"column {column.name!r}: has the {what} {ours}, but in {_named(like)} {theirs}.")
        made.append(replace(column, classes=before.classes))
    return tuple(made)


def _named(like: Manifest) -> str:
    return str(like.folder or "the training data")
