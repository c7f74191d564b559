"""A job's store_conf: its shards, sample shapes, normalisation and stream."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.manifest import MANIFEST_FILE, MAX_SAMPLE_NBYTES, STATISTICS_FILE, Manifest, warn_of_note
from singa_dask.data.normalise import Normaliser
from singa_dask.data.plan import StreamConf
from singa_dask.data.resolve import resolve
from singa_dask.data.shards import ShardFolder, read_small
from singa_dask.data.stream import AnyStream, stream_of
from singa_dask.errors import ConfigError, DataError, Problem, nearest
from singa_dask.job.job_pb2 import Phase, StoreProto

_SINGA_BACKENDS = ("kvfile", "textfile", "lmdb")


@dataclass(frozen=True)
class StoreInfo:
    """The shards of a store_conf.

    path: the absolute folder. shape: of a sample in the job's order, (channels, height, width) or (values,); by
    default the stored one. sample_shape: of the same sample in the net, (height, width, channels) or (values,).
    """

    path: Path
    manifest: Manifest
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
    if store.has_label and not manifest.has_labels:
        hint = "Set has_label: false, or write shards with labels."
        raise ConfigError(Problem("store_conf.has_label", f"{path} has no labels", "true", hint))
    shape, sample_shape = sample_shapes(tuple(store.shape), manifest)
    make_normaliser(store, manifest)
    ShardFolder(manifest).check()
    return StoreInfo(path, manifest, shape, sample_shape)


def _backend_problem(store: StoreProto) -> Problem:
    if store.backend in _SINGA_BACKENDS:
        hint = 'Convert the data with `singa-dask shard` and set backend: "hdf5".'
        return Problem("store_conf.backend", "SINGA's stores are not supported", repr(store.backend), hint)
    return Problem("store_conf.backend", "is unknown", repr(store.backend), nearest(store.backend, ["hdf5"]))


def sample_shapes(given: tuple[int, ...], manifest: Manifest) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(job's shape, net's shape) of a sample.

    A flat job shape accepts images with the same number of values, in the stored order (height, width, channels). Flat
    samples become images only with one channel, where the order of values is unambiguous.
    """
    stored = manifest.shape
    natural = (stored[2], stored[0], stored[1]) if len(stored) == 3 else stored
    if not given:
        return natural, stored
    if math.prod(given) == math.prod(stored):
        if len(given) == 1:
            return given, given
        channels, height, width = given if len(given) == 3 else (1, *given) if len(given) == 2 else (0, 0, 0)
        as_image = (height, width, channels)
        if stored == as_image or (len(stored) == 1 and channels == 1):
            return given, as_image
    message = f"does not match the samples of {manifest.folder}, whose shape is {_spell(natural)}"
    hint = f"Leave it out, or write {_spell(natural)}. Images are channels, height, width."
    raise ConfigError(Problem("store_conf.shape", message, _spell(given), hint))


def _spell(shape: tuple[int, ...]) -> str:
    return " ".join(f"shape: {size}" for size in shape)


def make_normaliser(store: StoreProto, manifest: Manifest, dtype: Any = np.float32) -> Normaliser:
    """(x - mean) / std with the job's mean_file and std_file, or mean_value and std_value.

    Raises ConfigError if both a file and a value are given or a std is 0, DataError for a bad file.
    """
    given = (_statistic(store, name, manifest) for name in ("mean", "std"))
    dtype = np.dtype(dtype).type
    mean, std = (value.astype(dtype) if isinstance(value, np.ndarray) else value for value in given)
    return Normaliser(mean, std, dtype)


def _statistic(store: StoreProto, name: str, manifest: Manifest) -> float | np.ndarray | None:
    file, value = getattr(store, f"{name}_file"), getattr(store, f"{name}_value")
    if file and store.HasField(f"{name}_value"):
        raise ConfigError(
            Problem(f"store_conf.{name}_file", f"excludes {name}_value", repr(file), "Leave one of them out.")
        )
    if store.HasField(f"{name}_value"):
        if not math.isfinite(value) or (name == "std" and value == 0):
            key, message = f"store_conf.{name}_value", "must be finite, and not 0 for std"
            raise ConfigError(Problem(key, message, str(value), "Use 1 for no change."))
        return float(value)
    return read_statistic(file, name, manifest) if file else None


def statistics_path(path: str) -> Path:
    """The absolute path of a statistics file; a folder of shards or "dataset:NAME/SPLIT" means its statistics.h5."""
    if path.startswith("dataset:"):
        return resolve(path.removesuffix(f"/{STATISTICS_FILE}")) / STATISTICS_FILE
    file = Path(path).expanduser().absolute()
    return file / STATISTICS_FILE if (file / MANIFEST_FILE).exists() else file


def read_statistic(path: str, name: str, manifest: Manifest) -> np.ndarray:
    """The dataset `name` ("mean" or "std") of an HDF5 file, with one value per value of a stored sample: (values,).

    path: the file; a folder of shards or "dataset:NAME/SPLIT" means its statistics.h5. The dataset has the stored
    sample shape, (channels,), or one value. Raises DataError.
    """
    file = statistics_path(path)
    array = read_small(file, name, 8 * MAX_SAMPLE_NBYTES)
    try:
        per_value = np.broadcast_to(array.astype(np.float64), manifest.shape)
    except ValueError:
        raise DataError(
            f"{file}: {name!r} has the shape {array.shape}, but the samples of {manifest.folder} have "
            f"{manifest.shape}. Use the statistics.h5 of the training shards."
        ) from None
    if not np.isfinite(per_value).all() or (name == "std" and (per_value == 0).any()):
        raise DataError(f"{file}: {name!r} holds values that are not finite, or a std of 0. Write 1 instead of 0.")
    return np.ascontiguousarray(per_value).reshape(-1)


def make_stream(
    store: StoreProto,
    manifest: Manifest,
    *,
    seed: int,
    phase: int = Phase.kTrain,
    group: int = 0,
    ngroups: int = 1,
) -> AnyStream:
    """The stream of mini-batches of worker group `group` of `ngroups` from `store`.

    By default training shuffles samples, and other phases keep the order of the files; `shuffle` overrides it.
    Sequences are never shuffled. `batchsize` has one entry for all groups or one per group. Raises ConfigError.
    """
    sizes = list(store.batchsize)
    if len(sizes) not in (1, ngroups):
        message, hint = (
            f"must be given once, or once per worker group ({ngroups})",
            "It is the mini-batch of a whole worker group.",
        )
        raise ConfigError(Problem("store_conf.batchsize", message, str(sizes), hint))
    shuffle = store.shuffle if store.HasField("shuffle") else phase == Phase.kTrain and not store.sequence
    batchsize = sizes[group if len(sizes) > 1 else 0]
    order = shuffle, store.random_skip, store.sequence, store.lookahead
    return stream_of(manifest, StreamConf(batchsize, seed, group, ngroups, *order))
