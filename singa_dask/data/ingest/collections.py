"""Arrays, tables and Dask collections as sources, and `shard`, which writes them."""

from __future__ import annotations

import logging
import math
import sys
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.columns import Channels, Role
from singa_dask.data.containers import is_lazy, is_sparse, is_table
from singa_dask.data.ingest.options import SPLIT_OPTIONS, Splits
from singa_dask.data.ingest.run import DaskBlock
from singa_dask.data.ingest.write import write
from singa_dask.data.labelled import (
    along_of,
    as_samples,
    first_array,
    in_order,
    is_labelled,
    variables_of,
)
from singa_dask.data.manifest import Manifest
from singa_dask.data.native import native
from singa_dask.data.rows import in_same_rows, times_of
from singa_dask.data.schema import Along, Reading
from singa_dask.data.sources.arrays import notes_of
from singa_dask.data.sources.files import Block
from singa_dask.data.sources.patches import NUMBER, Cutting, Patches, Tile
from singa_dask.data.sources.source import THE_DATE, Source
from singa_dask.data.sources.stored import Stored
from singa_dask.errors import ConfigError, DataError, Problem, nearest

logger = logging.getLogger(__name__)

BLOCK_NBYTES = 64 << 20
TIME = "(time)"
DATES = ("datetime64", "timestamp", "date")  # how the types of dates begin


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
) -> Source:
    """The source that `shard` writes. Raises ConfigError and DataError."""
    given_of = partial(_given, like=first_array(X), cut=cut is not None)
    features = given_of(X, "X")
    answers = [] if y is None else given_of(y, "y", {name for one in features for name in one.raw})
    weight = [] if sample_weight is None else [_only(given_of(sample_weight, "sample_weight"), "sample_weight")]
    masks = [] if mask is None else [_only(given_of(mask, "mask"), "mask")]
    taken = {name for one in (*features, *answers) for name in one.raw}
    beside = [] if split_data is None else given_of(split_data, "split_data", taken)
    given = [*features, *answers, *weight, *masks, *beside]
    _in_rows(given)
    times = None if cut is not None else times_of(X)
    if times is not None:
        given.append(_Given("the times of X", times, [TIME]))
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
        _cut_blocks(given, cuttings[0]) if cuttings else _blocks(given),
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


def _reading(arguments: Sequence[tuple[list[_Given], str]]) -> Reading:
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
    )


def _split_columns(
    splits: Splits | None, features: list[_Given], beside: list[_Given]
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


@dataclass
class _Given:
    """A collection that was given. what: the argument; raw: its raw columns; columns: of a DataFrame; along: what a
    DataArray says of its samples."""

    what: str
    value: Any
    raw: list[str]
    columns: list[Any] | None = None
    along: Along = field(default_factory=Along)

    @property
    def lazy(self) -> bool:
        return is_lazy(self.value)

    @property
    def array(self) -> bool:
        return hasattr(self.value, "dtype") and hasattr(self.value, "shape") and not hasattr(self.value, "index")

    @property
    def rows(self) -> int | None:
        """How many samples, if that is known."""
        rows = math.nan if self.lazy and not self.array else self.value.shape[0]
        return None if math.isnan(rows) else int(rows)

    @property
    def named(self) -> dict[str, str]:
        """The raw columns by the names that the user knows."""
        return dict(zip(map(str, self.columns or self.raw), self.raw, strict=True))

    @property
    def dates(self) -> list[str]:
        """The names of the columns of dates."""
        kinds = [self.value.dtypes[column] for column in self.columns] if self.columns else [self.value.dtype]
        return [name for name, kind in zip(self.named, kinds, strict=True) if str(kind).startswith(DATES)]

    @property
    def names(self) -> str | dict[Any, str]:
        return self.raw[0] if self.columns is None else dict(zip(self.columns, self.raw, strict=True))


def _given(
    value: Any,
    what: str,
    taken: set[str] = frozenset(),  # type: ignore[assignment]
    like: Any = None,
    *,
    cut: bool = False,
) -> list[_Given]:
    """The collections of an argument. like: the first DataArray of X, if it has one. cut: whether samples are patches
    of it."""
    one_of = partial(_one, like=like, cut=cut)
    value = native(value)
    value = variables_of(value, what) if is_labelled(value) and hasattr(value, "data_vars") else value
    if is_labelled(value):
        return [one_of(value, what, what.lower() if what in "Xy" else what)]
    if isinstance(value, Mapping):
        if not value:
            raise ConfigError(Problem(what, "must hold at least one array", "an empty mapping"))
        return [one_of(each, what, _free(str(name), what, taken)) for name, each in value.items()]
    if hasattr(value, "columns") and value.ndim == 2:  # a DataFrame; a Series of Dask has columns too
        columns = list(value.columns)
        if len({str(column) for column in columns}) < len(columns):
            raise DataError(f"{what}: two columns have the same name: {', '.join(map(str, columns))}. Rename one.")
        return [_Given(what, value, [_free(str(column), what, taken) for column in columns], columns)]
    if hasattr(value, "index") and hasattr(value, "name"):  # a Series
        if what == "X":
            return _given(value.to_frame(name="x" if value.name is None else value.name), what, taken)
        name = "y" if value.name is None else str(value.name)
        return [_Given(what, value, [_free(name, what, taken) if what == "y" else what])]
    return [one_of(value, what, what.lower() if what in "Xy" else what)]


def _free(name: str, what: str, taken: set[str]) -> str:
    return f"{what}.{name}" if name in taken else name


def _one(value: Any, what: str, name: str, like: Any, *, cut: bool) -> _Given:
    along = Along()
    if is_labelled(value):
        value = value if like is None else in_order(value, like, name)
        along = along_of(as_samples(value) if cut and value.ndim == 2 else value, what)
    value = value.tocsr() if is_sparse(value) else native(value)
    if isinstance(value, Stored):
        along = value.along(lone=cut and value.ndim == 2)
    array = hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "__getitem__")
    if not array and not is_table(value):
        value = np.asarray(value)
    if isinstance(value, np.generic) or len(value.shape) == 0:
        raise DataError(f"{what}: must have the samples along its first axis, but it is one value.")
    return _Given(what, value, [name], along=along)


