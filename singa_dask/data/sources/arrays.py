"""Sources of arrays in files: HDF5, zarr, netCDF, npz. A file holds datasets, whose first axis is the samples."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.columns import Channels, X, Y
from singa_dask.data.schema import (
    AS_THEY_ARE,
    Along,
    Reading,
    Turn,
    check_grid,
    check_units,
    orders_like,
    same_order,
)
from singa_dask.data.sources.datasets import (
    Dataset,
    Layout,
    NoDataset,
    channels_by_dimensions,
    check_dataset,
    check_lengths,
    guess,
    listing,
    notes_of,
    short_names,
)
from singa_dask.data.sources.files import Rows, RowsBlock, cut_rows, find_files, stamp_of
from singa_dask.data.sources.patches import Cutting, Patches, blocks_of
from singa_dask.data.sources.source import ARRAYS, Format, Source, Wanted
from singa_dask.errors import DataError, nearest

logger = logging.getLogger(__name__)

ReadRows = Callable[[Rows, Sequence[str]], Sequence[np.ndarray]]


def array_sources(
    source: str | Path, layouts: Mapping[Path, Layout], wanted: Wanted, read_rows: ReadRows
) -> dict[str, Source]:
    """The source of each split, "" for a single one. layouts: the datasets of each file, at least those that are
    wanted if it has them. Raises DataError that names file and dataset."""
    path, first = next(iter(layouts.items()))
    if not wanted.x and wanted.names:
        raise DataError(f"{path}: say which datasets are the features (--x).\n{listing(first)}")
    return {
        split: _source(f"{source}", layouts, replace(wanted, x=x, y=y), read_rows)
        for split, (x, y) in ({"": (wanted.x, wanted.y)} if wanted.names else guess(path, first)).items()
    }


def arrays_format(
    name: str,
    suffixes: Sequence[str],
    list_datasets: Callable[[Path], Layout],
    read_rows: ReadRows,
    files_of: Callable[[str | Path, Sequence[str]], list[Path]] = find_files,
    **installed: Any,
) -> Format:
    """The record of a format whose files hold arrays. files_of: of a source. installed: extra and modules."""

    def read(source: str | Path, wanted: Wanted) -> dict[str, Source]:
        layouts = {path: list_datasets(path) for path in files_of(source, suffixes)}
        return array_sources(source, layouts, wanted.renamed(lambda name: name.strip("/")), read_rows)

    def contents(source: str | Path) -> str:
        return listing(list_datasets(files_of(source, suffixes)[0]))

    return Format(name, ARRAYS, suffixes, read, contents, **installed)


def _source(name: str, listed: Mapping[Path, Layout], wanted: Wanted, read_rows: ReadRows) -> Source:
    path, known = next(iter(listed.items()))
    split = {at: at or _date(path, known) for at in wanted.split}
    time = None if wanted.cut is not None else _time(listed.values(), wanted.names)
    beside = (*split.values(), *([] if time is None else [time]))
    names = tuple(dict.fromkeys((*wanted.names, *beside)))
    layouts = {path: _chosen(path, every, names, wanted, {*beside}) for path, every in listed.items()}
    like = max(names, key=lambda name: (len(layouts[path][name].grid) > 1, -names.index(name)))
    layouts = {
        file: {
            name: _in_order(f"{file}: {name}", each, like, layouts[path][like], layouts[path][name], wanted.cut)
            for name, each in layout.items()
        }
        for file, layout in layouts.items()
    }
    first = layouts[path]
    told = {name: next((at for at, of in layouts.items() if of[name].units), path) for name in names}
    units = {name: layouts[at][name].units for name, at in told.items()}
    for other, layout in layouts.items():
        for column in names:
            _check_same(path, first[column], other, layout[column], column)
            check_units(units[column], layout[column].units, f"{other}: {column}", str(told[column]))
    _warn_of_others(layouts, names, wanted.cut)
    turns = {(file, name): each.turn for file, layout in layouts.items() for name, each in layout.items()}
    read_rows = read_rows if {*turns.values()} == {AS_THEY_ARE} else partial(_turned, turns, read_rows)
    nbytes = {column: math.prod(each.shape[1:]) * each.dtype.itemsize for column, each in first.items()}
    largest = max(names, key=nbytes.__getitem__)
    sizes = [
        (path, stamp_of(path), layout[largest].shape[0], layout[largest].together) for path, layout in layouts.items()
    ]
    if not any(total for _, _, total, _ in sizes):
        raise DataError(f"{name}: {largest} has no samples.")
    short = short_names(names)
    columns = {short[column]: column for column in names}
    named = wanted.renamed(short.__getitem__)
    cuttings = [] if wanted.cut is None else [_cutting(*each, named, short) for each in layouts.items()]
    blocks: list[RowsBlock] = []
    for path, cutting in zip(layouts, cuttings, strict=False):
        blocks += blocks_of(path, columns, cutting, read_rows)
    inner = {short[column]: first[column].dimensions[not _is_lone(first[column], wanted.cut) :] for column in names}
    stored = [dataset for layout in layouts.values() for dataset in layout.values() if not dataset.text]
    return Source(
        name=name,
        blocks=blocks or [RowsBlock(rows, columns, read_rows) for rows in cut_rows(sizes, sum(nbytes.values()))],
        x=named.x,
        y=named.y,
        weight=named.weight,
        mask=named.mask,
        table=_is_table(wanted, first),
        roles=dict(named.roles),
        split={at: short[column] for at, column in split.items()},
        time=None if time is None else short[time],
        channels=_channels(wanted, first, short) | (cuttings[0].channels if cuttings else {}),
        classes={short[c]: first[c].classes for c in wanted.y if first[c].classes},
        nbytes=0 if cuttings else sum(math.prod(dataset.shape) * dataset.dtype.itemsize for dataset in stored),
        notes=notes_of({f"{file.name}: {at}": of for file, layout in layouts.items() for at, of in layout.items()}),
        reading=_reading(named, columns, inner, dict(sorted(first.items(), key=lambda each: each[0] == like)), units),
        cuttings=tuple(cuttings),
    )


def _warn_of_others(layouts: Mapping[Path, Layout], names: Sequence[str], cut: Patches | None) -> None:
    """Tell of the first dataset with other coordinates, or in another order, than in the first file. Patches are cut
    at many places."""

    def places(dataset: Dataset) -> Along:
        dims = () if cut else dataset.dimensions[1:]
        known = {dim: dataset.coordinates[dim] for dim in dims if dim in dataset.coordinates}
        return Along(dims, known, scalars=dataset.scalars)

    path, first = next(iter(layouts.items()))
    every = [(file, at) for file in layouts for at in names]
    for file, at in every:
        if places(layouts[file][at]).warn_of_places(places(first[at]), f"{file}: {at}", "the first file"):
            break
    for file, at in [(file, at) for file, at in every if layouts[file][at].turn != first[at].turn][:1]:
        message = (
            "%s: %s is in another order than in %s, and is read in that order. Look its values up by their "
            "coordinates, not by their places"
        )
        logger.warning(message, file, at, path)


def _check_same(first: Path, dataset: Dataset, path: Path, other: Dataset, name: str) -> None:
    def form(dataset: Dataset) -> tuple:
        return dataset.shape[1:], dataset.text or dataset.dtype.newbyteorder("="), dataset.classes

    if form(other) != form(dataset):
        raise DataError(
            f"{path}: {name} is {replace(other, about='')}, but it is {replace(dataset, about='')} in {first}. "
            "Samples of all files must have the same shape and type. Name files that fit with --source."
        )


def _in_order(where: str, dataset: Dataset, name: str, like: Dataset, first: Dataset, cut: Patches | None) -> Dataset:
    """The dataset with those dimensions and coordinates in the same order that the one of this name has too, and
    otherwise its own in the first file. Raises DataError if it does not suit these, or would be turned and cut."""
    check_grid(dataset.grid, like.grid, where, name)
    inner = dataset.dimensions[not _is_lone(dataset, cut) :]
    own, shared = ({dim: of[dim] for dim in inner if dim in of} for of in (dataset.coordinates, like.coordinates))
    orders = orders_like(own, shared, where, name)
    rest = {dim: known for dim, known in own.items() if dim not in shared}
    orders |= orders_like(rest, first.coordinates, where, "the first file")
    dims = same_order(dataset.dimensions, like.dimensions) if dataset.grid and like.grid else dataset.dimensions
    axes = tuple(map(dataset.dimensions.index, dims)) if dims != dataset.dimensions else ()
    if cut and (axes or orders):
        told = f"has the dimensions {', '.join(dataset.dimensions)}, but {name} {', '.join(like.dimensions)}"
        told = told if axes else f"has the coordinates along {', '.join(orders)} in another order than {name}"
        raise DataError(f"{where} {told}. Transpose or reorder it to cut patches.")
    turn = Turn(tuple(axis - 1 for axis in axes[1:]), tuple((dims.index(dim) - 1, of) for dim, of in orders.items()))
    if not axes:
        return replace(dataset, turn=turn)
    shape, channels = tuple(dataset.shape[axis] for axis in axes), channels_by_dimensions(dims[1:])
    return replace(dataset, shape=shape, dimensions=dims, channels=channels, turn=turn)


def _is_lone(dataset: Dataset, cut: Patches | None) -> bool:
    """Whether it is a single record, of which patches are cut."""
    return cut is not None and len(dataset.shape) == 2


def _turned(
    turns: Mapping[tuple[Path, str], Turn], read_rows: ReadRows, rows: Rows, names: Sequence[str]
) -> list[np.ndarray]:
    """What read_rows reads, with the samples of each dataset of a file turned."""
    return [turns[rows.path, name].of(values) for name, values in zip(names, read_rows(rows, names), strict=True)]


def is_turned(block: RowsBlock) -> bool:
    """Whether the samples of a file are in another order than they lie."""
    return getattr(block.read_rows, "func", None) is _turned


def _chosen(path: Path, every: Layout, names: Sequence[str], wanted: Wanted, split: Set[str]) -> dict[str, Dataset]:
    """The datasets of these names in a file, which suit each other. Raises DataError."""
    for name in names:
        if name not in every:
            raise NoDataset(f"{path}: has no dataset {name!r}. {_close(name, every)}{listing(every)}", name)
    layout = {name: every[name] for name in names}
    answers = {*split, *wanted.y, *(wanted.x if _is_table(wanted, layout) else ())}
    for name, dataset in layout.items():
        check_dataset(path, name, dataset, any_type=name in answers, whole=wanted.cut is None)
    if wanted.cut is None:
        check_lengths(path, layout)
    return layout


def _reading(
    named: Wanted,
    columns: Mapping[str, str],
    inner: Mapping[str, tuple[str, ...]],
    layout: Layout,
    units: Mapping[str, str],
) -> Reading:
    """How features and answers were read, by their columns in shards. columns: by raw column, and so inner: the
    dimensions of a sample. layout: of its coordinates the last ones count. units: by dataset."""
    own = {X if len(named.x) == 1 else name: name for name in named.x}
    own |= {Y if len(named.y) == 1 else name: name for name in named.y}
    paths = {column: columns[name] for column, name in own.items()}
    dimensions = {column: "/".join(inner[name]) for column, name in own.items() if inner[name] and all(inner[name])}
    known = {dim: of for dataset in layout.values() for dim, of in dataset.coordinates.items()}
    return Reading(
        datasets=paths,
        dimensions=dimensions,
        coordinates={dim: known[dim] for of in dimensions.values() for dim in of.split("/") if dim in known},
        scalars={column: layout[dataset].scalars for column, dataset in paths.items() if layout[dataset].scalars},
        units={column: units[dataset] for column, dataset in paths.items() if units[dataset]},
    )


def _cutting(path: Path, layout: Layout, wanted: Wanted, short: Mapping[str, str]) -> Cutting:
    """How a file is cut into patches. wanted: by the names of the columns. Raises DataError, ConfigError."""
    fields = {*wanted.x, *wanted.y, wanted.mask}
    channels = {short[name]: dataset.channels for name, dataset in layout.items()}
    if wanted.channels is not None:
        channels |= dict.fromkeys(wanted.x, wanted.channels)
    columns = {short[name]: (each.shape, each.dtype, channels[short[name]]) for name, each in layout.items()}
    assert wanted.cut is not None
    single = [name for name in columns if name not in fields]
    return Cutting.of(wanted.cut, str(path), columns, single, wanted.y, wanted.mask)


def _date(path: Path, layout: Layout) -> str:
    """The only dataset of dates. Raises DataError."""
    dates = [name for name, dataset in layout.items() if dataset.dtype.kind == "M" and len(dataset.shape) == 1]
    if len(dates) != 1:
        unread = [f"{name} {each.fault}" for name, each in layout.items() if each.fault and len(each.shape) == 1]
        told = f"has the dates {', '.join(map(repr, dates))}" if dates else "; ".join(["has no dates", *unread])
        raise DataError(f"{path}: {told}. Say which dataset splits the samples: --split-by NAME.\n{listing(layout)}")
    return dates[0]


def _time(layouts: Iterable[Layout], names: Sequence[str]) -> str | None:
    """The dataset of dates along the dimension of the samples, if all files have the same."""
    found: set[str | None] = set()
    for layout in layouts:
        dims = next((layout[name].dimensions for name in names if name in layout), ())
        time = layout.get(dims[0]) if dims else None
        found.add(dims[0] if time is not None and time.dtype.kind == "M" and len(time.shape) == 1 else None)
    return found.pop() if len(found) == 1 else None


def _is_table(wanted: Wanted, layout: Layout) -> bool:
    """Whether the features are the columns of a table: several datasets of one value per sample, or texts or dates."""
    features = [layout[name] for name in wanted.x]
    several = len(features) > 1 or any(each.text or each.dtype.kind in "mM" for each in features)
    return several and all(len(each.shape) == 1 for each in features)


def _close(name: str, known: Layout) -> str:
    hint = nearest(name, known)
    return f"{hint}\n" if hint.startswith("Did") else ""


def _channels(wanted: Wanted, layout: Layout, short: Mapping[str, str]) -> dict[str, Channels]:
    """Of features: as the user says, else as the file says. Of other columns: as the file says."""
    channels = {short[name]: dataset.channels for name, dataset in layout.items() if dataset.channels is not None}
    if wanted.channels is not None:
        channels |= {short[name]: wanted.channels for name in wanted.x if len(layout[name].shape) > 2}
    return channels
