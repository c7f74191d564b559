"""Sources of arrays in files: HDF5, zarr, netCDF, npz. A file holds datasets, whose first axis is the samples."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.columns import MAX_RANK, Channels, X, Y
from singa_dask.data.schema import (
    AS_THEY_ARE,
    Coordinates,
    Reading,
    Turn,
    check_grid,
    check_units,
    orders_like,
    same_order,
)
from singa_dask.data.sources.files import Rows, RowsBlock, check_sample, cut_rows, find_files, stamp_of
from singa_dask.data.sources.patches import Cutting, Patches, blocks_of
from singa_dask.data.sources.source import ARRAYS, Format, Source, Wanted
from singa_dask.errors import DataError, nearest

logger = logging.getLogger(__name__)

X_NAMES = ("x", "features", "data", "images", "inputs", "input", "samples")
Y_NAMES = ("y", "labels", "label", "targets", "target", "classes", "outputs", "output")
SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation"), "validation"
)
CHANNEL_NAMES = frozenset(
    {"c", "channel", "channels", "band", "bands", "variable", "variables", "feature", "features"}
)
SPATIAL_NAMES = frozenset(
    ["x", "y", "z", "t", "time", "lat", "lon", "latitude", "longitude", "height", "width", "depth", "level", "lev"]
)
_LISTED = 40


class NoDataset(DataError):
    """A file lacks a dataset."""


@dataclass(frozen=True)
class Dataset:
    """One dataset of a file.

    together: samples that are stored together, such as the rows of a chunk. about: how it is stored, for lists.
    text: whether the values are texts. classes: names of the values 0, 1, ... fault: why it cannot be read, and the
    way out. note: what to warn of. channels: of a sample, if the file says so. dimensions: their names, if they have
    some. coordinates: of these dimensions, where the file has them. turn: how its samples are read. units: of numbers,
    if the file says so.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    together: int = 1
    about: str = ""
    text: bool = False
    classes: tuple[str, ...] = ()
    fault: str = ""
    channels: Channels | None = None
    dimensions: tuple[str, ...] = ()
    note: str = ""
    coordinates: Mapping[str, Coordinates] = field(default_factory=dict)
    turn: Turn = AS_THEY_ARE
    units: str = ""

    @property
    def grid(self) -> dict[str, int]:
        """The sizes of the dimensions of a sample, if all have names."""
        return dict(zip(self.dimensions[1:], self.shape[1:], strict=True)) if all(self.dimensions or [""]) else {}

    def __str__(self) -> str:
        return f"{'text' if self.text else self.dtype} {self.shape}{self.about and '  ' + self.about}"


Layout = Mapping[str, Dataset]
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


