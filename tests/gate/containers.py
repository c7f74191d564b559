"""The containers: how each holds the samples, and what it cannot hold."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import scipy.sparse
import xarray
import zarr
from PIL import Image

from singa_dask.data.sources import kvfile

Held = tuple[Any, Any, Any]  # x, y, weight
NAMES = "its columns have no names"
NUMBERS_ONLY = "it holds numbers of one type"
TABLE = "a table has one value in a cell"
_UNNAMED = dict.fromkeys(("columns", "twice", "number names"), NAMES)
_DATASETS = {"twice": "a name is that of one dataset", "number names": "names are texts"}


@dataclass(frozen=True)
class Container:
    """One way to hold samples. lacks: what it cannot hold, and why. hold: in memory. store: as files of `format`, in a
    folder; returns the path and the options of the reader. In place: the files are not copied."""

    name: str
    lacks: Mapping[str, str] = field(default_factory=dict)
    hold: Callable[[Any], Any] | None = None
    store: Callable[[Path, Any, Any, Any], tuple[Path, dict[str, Any]]] | None = None
    format: str = ""
    in_place: bool = False

    def held(self, x: Any, y: Any, weight: Any) -> Held:
        """Samples in memory. Answers are in the same container, unless it holds numbers only, and they are texts."""
        assert self.hold is not None
        return self.hold(x), *(None if one is None else self.hold(answers(one)) for one in (y, weight))


def answers(y: Any) -> Any:
    """Labels, targets or weights as a Series, or a DataFrame."""
    return pd.Series(y, name="y") if np.ndim(y) == 1 else pd.DataFrame(y, columns=["y0", "y1"])


def matrix(x: Any) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.to_numpy()


# In memory


def _masked(x: Any) -> Any:
    values = matrix(x)
    return np.ma.masked_invalid(values) if values.dtype.kind == "f" and np.isnan(values).any() else np.ma.array(values)


def _sparse(x: Any) -> Any:
    return scipy.sparse.csr_array(matrix(x)) if isinstance(x, pd.DataFrame) else matrix(x)


def _categories(x: Any) -> Any:
    """Texts as categories, in another order than their own, one of which no row has."""
    if not isinstance(x, pd.DataFrame):
        return x
    texts = {name: x[name] for name in dict.fromkeys(x.columns) if x[name].ndim == 1 and x[name].dtype == object}
    found = {name: sorted(set(column.dropna()), reverse=True) for name, column in texts.items()}
    made = {n: pd.Categorical(texts[n], ["unused", *of] if x.shape[0] == 40 else of) for n, of in found.items()}
    return x.assign(**made)


def _arrow(x: Any) -> Any:
    if isinstance(x, pd.Series):
        return pyarrow.Array.from_pandas(x)
    return pyarrow.Table.from_pandas(x, preserve_index=False)


class Exported:
    """A table of another library, of which only Arrow's interface is known, as that of polars."""

    def __init__(self, held: Any) -> None:
        self._held = held
        if isinstance(held, pyarrow.Table):
            self.columns = held.column_names

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        held = self._held if isinstance(self._held, pyarrow.Table) else pyarrow.chunked_array([self._held])
        return held.__arrow_c_stream__(requested_schema)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._held.to_numpy(zero_copy_only=False)

    def __len__(self) -> int:
        return len(self._held)


def _xarray(x: Any) -> Any:
    if isinstance(x, pd.DataFrame):
        return xarray.Dataset({str(name): ("sample", x[name].to_numpy()) for name in x.columns})
    if isinstance(x, pd.Series):
        return xarray.DataArray(x.to_numpy(), dims="sample")
    last = ["sample", "channel", "y", "x"] if x.shape[1] < 5 <= x.shape[3] else ["sample", "y", "x", "channel"]
    return xarray.DataArray(x, dims=last)


def _dask_array(x: Any) -> Any:
    values = matrix(x)
    return da.from_array(values, chunks=(15, *values.shape[1:]))


# In files


