"""Sources of arrays in memory, and what the shards of them hold."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data import Manifest, ShardFolder
from singa_dask.data.sources.source import Source


@dataclass(frozen=True)
class ArrayBlock:
    """Columns of some rows. It appends its key to the file `log` when it is read."""

    key: str
    columns: Mapping[str, Any]
    log: Path | None = field(default=None, compare=False)

    def read(self) -> Mapping[str, Any]:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(self.key + "\n")
        return self.columns


# Functions that travel are copied, what they find in a module is not.
COMPUTED: list[Any] = []


def note(value: Any, key: Any = None) -> Any:
    """The same value, and an entry of COMPUTED: its key, by default its number of rows."""
    COMPUTED.append(len(value) if key is None else key)
    return value


def source_of_rows(
    columns: Mapping[str, Any], cuts: Sequence[int], log: Path | None = None, **settings: Any
) -> Source:
    """Blocks of these columns, cut before these rows."""
    rows = len(next(iter(columns.values())))
    edges = [0, *cuts, rows]
    blocks = [
        ArrayBlock(f"{a}-{b}", {name: values[a:b] for name, values in columns.items()}, log)
        for a, b in itertools.pairwise(edges)
    ]
    return Source("rows", blocks, **{"x": ("x",), **settings})


def stored(manifest: Manifest) -> dict[str, np.ndarray]:
    """All samples of a folder, by column: (samples, *shape), after comparing every hash."""
    folder = ShardFolder(manifest)
    folder.verify()
    return {
        column.name: np.concatenate(
            [folder.reader(i).column(column.name) for i in range(len(manifest.shards))]
        ).reshape(-1, *column.shape)
        for column in manifest.columns
    }
