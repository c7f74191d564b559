"""A job's store_conf: its shards, columns, sample shapes and stream. Its normalisation is in normalise.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from singa_dask.data.columns import Channels, Column, Role
from singa_dask.data.manifest import Manifest, warn_of_note
from singa_dask.data.plan import Stream, StreamConf
from singa_dask.data.resolve import resolve
from singa_dask.data.sequence import SequenceStream
from singa_dask.data.shards import ShardFolder
from singa_dask.data.windows import WindowStream
from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.job.job_pb2 import Phase, StoreProto
from singa_dask.job.stores import reads_windows

AnyStream = Stream | SequenceStream
_SINGA_BACKENDS = ("kvfile", "textfile", "lmdb")


@dataclass(frozen=True)
class StoreInfo:
    """The shards of a store_conf.

    path: the absolute folder. column: what the layer outputs; labels: its labels or targets, or None. shape: of one
    sample of `column` in the job's order, channels first; by default the stored one. sample_shape: of the same sample
    in the net, channels last.
    """

    path: Path
    manifest: Manifest
    column: Column
    labels: Column | None
    shape: tuple[int, ...]
    sample_shape: tuple[int, ...]


def store_info(store: StoreProto) -> StoreInfo:
    """Find the shards of `store`, open every file, and check that they match the job.

    Builds a named data set that is not in the cache. Raises ConfigError for faults of the job, DataError for faults of
    the shards.
    """
    if store.backend and store.backend != "hdf5":
        raise ConfigError(_backend_problem(store))
    if not store.path:
        hint = 'Name a folder of shards, or "dataset:digits/train".'
        raise ConfigError(Problem("store_conf.path", "is missing", hint=hint))
    if store.encoded:
        message = "is not supported: shards hold raw pixels"
        raise ConfigError(Problem("store_conf.encoded", message, "true", "Leave it out."))
    path = resolve(store.path)
    manifest = Manifest.load(path)
    for note in manifest.notes:
        warn_of_note(path.parent, note)
    column, labels = columns_of(store, manifest)
    column = record_column(store, column)
    shape, sample_shape = sample_shapes(tuple(store.shape), column, manifest.folder, store.sequence)
    ShardFolder(manifest).check()
    return StoreInfo(path, manifest, column, labels, shape, sample_shape)


def columns_of(store: StoreProto, manifest: Manifest) -> tuple[Column, Column | None]:
    """The column that the layer outputs, and the one with its labels or targets.

    Raises ConfigError if the shards lack one of them.
    """
    named = {column.name: column for column in manifest.columns}
    for field in ("column", "label") if store.has_label else ("column",):
        name = getattr(store, field)
        if name and name not in named:
            hint = nearest(name, named) or f"It has: {', '.join(named)}."
            raise ConfigError(Problem(f"store_conf.{field}", f"{manifest.folder} has no such column", name, hint))
    features = [column.name for column in manifest.columns if column.role is Role.FEATURE]
    if not store.column and len(features) > 1:
        message, hint = f"is missing, and {manifest.folder} has several columns of features", ", ".join(features)
        raise ConfigError(
            Problem("store_conf.column", message, hint=f"Name one of them for each input layer: {hint}.")
        )
    column = named[store.column] if store.column else manifest.features
    if not store.has_label:
        return column, None
    if store.label:
        labels: Column | None = named[store.label]
    else:
        labels = column if column.role in (Role.LABEL, Role.TARGET) else manifest.targets
    if labels is None and column.role is Role.FEATURE:
        hint = "Set has_label: false, or write shards with labels."
        raise ConfigError(Problem("store_conf.has_label", f"{manifest.folder} has no labels", "true", hint))
    return column, labels


def record_column(store: StoreProto, column: Column) -> Column:
    """The column of one time step, if the samples of `column` are sequences; its statistics are not known.

    Raises ConfigError if they have another number of time steps.
    """
    steps = store.time_steps
    if not steps:
        return column
    if not column.shape or column.shape[0] != steps or column.channels is Channels.FIRST:
        given = f"{steps}, and samples of shape {column.shape} with channels {column.channels}"
        hint = "Write samples of shape (steps, features), or read consecutive records with sequence instead."
        message = f"must be the first dimension of the samples of {column.name!r}"
        raise ConfigError(Problem("store_conf.time_steps", message, given, hint))
    shape = column.shape[1:]
    channels = column.channels if len(shape) > 2 else Channels.NONE
    return replace(column, shape=shape, channels=channels, mean=(0.0,), std=(1.0,), names=())


def _backend_problem(store: StoreProto) -> Problem:
    if store.backend in _SINGA_BACKENDS:
        kind, out = "kvfile" if store.backend == "kvfile" else "FORMAT", f"shards/{Path(store.path).stem or 'train'}"
        command = f"singa-dask shard {kind} --source {store.path or 'FILE'} --out {out}"
        hint = f'Run `{command}`, write path: "{out}" and leave backend out.'
        return Problem("store_conf.backend", "SINGA's stores are not supported", repr(store.backend), hint)
    return Problem("store_conf.backend", "is unknown", repr(store.backend), nearest(store.backend, ["hdf5"]))


def sample_shapes(
    given: tuple[int, ...], column: Column, folder: Path | None = None, sequence: int = 0
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(job's shape, net's shape) of a sample, for a job that gives this shape or none.

    A flat job shape accepts samples with the same number of values, in the stored order. Flat samples become images
    only with one channel, where the order of values is unambiguous.
    """
    if not given:
        return column.job_shape, column.net_shape
    if math.prod(given) == column.values:
        if len(given) == 1:
            return given, given
        channels, *sizes = given if len(given) > 2 else (1, *given)
        inside = (*sizes, channels)
        if inside == column.net_shape or (len(column.net_shape) == 1 and channels == 1):
            return given, inside
    natural = _spell(column.job_shape)
    message = f"does not match the samples of {folder or column.name}, whose shape is {natural}"
    hint = f"Leave it out, or write {natural}. Images are channels, height, width."
    if sequence and math.prod(given) * sequence == column.values:
        records = ", ".join(map(str, given))
        hint = f"Write each record as a sample with a label: x.reshape(-1, {records}). sequence joins {sequence}."
        hint += f" Or, if a sample is a whole sequence with one label or target, write time_steps: {sequence} instead."
    raise ConfigError(Problem("store_conf.shape", message, _spell(given), hint))


