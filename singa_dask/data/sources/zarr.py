"""Zarr groups (versions 2 and 3), also of several stores."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.sources.arrays import Dataset, array_sources, channels_by_dimensions, listing, plain_texts
from singa_dask.data.sources.files import Rows, need, reading
from singa_dask.data.sources.source import Source
from singa_dask.data.sources.wanted import Names, Wanted
from singa_dask.errors import DataError

_MARKS = (".zgroup", ".zarray", "zarr.json")
_REMEDY = "Is it a whole Zarr store? Copy it again, or leave it out of --source."


def load(
    source: str | Path,
    x: Names = None,
    y: Names = None,
    label: Names = None,
    target: Names = None,
    weight: str | None = None,
    mask: str | None = None,
    channels: str | None = None,
) -> dict[str, Source]:
    """The arrays `x`, `y`, ... of a Zarr store; options as of `hdf5.load`. Names of dimensions tell where the channels
    are. Raises DataError."""
    need("zarr", "fields", "zarr")
    wanted = Wanted.of(x, y, label, target, weight, mask, channels).renamed(lambda name: name.strip("/"))
    return array_sources(source, _find_stores(source), wanted, _list, lambda p, n: _list(p).get(n), _read)


def contents(source: str | Path) -> str:
    """The datasets of the first file, one a line. Raises DataError."""
    need("zarr", "fields", "zarr")
    return listing(_list(_find_stores(source)[0]))


def _is_store(path: Path) -> bool:
    return path.is_dir() and any((path / mark).exists() for mark in _MARKS)


def _find_stores(source: str | Path) -> list[Path]:
    path = Path(source).expanduser().absolute()
    if _is_store(path):
        return [path]
    found = sorted(filter(_is_store, path.iterdir() if path.is_dir() else map(Path, glob.glob(str(path)))))
    if not found:
        raise DataError(f"{source}: is not a Zarr store, nor a folder or pattern of such. Check --source.")
    return found


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import zarr

    with reading(path, _REMEDY):
        yield zarr.open(path, mode="r")


def _list(path: Path) -> dict[str, Dataset]:
    import zarr

    with _opened(path) as root:
        members = {path.stem: root} if isinstance(root, zarr.Array) else dict(root.members(max_depth=None))
        return {name: _describe(array) for name, array in members.items() if isinstance(array, zarr.Array)}


def _describe(array: Any) -> Dataset:
    dimensions = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS") or ()
    dimensions = [str(name or "") for name in dimensions]
    dtype = array.dtype
    text = dtype.kind in "SUTO"
    stored = getattr(array, "shards", None) or array.chunks
    return Dataset(
        array.shape,
        np.dtype(object) if text else dtype,
        stored[0] if stored else 1,
        ", ".join(filter(None, [f"chunks {tuple(array.chunks)}", " x ".join(dimensions)])),
        text,
        fault="has values of several fields. Store each as an array." if dtype.kind == "V" else "",
        channels=channels_by_dimensions(dimensions[1:]),
        samples=dimensions[0] if dimensions else "",
    )


def _read(rows: Rows, names: Sequence[str]) -> list[np.ndarray]:
    import zarr

    with _opened(rows.path) as root:
        arrays = [root if isinstance(root, zarr.Array) else root[name] for name in names]
        return [plain_texts(np.asarray(array[rows.start : rows.stop])) for array in arrays]