def _in_rows(given: list[_Given]) -> None:
    """Give the collections their rows in the same order, and DataArrays as arrays. Raises DataError where they have
    others."""
    counts = Counter(one.what for one in given)
    names = [f"{one.what}[{one.raw[0]!r}]" if counts[one.what] > 1 else one.what for one in given]
    values = in_same_rows(zip(names, (one.value for one in given), strict=True))
    for one, value in zip(given, values, strict=True):
        one.value = value.data if is_labelled(value) else value
        if is_table(one.value) and not one.lazy and one.columns is None:
            one.value = one.value.to_numpy()


def _only(given: list[_Given], what: str) -> _Given:
    if len(given) != 1 or len(given[0].raw) != 1:
        raise ConfigError(Problem(what, "must be one array or Series", f"{sum(len(g.raw) for g in given)} columns"))
    given[0].raw = [f"({what})"]
    return given[0]


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


def _blocks(given: list[_Given]) -> Sequence[Any]:
    known = [(one, one.rows) for one in given if one.rows is not None]
    for one, rows in known[1:]:
        if rows != known[0][1]:
            raise DataError(
                f"{known[0][0].what} has {known[0][1]:,} samples, but {one.what} has {rows:,}. "
                "Every sample needs one of each: check how they were made."
            )
    if any(one.lazy for one in given):
        return _dask_blocks(given)
    return _memory_blocks(given)


@dataclass(frozen=True)
class MemoryBlock(Block):
    """Rows of collections that lie in this process, or that it reads (h5py, zarr). local: it cannot travel."""

    key: str
    given: tuple[tuple[Any, str | Mapping[Any, str]], ...]
    start: int
    stop: int
    local: bool = True

    def read(self) -> Mapping[str, Any]:
        raw: dict[str, Any] = {}
        for value, names in self.given:
            part = value.iloc[self.start : self.stop] if hasattr(value, "iloc") else value[self.start : self.stop]
            raw |= {names: part} if isinstance(names, str) else {own: part[column] for column, own in names.items()}
        return raw


def _memory_blocks(given: list[_Given]) -> list[MemoryBlock]:
    total = given[0].rows or 0
    nbytes = sum(_nbytes(one.value) for one in given)
    step = max(1, int(BLOCK_NBYTES * total / max(nbytes, 1)))
    for one in given:  # a chunk of HDF5 or zarr is read as a whole
        chunks = getattr(one.value, "chunks", None)
        if chunks and chunks[0] < total:
            step = max(chunks[0], step - step % chunks[0])
    name = uuid.uuid4().hex
    pairs = tuple((one.value, one.names) for one in given)
    ranges = [(start, min(start + step, total)) for start in range(0, total, step)]
    return [MemoryBlock(f"rows {first:,} to {stop - 1:,}@{name}", pairs, first, stop) for first, stop in ranges]


