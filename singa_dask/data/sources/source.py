"""What readers of data are asked for, and what they give to those who write shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singa_dask.data.columns import Channels, Role, X, Y
from singa_dask.data.schema import Reading
from singa_dask.errors import ConfigError, Problem

if TYPE_CHECKING:
    from singa_dask.data.sources.patches import Cutting, Patches

THE_DATE = ""

Names = str | int | Sequence[str | int] | None


class Block(ABC):
    """Consecutive samples that one task reads. Can be pickled, unless it is local: in the memory of this process.

    key: text that is equal for the same samples in every run. files: the first and the last of those in which it lies,
    if it does. spans: the files of its rows, in order, each with their number; None for all that are left. numbered:
    whether it gives the numbers of its rows.
    """

    local: bool = False
    numbered: bool = False

    if TYPE_CHECKING:  # a property here would be the default of fields

        @property
        def key(self) -> str: ...

    @property
    def files(self) -> Sequence[Path]:
        return ()

    @property
    def spans(self) -> Sequence[tuple[Path, int | None]]:
        return [(file, None) for file in self.files[:1]]

    @abstractmethod
    def read(self) -> Mapping[str, Any]:
        """By raw column: a NumPy array (rows, ...), or a pandas Series of a table. Raises DataError."""


def files_of(blocks: Sequence[Any]) -> list[Path]:
    """The files of the first and the last block, which stand for those of all."""
    return list(dict.fromkeys(file for block in (*blocks[:1], *blocks[-1:]) for file in block.files))


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

    @property
    def stored(self) -> dict[str, str]:
        """The columns of shards by the raw columns that they hold; those of a table become one."""
        roles = ((X, self.x), (Y, self.y))
        return {name: alone if len(names) == 1 else name for alone, names in roles for name in names}


@dataclass(frozen=True)
class Wanted:
    """The raw columns of each role, by the names that the user gave.

    y: in the order of the shards. roles: of columns of y that are said to be labels or targets. split: columns that
    say which split a sample is in, THE_DATE for the only one with dates; they may be features too. cut: the samples
    are patches.
    """

    x: tuple[str, ...] = ()
    y: tuple[str, ...] = ()
    weight: str | None = None
    mask: str | None = None
    roles: tuple[tuple[str, Role], ...] = ()
    channels: Channels | None = None
    split: tuple[str, ...] = ()
    cut: Patches | None = None

    @classmethod
    def of(
        cls,
        x: Names = None,
        y: Names = None,
        label: Names = None,
        target: Names = None,
        weight: str | int | None = None,
        mask: str | int | None = None,
        channels: str | None = None,
        split: Names = None,
        cut: Patches | None = None,
    ) -> Wanted:
        """x: feature columns. y: labels or targets, whichever the values are. label, target: likewise, but said to be
        classes, or numbers. channels: "first", "last" or "none".

        Raises ConfigError.
        """
        labels, targets = _names(label), _names(target)
        if channels is not None and channels not in list(Channels):
            raise ConfigError(Problem("channels", "must be first, last or none", repr(channels)))
        wanted = cls(
            _names(x),
            (*_names(y), *labels, *targets),
            None if weight is None else str(weight),
            None if mask is None else str(mask),
            (*((name, Role.LABEL) for name in labels), *((name, Role.TARGET) for name in targets)),
            None if channels is None else Channels(channels),
            _names(split),
            cut,
        )
        names = wanted.names
        double = next((name for place, name in enumerate(names) if name in names[:place]), None)
        if double is not None:
            raise ConfigError(Problem("columns", "a column can be used once only", repr(double), "Name it once."))
        return wanted

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, in the order x, y, weight, mask."""
        return (*self.x, *self.y, *(name for name in (self.weight, self.mask) if name is not None))

    def renamed(self, name: Callable[[str], str]) -> Wanted:
        """The same columns under other names."""
        return Wanted(
            tuple(map(name, self.x)),
            tuple(map(name, self.y)),
            None if self.weight is None else name(self.weight),
            None if self.mask is None else name(self.mask),
            tuple((name(column), role) for column, role in self.roles),
            self.channels,
            tuple(name(column) if column else column for column in self.split),
            self.cut,
        )


def _names(given: Names) -> tuple[str, ...]:
    if given is None:
        return ()
    return (str(given),) if isinstance(given, str | int) else tuple(map(str, given))
