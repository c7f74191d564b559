"""What is known after the first pass: the columns of the data set, and which rows go to which shard."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from singa_dask.data.columns import IDENTITY, Column, Role
from singa_dask.data.ingest.columns import decide
from singa_dask.data.ingest.facts import ColumnPiece, Part
from singa_dask.data.ingest.options import Encoding, Splits
from singa_dask.data.ingest.stage import StagePlan
from singa_dask.data.listed import check_step
from singa_dask.data.manifest import Manifest
from singa_dask.data.origins import BlockOrigins, Origins, free_name
from singa_dask.data.schema import AS_THEY_ARE, Schema, check_turned
from singa_dask.data.sources.source import Source
from singa_dask.errors import ConfigError, DataError, Problem, nearest

MAX_SHARDS = 100_000
MAX_WINDOW_SAMPLES = 256
MAX_WINDOW_NBYTES = 4 << 20
WINDOWS_WANTED = 64
SHARD_NBYTES = 64 << 20
FEW_SHARDS = 1000
SPLITS = ("train", "validation", "test")
_REPLACED = "; missing values: "


@dataclass(frozen=True)
class Layout:
    """The second pass. schema: without statistics; pieces: the piece of each column, but for the features of a table.
    codes: by piece, or by column of texts, what the codes of each part become. origins: of the rows of each part.
    nshards: by split, 0 where there is no such split. rules: those of the splits that are not shares."""

    parts: tuple[Part, ...]
    schema: Schema
    pieces: Mapping[str, str]
    codes: Mapping[str, Sequence[np.ndarray]]
    origins: tuple[BlockOrigins, ...]
    window: int
    nshards: tuple[int, ...]
    shuffle: bool
    seed: int
    notes: tuple[str, ...]
    rules: str = ""

    @cached_property
    def rows(self) -> np.ndarray:
        """Rows of every split in every part: (splits, parts)."""
        return np.array([part.rows for part in self.parts], np.int64).T

    def shard_rows(self, split: int, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """The first row and the number of rows that a shard takes of every part: (parts,) each.

        The numbers of samples of two shards differ by 1 at most.
        """
        rows, before, count = self.rows[split], self.rows[:split].sum(axis=0), self.nshards[split]
        ends = np.cumsum(rows)
        if not self.shuffle:
            start, stop = (int(ends[-1]) * index // count for index in (shard, shard + 1))
            first = np.clip(start - (ends - rows), 0, rows)
            return before + first, np.clip(stop - (ends - rows), 0, rows) - first
        # Each part is dealt evenly. Those shards get a row more that would be next if rows were dealt one by one.
        even, extra, following = rows // count, rows % count, (ends - rows) % count
        wrapped = np.maximum(following + extra - count, 0)
        more = np.clip(shard - following, 0, extra - wrapped) + np.minimum(shard, wrapped)
        return before + shard * even + more, even + ((shard - following) % count < extra)

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
    parts: Sequence[Part],
    nshards: int | None,
    window: int | None,
    origins: Origins,
    like: Manifest | None = None,
) -> Layout:
    """Decide from all parts. Raises ConfigError and DataError."""
    totals = tuple(np.sum([part.rows for part in parts], axis=0).tolist())
    if not any(totals):
        raise DataError(f"{source.name}: holds no samples. Check what is read.")
    _check_splits(plan.rules.splits, totals)
    decided = decide(source, plan.encoding, parts, like, shuffled=plan.shuffle)
    columns, pieces = decided.columns, decided.pieces
    moved = plan.shuffle or any(totals[1:]) or origins.numbered
    for role, dtype in ((Role.ROW, "int64"), (Role.FILE, "int32"))[: 2 if origins.files else int(moved)]:
        columns.append(Column(free_name(role, pieces), role, dtype, ()))
        pieces[columns[-1].name] = Role.ROW
    if Role.TIME in parts[0].pieces:
        columns.append(_times(free_name(Role.TIME, pieces), [part.pieces[Role.TIME] for part in parts if part.total]))
        pieces[columns[-1].name] = Role.TIME
    nbytes = sum(column.nbytes for column in columns)
    made = tuple(columns) if like is None else columns_like(columns, like)
    fitted = "" if like is None else like.schema.fitted.partition("; ")[2].partition(_REPLACED)[0]
    if like is None and (decided.encoders or any(column.fill for column in columns)):
        fitted = f"replacements of missing values: the {totals[0]:,} training samples"
        fitted += f"; categories: all {sum(totals):,}" if decided.encoders else ""
    if decided.replaced:
        fitted += _REPLACED + ", ".join(f"{count:,} in {name!r}" for name, count in decided.replaced.items())
    return Layout(
        tuple(part.without_facts for part in parts),
        Schema(made, decided.encoders, source.reading, fitted),
        pieces,
        decided.codes,
        tuple(origins.next(block.spans, part.total) for block, part in zip(source.blocks, parts, strict=True)),
        _checked_window(window, totals[0], nbytes),
        tuple(_number_of_shards(nshards, total, totals, nbytes, like) for total in totals),
        plan.shuffle,
        plan.seed,
        tuple(decided.notes),
        repr(plan.rules.splits.given) if plan.rules.splits.columns else "",
    )


def _times(name: str, pieces: Sequence[ColumnPiece]) -> Column:
    """The column of times. Raises DataError if blocks have other kinds."""
    if len({piece.shape for piece in pieces}) > 1:
        raise DataError("the rows have dates in some blocks, and numbers in others. Give all of them dates.")
    dtype = np.result_type(*(piece.dtype for piece in pieces))
    return Column(name, Role.TIME, dtype.name, pieces[0].shape)


def _check_splits(splits: Splits, totals: Sequence[int]) -> None:
    """Raises ConfigError if a split that was asked for gets no samples."""
    for split, total in zip(SPLITS, totals, strict=True):
        rules = {key: value for key, value in splits.given.items() if key.startswith(split)}
        if split == "train" and not total:
            message = f"leaves none of the {sum(totals):,} samples to train"
            hint = "Use smaller shares, or other values."
            raise ConfigError(
                Problem(", ".join(splits.given), message, ", ".join(map(str, splits.given.values())), hint)
            )
        if rules and not total:
            key, value = next(iter(rules.items()))
            hint = "Use a larger share." if key == split else "Choose another value."
            raise ConfigError(Problem(key, f"gets none of {sum(totals)} samples", str(value), hint))


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


def prepared_like(source: Source, like: Manifest) -> tuple[Source, Encoding]:
    """The source with the columns, roles and classes of a folder, and the samples turned as there. Raises DataError
    for absent columns, and for samples along other dimensions or coordinates."""
    encoders, own = like.encoders, source.reading
    turns, channels, raw_of = dict(source.turns), dict(source.channels), {n: raw for raw, n in source.stored.items()}
    reading = own
    for name in dict.fromkeys((*own.dimensions, *own.units, *own.scalars)):
        known, raw = like.schema.reading.along(name), raw_of.get(name, name)
        turn = own.along(name).turn_to(known, f"{source.name}: {raw}", _named(like))
        for dim in known.dims[:1]:
            check_step(own.coordinates.get(dim), known.coordinates.get(dim), f"{source.name}: {raw}")
        own.along(name).warn_of_places(known, f"{source.name}: {raw}", _named(like))
        if turn != AS_THEY_ARE:
            turns[raw], channels[raw] = turn, like.column(name).channels
            placed = {known.dims[axis]: known.coordinates[known.dims[axis]] for axis, _ in turn.places}
            dimensions = {**reading.dimensions, name: "/".join(known.dims)}
            reading = replace(reading, dimensions=dimensions, coordinates={**reading.coordinates, **placed})
    there = like.schema.reading
    shapes = {column.name: column.raw.shape for column in like.columns}
    moved = {shapes[n][axis]: raw for n, raw in raw_of.items() if raw in turns for axis in turns[raw].moved}
    alone = [n for n, raw in raw_of.items() if raw not in turns and not (own.along(n).dims and there.along(n).dims)]
    check_turned(moved, {n: shapes[n] for n in alone if n in shapes}, _named(like))
    if source.mask and (of_y := [turns[raw] for raw in source.y if raw in turns]):
        turns[source.mask] = of_y[0]
    if turns and source.cuttings:
        told = "the patches are of fields whose dimensions or coordinates are in another order than in"
        raise DataError(f"{source.name}: {told} {_named(like)}. Transpose or reorder the fields, with xarray.")
    if source.table and not encoders:
        hint = "Give an array with the values of a sample in that order, such as X[[...]].to_numpy()."
        raise DataError(f"{source.name}: is a table, and the samples of {_named(like)} came from an array. {hint}")
    for encoder in encoders:
        if encoder.column not in source.x:
            hint = f"Give a table with the columns {', '.join(each.column for each in encoders)}, such as a DataFrame."
            hint = nearest(encoder.column, source.x) if source.table else hint
            raise DataError(f"column {encoder.column!r}: is not there, but {_named(like)} has it. {hint}")
    classes, roles, coded = dict(source.classes), dict(source.roles), dict[str, bool]()
    answers = [column for column in like.columns if column.role in (Role.LABEL, Role.TARGET)]
    for name in source.y:
        for column in answers:
            if column.name == source.stored[name]:
                roles[name] = column.role
                if column.role is Role.LABEL and column.classes is not None:
                    given, coded[name] = column.classes, column.coded
                    classes[name] = given if isinstance(given, tuple) else tuple(map(str, range(given)))
    x = tuple(encoder.column for encoder in encoders) if encoders else source.x
    encode = {encoder.column: encoder.kind for encoder in encoders if encoder.categorical}
    made = replace(source, x=x, classes=classes, roles=roles, coded=coded)
    made = replace(made, turns=turns, channels=channels, reading=reading)
    return made, Encoding(encode=encode)


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
