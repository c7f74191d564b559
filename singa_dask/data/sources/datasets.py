"""Datasets of a file of arrays: what they are, which are the features, and whether they fit."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from singa_dask.data.columns import MAX_RANK, Channels
from singa_dask.data.schema import (
    AS_THEY_ARE,
    Coordinates,
    Turn,
)
from singa_dask.data.sources.files import check_sample
from singa_dask.errors import DataError

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
    """A file lacks the dataset of this name."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class Dataset:
    """One dataset of a file.

    together: samples that are stored together, such as the rows of a chunk. about: how it is stored, for lists.
    text: whether the values are texts. classes: names of the values 0, 1, ... fault: why it cannot be read, and the
    way out. note: what to warn of. channels: of a sample, if the file says so. dimensions: their names, if they have
    some. coordinates: of these dimensions, where the file has them. turn: how its samples are read. units: of numbers,
    if the file says so. scalars: as of `schema.scalars_of`.
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
    scalars: Mapping[str, str] = field(default_factory=dict)

    @property
    def grid(self) -> dict[str, int]:
        """The sizes of the dimensions of a sample, if all have names."""
        return dict(zip(self.dimensions[1:], self.shape[1:], strict=True)) if all(self.dimensions or [""]) else {}

    def __str__(self) -> str:
        return f"{'text' if self.text else self.dtype} {self.shape}{self.about and '  ' + self.about}"


Layout = Mapping[str, Dataset]


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


def check_dataset(path: Path, name: str, dataset: Dataset, *, any_type: bool, whole: bool) -> None:
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


def check_lengths(path: Path, layout: Layout) -> None:
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
