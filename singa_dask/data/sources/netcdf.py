"""netCDF 4 files. Packed values are unpacked, fill values are missing values, and times are dates, as the conventions
say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.sources.arrays import arrays_format
from singa_dask.data.sources.conventions import (
    coordinates_along,
    decoded_type,
    netcdf_packing,
    plain,
    units_of,
    unpacked,
)
from singa_dask.data.sources.datasets import Dataset, channels_by_dimensions
from singa_dask.data.sources.files import Rows, reading
from singa_dask.errors import DataError

SUFFIXES = (".nc", ".nc4", ".cdf", ".netcdf")
REMEDY = "Is it a whole netCDF 4 file? Copy it again, or leave it out of --source."


@contextmanager
def _opened(path: Path) -> Iterator[dict[str, Any]]:
    """The variables of all groups by their path."""
    import xarray

    if _magic(path) == b"CDF":
        raise DataError(f"{path}: is of netCDF 3. Convert it: nccopy -k nc4 {path.name} new.nc")
    with reading(path, REMEDY), ExitStack() as stack:
        groups = xarray.open_groups(path, engine="h5netcdf", decode_times=False, mask_and_scale=False, cache=False)
        for dataset in groups.values():
            stack.callback(dataset.close)
        yield {
            f"{group}/{name}".strip("/"): variable
            for group, dataset in groups.items()
            for name, variable in dataset.variables.items()
        }


def _magic(path: Path) -> bytes:
    with reading(path, REMEDY), path.open("rb") as file:
        return file.read(3)


def _list(path: Path) -> dict[str, Dataset]:
    with _opened(path) as variables:
        known = cache(lambda path: unpacked(variables[path].values, partial(_packing, variables[path])))
        return {
            name: _describe(variable, _along(variable, name, variables, known)) for name, variable in variables.items()
        }


def _along(
    variable: Any, name: str, variables: Mapping[str, Any], known: Callable[[str], np.ndarray]
) -> dict[str, Any]:
    """The coordinates of its dimensions, and scalar ones, which are variables of its group, or of one around it. Only
    of two dimensions may the first one not be that of the samples."""
    groups = name.split("/")[:-1]

    def at(name: str) -> str | None:
        paths = ("/".join([*groups[:depth], name]) for depth in range(len(groups), -1, -1))
        return next((path for path in paths if path in variables), None)

    told = str(variable.encoding.get("coordinates", "")).split()
    others = {other: variables[path].dims for other in told if (path := at(other)) is not None}
    dims = [*map(str, variable.dims[variable.ndim != 2 :])]
    return coordinates_along(dims, lambda name: None if (path := at(name)) is None else known(path), others)


def _describe(variable: Any, along: Mapping[str, Any]) -> Dataset:
    chunks, text = variable.encoding.get("chunksizes"), variable.dtype.kind in "SUOT"
    dtype, fault = (np.dtype(object), "") if text else decoded_type(variable.dtype, partial(_packing, variable))
    return Dataset(
        variable.shape,
        dtype,
        chunks[0] if chunks else 1,
        " x ".join(map(str, variable.dims)),
        text,
        fault=fault,
        channels=channels_by_dimensions([str(name) for name in variable.dims[1:]]),
        dimensions=tuple(map(str, variable.dims)),
        **along,
        units=units_of(variable.attrs, dtype),
    )


def _read(rows: Rows, names: Sequence[str]) -> list[np.ndarray]:
    with _opened(rows.path) as variables:
        chosen = [variables[name] for name in names]
        return [
            plain(np.asarray(of[rows.index(n)]), partial(_packing, of)) for n, of in zip(names, chosen, strict=True)
        ]


def _packing(variable: Any) -> dict[str, Any]:
    return netcdf_packing(variable.attrs, variable.dtype)


# The first dimension is the samples, and the names of the others tell where the channels are.
FORMAT = arrays_format("netcdf", SUFFIXES, _list, _read, extra="fields", modules=("xarray", "h5netcdf"))
