"""Zarr groups (versions 2 and 3), also of several stores."""

from __future__ import annotations

import glob
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.sources.arrays import arrays_format
from singa_dask.data.sources.conventions import (
    KEYS,
    coordinates_along,
    decoded_type,
    packing,
    plain,
    units_of,
    unpacked,
)
from singa_dask.data.sources.datasets import Dataset, channels_by_dimensions, unwritten
from singa_dask.data.sources.files import Rows, reading
from singa_dask.errors import DataError
from singa_dask.files import FOLDER, check_regular, kind_of, read_text

_MARKS = (".zgroup", ".zarray", "zarr.json")
_METADATA = ("zarr.json", ".zarray", ".zmetadata")
# A store says which codecs decode it, and "pickle" runs code that is in the store. The last two decode texts.
CODECS = (
    *("bytes", "endian", "transpose", "sharding_indexed", "cast_value", "scale_offset", "astype", "bitround", "delta"),
    *("fixedscaleoffset", "packbits", "quantize", "shuffle", "blosc", "bz2", "gzip", "lz4", "lzma", "pcodec", "zfpy"),
    *("zlib", "zstd", "adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3", "vlen-bytes", "vlen-utf8"),
)
_CODEC_FIELDS = ("compressor", "filters", "codecs", "index_codecs")
# Listing chunks takes a time that grows with the square of their number.
MOST_LISTED = 4096
REMEDY = "Is it a whole Zarr store? Copy it again, or leave it out of --source."


def _is_store(path: Path) -> bool:
    return path.is_dir() and any((path / mark).exists() for mark in _MARKS)


def _find_stores(source: str | Path, _: Sequence[str]) -> list[Path]:
    path = Path(source).expanduser().absolute()
    if (kind := kind_of(path)) not in (None, FOLDER):
        raise DataError(f"{path}: is {kind}, not a Zarr store, which is a folder. Check --source.")
    if _is_store(path):
        return [path]
    found = sorted(filter(_is_store, path.iterdir() if path.is_dir() else map(Path, glob.glob(str(path)))))
    if not found:
        raise DataError(f"{source}: is not a Zarr store, nor a folder or pattern of such. Check --source.")
    return found


@contextmanager
def _opened(path: Path, names: Sequence[str] | None = None) -> Iterator[Any]:
    """A store, of whose arrays these are read, by default all."""
    import zarr

    with reading(path, REMEDY):
        nodes = _nodes(path) if names is None else [("", path), *((name, path / name) for name in names)]
        for name, folder in nodes:
            _check_codecs(path, name, folder)
        yield zarr.open(path, mode="r")


def _nodes(folder: Path, name: str = "") -> Iterator[tuple[str, Path]]:
    """The groups and arrays of a store, without looking into folders of chunks."""
    yield name, folder
    newest = folder / "zarr.json"
    if newest.exists():
        group = json.loads(read_text(newest)).get("node_type") == "group"
    else:
        group = (folder / ".zgroup").exists()
    for inner in filter(_is_store, sorted(folder.iterdir()) if group else ()):
        yield from _nodes(inner, f"{name}/{inner.name}".strip("/"))


def _check_codecs(path: Path, name: str, folder: Path) -> None:
    """Raise DataError for a codec that is not in CODECS, before anything is decoded. Raises NotAFile."""
    for mark in (*_METADATA, ".zgroup", ".zattrs"):
        check_regular(folder / mark)
    for file in filter(Path.exists, (folder / mark for mark in _METADATA)):
        _check_known(path, name, json.loads(read_text(file)))


def _check_known(where: Any, name: str, metadata: Any) -> None:
    for array, codec in _codecs(metadata, name):
        if codec.removeprefix("numcodecs.") not in CODECS:
            raise DataError(
                f"{where}: {array or Path(str(where)).name} is stored with the codec {codec!r}, which is not one of "
                f"those that are known to run no code. Write the store again with one of {', '.join(CODECS)}."
            )


def _codecs(metadata: Any, array: str) -> Iterator[tuple[str, str]]:
    """The codecs of arrays by their names, in metadata of one node, or of several: consolidated ones."""
    if isinstance(metadata, list):
        for part in metadata:
            yield from _codecs(part, array)
    if not isinstance(metadata, dict):
        return
    for key, value in metadata.items():
        if key in _CODEC_FIELDS:
            for codec in filter(None, value if isinstance(value, list) else [value]):
                spelled = [codec] if isinstance(codec, str) else [codec[at] for at in ("id", "name") if at in codec]
                yield from ((array, str(name)) for name in spelled)
        if key == "metadata":
            for name, part in value.items():
                inner = f"{array}/{name.removesuffix('.zarray')}".strip("/")
                yield from _codecs({} if name.endswith(".zattrs") else part, inner)
        elif key != "attributes":
            yield from _codecs(value, array)


def _list(path: Path) -> dict[str, Dataset]:
    import zarr

    with _opened(path) as root:
        members = {path.stem: root} if isinstance(root, zarr.Array) else dict(root.members(max_depth=None))
        arrays = {name: array for name, array in members.items() if isinstance(array, zarr.Array)}
        known = cache(lambda name: unpacked(arrays[name][...], partial(_packing, arrays[name])))
        return {
            name: _describe(array, _along(_dimensions(array)[array.ndim != 2 :], array, name, arrays, known))
            for name, array in arrays.items()
        }