def _spell(shape: tuple[int, ...]) -> str:
    return " ".join(f"shape: {size}" for size in shape)


def make_stream(
    store: StoreProto,
    manifest: Manifest,
    *,
    seed: int,
    phase: int = Phase.kTrain,
    group: int = 0,
    ngroups: int = 1,
    once: bool = False,
) -> AnyStream:
    """The stream of mini-batches of worker group `group` of `ngroups` from `store`. once: every sample once, in order.

    By default training shuffles samples, and other phases keep the order of the files; `shuffle` overrides it.
    Sequences that continue from step to step are never shuffled. `batchsize` has one entry for all groups or one per
    group. Raises ConfigError.
    """
    sizes = list(store.batchsize)
    if len(sizes) not in (1, ngroups):
        message, hint = (
            f"must be given once, or once per worker group ({ngroups})",
            "It is the mini-batch of a whole worker group.",
        )
        raise ConfigError(Problem("store_conf.batchsize", message, str(sizes), hint))
    in_order = store.sequence and not reads_windows(store)
    shuffle = store.shuffle if store.HasField("shuffle") else phase == Phase.kTrain and not in_order
    batchsize = sizes[group if len(sizes) > 1 else 0]
    order = shuffle and not once, 0 if once else store.random_skip, store.sequence, store.lookahead
    share = store.validation_share
    held_out = share > 0 and phase != Phase.kTrain
    windows = store.horizon, store.stride, tuple(store.series_start)
    return stream_of(manifest, StreamConf(batchsize, seed, group, ngroups, *order, share, held_out, once, *windows))


def stream_of(manifest: Manifest, conf: StreamConf) -> AnyStream:
    """The stream of `conf`: of windows if it sets `horizon` or `stride`, else of sequences if it sets `sequence`, else
    of single samples.

    Raises ConfigError.
    """
    if reads_windows(conf):
        return WindowStream(manifest, conf)
    return SequenceStream(manifest, conf) if conf.sequence or conf.lookahead else Stream(manifest, conf)
