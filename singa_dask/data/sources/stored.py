"""Arrays of HDF5 and Zarr that are given as objects: their values are those that the reader of a file gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from singa_dask.data.schema import Along
from singa_dask.data.sources import hdf5, zarr
from singa_dask.data.sources.arrays import Dataset
from singa_dask.errors import DataError

_OPENED = {"h5py": hdf5.opened, "zarr": zarr.opened}


@dataclass(frozen=True, eq=False)
class Stored:
    """An array in a file, which is decoded as it is read. read: the values at an index."""

    described: Dataset
    chunks: tuple[int, ...] | None
    read: Callable[[Any], np.ndarray]

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
        dims = self.described.dimensions[not lone :]
        return Along(dims if all(dims) else (), {}, self.described.units)

    def check_like(self, trained: Along, what: str, *, lone: bool = False) -> None:
        """Raise DataError if its samples lie along other dimensions than in the training data, or in another order of
        these, or have other units."""
        own = self.along(lone=lone)
        if own.turn_to(trained, what).axes:
            raise DataError(
                f"{what}: has samples along {', '.join(own.dims)}, but in the training data along "
                f"{', '.join(trained.dims)}. Transpose it, or open it with xarray: a DataArray is put in order."
            )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.read(index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(...), dtype)


def of_values(values: np.ndarray, units: str) -> Stored:
    """Decoded values with units, as an array that is read."""
    return Stored(Dataset(values.shape, values.dtype, units=units), None, values.__getitem__)


def stored(x: Any, package: str) -> Any:
    """An array of numbers or dates of this package as Stored; all else as it is. Raises DataError if it cannot be read
    as that of a file."""
    where, described, read = _OPENED[package](x)
    if described.fault:
        raise DataError(f"{where} {described.fault}")
    if described.text or described.classes:
        return x
    return Stored(described, getattr(x, "shards", None) or x.chunks, read)
