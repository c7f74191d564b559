"""The blocks of samples that are predicted one by one, in the units of the data."""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from singa_dask.data import Manifest, ShardFolder, check_step, resolve, series_starts, trained_step
from singa_dask.data.columns import IDENTITY, Channels, Column, Role
from singa_dask.data.manifest import FILES_FILE, WAY_OUT
from singa_dask.data.origins import file_names, read_files
from singa_dask.data.plan import StreamConf, own_windows
from singa_dask.data.schema import AS_THEY_ARE, Reading
from singa_dask.data.sequence import check_order
from singa_dask.data.shared_files import in_place_files
from singa_dask.data.sources.source import Source
from singa_dask.data.store import columns_of, record_column, sample_shapes
from singa_dask.data.windows import own_spans
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.inference.classes import labels_of_shards
from singa_dask.inference.described import Described
from singa_dask.inference.model import Model
from singa_dask.job import graph_phase
from singa_dask.job.job_pb2 import Phase, StoreProto
from singa_dask.job.stores import reads_windows
from singa_dask.layers import GeneratedInput

logger = logging.getLogger(__name__)

BLOCK_NBYTES = 8 << 20


@dataclass(frozen=True)
class Samples:
    """Some samples. numbers: their rows in the source, (n,), or None if only the blocks before would tell. values: of
    the input layers, (n, ...), or what is predicted of them, by output. answers: labels (n, ...) as in `classes`,
    masked where they are missing, or targets (n, ...), by the input layer that has them, or by output. files: the
    names of their files, (n,), if there are several. filled: in how many samples missing values were replaced, by
    column."""

    numbers: np.ndarray | None
    values: Mapping[str, Any]
    answers: Mapping[str, np.ndarray]
    files: np.ndarray | None = None
    filled: Mapping[str, int] = field(default_factory=dict)


class SampleBlock(Protocol):
    """Samples that one task reads. Can be pickled. files: in which they lie. spans: as of a source."""

    @property
    def files(self) -> Sequence[Path]: ...

    @property
    def spans(self) -> Sequence[tuple[Path, int | None]]: ...

    def read(self, model: Model) -> Samples:
        """Raises DataError."""
        ...


class Blocks(list[Any]):
    """The blocks of all samples in their order, each a SampleBlock. reading: how they lie, by columns of any names;
    source: of files, which may be records that are predicted as windows."""

    def __init__(self, blocks: Iterable[SampleBlock], reading: Reading, source: Source | None = None) -> None:
        super().__init__(blocks)
        self.reading, self.source = reading, source


@dataclass(frozen=True)
class ShardInput:
    """What an input layer reads of a folder of shards. column: None if no prediction needs its samples. flat: whether
    the net gets the values in the stored order. mask: of the labels or targets."""

    layer: str
    folder: Path
    digest: str
    column: Column | None
    labels: Column | None
    flat: bool
    mask: Column | None = None

    def answers(self, labels: Column, rows: Callable[[Column], np.ndarray]) -> np.ndarray:
        """Labels or targets; those that the mask leaves out are missing: masked or NaN. rows: of a column."""
        values = rows(labels)
        if labels.role is Role.LABEL:
            values = labels_of_shards(values, labels)
        if self.mask is None:
            return values
        counts = rows(self.mask) != 0
        if self.mask.values == 1:  # for all values of a sample
            counts = counts.reshape(*counts.shape[: counts.ndim - len(self.mask.shape)], *(1 for _ in labels.shape))
        if labels.role is Role.LABEL:
            return np.ma.array(values, mask=np.ma.getmaskarray(values) | ~counts)
        return np.where(counts, values, np.asarray(np.nan, np.result_type(values, np.float32)))


