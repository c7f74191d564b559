"""A data set as arrays in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from singa_dask.data.catalogue import recipe_names
from singa_dask.data.manifest import MANIFEST_FILE, Manifest
from singa_dask.data.resolve import SCHEME, resolve
from singa_dask.data.shards import ShardFolder


def load(path: str | Path, columns: str | Sequence[str] = ()) -> tuple[np.ndarray | None, ...]:
    """The columns of a data set, as they are stored: (samples, ...) each, not normalised.

    x, y = load("mnist/train")

    path: a folder of shards, or a named data set: "mnist/train", "digits/test". columns: names of columns; by default
    the features and the labels or targets, of which the latter are None if there are none.
    Raises DataError if there is no such data set or column, or if a shard is damaged.
    """
    manifest = Manifest.load(resolve(_spelled(str(path))))
    names = [columns] if isinstance(columns, str) else columns
    wanted = [manifest.column(name) for name in names] if names else [manifest.features, manifest.targets]
    shards = ShardFolder(manifest)
    shards.verify()
    readers = [shards.reader(index) for index in range(len(manifest.shards))]
    return tuple(
        None
        if column is None
        else np.concatenate([reader.column(column.name) for reader in readers]).reshape(-1, *column.shape)
        for column in wanted
    )


def _spelled(path: str) -> str:
    """The path as in a job: a named data set begins with "dataset:", unless a folder of shards has its name."""
    name = path.strip("/").partition("/")[0]
    named = not path.startswith((SCHEME, "/")) and name in recipe_names()
    return f"{SCHEME}{path}" if named and not (Path(path) / MANIFEST_FILE).exists() else path
