"""Predictions as a netCDF file, with the dimensions and coordinates of the netCDF files that were predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.data.columns import Channels, Column
from singa_dask.data.origins import free_name
from singa_dask.data.sources.files import need
from singa_dask.data.sources.grids import Grid
from singa_dask.inference.classes import as_flags, as_in_data, flags_of, without_missing
from singa_dask.inference.raw_file import RawFile

if TYPE_CHECKING:
    from singa_dask.inference.blocks import Samples
    from singa_dask.inference.files import LayerOutput, Write

SAMPLE = "sample"
DATES = {"units": "microseconds since 1970-01-01", "calendar": "proleptic_gregorian"}


@contextmanager
def netcdf(path: Path, outputs: Sequence[LayerOutput], grid: Grid | None) -> Iterator[Write]:
    """A function that adds predictions to a netCDF file. grid: of the source, if it has one."""
    h5netcdf = need("h5netcdf", "fields", "netCDF")
    with RawFile(path) as raw, h5netcdf.File(raw, "w") as file:
        written = _NetcdfWriter(file, outputs, grid)

        def write(predicted: Samples) -> None:
            written.add(predicted)
            raw.check()

        yield write


class _NetcdfWriter:
    def __init__(self, file: Any, outputs: Sequence[LayerOutput], grid: Grid | None) -> None:
        values = {name for output in outputs if not output.classifies for name in output.names}
        self._grid = grid or Grid(free_name(SAMPLE, values), {}, {})
        self._file, self._outputs, self._rows = file, outputs, 0
        self._names: dict[Any, str] = {}
        self._places: dict[str, np.ndarray] = {}  # coordinates by dimension
        if grid is None or (grid.samples == SAMPLE and SAMPLE not in grid.coordinates):
            self._names[SAMPLE] = self._grid.samples
        file.dimensions = {self._grid.samples: None}

    def add(self, predicted: Samples) -> None:
        numbers = np.asarray(predicted.numbers)
        self._file.resize_dimension(self._grid.samples, self._rows + len(numbers))
        for output in self._outputs:
            prefix = f"{output.name}." if len(self._outputs) > 1 else ""
            values, answers = predicted.values[output.name], predicted.answers.get(output.name)
            (self._classes if output.classifies else self._numbers)(prefix, output, values, answers)
        self._put(self._own(SAMPLE), (), numbers)
        if predicted.files is not None:
            self._put(self._own("file"), (), predicted.files)
        self._coordinates(predicted)
        self._rows += len(numbers)

    def _classes(self, prefix: str, output: LayerOutput, values: np.ndarray, answers: Any) -> None:
        dims = self._dims(output, prefix, values.shape[1:-1], "position" if output.positions else "step")
        each, classes = self._own(f"{prefix}classes"), as_in_data(output.names)
        if each not in self._file.dimensions:
            self._file.dimensions[each] = values.shape[-1]
            self._create(each, (each,), classes)[...] = classes
        flags = flags_of(classes)
        best = values.argmax(axis=-1)
        found = best.astype(np.int32) if flags else classes[best]
        self._put(self._own(f"{prefix}class"), dims, found).attrs.update(flags)
        self._put(self._own(f"{prefix}probability"), (*dims, each), values)
        if answers is not None:
            labels, missing = as_flags(answers, classes) if flags else without_missing(answers, classes)
            label = self._put(self._own(f"{prefix}label"), dims, labels.reshape(values.shape[:-1]))
            label.attrs.update(flags | missing)

    def _numbers(self, prefix: str, output: LayerOutput, values: np.ndarray, answers: Any) -> None:
        column = output.column
        plain = len(output.names) == 1 or (column is not None and bool(column.names))
        for name, rows in (("prediction", values), ("target", answers)):
            if rows is None:
                continue
            if column is not None and not plain and prod(rows.shape[1:]) == column.values:
                rows = _as_stored(rows, column)
            if not plain or prod(rows.shape[1:]) % len(output.names):
                made = self._put(
                    self._own(f"{prefix}{name}"), self._dims(output, prefix, rows.shape[1:], "axis"), rows
                )
                made.attrs.update(_units(output, output.names[0]))
                continue
            rows = rows.reshape(len(values), *values.shape[1:-1], len(output.names))
            dims = self._dims(output, prefix, rows.shape[1:-1], "step")
            for place, own in enumerate(output.names):
                told = own if name == "prediction" else f"true_{own}"
                made = self._put(self._own(f"{prefix}{told}", (prefix, name, place)), dims, rows[..., place])
                made.attrs.update(_units(output, own))

    def _own(self, name: str, what: Any = None) -> str:
        """The name, the same in every block, that nothing else has. what: it names, if `name` alone does not tell."""
        if (what or name) not in self._names:
            dims = {dim for variable in self._grid.variables.values() for dim, _ in variable}
            taken = dims.union(self._grid.coordinates, self._file.dimensions, self._names.values())
            self._names[what or name] = free_name(name, taken)
        return self._names[what or name]

    def _dims(self, output: LayerOutput, prefix: str, shape: tuple[int, ...], what: str) -> tuple[str, ...]:
        """The dimensions of values of this shape: those that are known of the output, or of a variable of the source
        that has it, or new ones."""
        own = [] if output.placing is None else output.placing.axes((0, *shape))
        known = {axis - 1: dim for axis, dim, _ in own if self._is_free(dim, shape[axis - 1])}
        self._places |= {dim: values for axis, dim, values in own if axis - 1 in known and values is not None}
        if not known:
            known = dict(enumerate(self._grid.named(shape) or ()))
        names = [f"{prefix}{what}{place if len(shape) > 1 else ''}" for place in range(len(shape))]
        sizes = [*zip(names, shape, strict=True)]
        dims = tuple(known.get(at) or self._own(name, (name, size)) for at, (name, size) in enumerate(sizes))
        for name, size in zip(dims, shape, strict=True):
            if name not in self._file.dimensions:
                self._file.dimensions[name] = size
        return dims

    def _is_free(self, dim: str, size: int) -> bool:
        """Whether values may have this dimension."""
        other = dim in {self._grid.samples, *self._names.values()}
        return not other and self._size(dim) in (None, size)

    def _size(self, name: str) -> int | None:
        return self._file.dimensions[name].size if name in self._file.dimensions else None

    def _create(self, name: str, dims: tuple[str, ...], values: np.ndarray) -> Any:
        if name not in self._file.variables:
            import h5py

            kind = h5py.string_dtype() if values.dtype.kind in "OU" else values.dtype
            self._file.create_variable(name, dims, dtype=kind)
        return self._file.variables[name]

    def _put(self, name: str, dims: tuple[str, ...], values: np.ndarray) -> Any:
        """Values of the samples (n, ...) of a variable, which is made if it is missing."""
        variable = self._create(name, (self._grid.samples, *dims), values)
        variable[self._rows : self._rows + len(values)] = values.astype(object) if values.dtype.kind == "U" else values
        return variable

    def _coordinates(self, predicted: Samples) -> None:
        """The coordinates of all dimensions that are in use; those of the samples by their rows in the source."""
        places = self._grid.places(np.asarray(predicted.numbers), predicted.files)
        samples, variables = self._grid.samples, self._file.variables
        for name, (dims, values, attributes) in self._grid.coordinates.items():
            inner = zip(dims, values.shape, strict=True)
            if any(dim != samples and self._size(dim) != size for dim, size in inner):
                continue
            new = name not in variables
            if dims[0] == samples:
                self._put(name, dims[1:], values[places])
            elif new:
                self._create(name, dims, values)[...] = values
            if new:
                variables[name].attrs.update({key: each for key, each in attributes.items() if key != "bounds"})
        if self._rows:
            return
        told = {dim for dims, *_ in self._grid.coordinates.values() for dim in dims}
        for dim, values in self._places.items():
            if dim not in told and dim not in variables:
                dates = values.dtype.kind == "M"
                stored = values.astype("M8[us]").astype(np.int64) if dates else values
                self._create(dim, (dim,), stored)[...] = stored.astype(object) if stored.dtype.kind == "U" else stored
                variables[dim].attrs.update(DATES if dates else {})
        others = [name for name in self._grid.coordinates if name in variables and name not in self._file.dimensions]
        for name in {*variables} - {*self._grid.coordinates, *self._file.dimensions} if others else ():
            variables[name].attrs["coordinates"] = " ".join(others)


def _units(output: LayerOutput, name: str) -> dict[str, str]:
    return {"units": output.units[name]} if name in output.units else {}


def _as_stored(rows: np.ndarray, column: Column) -> np.ndarray:
    """Values as a net gives them, in the shape of the source."""
    rows = rows.reshape(len(rows), *column.net_shape)
    rows = np.moveaxis(rows, -1, 1) if column.channels is Channels.FIRST else rows
    return rows.reshape(len(rows), *column.shape)