@dataclass(frozen=True)
class ShardBlock:
    """Samples of shards. ranges: first and last sample + 1 of consecutive ones."""

    inputs: Sequence[ShardInput]
    ranges: Sequence[tuple[int, int]]
    spans = ()

    @property
    def files(self) -> Sequence[Path]:
        return [file for one in self.inputs for file in (one.folder, *in_place_files(one.folder))]

    def read(self, model: Model) -> Samples:
        x, answers = {}, {}
        for one in self.inputs:
            if one.column is not None:
                values = self._rows(one, one.column)
                x[one.layer] = values.reshape(len(values), -1) if one.flat else channels_last(values, one.column)
            if one.labels is not None:
                answers[one.layer] = one.answers(one.labels, partial(self._arranged, one))
        numbers, files = self._origin()
        return Samples(numbers, x, answers, files)

    def _origin(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The rows of the samples in their source, and the names of its files if there are several."""
        first = self.inputs[0]
        manifest = _shards(first.folder, first.digest).manifest
        numbers = np.concatenate([np.arange(*some) for some in self.ranges])
        if manifest.in_place:
            shards = np.searchsorted(manifest.shard_starts, numbers, side="right") - 1
            names = file_names([Path(shard.file) for shard in manifest.shards])
            return numbers - manifest.shard_starts[shards], np.array(names, object)[shards] if names else None
        found = {column.role: self._rows(first, column) for column in manifest.columns if column.role in IDENTITY}
        files: np.ndarray | None = None
        if Role.FILE in found:
            known = _files(first.folder, first.digest)
            places = found[Role.FILE]
            if places.min() < 0 or places.max() >= len(known):
                raise DataError(f"{first.folder}: its samples come from more files than {FILES_FILE} names. {WAY_OUT}")
            files = known[places]
        return found.get(Role.ROW, numbers), files

    def _arranged(self, one: ShardInput, column: Column) -> np.ndarray:
        return channels_last(self._rows(one, column), column)

    def _rows(self, one: ShardInput, column: Column) -> np.ndarray:
        shards = _shards(one.folder, one.digest)
        parts = [part for first, last in self.ranges for part in _read(shards, column, first, last)]
        return np.concatenate(parts).reshape(-1, *column.shape)


@dataclass(frozen=True)
class WindowBlock(ShardBlock):
    """Windows of shards. ranges: the first record of the first window and that of the last one + 1. Numbered by their
    last records."""

    sequence: int = 0
    horizon: int = 0
    stride: int = 1

    def read(self, model: Model) -> Samples:
        x, answers, last = {}, {}, self.sequence - 1
        for one in self.inputs:
            if one.column is not None:
                x[one.layer] = self._windows(one, one.column, 0, self.sequence, flat=one.flat)
            if one.labels is not None:
                first, count = (self.sequence, self.horizon) if self.horizon else (0, self.sequence)
                answers[one.layer] = one.answers(one.labels, partial(self._windows, one, first=first, count=count))
        ends = ShardBlock(self.inputs, [(begin + last, end + last) for begin, end in self.ranges])
        numbers, files = ends._origin()
        read = np.concatenate([np.arange(end - begin) % self.stride == 0 for begin, end in self.ranges])
        return Samples(numbers[read], x, answers, None if files is None else files[read])

    def _windows(self, one: ShardInput, column: Column, first: int, count: int, *, flat: bool = False) -> np.ndarray:
        shards, found = _shards(one.folder, one.digest), []
        for begin, end in self.ranges:
            rows = np.concatenate(list(_read(shards, column, begin + first, end + first + count - 1)))
            rows = rows if flat else channels_last(rows.reshape(-1, *column.shape), column)
            seen = np.lib.stride_tricks.sliding_window_view(rows, count, axis=0)[:: self.stride]
            found.append(np.moveaxis(seen, -1, 1))
        return np.concatenate(found)


def own_blocks(model: Model) -> Blocks:
    """The test data of the job of a trained net. Raises ConfigError, DataError."""
    if graph_phase(model.known.net.proto.layer, Phase.kTest) != Phase.kTest:
        hint = "Name a folder of shards or a file."
        raise ConfigError(Problem("--data", "is missing, and the job has no test data", "nothing", hint))
    generated = [name for name in model.known.read if isinstance(model.known.net.input_layer(name), GeneratedInput)]
    if generated:
        message, hint = f"is missing, and layer {generated[0]!r} generates its samples", "Name data to predict."
        raise ConfigError(Problem("--data", message, "nothing", hint))
    folders = {name: resolve(model.known.store(name).path) for name in model.known.read}
    return shard_blocks(model, folders, held_out=True)


def check_described(model: Model) -> None:
    """Raises DataError if the checkpoint does not describe the data of the net."""
    if not model.described and not all(
        isinstance(model.known.net.input_layer(name), GeneratedInput) for name in model.known.needed
    ):
        raise DataError(
            "the checkpoint does not describe the data of the net: it was written by an older version of singa_dask. "
            "Train again."
        )


def _check_alike(folder: Path, manifest: Manifest, known: Described, column: Column, labels: Column | None) -> None:
    """Raises DataError if the dimensions of samples, what fills missing values, or the classes of labels are others
    than in training."""
    hint = "Predict the file itself, or write the shards with like= the manifest of the training data."
    own, trained = manifest.schema.reading.along(column.name), known.along(known.column)
    if own.turn_to(trained, f"{folder}: {column.name}") != AS_THEY_ARE:
        told = "has samples whose dimensions or coordinates are in another order than in the training data"
        raise DataError(f"{folder}: {column.name}: {told}. {hint}")
    own.warn_of_places(trained, f"{folder}: {column.name}")
    if not column.filled_like(known.column):
        raise DataError(f"{folder}: fills missing values of {column.name!r} otherwise than the training data. {hint}")
    names = [*labels.classes] if labels is not None and isinstance(labels.classes, tuple) else []
    expected = _names_of(known.answers)
    if names != expected[: len(names)] and expected:
        told = f"has the classes {', '.join(names[:8])}, but the net was trained with {', '.join(expected[:8])}"
        raise DataError(f"{folder}: {told}. {hint}")


def _names_of(labels: Column | None) -> list[str]:
    if labels is None or labels.classes is None:
        return []
    return list(map(str, range(labels.classes) if isinstance(labels.classes, int) else labels.classes))


def shard_blocks(model: Model, folders: Mapping[str, Path], *, held_out: bool, given: str = "") -> Blocks:
    """The samples of folders of shards, by the input layers that read them.

    held_out: leave out the samples that a job with a validation_share trains on. given: see Manifest.
    Raises ConfigError, DataError where the shards do not suit the net or each other.
    """
    known, inputs = model.known, list[ShardInput]()
    counts: dict[str, int] = {}
    for layer, folder in folders.items():
        store, manifest = known.store(layer), Manifest.load(folder)
        if store.sequence and not reads_windows(store):
            what = "reads sequences, which shards hold as single records"
            hint = "Give a file of whole sequences: --data sequences.npz. Text comes from `singa-dask sample`."
            raise ConfigError(Problem(f"layer {layer!r}", what, f"sequences of {store.sequence}", hint))
        check_described(model)
        ShardFolder(manifest).check()
        described = known.inputs.get(layer)
        if described is not None and described.schema.encoders != manifest.encoders:
            raise DataError(
                f"{folder}: encodes the columns of its table otherwise than the training data of layer {layer!r}. "
                "Predict the table itself, or write the shards with like= the manifest of the training data."
            )
        column, labels = columns_of(_readable(store, manifest), manifest)
        if described is not None:
            _check_alike(folder, manifest, described, column, labels)
        sample_shapes(tuple(store.shape), record_column(store, column), folder)
        inputs.append(
            ShardInput(
                layer,
                folder,
                manifest.digest,
                column if layer in known.needed else None,
                known.comparable(layer, labels, folder) if layer in known.answering else None,
                len(store.shape) == 1,
                None if labels is None else _mask_of(labels, manifest),
            )
        )
        counts[layer] = manifest.total
        if len(inputs) == 1:
            _warn_of_order(manifest)
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count:,} for {layer!r}" for layer, count in counts.items())
        raise DataError(
            f"the input layers read different numbers of samples: {told}. Give folders that belong together."
        )
    nbytes = max(sum(one.column.nbytes for one in inputs if one.column is not None), 1)
    first, manifest = known.store(inputs[0].layer), replace(Manifest.load(inputs[0].folder), given=given)
    reading = _joined(inputs)
    share = first.validation_share if held_out else 0.0
    if reads_windows(first):
        horizon = max((known.store(one.layer).horizon for one in inputs if one.labels is not None), default=0)
        ranges = list(_window_ranges(manifest, first, share, horizon))
        sizes = first.sequence, horizon, max(1, first.stride)
        count = max(1, BLOCK_NBYTES // (nbytes * first.sequence)) * sizes[2]
        pieces = [(at, min(at + count, end)) for begin, end in ranges for at in range(begin, end, count)]
        return Blocks((WindowBlock(tuple(inputs), (piece,), *sizes) for piece in pieces), reading)
    rows = max(1, BLOCK_NBYTES // nbytes)
    groups = _blocks(list(_ranges(manifest, share)), rows)
    return Blocks((ShardBlock(tuple(inputs), tuple(some)) for some in groups), reading)


def _joined(inputs: Sequence[ShardInput]) -> Reading:
    """How the samples of several folders lie; those with the answers tell first."""
    readings = [
        Manifest.load(one.folder).schema.reading for one in sorted(inputs, key=lambda one: one.labels is not None)
    ]
    dimensions = {f"{at}/{name}": dims for at, of in enumerate(readings) for name, dims in of.dimensions.items()}
    return Reading(dimensions=dimensions, coordinates=dict(ChainMap(*(dict(of.coordinates) for of in readings[::-1]))))


def _mask_of(labels: Column, manifest: Manifest) -> Column | None:
    masks = (column for column in manifest.columns if column.role is Role.MASK)
    return next((mask for mask in masks if mask.values == 1 or mask.shape == labels.shape), None)


def _warn_of_order(manifest: Manifest) -> None:
    if manifest.shuffled and not any(column.role is Role.ROW for column in manifest.columns):
        logger.warning(
            "%s: its samples were shuffled, and it does not tell their rows in the source: `sample` counts those of "
            "the shards. Write them again with `singa-dask shard`.",
            manifest.folder,
        )


def _readable(store: StoreProto, manifest: Manifest) -> StoreProto:
    """The store of shards that may have no labels."""
    given = StoreProto()
    given.CopyFrom(store)
    names = {column.name for column in manifest.columns}
    if given.has_label and (given.label not in names if given.label else manifest.targets is None):
        given.has_label = False
    return given


def _ranges(manifest: Manifest, share: float) -> Iterator[tuple[int, int]]:
    conf = StreamConf(1, validation_share=share, held_out=share > 0)
    for window in own_windows(manifest, conf):
        yield window.start, window.start + window.samples


def _window_ranges(manifest: Manifest, store: StoreProto, share: float, horizon: int) -> Iterator[tuple[int, int]]:
    """The first records of the windows of each series. horizon: the records that must follow them."""
    conf = StreamConf(1, sequence=store.sequence, validation_share=share, held_out=share > 0)
    check_order(manifest, conf)
    starts = series_starts(manifest, store.series, store.sequence)
    check_step(manifest, starts, trained_step(store))
    conf = replace(conf, series=tuple(starts))
    spans = own_spans(manifest, conf)
    ranges = [(begin, end - store.sequence - horizon + 1) for begin, end in spans]
    ranges = [(begin, end) for begin, end in ranges if begin < end]
    if not ranges:
        longest = max(end - begin for begin, end in spans)
        told = f"no window of {store.sequence} records" + f" and a horizon of {horizon} with targets" * bool(horizon)
        hint = f"Give more records{', or leave out the column of targets' * (longest >= store.sequence)}"
        if longest < manifest.total:
            hint = f"{hint}. The records of a series must follow each other: sort them by series and time"
        raise DataError(f"{manifest.where}: {told} fits: at most {longest:,} follow each other. {hint}.")
    yield from ranges


def _blocks(ranges: Sequence[tuple[int, int]], rows: int) -> Iterator[list[tuple[int, int]]]:
    """The ranges in groups of about `rows` samples; ranges that follow each other are joined."""
    some: list[tuple[int, int]] = []
    for first, last in ranges:
        if some and sum(stop - start for start, stop in some) + last - first > rows:
            yield some
            some = []
        if some and some[-1][1] == first:
            some[-1] = some[-1][0], last
        else:
            some.append((first, last))
    if some:
        yield some


def _read(shards: ShardFolder, column: Column, first: int, last: int) -> Iterator[np.ndarray]:
    window = shards.manifest.window
    for reader, rows in shards.rows(first, last):
        reader.check_windows(np.arange(rows.start // window, -(-rows.stop // window)))
        yield reader.column(column.name)[rows]


def channels_last(values: np.ndarray, column: Column) -> np.ndarray:
    """Stored samples (n, ...) of a column, with the channels where nets have them."""
    return np.moveaxis(values, 1, -1) if column.channels is Channels.FIRST else values


def close_shards() -> None:
    """Close the shards that blocks of this process have read."""
    _shards.cache_clear()
    _files.cache_clear()


@lru_cache(maxsize=16)
def _shards(folder: Path, digest: str) -> ShardFolder:
    manifest = Manifest.load(folder)
    if manifest.digest != digest:
        raise DataError(f"{folder}: the shards on this host differ from those of the command. Copy them again.")
    return ShardFolder(manifest)


@lru_cache(maxsize=16)
def _files(folder: Path, _digest: str) -> np.ndarray:
    return read_files(folder)
