"""The formats of users' files, each described by one record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from singa_dask.data.sources.files import need
from singa_dask.data.sources.source import Source, Wanted

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
