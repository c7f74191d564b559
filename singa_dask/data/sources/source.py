"""What a reader of data gives to those who write shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from singa_dask.data.columns import Channels, Role
from singa_dask.data.schema import Reading
from singa_dask.data.sources.patches import Cutting


class Block(Protocol):
    """Consecutive samples that one task reads. Can be pickled.

    key: text that is equal for the same samples in every run. files: the first and the last of those
    in which it lies, if it does. spans: see `spans_of`; by default all rows are of the first file. numbered: whether
    it gives the numbers of its rows.
    """

    @property
    def key(self) -> str: ...

    def read(self) -> Mapping[str, Any]:
        """By raw column: a NumPy array (rows, ...), or a pandas Series of a table. Raises DataError."""
        ...


def files_of(blocks: Sequence[Any]) -> list[Path]:
    """The files of the first and the last block, which stand for those of all."""
    return list(dict.fromkeys(file for block in (*blocks[:1], *blocks[-1:]) for file in getattr(block, "files", ())))


def spans_of(block: Any) -> Sequence[tuple[Path, int | None]]:
    """The files of the rows of a block, in order, each with the number of its rows; None for all that are left."""
    return getattr(block, "spans", [(file, None) for file in getattr(block, "files", ())[:1]])


@dataclass(frozen=True)
class Source:
    """Samples that are not shards yet.

    blocks: in the order of the samples. x: the raw columns with the features: arrays, or the one-dimensional columns
    of a table, which become one vector. y: those with labels or targets. weight, mask: their columns. roles: of
    columns of y, Role.LABEL or Role.TARGET; by default it is chosen by the values. channels: of arrays, by raw column;
    a missing entry is chosen by the shape. classes: names of the classes, or of the symbols that a
    feature holds, by raw column. ordered: whether the order of
    the samples is part of the data, so that they must not be shuffled. name: for messages, such as the path.
    nbytes: of all samples, at least. split: the raw columns that say which split a sample is in, by the names that the
    user gave. reading: how they are read. outputs: those of the net that they train, if it is known: integers below it
    that are labels keep their numbers. places: labels are the numbers of the classes even where these are called by
    other numbers. window: samples per window, if it matters. cuttings: where the samples are patches, those of each
    file.
    """

    name: str
    blocks: Sequence[Block]
    x: tuple[str, ...]
    y: tuple[str, ...] = ()
    weight: str | None = None
    mask: str | None = None
    table: bool = False
    roles: Mapping[str, Role] = field(default_factory=dict)
    channels: Mapping[str, Channels] = field(default_factory=dict)
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    split: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ordered: bool = False
    nbytes: int = 0
    reading: Reading = field(default_factory=Reading)
    outputs: int | None = None
    places: bool = False
    window: int | None = None
    cuttings: Sequence[Cutting] = ()