def guess(path: Path, layout: Layout) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """The features and labels of each split by the usual names, such as x and y, x_train, or test/images.

    Raises DataError that lists the datasets if the names do not tell.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for name, dataset in layout.items():
        split, kind = _split_of(name)
        if kind and dataset.shape:
            found.setdefault(split, {"x": [], "y": []})[kind].append(name)
    plain = bool(found) and all(len(names["x"]) == 1 and len(names["y"]) <= 1 for names in found.values())
    answered = any(names["y"] for names in found.values()) or sum(1 for d in layout.values() if d.shape) == len(found)
    if not plain or not answered or ("" in found and len(found) > 1):
        example = _example(layout)
        raise DataError(
            f"{path}: say which datasets are the features (--x) and the labels or targets (--y), "
            f"{example and f'for example {example}'}\n{listing(layout)}"
        )
    order = ("", *dict.fromkeys(SPLITS.values()))
    return {split: (tuple(found[split]["x"]), tuple(found[split]["y"])) for split in sorted(found, key=order.index)}


def _split_of(name: str) -> tuple[str, str]:
    """The split of a dataset ("" for none), and whether it is x, y or neither ("")."""
    *groups, base = name.lower().split("/")
    parts = base.split("_")
    split = next((SPLITS[part] for part in (*groups, *parts[::-1]) if part in SPLITS), "")
    base = "_".join(part for part in parts if part not in SPLITS)
    return split, "x" if base in X_NAMES else "y" if base in Y_NAMES else ""


def _example(layout: Layout) -> str:
    """Options that would fit: the largest numeric dataset, and another one with as many samples."""
    usable = {n: d for n, d in layout.items() if d.shape and not d.fault}
    features = [name for name in usable if not usable[name].text]
    if not features:
        return ""
    x = max(features, key=lambda name: math.prod(usable[name].shape))
    others = [name for name in usable if name != x and usable[name].shape[0] == usable[x].shape[0]]
    return f"--x {x}" + (f" --y {min(others, key=lambda name: math.prod(usable[name].shape))}" if others else "")


def listing(layout: Layout) -> str:
    """The datasets of a file, one a line."""
    if not layout:
        return "The file holds no datasets."
    width = max(map(len, list(layout)[:_LISTED]))
    lines = [f"  {name:{width}}  {dataset}" for name, dataset in list(layout.items())[:_LISTED]]
    more = [f"  and {len(layout) - _LISTED:,} more"] if len(layout) > _LISTED else []
    return "\n".join(["The file holds:", *lines, *more])


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
        reading=_reading(named, columns, inner, [*first.values(), first[like]], units),
        cuttings=tuple(cuttings),
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


def _chosen(path: Path, every: Layout, names: Sequence[str], wanted: Wanted, split: Set[str]) -> dict[str, Dataset]:
    """The datasets of these names in a file, which suit each other. Raises DataError."""
    for name in names:
        if name not in every:
            raise NoDataset(f"{path}: has no dataset {name!r}. {_close(name, every)}{listing(every)}")
    layout = {name: every[name] for name in names}
    answers = {*split, *wanted.y, *(wanted.x if _is_table(wanted, layout) else ())}
    for name, dataset in layout.items():
        _check(path, name, dataset, any_type=name in answers, whole=wanted.cut is None)
    if wanted.cut is None:
        _check_lengths(path, layout)
    return layout


def _reading(
    named: Wanted,
    columns: Mapping[str, str],
    inner: Mapping[str, tuple[str, ...]],
    datasets: Iterable[Dataset],
    units: Mapping[str, str],
) -> Reading:
    """How features and answers were read, by their columns in shards. columns: by raw column, and so inner: the
    dimensions of a sample. datasets: of their coordinates the last ones count. units: by dataset."""
    own = {X if len(named.x) == 1 else name: name for name in named.x}
    own |= {Y if len(named.y) == 1 else name: name for name in named.y}
    paths = {column: columns[name] for column, name in own.items()}
    dimensions = {column: "/".join(inner[name]) for column, name in own.items() if inner[name] and all(inner[name])}
    known = {dim: of for dataset in datasets for dim, of in dataset.coordinates.items()}
    return Reading(
        datasets=paths,
        dimensions=dimensions,
        coordinates={dim: known[dim] for of in dimensions.values() for dim in of.split("/") if dim in known},
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


def notes_of(datasets: Mapping[str, Dataset]) -> tuple[str, ...]:
    """What to warn of, which is logged. datasets: by their names for messages."""
    notes = tuple(f"{name} {dataset.note}" for name, dataset in datasets.items() if dataset.note)
    for note in notes:
        logger.warning("%s", note)
    return notes


def unwritten(written: int, chunks: int, fill: object) -> str:
    """A note if some chunks of an array were never written, or hold the fill value."""
    if written >= chunks:
        return ""
    return f"has {chunks - written:,} of {chunks:,} chunks that are not stored: there its values are {fill}"


def _close(name: str, known: Layout) -> str:
    hint = nearest(name, known)
    return f"{hint}\n" if hint.startswith("Did") else ""


def channels_by_dimensions(dimensions: Sequence[str]) -> Channels | None:
    """Where a sample has its channels by the names of its dimensions; None if they do not tell.

    >>> channels_by_dimensions(["band", "lat", "lon"]), channels_by_dimensions(["lat", "lon"])
    (<Channels.FIRST: 'first'>, <Channels.NONE: 'none'>)
    """
    names = [name.lower() for name in dimensions]
    if len(names) > 2 and names[0] in CHANNEL_NAMES:
        return Channels.FIRST
    if len(names) > 2 and names[-1] in CHANNEL_NAMES:
        return Channels.LAST
    return Channels.NONE if len(names) == 2 or (names and SPATIAL_NAMES.issuperset(names)) else None


def _channels(wanted: Wanted, layout: Layout, short: Mapping[str, str]) -> dict[str, Channels]:
    """Of features: as the user says, else as the file says. Of other columns: as the file says."""
    channels = {short[name]: dataset.channels for name, dataset in layout.items() if dataset.channels is not None}
    if wanted.channels is not None:
        channels |= {short[name]: wanted.channels for name in wanted.x if len(layout[name].shape) > 2}
    return channels


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """The name of the column for each dataset: the end of its path, as much of it as tells it from the others.

    >>> short_names(["run/X", "run/y", "old/y"])
    {'run/X': 'X', 'run/y': 'run.y', 'old/y': 'old.y'}
    """
    paths = [*paths]
    ends = [path.rsplit("/", 1)[-1] for path in paths]
    return {
        path: end if ends.count(end) == 1 else path.replace("/", ".") for path, end in zip(paths, ends, strict=True)
    }


def _check(path: Path, name: str, dataset: Dataset, *, any_type: bool, whole: bool) -> None:
    """any_type: whether texts and dates are of use. whole: whether shards hold all of a sample. Raises DataError."""
    if dataset.fault:
        raise DataError(f"{path}: {name} {dataset.fault}")
    if not dataset.shape:
        raise DataError(f"{path}: {name} is a single value, not an array of samples. Name another dataset.")
    if 0 in dataset.shape[1:]:
        raise DataError(
            f"{path}: a sample of {name} has no values; its shape is {dataset.shape}. Name another dataset."
        )
    if min(dataset.shape) < 0:
        raise DataError(f"{path}: {name} has the shape {dataset.shape}. Copy the file again.")
    nbytes = math.prod(dataset.shape[1:]) * dataset.dtype.itemsize * whole
    check_sample(path, name, nbytes, "Cut the samples into several, or name another dataset.")
    if len(dataset.shape) > MAX_RANK + 1:
        raise DataError(
            f"{path}: {name} has the shape {dataset.shape}, but a sample has at most {MAX_RANK} dimensions. "
            "Reshape the dataset; its first axis must be the samples."
        )
    if dataset.text and not any_type:
        raise DataError(
            f"{path}: {name} holds texts, which only labels and the columns of a table may. Name it with --y, or name "
            "several datasets of one value per sample with --x."
        )
    if not dataset.text and dataset.dtype.kind not in ("buifmM" if any_type else "buif"):
        raise DataError(
            f"{path}: {name} holds values of type {dataset.dtype}, which are not real numbers. Convert them; complex "
            "numbers to two channels."
        )


def _check_lengths(path: Path, layout: Layout) -> None:
    (first, dataset), *others = layout.items()
    for name, other in others:
        mine, its = ("".join(of.dimensions[:1]) for of in (dataset, other))
        if mine and its and mine != its:
            shared = [dim for dim in dataset.dimensions if dim in other.dimensions]
            hint = f"Put it first in both: ds.transpose({shared[0]!r}, ...)" if shared else "Rename one"
            raise DataError(
                f"{path}: the samples of {first} are along {mine!r}, but those of {name} along {its!r}: the first "
                f"dimension must be that of the samples. {hint}, with xarray, and write the file again."
            )
        if other.shape[0] != dataset.shape[0]:
            raise DataError(
                f"{path}: {first} has {dataset.shape[0]:,} samples, but {name} has {other.shape[0]:,}. "
                "Their first axes must be equally long."
            )


def _check_same(first: Path, dataset: Dataset, path: Path, other: Dataset, name: str) -> None:
    def form(dataset: Dataset) -> tuple:
        return dataset.shape[1:], dataset.text or dataset.dtype.newbyteorder("="), dataset.classes

    if form(other) != form(dataset):
        raise DataError(
            f"{path}: {name} is {replace(other, about='')}, but it is {replace(dataset, about='')} in {first}. "
            "Samples of all files must have the same shape and type. Name files that fit with --source."
        )