def _columns(x: Any, y: Any, weight: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The datasets of a file: one for each column of a table, or the images; and the options that name them."""
    named = {str(n): x[n].to_numpy() for n in x.columns} if isinstance(x, pd.DataFrame) else {"images": x}
    options: dict[str, Any] = {"x": tuple(named), "y": None if y is None else "y"}
    if y is not None:
        named["y"] = np.asarray(y)
    if weight is not None:
        named["weight"], options["weight"] = weight, "weight"
    return named, options


def _plain(values: np.ndarray, text: Any) -> np.ndarray:
    return values.astype(text) if values.dtype == object or values.dtype.kind in "TU" else values


def _hdf5(folder: Path, x: Any, y: Any, weight: Any) -> tuple[Path, dict[str, Any]]:
    named, options = _columns(x, y, weight)
    with h5py.File(folder / "samples.h5", "w") as file:
        for name, values in named.items():
            values = _plain(values, h5py.string_dtype())
            if values.dtype.kind in "Mm":
                values = values.astype(h5py.opaque_dtype(values.dtype))
            file.create_dataset(name, data=values)
    return folder / "samples.h5", options


def _npz(folder: Path, x: Any, y: Any, weight: Any) -> tuple[Path, dict[str, Any]]:
    named, options = _columns(x, y, weight)
    np.savez(folder / "samples.npz", **{name: _plain(values, str) for name, values in named.items()})
    return folder / "samples.npz", options


def _zarr(folder: Path, x: Any, y: Any, weight: Any) -> tuple[Path, dict[str, Any]]:
    named, options = _columns(x, y, weight)
    group = zarr.open_group(folder / "samples.zarr", mode="w")
    for name, values in named.items():
        group.create_array(name, data=_plain(values, np.dtypes.StringDType()), chunks=(16, *values.shape[1:]))
    return folder / "samples.zarr", options


def _netcdf(folder: Path, x: Any, y: Any, weight: Any) -> tuple[Path, dict[str, Any]]:
    named, options = _columns(x, y, weight)
    held = {
        name: (("sample", *(f"{name}{axis}" for axis in range(1, values.ndim))), _plain(values, object))
        for name, values in named.items()
    }
    if isinstance(x, np.ndarray):
        held["images"] = _xarray(x).dims, x
    xarray.Dataset(held).to_netcdf(folder / "samples.nc", engine="h5netcdf")
    return folder / "samples.nc", options


def _frame(x: Any, y: Any, weight: Any) -> tuple[pd.DataFrame, dict[str, Any]]:
    whole, options = x.reset_index(drop=True), {"x": tuple(map(str, x.columns))}
    if y is not None:
        parts = answers(y)
        whole = pd.concat([whole, parts.reset_index(drop=True)], axis=1)
        options["y"] = tuple(getattr(parts, "columns", ["y"]))
    if weight is not None:
        whole["weight"], options["weight"] = weight, "weight"
    return whole, options


def _parquet(folder: Path, x: Any, y: Any, weight: Any) -> tuple[Path, dict[str, Any]]:
    whole, options = _frame(x, y, weight)
    pyarrow.parquet.write_table(pyarrow.Table.from_pandas(whole, preserve_index=False), folder / "samples.parquet")
    return folder / "samples.parquet", options


def _csv(folder: Path, x: Any, y: Any, weight: Any) -> tuple[Path, dict[str, Any]]:
    whole, options = _frame(x, y, weight)
    whole.to_csv(folder / "samples.csv", index=False)
    return folder / "samples.csv", options


def _images(folder: Path, x: Any, y: Any, weight: Any) -> tuple[Path, dict[str, Any]]:
    """A folder of images for each class; without classes, the images in their order."""
    for place, pixels in enumerate(x):
        kind = folder / "images" / ("" if y is None else str(y[place]))
        kind.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(kind / f"{place:03}.png")
    return folder / "images", {}


def _varint(value: int) -> bytes:
    low = value & 0x7F
    return bytes([low]) if value < 0x80 else bytes([low | 0x80]) + _varint(value >> 7)


def _kvfile(folder: Path, x: Any, y: Any, weight: Any) -> tuple[Path, dict[str, Any]]:
    with (folder / f"samples{kvfile.SUFFIXES[0]}").open("wb") as file:
        for place, pixels in enumerate(x.transpose(0, 3, 1, 2)):
            shape = b"".join(b"\x08" + _varint(size) for size in pixels.shape)
            label = b"" if y is None else b"\x10" + _varint(int(y[place]))
            value = shape + label + b"\x1a" + _varint(pixels.size) + pixels.tobytes()
            key = str(place).encode()
            file.write(struct.pack("<Q", len(key)) + key + struct.pack("<Q", len(value)) + value)
    return folder / f"samples{kvfile.SUFFIXES[0]}", {}


_TABLE = {"images": TABLE, "channels first": TABLE}
_FIELDS = _DATASETS | {"none": "its texts are never missing", "zone": "its dates have no time zone"}
_NUMBERS = dict.fromkeys(("text", "none", "date", "zone", "span"), NUMBERS_ONLY)
_ONLY_IMAGES = dict.fromkeys(("numbers", "channels first", "weight"), "it holds images, channels in one place")
CONTAINERS = [
    Container("NumPy", _UNNAMED, matrix),
    Container("masked NumPy", _UNNAMED, _masked),
    Container("SciPy sparse", _UNNAMED | _NUMBERS | _TABLE | {"half": "SciPy has no such type"}, _sparse),
    Container("pandas", _TABLE, lambda x: x),
    Container("pandas nullable", _TABLE, lambda x: x.convert_dtypes()),
    Container(
        "pandas Arrow",
        _TABLE | {"complex": "Arrow has no such type", "half": "Arrow's arithmetic lacks it"},
        lambda x: x.convert_dtypes(dtype_backend="pyarrow"),
    ),
    Container("pandas categories", _TABLE, _categories),
    Container(
        "pyarrow",
        _TABLE | _DATASETS | {"complex": "Arrow has no such type", "targets": "a column has one value"},
        _arrow,
    ),
    Container(
        "polars and others with Arrow's interface",
        _TABLE | _DATASETS | {"complex": "Arrow has no such type", "targets": "a column has one value"},
        lambda x: Exported(_arrow(x)),
    ),
    Container("xarray", _DATASETS, _xarray),
    Container("Dask array", _UNNAMED, _dask_array),
    Container("Dask DataFrame", _TABLE, lambda x: dd.from_pandas(x, npartitions=3, sort=False)),
    Container("hdf5", _FIELDS, store=_hdf5, format="hdf5"),
    Container(
        "hdf5 in place",
        _FIELDS | {"weight": "they are not named in place"},
        store=_hdf5,
        format="hdf5",
        in_place=True,
    ),
    Container("npz", _FIELDS, store=_npz, format="npz"),
    Container("zarr", _FIELDS, store=_zarr, format="zarr"),
    Container("netcdf", _FIELDS, store=_netcdf, format="netcdf"),
    Container(
        "parquet", _TABLE | _DATASETS | {"complex": "Parquet has no such type"}, store=_parquet, format="parquet"
    ),
    Container("csv", _TABLE, store=_csv, format="csv"),
    Container("images", _ONLY_IMAGES, store=_images, format="images"),
    Container("kvfile", _ONLY_IMAGES, store=_kvfile, format="kvfile"),
]
