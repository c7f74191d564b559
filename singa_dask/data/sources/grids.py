"""Where the samples of files lie whose variables have named dimensions and coordinates: netCDF and Zarr."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.origins import file_names
from singa_dask.data.schema import Coordinates, orders_like, same_order
from singa_dask.data.sources import netcdf, zarr
from singa_dask.data.sources.conventions import as_first
from singa_dask.data.sources.files import need, reading

logger = logging.getLogger(__name__)

_ENGINES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "netcdf": (netcdf.REMEDY, {"engine": "h5netcdf"}),
    "zarr": (zarr.REMEDY, {"engine": "zarr", "consolidated": False}),
}


@dataclass(frozen=True)
class Grid:
    """Where samples lie. samples: the name of their dimension. variables: the other dimensions of those that were
    read, with their sizes. coordinates: by name, dimensions (that of the samples first), values of all files and
    attributes. starts: of the rows of each file."""

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

    def in_order(self, dims: Sequence[str]) -> Grid:
        """With the dimensions of the variables in this order."""
        known = {name: dict(of) for name, of in self.variables.items()}
        ordered = {name: tuple((dim, of[dim]) for dim in same_order([*of], dims)) for name, of in known.items()}
        return replace(self, variables=ordered)

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
        if files is None or not self.starts:
            return rows
        return rows + np.array([self.starts[name] for name in files], np.int64)


def grid_of(files: Sequence[Path], names: Sequence[str], format: str) -> Grid | None:
    """Where the samples of these variables lie, the answers first; None where the format, or a store, names no
    dimensions. Raises DataError."""
    if format not in _ENGINES or (format == "zarr" and not all(map(zarr.names_dimensions, files))):
        return None
    grids = [_grid(path, names, format) for path in files]
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


def _grid(path: Path, names: Sequence[str], format: str) -> Grid:
    """Of one file; its number of rows is the start of what follows."""
    xarray = need("xarray", "fields", "coordinates")
    remedy, options = _ENGINES[format]
    with reading(path, remedy), ExitStack() as stack:
        groups = xarray.open_groups(path, **options, decode_times=False, cache=False)
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