def _dimensions(array: Any) -> list[str]:
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS") or ()
    return [str(name or "") for name in names]


def names_dimensions(path: Path) -> bool:
    """Whether all arrays of a store name their dimensions, as xarray wants it. Raises DataError."""
    import zarr

    with _opened(path) as root:
        members = [] if isinstance(root, zarr.Array) else [each for _, each in root.members(max_depth=None)]
        arrays = [each for each in members if isinstance(each, zarr.Array)]
        return bool(arrays) and all(each.ndim == len([*filter(None, _dimensions(each))]) for each in arrays)


def _named(array: Any) -> list[str]:
    """The coordinates that are not named like dimensions."""
    return str(array.attrs.get("coordinates", "")).split()


def _along(
    dims: Sequence[str], array: Any, name: str, arrays: Mapping[str, Any], known: Callable[[str], np.ndarray]
) -> dict[str, Any]:
    """The coordinates of these dimensions, and scalar ones, which are arrays of its group."""
    folder = name.rpartition("/")[0]
    paths = {path.rpartition("/")[2]: path for path in arrays if path != name and path.rpartition("/")[0] == folder}
    others = {other: _dimensions(arrays[paths[other]]) for other in _named(array) if other in paths}
    return coordinates_along(dims, lambda name: known(paths[name]) if name in paths else None, others)


def _places(array: Any, dims: Sequence[str]) -> dict[str, Any]:
    """The same of an open array."""
    import zarr

    folder, _, name = array.path.rpartition("/")
    if not name:
        return {}
    arrays = {}
    for other in {*dims, *_named(array)}:
        with suppress(FileNotFoundError, ValueError):  # there is none, or not one that can be read
            arrays[other] = zarr.open_array(
                array.store, path=f"{folder}/{other}", mode="r", zarr_format=array.metadata.zarr_format
            )

    def known(name: str) -> np.ndarray:
        told = json.dumps(arrays[name].metadata.to_dict(), default=lambda of: getattr(of, "get_config", of.__str__)())
        _check_known(array.store_path, name, json.loads(told))
        return unpacked(arrays[name][...], partial(_packing, arrays[name]))

    return _along(dims, array, name, arrays, known)


def _describe(array: Any, along: Mapping[str, Any]) -> Dataset:
    dimensions = _dimensions(array)
    text = array.dtype.kind in "SUTO"
    stored = getattr(array, "shards", None) or array.chunks
    dtype, fault = (np.dtype(object), "") if text else decoded_type(array.dtype, partial(_packing, array))
    if dtype.kind == "V":
        fault = "has values of several fields. Store each as an array."
    return Dataset(
        array.shape,
        dtype,
        stored[0] if stored else 1,
        ", ".join(filter(None, [f"chunks {tuple(array.chunks)}", " x ".join(dimensions)])),
        text,
        fault=fault,
        channels=channels_by_dimensions(dimensions[1:]),
        dimensions=tuple(dimensions),
        note=_unwritten(array),
        **along,
        units=units_of(array.attrs, dtype),
    )


def _unwritten(array: Any) -> str:
    if array.nchunks > MOST_LISTED:
        return ""
    return unwritten(array.nchunks_initialized, array.nchunks, array.fill_value)


def _packing(array: Any) -> dict[str, Any]:
    """As xarray has it: in Zarr 2, it keeps the fill value of a variable as that of the array."""
    attributes = dict(array.attrs)
    if (
        array.metadata.zarr_format == 2
        and "_ARRAY_DIMENSIONS" in attributes
        and (
            array.fill_value or any(key in attributes for key in KEYS)  # 0 is that of arrays that have none
        )
    ):
        attributes.setdefault("_FillValue", array.fill_value)
    fill = attributes.get("_FillValue")
    if isinstance(fill, str):
        attributes["_FillValue"] = (
            float(fill) if fill in ("NaN", "Infinity", "-Infinity") else _coded(fill, array.dtype)
        )
    return packing({key: value for key, value in attributes.items() if value is not None}, array.dtype)


def _coded(fill: str, dtype: np.dtype) -> Any:
    """A fill value as xarray codes it in Zarr 3; the text itself if it does not."""
    from xarray.backends.zarr import FillValueCoder

    try:
        return FillValueCoder.decode(fill, dtype)
    except (ValueError, TypeError, struct.error):
        return fill


def opened(array: Any) -> tuple[str, Dataset, Callable[[Any], np.ndarray], Callable[[Sequence[str]], dict[str, Any]]]:
    """Where an open array is, what it is, what reads its values at an index, and the coordinates of dimensions."""
    return f"{array.store_path}:", _describe(array, {}), partial(_decoded, array), partial(_places, array)


def _decoded(array: Any, index: Any) -> np.ndarray:
    return plain(np.asarray(array[index]), partial(_packing, array))


def _read(rows: Rows, names: Sequence[str]) -> list[np.ndarray]:
    import zarr

    with _opened(rows.path, names) as root:
        arrays = [root if isinstance(root, zarr.Array) else root[name] for name in names]
        return [_decoded(array, rows.index(name)) for name, array in zip(names, arrays, strict=True)]


FORMAT = arrays_format("zarr", (".zarr",), _list, _read, _find_stores, extra="fields", modules=("zarr",))
