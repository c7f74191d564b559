"""Arrays of files that are given as objects, of h5py, zarr, and whatever has attributes as netCDF has them: their
values are those that the reader of a file gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from singa_dask.data.containers import dense
from singa_dask.data.schema import Along
from singa_dask.data.sources import hdf5, zarr
from singa_dask.data.sources.conventions import (
    KEYS,
    UNSIGNED,
    VALID,
    decoded,
    decoded_type,
    is_any,
    overlooked,
    packing,
    units_of,
)
from singa_dask.data.sources.datasets import Dataset
from singa_dask.errors import DataError

_OPENED = {"h5py": hdf5.opened, "zarr": zarr.opened}


def _nowhere(dims: Sequence[str]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, eq=False)
class Stored:
    """An array in a file, which is decoded as it is read. read: the values at an index. places: what its file says of
    dimensions of these names, as `conventions.coordinates_along` has it."""

    described: Dataset
    chunks: tuple[int, ...] | None
    read: Callable[[Any], np.ndarray]
    places: Callable[[Sequence[str]], Mapping[str, Any]] = _nowhere

    @property
    def shape(self) -> tuple[int, ...]:
        return self.described.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:
        """Of values of which none is missing."""
        return self.described.dtype

    def along(self, *, lone: bool = False) -> Along:
        """What is known of its samples. lone: whether it is a single one."""
        dims, known = self.described.dimensions[not lone :], Along(units=self.described.units)
        return known._replace(dims=dims, **self.places(dims)) if all(dims) else known

    def like(self, trained: Along, what: str, *, lone: bool = False) -> Stored:
        """Itself without its coordinates, which are those of the training data. Raises DataError if its samples lie
        along other dimensions or coordinates than there, or in another order of these, or have other units."""
        own = self.along(lone=lone)
        own.check_order(trained, what)
        own.warn_of_places(trained._replace(coordinates={}) if lone else trained, what)  # patches lie anywhere
        return Stored(self.described, self.chunks, self.read)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.read(index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(...), dtype)


def of_values(values: np.ndarray, along: Along) -> Stored:
    """Decoded values, of which this is known, as an array that is read."""
    described = Dataset(values.shape, values.dtype, dimensions=("(sample)", *along.dims), units=along.units)
    told = {"coordinates": along.coordinates, "scalars": along.scalars}
    return Stored(described, None, values.__getitem__, lambda dims: told)


def stored(x: Any) -> Any:
    """An array of numbers or dates that says by its attributes what its values mean as Stored; all else as it is.
    Raises DataError if it cannot be read as that of a file."""
    if type(x) is np.ndarray or any(hasattr(x, name) for name in ("columns", "index", "indexes", "__dask_graph__")):
        return x
    package = next(filter(_OPENED.__contains__, packages_of(x)), "")
    if package and hasattr(x, "chunks"):
        where, described, read, places = _OPENED[package](x)
    elif package and isinstance(view := getattr(x, "_dset", None), hdf5.h5py.Dataset):
        return _as_type(stored(view), x.dtype) if view.dtype.names is None and x.dtype.kind in "biuf" else x
    elif (attributes := _attributes_of(x)) is not None and hasattr(x, "shape") and hasattr(x, "__getitem__"):
        where, described, read = _by_attributes(x, attributes)
        own = getattr(x, "_h5ds", None)  # of h5netcdf
        places = partial(hdf5.places, own) if isinstance(own, hdf5.h5py.Dataset) else _nowhere
    else:
        return x
    if described.fault:
        raise DataError(f"{where} {described.fault}")
    if described.text or described.classes:
        return x
    return Stored(described, getattr(x, "shards", None) or getattr(x, "chunks", None), read, places)


def packages_of(x: Any) -> list[str]:
    """The packages of its type and of those that this derives from."""
    return [base.__module__.partition(".")[0] for base in type(x).__mro__]


def _as_type(whole: Any, dtype: np.dtype) -> Any:
    """A view of h5py of another type: of the decoded values."""
    if not isinstance(whole, Stored):
        return whole
    described = replace(whole.described, dtype=dtype)
    return replace(whole, described=described, read=lambda at: whole.read(at).astype(dtype))


def _attributes_of(x: Any) -> Mapping[str, Any] | None:
    """Those of an array as h5netcdf, netCDF4, SciPy and others have them; None if it has none. Raises DataError for
    attributes of another kind."""
    if hasattr(x, "ncattrs"):
        return {name: x.getncattr(name) for name in x.ncattrs()}
    found = [getattr(x, name, None) for name in ("attrs", "_attributes", "attributes")]
    if found[0] is None or isinstance(found[0], Mapping):
        return next((each for each in found if isinstance(each, Mapping)), None)
    raise DataError(
        f"a {type(x).__name__} has attributes that are not read, and its numbers may be packed. Open the file with "
        "xarray, which decodes them, or give the values: x[:]."
    )


def _by_attributes(x: Any, attributes: Mapping[str, Any]) -> tuple[str, Dataset, Callable[[Any], np.ndarray]]:
    """As the reader of files has it. What the object itself decodes as it is read, is not decoded again."""
    dtype = getattr(x, "dtype", None) or getattr(getattr(x, "data", None), "dtype", np.dtype(object))
    own = {getattr(x, name) for name in ("maskandscale", "scale", "mask") if isinstance(getattr(x, name, None), bool)}
    name = getattr(x, "name", None) or "an array"
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
        return name, Dataset(tuple(x.shape), np.dtype(object), text=True), x.__getitem__
    packed = partial(packing, attributes, dtype)
    known, fault = decoded_type(dtype, packed)
    if len(own) > 1:
        fault = "is decoded in part as it is read. Call its set_auto_maskandscale(True)."

    left = overlooked(attributes, dtype) if True in own else []

    def read(index: Any) -> np.ndarray:
        values = np.asarray(dense(x[index]))
        values = np.where(is_any(values, left), np.nan, values) if left else values
        done = {*KEYS, VALID, UNSIGNED} if True in own else set[str]()
        told = {key: value for key, value in packed().items() if key not in done}
        return decoded(values.astype(values.dtype.newbyteorder("="), copy=False), told)

    dims = tuple(map(str, getattr(x, "dimensions", ())))
    units = units_of(attributes, known)
    return f"{name}:", Dataset(tuple(x.shape), known, fault=fault, dimensions=dims, units=units), read
