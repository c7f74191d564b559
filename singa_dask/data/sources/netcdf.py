"""netCDF 4 files. Packed values are unpacked, fill values are missing values, and times are dates, as the conventions
say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.origins import file_names
from singa_dask.data.schema import Coordinates, orders_like
from singa_dask.data.sources.arrays import arrays_format
from singa_dask.data.sources.conventions import (
    as_first,
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

logger = logging.getLogger(__name__)

SUFFIXES = (".nc", ".nc4", ".cdf", ".netcdf")
_REMEDY = "Is it a whole netCDF 4 file? Copy it again, or leave it out of --source."


@dataclass(frozen=True)
class Grid:
    """Where the samples of netCDF files lie. samples: the name of their dimension. variables: the other dimensions of
    those that were read, with their sizes. coordinates: by name, dimensions (that of the samples first), values of all
    files and attributes. starts: of the rows of each file."""

    samples: str
    variables: Mapping[str, tuple[tuple[str, int], ...]]
    coordinates: Mapping[str, tuple[tuple[str, ...], np.ndarray, Mapping[str, Any]]]
    starts: Mapping[str, int] = field(default_factory=dict)

    def named(self, shape: tuple[int, ...]) -> tuple[str, ...] | None:
        """The dimensions of a variable that has samples of this shape, or of this shape and channels."""
        variables = [*self.variables.values()]
        for dims in (*variables, *(some for each in variables for some in (each[1:], each[:-1]))):
            if dims and tuple(size for _, size in dims) == shape:
                return tuple(name for name, _ in dims)
        return None

    @property
    def axes(self) -> dict[str, Coordinates]:
        """The coordinates of the dimensions of a sample."""
        known = {name: values for name, (dims, values, _) in self.coordinates.items() if dims == (name,)}
        return {name: of for name in known if name != self.samples and (of := Coordinates.of(known[name]))}

    def placed(self, orders: Mapping[str, Sequence[int]]) -> Grid:
        """With these places along each dimension."""
        coordinates = {}
        for name, (dims, values, attributes) in self.coordinates.items():
            for axis, dim in enumerate(dims):
                values = values.take(orders[dim], axis) if dim in orders else values
            coordinates[name] = (dims, values, attributes)
        return replace(self, coordinates=coordinates)

    def places(self, rows: np.ndarray, files: np.ndarray | None) -> np.ndarray:
        """The rows of all files of these rows of single ones."""
        return rows if files is None else rows + np.array([self.starts[name] for name in files], np.int64)


def grid_of(files: Sequence[Path], names: Sequence[str]) -> Grid:
    """Where the samples of these variables lie, the answers first. Raises DataError."""
    grids = [_grid(path, names) for path in files]
    first = grids[0]
    coordinates = {}
    inner = first.axes
    ordered = [
        grid.placed(orders_like(grid.axes, inner, f"{path}", f"{files[0]}"))
        for path, grid in zip(files, grids, strict=True)
    ]
    for name, (dims, values, attributes) in first.coordinates.items():
        if dims[:1] == (first.samples,):
            parts = [grid.coordinates.get(name, ((), values, {})) for grid in ordered]
            found = [as_first(part[1], part[2], attributes) for part in parts if part[0] == dims]
            stored = [each for each in found if each is not None]
            if len(stored) < len(parts):
                logger.warning("%s: has other units, or is missing, in some files, and is left out.", name)
                continue
            values = np.concatenate(stored)
        coordinates[name] = (dims, values, attributes)
    sizes = np.cumsum([0, *(grid.starts[""] for grid in grids)]).tolist()
    starts = dict(zip(file_names(files), sizes, strict=False))
    return Grid(first.samples, first.variables, coordinates, starts)


def _grid(path: Path, names: Sequence[str]) -> Grid:
    """Of one file; its number of rows is the start of what follows."""
    import xarray

    with reading(path, _REMEDY), ExitStack() as stack:
        groups = xarray.open_groups(path, engine="h5netcdf", decode_times=False, cache=False)
        for dataset in groups.values():
            stack.callback(dataset.close)
        variables: dict[str, Any] = {}
        known: dict[Any, Any] = {}
        for full in names:
            group, _, name = f"/{full}".rpartition("/")
            variables[full] = groups[group or "/"][name]
            known |= dict(groups["/"].coords) | dict(groups[group or "/"].coords)
        first = variables[names[0]]
        dims = {str(dim) for variable in variables.values() for dim in variable.dims}
        coordinates = {
            str(name): (tuple(map(str, one.dims)), np.asarray(one.values), one.attrs)
            for name, one in ((n, c.transpose(first.dims[0], ..., missing_dims="ignore")) for n, c in known.items())
            if one.dims and {*map(str, one.dims)} <= dims
        }
        inner = {
            name: tuple(zip(map(str, variable.dims[1:]), variable.shape[1:], strict=True))
            for name, variable in variables.items()
        }
        return Grid(str(first.dims[0]), inner, coordinates, {"": len(first)})


@contextmanager
def _opened(path: Path) -> Iterator[dict[str, Any]]:
    """The variables of all groups by their path."""
    import xarray

    if _magic(path) == b"CDF":
        raise DataError(f"{path}: is of netCDF 3. Convert it: nccopy -k nc4 {path.name} new.nc")
    with reading(path, _REMEDY), ExitStack() as stack:
        groups = xarray.open_groups(path, engine="h5netcdf", decode_times=False, mask_and_scale=False, cache=False)
        for dataset in groups.values():
            stack.callback(dataset.close)
        yield {
            f"{group}/{name}".strip("/"): variable
            for group, dataset in groups.items()
            for name, variable in dataset.variables.items()
        }


def _magic(path: Path) -> bytes:
    with reading(path, _REMEDY), path.open("rb") as file:
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
