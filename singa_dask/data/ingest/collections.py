"""Arrays, tables and Dask collections as sources, and `shard`, which writes them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.columns import Channels, Role
from singa_dask.data.ingest.blocks import blocks_of, cut_blocks
from singa_dask.data.ingest.given import Given, as_array_of, given_of, in_rows, only
from singa_dask.data.ingest.options import SPLIT_OPTIONS, Splits
from singa_dask.data.ingest.run import DaskBlock
from singa_dask.data.ingest.write import write
from singa_dask.data.labelled import (
    first_array,
)
from singa_dask.data.manifest import Manifest
from singa_dask.data.native import check_at_hand
from singa_dask.data.rows import times_of
from singa_dask.data.schema import Reading
from singa_dask.data.sources.datasets import notes_of
from singa_dask.data.sources.patches import Cutting, Patches
from singa_dask.data.sources.source import THE_DATE, Source
from singa_dask.data.sources.stored import Stored
from singa_dask.errors import ConfigError, DataError, Problem, nearest

TIME = "(time)"


def shard(
    X: Any,
    y: Any = None,
    out: str | Path = "",
    *,
    client: Any = None,
    sample_weight: Any = None,
    mask: Any = None,
    labels: bool | str | Sequence[str] = False,
    targets: bool | str | Sequence[str] = False,
    classes: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    channels: str | Mapping[str, str] | None = None,
    split_data: Any = None,
    patch: int | None = None,
    stride: int | None = None,
    nan: str | None = None,
    **options: Any,
) -> dict[str, Manifest]:
    """Write arrays, tables or Dask collections as shards. Returns the manifest of each split.

    X: (N, ...) numbers with up to four axes after the samples, or a table with N rows; a mapping or an xarray Dataset
        gives several columns. NumPy, SciPy sparse, h5py, zarr, pandas, polars, pyarrow, xarray, Dask arrays and
        DataFrames. The columns of a table become one vector of features. What an array masks is missing.
    y: labels (N,) if they are texts, booleans or integers, and labels of the pixels if they are integers
        (N, H, W); other numbers are targets (N, ...). Several columns: a DataFrame or a mapping.
    out: the folder for the shards.
    client: of a Dask cluster. Dask collections are computed on its workers (by default on those of the current
        client, if there is one), each chunk once, and never pass through this process.
    sample_weight: (N,), not negative. mask: 1 where a target counts, else 0, shaped like y.
    labels, targets: True, or names of columns of y: classes although the numbers look otherwise, and numbers although
        they are whole. classes: names of the classes, in order; without y, of the symbols that X holds.
    channels: "first", "last" or "none", by column if those of X and y differ; by default the shape decides.
    split_data: a table or a mapping of arrays (N,) that only tell which split a sample is in.
    patch, stride, nan: the samples are patches of this height and width, one every `stride` positions (by default
        `patch`), of fields: X, y and mask are (height, width), or (records, height, width), with channels or not. With
        nan="drop", patches that hold a missing value are left out; by default it is an error.
    options: of `write`: nshards, window, shuffle, seed, missing, encode, unknown, like, ...; and of `Splits`:
        validation, test, test_from, test_groups, split_column, ... Columns of X that these name are not features.
    Raises ConfigError, DataError and ClusterError, as `write` does.
    """
    if not isinstance(out, str | Path) or not out:
        given = "nothing" if isinstance(out, str) else type(out).__name__
        raise ConfigError(Problem("out", "must be the folder for the shards", given, "shard(X, y, out)."))
    splits = Splits.of({key: options[key] for key in SPLIT_OPTIONS if key in options})
    cut = Patches.of({"patch": patch, "stride": stride, "nan": nan})
    if isinstance(like := options.get("like"), str | Path):
        like = options["like"] = Manifest.load(Path(like))
    source = source_of(
        X,
        y,
        sample_weight,
        mask,
        labels=labels,
        targets=targets,
        classes=classes,
        channels=channels,
        splits=splits,
        split_data=split_data,
        cut=cut,
        like=like,
    )
    if client is None and any(isinstance(block, DaskBlock) for block in source.blocks):
        client = _current_client()
    return write(source, out, client=client, **options)


def _current_client() -> Any:
    distributed = sys.modules.get("distributed")
    try:
        return None if distributed is None else distributed.default_client()
    except ValueError:
        return None


def source_of(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    mask: Any = None,
    *,
    labels: bool | str | Sequence[str] = False,
    targets: bool | str | Sequence[str] = False,
    classes: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    channels: str | Mapping[str, str] | None = None,
    splits: Splits | None = None,
    split_data: Any = None,
    cut: Patches | None = None,
    like: Manifest | None = None,
) -> Source:
    """The source that `shard` writes. like: of the training samples. Raises ConfigError and DataError."""
    check_at_hand("X", X)
    collections = partial(given_of, like=first_array(X), cut=cut is not None)
    features = [as_array_of(one, like) for one in collections(X, "X")]
    answers = [] if y is None else collections(y, "y", {name for one in features for name in one.raw})
    weight = [] if sample_weight is None else [only(collections(sample_weight, "sample_weight"), "sample_weight")]
    masks = [] if mask is None else [only(collections(mask, "mask"), "mask")]
    taken = {name for one in (*features, *answers) for name in one.raw}
    beside = [] if split_data is None else collections(split_data, "split_data", taken)
    given = [*features, *answers, *weight, *masks, *beside]
    in_rows(given)
    times = None if cut is not None else times_of(X)
    if times is not None:
        given.append(Given("the times of X", times, [TIME]))
    split, aside = _split_columns(splits, features, beside)
    x_names = tuple(name for one in features for name in one.raw if name not in aside)
    y_names = tuple(name for one in answers for name in one.raw)
    if not x_names:
        hint = "Give those of the splits in split_data if they are features too."
        raise ConfigError(Problem("X", "has no columns besides those that divide the samples", repr([*split]), hint))
    known = {one.raw[0]: one.value.described for one in given if isinstance(one.value, Stored)}
    of_x = {name: each.channels for name, each in known.items() if each.channels is not None}
    if channels is not None and not isinstance(channels, Mapping):
        images = [name for one in answers for name in one.raw if np.ndim(one.value) > 3]
        channels = dict.fromkeys([*x_names, *images], channels)
    of_x |= _by_column("channels", channels, [*x_names, *y_names], Channels)
    raw_mask = masks[0].raw[0] if masks else None
    cuttings = [] if cut is None else [_cutting(given, (x_names, y_names, raw_mask), of_x, cut)]
    return Source(
        "X",
        cut_blocks(given, cuttings[0]) if cuttings else blocks_of(given),
        x_names,
        y_names,
        weight[0].raw[0] if weight else None,
        raw_mask,
        any(one.columns is not None for one in features)
        or (len(features) > 1 and all(one.array and one.value.ndim == 1 for one in features)),
        _roles(y_names, labels, targets),
        of_x | (cuttings[0].channels if cuttings else {}),
        _by_column("classes", classes, y_names or x_names, tuple),
        split,
        time=None if times is None else TIME,
        cuttings=cuttings,
        notes=notes_of(known),
        reading=_reading([(features, "x"), (answers, "y")]),
    )


def _reading(arguments: Sequence[tuple[list[Given], str]]) -> Reading:
    """The dimensions of the samples and the units of DataArrays. arguments: with the column in shards of a single
    array."""
    every = {one.raw[0] if len(given) > 1 else alone: one for given, alone in arguments for one in given}
    told = {column: one.along for column, one in every.items()}
    units = {column: along.units for column, along in told.items() if along.units}
    for one in (one for given, _ in arguments for one in given if one.columns):
        units |= {one.named[name]: of for name, of in getattr(one.value, "attrs", {}).get("units", {}).items() if of}
    return Reading(
        dimensions={column: "/".join(along.dims) for column, along in told.items() if along.dims},
        coordinates={name: known for along in told.values() for name, known in along.coordinates.items()},
        units=units,
        scalars={column: along.scalars for column, along in told.items() if along.scalars},
    )


def _split_columns(
    splits: Splits | None, features: list[Given], beside: list[Given]
) -> tuple[dict[str, str], set[str]]:
    """The raw columns that the splits need, by their names; and those of X that are no features for that."""
    if splits is None or not splits.columns:
        return {}, set()
    own = {name: raw for one in features for name, raw in one.named.items()}
    others = {name: raw for one in beside for name, raw in one.named.items()}
    known = own | others
    if THE_DATE in splits.columns:
        dates = [name for one in (*features, *beside) for name in one.dates]
        if len(dates) != 1:
            received = ", ".join(map(repr, dates)) or "none"
            raise ConfigError(Problem("split_by", "is missing, and X has not one column of dates", received))
        known[THE_DATE] = known[dates[0]]
    split = {name: known[name] for name in splits.columns if name in known}
    for name in splits.columns:
        if name not in known:
            hint = nearest(name, known) or "Name a column of X, or give it in split_data."
            raise ConfigError(Problem(splits.key(name), "names a column that X does not have", repr(name), hint))
    return split, {own[name] for name in split if name in own and name not in others}


def images_of(images: Any, labels: Any, classes: Sequence[str], notes: Sequence[str] = ()) -> Source:
    """Images (N, H, W, C) in memory, with the numbers of their classes (N,)."""
    given = source_of(images, labels, labels=True, classes=classes or None, channels="last")
    return replace(given, places=True, notes=tuple(notes))


def _roles(names: Sequence[str], labels: bool | str | Sequence[str], targets: Any) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for key, told, role in (("labels", labels, Role.LABEL), ("targets", targets, Role.TARGET)):
        chosen = (names if told else ()) if isinstance(told, bool) else (told,) if isinstance(told, str) else told
        for name in chosen:
            if name not in names:
                raise ConfigError(
                    Problem(key, "names a column that y does not have", repr(name), nearest(name, names))
                )
            if roles.setdefault(name, role) is not role:
                raise ConfigError(Problem(key, "and labels name the same column of y", repr(name), "Choose one."))
    return roles


def _by_column(key: str, told: Any, names: Sequence[str], make: Any) -> dict[str, Any]:
    if told is None:
        return {}
    if not isinstance(told, Mapping):
        told = dict.fromkeys(names, told)
    for name in told:
        if name not in names:
            raise ConfigError(Problem(key, "names an unknown column", repr(name), nearest(str(name), names)))
    try:
        return {name: make(value) for name, value in told.items()}
    except (TypeError, ValueError):
        raise ConfigError(Problem(key, "has a wrong value", repr(told), "See help(singa_dask.shard).")) from None


def _cutting(
    given: list[Given],
    names: tuple[Sequence[str], Sequence[str], str | None],
    channels: Mapping[str, Channels],
    cut: Patches,
) -> Cutting:
    """How the fields of these names (X, y and mask) are cut. Raises DataError, ConfigError."""
    columns: dict[str, Any] = {}
    for one in given:
        if one.columns is None and one.array:
            columns[one.raw[0]] = one.value.shape, one.value.dtype, channels.get(one.raw[0])
        elif {*one.raw} & {*names[0], *names[1]}:
            hint = "Give arrays, or leave out patch."
            raise ConfigError(Problem("patch", f"is for fields, and {one.what} is a table", str(cut.patch), hint))
        if one.lazy and (not one.array or any(math.isnan(size) for size in one.value.shape)):
            raise DataError(f"{one.what}: its sizes must be known. Compute it, or call its compute_chunk_sizes().")
    single = [name for name in columns if name not in (*names[0], *names[1], names[2])]
    return Cutting.of(cut, "X", columns, single, names[1], names[2])
