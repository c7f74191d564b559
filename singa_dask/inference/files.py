"""Files of predictions: CSV and Parquet with one line per sample or time step, HDF5 and netCDF with arrays.

They are written to a temporary file beside, which is renamed at the end.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.columns import Column
from singa_dask.data.origins import free_name
from singa_dask.data.sources.grids import Grid
from singa_dask.errors import ConfigError, DataError, Problem, disk_full, no_room
from singa_dask.files import replacing
from singa_dask.inference.blocks import Samples
from singa_dask.inference.classes import as_in_data, without_missing
from singa_dask.inference.described import value_names
from singa_dask.inference.netcdf_file import netcdf
from singa_dask.inference.placing import Placing
from singa_dask.inference.raw_file import RawFile

MAX_COLUMNS = 10_000
DATASETS = {"class", "probabilities", "label", "prediction", "target"}  # of an output in HDF5


@dataclass(frozen=True)
class LayerOutput:
    """What is written of a layer. names: of its values; positions: whether it gives classes of positions. column: its
    labels or targets, if they are known. units: by name, as far as they are known. placing: how its values lie, if
    that is known."""

    name: str
    classifies: bool
    names: tuple[str, ...]
    positions: bool = False
    column: Column | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    placing: Placing | None = None

    def names_of_answers(self, width: int) -> Sequence[Any]:
        """Of targets that are fewer values than the output."""
        one = prod(self.column.shape) if self.column is not None else 0
        named = one and width % one == 0
        return value_names(self.column, width, classifies=False, horizon=width // one) if named else range(width)


Write = Callable[[Samples], None]


def check_format(path: Path) -> None:
    """Raise ConfigError if the suffix of the file is that of no format."""
    if path.suffix.lower() not in FORMATS:
        hint = "The suffix tells the format."
        raise ConfigError(Problem("--out", f"must end in {', '.join(FORMATS)}", str(path), hint))


@contextmanager
def writing(path: Path, outputs: Sequence[LayerOutput], grid: Grid | None = None) -> Iterator[Write]:
    """A function that adds predictions to the file `path`, whose suffix tells the format. grid: of a netCDF file.

    Raises ConfigError if the format is unknown or the file cannot be written.
    """
    check_format(path)
    opened = FORMATS[path.suffix.lower()]
    columns = 1 + sum(len(output.names) for output in outputs)
    if opened in (_csv, _parquet) and columns > MAX_COLUMNS:
        hint = "Write an HDF5 file: --out predictions.h5."
        raise ConfigError(Problem("--out", f"would have {columns:,} columns", str(path), hint))
    if opened is netcdf:
        opened = partial(netcdf, grid=grid)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, opened(temporary, outputs) as write:
            yield write
    except OSError as error:
        if no_room(error):
            raise DataError(disk_full(path, error)) from error
        raise ConfigError(Problem("--out", f"cannot be written ({error.strerror or error})", str(path))) from error


def table(predicted: Samples, outputs: Sequence[LayerOutput]) -> dict[str, Any]:
    """The columns of CSV and Parquet, by name: NumPy arrays (n,), or (n T,) of outputs with T time steps or positions.

    Of several outputs, the columns of each begin with its name and a full stop.
    Raises ConfigError if outputs differ in their time steps.
    """
    numbers, steps = np.asarray(predicted.numbers), _time_steps(predicted, outputs)
    columns: dict[str, Any] = {}
    for output in outputs:
        prefix = f"{output.name}." if len(outputs) > 1 else ""
        rows = predicted.values[output.name]
        rows = rows.reshape(len(rows) * steps, prod(rows.shape[1:]) // steps)
        answers = predicted.answers.get(output.name)
        if answers is not None and steps > 1:
            answers = answers.reshape(len(rows), *(() if output.classifies else answers.shape[2:]))
        if output.classifies:
            if answers is not None:
                columns[f"{prefix}label"] = answers
            best = rows.argmax(axis=1) if len(rows) else np.zeros(0, np.int64)
            columns[f"{prefix}class"] = as_in_data(output.names)[best]
            columns[f"{prefix}probability"] = rows[np.arange(len(rows)), best]
            named = [f"probability_{name}" for name in output.names]
        else:
            if answers is not None:
                flat = answers.reshape(len(answers), prod(answers.shape[1:]))
                names = output.names if flat.shape[1] == len(output.names) else output.names_of_answers(flat.shape[1])
                columns |= {f"{prefix}true_{name}": flat[:, i] for i, name in enumerate(names)}
            named = list(output.names)
        columns |= {f"{prefix}{name}": rows[:, i] for i, name in enumerate(named)}
    told = {"sample": np.repeat(numbers, steps)}
    if predicted.files is not None:
        told["file"] = np.repeat(predicted.files, steps)
    if steps > 1:
        what = "position" if any(output.positions for output in outputs) else "step"
        told[what] = np.tile(np.arange(steps), len(numbers))
    return {free_name(name, columns): values for name, values in told.items()} | columns


def _time_steps(predicted: Samples, outputs: Sequence[LayerOutput]) -> int:
    """The time steps for which every output has values; 1 without time steps."""
    steps = {each.name: prod(predicted.values[each.name].shape[1:]) // len(each.names) for each in outputs}
    if len(set(steps.values())) > 1:
        received = ", ".join(f"{count} of {name!r}" for name, count in steps.items())
        hint = "Write an HDF5 file: --out predictions.h5."
        raise ConfigError(Problem("--out", "the outputs of the net differ in their time steps", received, hint))
    return next(iter(steps.values()))


@contextmanager
def _csv(path: Path, outputs: Sequence[LayerOutput]) -> Iterator[Write]:
    with open(path, "w", encoding="utf-8", newline="") as file:
        lines, begun = csv.writer(file), False

        def write(predicted: Samples) -> None:
            nonlocal begun
            columns = table(predicted, outputs)
            if not begun:
                lines.writerow(columns)
                begun = True
            lines.writerows(zip(*map(_cells, columns.values()), strict=True))

        yield write


def _cells(column: np.ndarray) -> list[Any]:
    values = column.tolist()
    if column.dtype.kind != "f":
        return values
    return values if column.dtype == np.float64 else [f"{value:.9g}" for value in values]


@contextmanager
def _parquet(path: Path, outputs: Sequence[LayerOutput]) -> Iterator[Write]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        hint = "Run `pip install '.[tables]'` in a clone of singa_dask, or write CSV or HDF5."
        raise ConfigError(Problem("--out", "Parquet needs pyarrow", str(error), hint)) from error
    with ExitStack() as stack:
        writers: list[Any] = []

        def write(predicted: Samples) -> None:
            rows = pyarrow.table({name: pyarrow.array(column) for name, column in table(predicted, outputs).items()})
            if not writers:
                writers.append(stack.enter_context(pyarrow.parquet.ParquetWriter(path, rows.schema)))
            writers[0].write_table(rows)

        yield write


def _as_target(rows: np.ndarray, column: Column | None) -> np.ndarray:
    """Fields of one channel without it, if those of the target have none."""
    fields = (
        column is not None and len(column.shape) > 1 and rows.shape[1:] in ((1, *column.shape), (*column.shape, 1))
    )
    return rows.reshape(len(rows), *column.shape) if column is not None and fields else rows


@contextmanager
def _hdf5(path: Path, outputs: Sequence[LayerOutput]) -> Iterator[Write]:
    import h5py

    # From HDF5 1.8 on, attributes may have more than 64 kB, as the names of very many classes have.
    with RawFile(path) as raw, h5py.File(raw, "w", libver="v108") as file:

        def add(name: str, rows: np.ndarray) -> Any:
            if rows.dtype.kind in "OU":
                rows = rows.astype(h5py.string_dtype())
            if name not in file:
                file.create_dataset(name, data=rows, maxshape=(None, *rows.shape[1:]), chunks=True)
            else:
                file[name].resize(len(file[name]) + len(rows), axis=0)
                file[name][len(file[name]) - len(rows) :] = rows
            return file[name]

        def place(output: LayerOutput, name: str) -> None:
            """Name the axes of a dataset, and attach their coordinates, as far as they are known."""
            made = file[f"{output.name}/{name}"]
            for axis, dim, values in [] if output.placing is None else output.placing.axes(made.shape):
                made.dims[axis].label = dim
                if values is not None:
                    scale = f"{output.name}/{free_name(dim, DATASETS)}"
                    if scale not in file:
                        add(scale, values.astype(str) if values.dtype.kind == "M" else values).make_scale(dim)
                    made.dims[axis].attach_scale(file[scale])

        def write(predicted: Samples) -> None:
            taken, begun = [output.name for output in outputs], bool(len(file))
            add(free_name("sample", taken), np.asarray(predicted.numbers))
            if predicted.files is not None:
                add(free_name("file", taken), predicted.files)
            for output in outputs:
                rows, answers = predicted.values[output.name], predicted.answers.get(output.name)
                if output.classifies:
                    classes = as_in_data(output.names)
                    add(f"{output.name}/class", classes[rows.argmax(axis=-1)])
                    add(f"{output.name}/probabilities", rows).attrs["classes"] = classes.tolist()
                    if answers is not None:
                        labels, missing = without_missing(answers, classes)
                        add(f"{output.name}/label", labels).attrs.update(missing)
                else:
                    add(f"{output.name}/prediction", _as_target(rows, output.column))
                    if answers is not None:
                        add(f"{output.name}/target", answers)
                for name in () if begun else [*DATASETS & {*file[output.name]}]:
                    place(output, name)
            raw.check()

        yield write


FORMATS: dict[str, Any] = {".csv": _csv, ".parquet": _parquet, ".h5": _hdf5, ".hdf5": _hdf5, ".nc": netcdf}
