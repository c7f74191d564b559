"""Formats of files, what their readers are asked for, and what they give to those who write shards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from singa_dask.data.columns import Channels, Role, X, Y
from singa_dask.data.schema import Reading, Turn
from singa_dask.data.sources.files import Block, need
from singa_dask.data.sources.patches import Cutting, Patches
from singa_dask.errors import ConfigError, Problem

THE_DATE = ""

Names = str | int | Sequence[str | int] | None


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
    other numbers. coded: whether labels are given so, by raw column, where it is known. window: samples per window,
    if it matters. cuttings: where the samples are patches, those of each file. turns: how the samples are turned, by
    raw column. time: the raw column of the times of the samples, by which windows are checked.
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
    coded: Mapping[str, bool] = field(default_factory=dict)
    window: int | None = None
    cuttings: Sequence[Cutting] = ()
    turns: Mapping[str, Turn] = field(default_factory=dict)
    time: str | None = None

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
            own = double in wanted.x and double in wanted.y
            hint = "Name it once." + " To forecast it from its own past, copy it, and name the copy as target." * own
            raise ConfigError(Problem("columns", "a column can be used once only", repr(double), hint))
        return wanted

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, in the order x, y, weight, mask."""
        return (*self.x, *self.y, *(name for name in (self.weight, self.mask) if name is not None))

    def renamed(self, name: Callable[[str], str]) -> Wanted:
        """The same columns under other names."""
        return replace(
            self,
            x=tuple(map(name, self.x)),
            y=tuple(map(name, self.y)),
            weight=None if self.weight is None else name(self.weight),
            mask=None if self.mask is None else name(self.mask),
            roles=tuple((name(column), role) for column, role in self.roles),
            split=tuple(name(column) if column else column for column in self.split),
        )


def _names(given: Names) -> tuple[str, ...]:
    if given is None:
        return ()
    return (str(given),) if isinstance(given, str | int) else tuple(map(str, given))


# What can be chosen of a table, and of arrays.
TABLE = ("x", "y", "label", "target", "weight", "mask", "split")
ARRAYS = (*TABLE, "channels", "cut")


@dataclass(frozen=True)
class Format:
    """A format of users' files. suffixes: of its files. columns: TABLE, ARRAYS, or nothing that can be chosen.

    read(source, wanted, **own): the `Source` of each split. It reads no more than it must. Without columns,
    read(source, **own). contents(source): what a file holds, one column a line, for users who do not know it. modules:
    that must be installed, with the extra that has them.
    """

    name: str
    columns: Sequence[str]
    suffixes: Sequence[str]
    read: Callable[..., Mapping[str, Source]]
    contents: Callable[..., str] | None = None
    extra: str = ""
    modules: Sequence[str] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """All options of `load`."""
        return *self.columns, *[*inspect.signature(self.read).parameters][2 if self.columns else 1 :]

    def load(self, source: str | Path, **options: Any) -> dict[str, Source]:
        """The source of each split of a file, of all files of a folder, or of those that match a pattern; "" for a
        single split.

        x, y, label, target, weight, mask: names of columns: of a table also their numbers, of arrays the paths of
            datasets, such as "data/X". label and target are y that is said to be classes or numbers. By default the
            usual names tell; of a table all other columns are features, which become one vector.
        channels: of a sample of arrays: "first", "last" or "none". split: columns that say which split a sample is in.
        cut: the samples are patches of the arrays. Further options are those of the module of the format.
        Several files are concatenated in the order of their names. Raises DataError that names file and column,
        ConfigError.
        """
        self._check_installed()
        own = {key: value for key, value in options.items() if key not in self.columns}
        wanted = Wanted.of(**{key: options[key] for key in options if key not in own})
        found = self.read(source, *[wanted] * bool(self.columns), **own)
        return {split: replace(each, reading=replace(each.reading, format=self.name)) for split, each in found.items()}

    def listing(self, source: str | Path, **options: Any) -> str:
        """What the first file holds, one column a line; empty for formats without columns. Raises DataError."""
        self._check_installed()
        return self.contents(source, **options) if self.contents else ""

    def _check_installed(self) -> None:
        for module in self.modules:
            need(module, self.extra, self.name)