def _cutting(
    given: list[_Given],
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


@dataclass(frozen=True)
class FieldsBlock(Block):
    """Patches of arrays that lie in this process, or that it reads. beside: what has one value for each record."""

    key: str
    fields: tuple[tuple[Any, str], ...]
    beside: MemoryBlock
    cutting: Cutting
    tile: Tile
    local: bool = True
    numbered: bool = True

    def read(self) -> Mapping[str, Any]:
        raw = dict(self.beside.read())
        raw |= {name: value[self.cutting.index(name, self.tile)] for value, name in self.fields}
        return self.cutting.cut(raw, self.tile)


def _cut_blocks(given: list[_Given], cutting: Cutting) -> list[Any]:
    import dask.array as da

    lazy = any(one.lazy for one in given)
    cut = [one for one in given if one.lazy or one.raw[0] in cutting.fields]
    others = tuple((one.value, one.names) for one in given if not any(one is each for each in cut))
    values = [da.from_array(one.value) if lazy and not one.lazy else one.value for one in cut]
    fields = tuple(zip(values, (one.raw[0] for one in cut), strict=True))
    name = uuid.uuid4().hex
    blocks: list[Any] = []
    for tile in cutting.tiles():
        beside = MemoryBlock("", others, *tile.records)
        if lazy:
            blocks.append(_lazy_patches(fields, beside.read(), cutting, tile))
        else:
            blocks.append(FieldsBlock(f"{tile}@{name}", fields, beside, cutting, tile))
    return blocks


def _lazy_patches(
    fields: Sequence[tuple[Any, str]], known: Mapping[str, Any], cutting: Cutting, tile: Tile
) -> DaskBlock:
    """The chunks in which the patches lie, cut by one task."""
    import dask

    names = [name for _, name in fields]
    slices = [array[cutting.index(name, tile)].rechunk(-1) for array, name in fields]
    parts = [one.to_delayed(optimize_graph=False).item() for one in slices]
    call = dask.delayed(partial(_cut, cutting, tile, names, known), pure=False, traverse=False)(*parts)
    key = f"{'+'.join(str(part.key) for part in parts)} {cutting.patches} {tile}"
    return DaskBlock(key, (call,), ({each: each for each in (NUMBER, *names, *known)},), numbered=True)


def _cut(cutting: Cutting, tile: Tile, names: Sequence[str], known: Mapping[str, Any], *parts: Any) -> dict[str, Any]:
    return cutting.cut({**known, **dict(zip(names, parts, strict=True))}, tile)


def _nbytes(value: Any) -> int:
    if hasattr(value, "memory_usage"):
        usage = value.memory_usage()
        return int(usage.sum()) if hasattr(usage, "sum") else int(usage)
    return int(math.prod(value.shape) * value.dtype.itemsize)


def _dask_blocks(given: list[_Given]) -> list[DaskBlock]:
    _align(given)
    frames = [one for one in given if not one.array]
    arrays = [one for one in given if one.array]
    # Arrays as they are: optimised alone, two of them may each get a copy of the tasks that they share.
    parts = [one.value.to_delayed(optimize_graph=False).ravel().tolist() for one in arrays]
    names: list[Any] = [one.names for one in arrays]
    if frames:  # as one collection, so that what several of them read is read once
        import dask.dataframe as dd

        together = dd.map_partitions(
            _together,
            *(one.value for one in frames),
            align_dataframes=False,
            enforce_metadata=False,
            meta=frames[0].value._meta,
        )
        parts.append(together.to_delayed())
        names.append(tuple(one.names for one in frames))
    blocks = []
    for place, own in enumerate(zip(*parts, strict=True)):
        blocks.append(DaskBlock("+".join(str(part.key) for part in own), own, tuple(names), f"partition {place}"))
    return blocks


def _together(*parts: Any) -> tuple[Any, ...]:
    return parts


def _align(given: list[_Given]) -> None:
    """Give the collections the same partitions along the samples, and one along all other axes."""
    import dask.array as da

    frames = [one for one in given if one.lazy and not one.array]
    if frames:
        _repartition(frames)
    arrays = [one for one in given if one.array or not one.lazy]
    sized = next((one for one in given if one.lazy and one.rows is not None), None)
    for one in arrays:
        if not one.lazy:
            if sized is None or frames:
                raise DataError(
                    f"{one.what}: is in memory, but {next(o.what for o in given if o.lazy)} is a Dask collection "
                    "whose chunk sizes are unknown. Call its compute_chunk_sizes() (of a DataFrame: "
                    "to_dask_array(lengths=True)), or give both as Dask collections."
                )
            values = one.value if not hasattr(one.value, "to_numpy") else one.value.to_numpy()
            one.value = da.from_array(values, chunks=(sized.value.chunks[0], *map(int, values.shape[1:])))
        others = {axis: -1 for axis in range(1, one.value.ndim) if len(one.value.chunks[axis]) > 1}
        if others:
            one.value = one.value.rechunk(others)
        if sized is not None and one.rows is not None and one.value.chunks[0] != sized.value.chunks[0]:
            logger.warning("%s has other chunks than %s, and is rechunked.", one.what, sized.what)
            one.value = one.value.rechunk({0: sized.value.chunks[0]})
    counts = [one.value.numblocks[0] if one.array else one.value.npartitions for one in given]
    for one, number in zip(given, counts, strict=True):
        if number != counts[0]:
            raise DataError(
                f"{given[0].what} has {counts[0]} partitions, but {one.what} has {number}, and the rows of them are "
                "unknown. Repartition one like the other, or call compute_chunk_sizes()."
            )


def _repartition(frames: list[_Given]) -> None:
    first = frames[0].value
    for one in frames[1:]:
        if first.known_divisions and one.value.known_divisions and first.divisions != one.value.divisions:
            logger.warning("%s has other divisions than %s, and is repartitioned.", one.what, frames[0].what)
            one.value = one.value.repartition(divisions=first.divisions)
