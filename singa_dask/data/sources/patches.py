"""Patches of large fields: where they lie in a record, and how they are cut from a part of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.columns import Channels, guess_channels
from singa_dask.data.containers import dense
from singa_dask.data.manifest import OVERLAP
from singa_dask.data.sources.files import Rows, RowsBlock, stamp_of
from singa_dask.errors import ConfigError, DataError, Problem

PATCH_OPTIONS = ("patch", "stride", "nan")
# The column of the numbers of the patches, among all of their file or collection.
NUMBER = "(patch)"
BLOCK_NBYTES = 32 << 20


@dataclass(frozen=True)
class Patches:
    """Options of shard. Samples are patches of `patch` x `patch`, which begin every `stride` values of both spatial
    axes; the last one ends with the axis. drop: patches with a missing value are left out."""

    patch: int
    stride: int
    drop: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Patches | None:
        """From the options patch, stride (by default that of patch) and nan. Raises ConfigError."""
        given = {key: options[key] for key in PATCH_OPTIONS if options.get(key) is not None}
        if not given:
            return None
        if "patch" not in given:
            key, value = next(iter(given.items()))
            raise ConfigError(Problem(key, "is for patches", repr(value), "Add patch, or leave it out."))
        for key in ("patch", "stride"):
            if not (isinstance(given.get(key, 1), int) and given.get(key, 1) >= 1):
                raise ConfigError(Problem(key, "must be an integer of at least 1", repr(given[key])))
        nan = given.get("nan", "error")
        if nan not in ("error", "drop"):
            raise ConfigError(Problem("nan", "must be error or drop", repr(nan)))
        return cls(given["patch"], given.get("stride", given["patch"]), nan == "drop")

    def starts(self, size: int) -> list[int]:
        """Where the patches begin along an axis."""
        last = size - self.patch
        return [*range(0, last, self.stride), last]

    def notes(self, total: int, kept: int, shares: float, overlap: bool) -> list[str]:
        """What to say of the samples. total: patches, of which so many are kept; shares: for validation and test;
        overlap: whether some do."""
        told = f"the samples are patches of {self.patch} x {self.patch}, one every {self.stride} positions"
        dropped = f"; {total - kept:,} of {total:,} hold a missing value and are left out"
        notes = [told + dropped * (kept < total)]
        if not overlap:
            return notes
        closer = "" if self.stride < self.patch else " (the last of a row or column is moved inwards)"
        notes.append(OVERLAP + closer)
        if shares:
            way_out = (
                "Set stride to that of patch or more" if self.stride < self.patch else "Cut the rest off the fields"
            )
            notes[1] += (
                ", and those for validation and test are drawn at random: they share values with those that train. "
                f"{way_out}, or split by records"
            )
        return notes


@dataclass(frozen=True)
class Field:
    """A column whose samples are fields: (height, width) for one record; (records, height, width); or with channels
    first or last."""

    shape: tuple[int, ...]
    dtype: np.dtype
    channels: Channels

    @property
    def size(self) -> tuple[int, int, int]:
        """Records, height, width."""
        height, width = self.shape[2:] if self.channels is Channels.FIRST else self.shape[-2:]
        if self.channels is Channels.LAST:
            height, width = self.shape[1:3]
        return (1 if len(self.shape) == 2 else self.shape[0]), height, width

    @property
    def values(self) -> int:
        """At each position."""
        return 1 if self.channels is Channels.NONE else self.shape[1 if self.channels is Channels.FIRST else 3]

    def index(self, records: slice, rows: slice, columns: slice) -> tuple[slice, ...]:
        if len(self.shape) == 2:
            return rows, columns
        return (records, *[slice(None)] * (self.channels is Channels.FIRST), rows, columns)


@dataclass(frozen=True)
class Tile:
    """Patches that are cut together: of records [start, stop), those in ranges of the rows and columns of patches."""

    records: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]


@dataclass(frozen=True)
class Cutting:
    """How the columns of a collection, or of a file, are cut. fields: by column; other columns have one value for each
    record. mask: the column that says which values of `answers` count."""

    patches: Patches
    fields: Mapping[str, Field]
    answers: tuple[str, ...] = ()
    mask: str | None = None

    @classmethod
    def of(
        cls,
        patches: Patches,
        where: str,
        columns: Mapping[str, tuple[tuple[int, ...], np.dtype, Channels | None]],
        single: Sequence[str],
        answers: Sequence[str],
        mask: str | None,
    ) -> Cutting:
        """columns: with shapes, types and channels, if they are known. single: those with one value for each record.

        Raises DataError if they are no fields of the same size.
        """
        fields = {name: _field(where, name, *form) for name, form in columns.items() if name not in single}
        first, size = next((name, each.size) for name, each in fields.items())
        if min(size[1:]) < patches.patch:
            raise DataError(
                f"{where}: a record of {first!r} has {size[1]:,} x {size[2]:,} positions, fewer than a patch of "
                f"{patches.patch}. The axes are (height, width), with the records first if there are several. Use a "
                "smaller patch, or transpose."
            )
        for name, (shape, *_) in columns.items():
            if name in single and shape != size[:1]:
                raise DataError(f"{where}: {name!r} must have one value for each of {size[0]:,} records, not {shape}.")
            if name in fields and fields[name].size != size:
                raise DataError(
                    f"{where}: {first!r} has {size} records, rows and columns, but {name!r} has {fields[name].size}. "
                    "Patches are cut from all fields together: give them the same size."
                )
        return cls(patches, fields, tuple(answers), mask)

    @property
    def size(self) -> tuple[int, int, int]:
        """Records, height, width."""
        return next(iter(self.fields.values())).size

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches in a record."""
        rows, columns = (len(self.patches.starts(size)) for size in self.size[1:])
        return rows, columns

    @property
    def overlaps(self) -> bool:
        """Whether a patch begins before the one in front of it ends, as the last one may, which is moved inwards."""
        starts = (pairwise(self.patches.starts(size)) for size in self.size[1:])
        return any(after - before < self.patches.patch for each in starts for before, after in each)

    @property
    def total(self) -> int:
        """All patches."""
        return self.size[0] * math.prod(self.grid)

    @property
    def patch_nbytes(self) -> int:
        """Of all columns."""
        return self.patches.patch**2 * sum(each.values * each.dtype.itemsize for each in self.fields.values())

    @property
    def channels(self) -> dict[str, Channels]:
        """Of the fields."""
        return {name: each.channels for name, each in self.fields.items()}

    def tiles(self) -> Iterator[Tile]:
        """All patches, in tiles of about BLOCK_NBYTES."""
        rows, columns = self.grid
        most = max(1, BLOCK_NBYTES // self.patch_nbytes)
        wide = min(columns, max(1, math.isqrt(most)))
        high = min(rows, most // wide)
        if rows * columns <= most:
            wide, high = columns, rows
        deep = max(1, most // (rows * columns))
        for record in range(0, self.size[0], deep):
            for row in range(0, rows, high):
                for column in range(0, columns, wide):
                    yield Tile(
                        (record, min(record + deep, self.size[0])),
                        (row, min(row + high, rows)),
                        (column, min(column + wide, columns)),
                    )

    def index(self, name: str, tile: Tile) -> tuple[slice, ...]:
        """The part of a column that holds the patches of a tile."""
        records = slice(*tile.records)
        if name not in self.fields:
            return (records,)
        rows, columns = self._starts(tile)
        spans = (slice(starts[0], starts[-1] + self.patches.patch) for starts in (rows, columns))
        return self.fields[name].index(records, *spans)

    def cut(self, raw: Mapping[str, Any], tile: Tile) -> dict[str, Any]:
        """The patches of a tile, from the part of each column that holds them, and their numbers."""
        records = np.arange(*tile.records)
        rows, columns = self._starts(tile)
        in_grid = np.add.outer(np.arange(*tile.rows) * self.grid[1], np.arange(*tile.columns)).ravel()
        found: dict[str, Any] = {NUMBER: np.add.outer(records * math.prod(self.grid), in_grid).ravel()}
        patch = self.patches.patch
        for name, values in raw.items():
            if name not in self.fields:
                found[name] = values.repeat(in_grid.size)
                continue
            part, own = np.asarray(dense(values)), self.fields[name]
            cuts = [
                part[own.index(slice(None), slice(top, top + patch), slice(left, left + patch))]
                for top in (row - rows[0] for row in rows)
                for left in (column - columns[0] for column in columns)
            ]
            axis = int(part.ndim > 2)  # behind that of the records
            stacked = np.stack(cuts, axis=axis)
            found[name] = stacked.reshape(-1, *stacked.shape[axis + 1 :])
        if not self.patches.drop:
            return found
        whole = np.ones(len(found[NUMBER]), bool)
        for name in self.fields:
            whole &= ~self._missing(found, name).any(axis=tuple(range(1, found[name].ndim)))
        return {name: values[whole] for name, values in found.items()}

    def _missing(self, found: Mapping[str, Any], name: str) -> np.ndarray:
        """Where a value is missing that counts."""
        missing = np.isnan(found[name])
        mask = found.get(self.mask or "") if name in self.answers else None
        return missing & (mask != 0) if mask is not None and mask.shape == missing.shape else missing

    def _starts(self, tile: Tile) -> tuple[list[int], list[int]]:
        rows, columns = (self.patches.starts(size) for size in self.size[1:])
        return rows[slice(*tile.rows)], columns[slice(*tile.columns)]


def _field(where: str, name: str, shape: tuple[int, ...], dtype: np.dtype, channels: Channels | None) -> Field:
    """Raises DataError for what is no field, ConfigError for unknown channels."""
    if not 2 <= len(shape) <= 4:
        raise DataError(
            f"{where}: {name!r} has the shape {shape}, of which no patches can be cut. Give fields: (height, width), "
            "(records, height, width), or four axes, of which one are the channels."
        )
    if dtype.kind not in "biuf":
        raise DataError(f"{where}: {name!r} holds {dtype}, not numbers. Convert it, or leave it out.")
    if len(shape) < 4:
        return Field(tuple(shape), dtype, Channels.NONE)
    channels = guess_channels(tuple(shape[1:])) if channels in (None, Channels.NONE) else Channels(channels)
    if channels is None:
        hint = 'Set channels to "first" or "last" (--channels).'
        raise ConfigError(Problem("channels", f"are unknown: which axis of {name!r} has them?", str(shape), hint))
    return Field(tuple(shape), dtype, channels)


@dataclass(frozen=True)
class PatchWindow(Rows):
    """A part of the datasets of a file. indices: by dataset."""

    indices: Mapping[str, tuple[slice, ...]] = field(default_factory=dict)

    def index(self, name: str) -> tuple[slice, ...]:
        return self.indices[name]


@dataclass(frozen=True)
class PatchesBlock(RowsBlock):
    """Patches of a file. numbered: it brings the numbers of its rows."""

    cutting: Cutting
    tile: Tile
    numbered: bool = True

    @property
    def spans(self) -> list[tuple[Path, int | None]]:  # type: ignore[override]
        return [(self.rows[0].path, None)]

    @property
    def key(self) -> str:
        return f"{super().key} {self.cutting.patches} {self.tile}"

    def only(self, names: Sequence[str]) -> RowsBlock:
        (rows,) = self.rows
        own = {name: self.columns[name] for name in names}
        return RowsBlock((Rows(rows.path, *self.tile.records, rows.stamp),), own, self.read_rows)

    def read(self) -> dict[str, Any]:
        return self.cutting.cut(super().read(), self.tile)


def blocks_of(path: Path, columns: Mapping[str, str], cutting: Cutting, read_rows: Any) -> list[PatchesBlock]:
    """The patches of a file. columns: the dataset of each column."""
    stamp = stamp_of(path)
    blocks = []
    for tile in cutting.tiles():
        indices = {dataset: cutting.index(name, tile) for name, dataset in columns.items()}
        blocks.append(
            PatchesBlock((PatchWindow(path, *tile.records, stamp, indices),), columns, read_rows, cutting, tile)
        )
    return blocks
