"""Sources of arrays in memory, and what the shards of them hold."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data import Manifest, ShardFolder
from singa_dask.data.ingest.write import write
from singa_dask.data.sources.files import Block
from singa_dask.data.sources.source import Source


@dataclass(frozen=True)
class ArrayBlock(Block):
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


Columns = Mapping[str, Any]


def source_of(
    columns: Columns | Sequence[Columns], cuts: Sequence[int] = (), log: Path | None = None, **settings: Any
) -> Source:
    """A source of these columns, cut into blocks before these rows, or of the columns of each block."""
    if isinstance(columns, Mapping):
        edges = [0, *cuts, len(next(iter(columns.values())))]
        columns = [{name: v[a:b] for name, v in columns.items()} for a, b in itertools.pairwise(edges)]
    ends = [0, *itertools.accumulate(len(next(iter(block.values()))) for block in columns)]
    blocks = [
        ArrayBlock(f"{a}-{b}", block, log) for (a, b), block in zip(itertools.pairwise(ends), columns, strict=True)
    ]
    return Source("rows", blocks, **{"x": ("x",), **settings})


def write_rows(
    out: Path, columns: Columns | Sequence[Columns], cuts: Sequence[int] = (), **options: Any
) -> dict[str, Manifest]:
    """Shards of these columns. options: of `source_of` and of `write`."""
    keys = ("x", "y", "weight", "mask", "table", "roles", "classes", "channels", "ordered", "log")
    settings = {key: options.pop(key) for key in keys if key in options}
    return write(source_of(columns, cuts, **settings), out, **{"durable": False, **options})


def stored(manifest: Manifest) -> dict[str, np.ndarray]:
    """All samples of a folder, by column: (samples, *shape), after comparing every hash; and their rows."""
    folder = ShardFolder(manifest)
    folder.verify()
    found = {
        column.name: np.concatenate(
            [folder.reader(i).column(column.name) for i in range(len(manifest.shards))]
        ).reshape(-1, *column.shape)
        for column in manifest.columns
    }
    return {**found, "row": found.get("row", np.arange(manifest.total))}
