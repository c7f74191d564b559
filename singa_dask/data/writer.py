"""Writes shards."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import h5py
import numpy as np

from singa_dask.data.manifest import LABEL_DTYPE, MANIFEST_FILE, STATISTICS_FILE, Manifest, Shard
from singa_dask.data.plan import permutation
from singa_dask.data.shards import window_hash
from singa_dask.errors import DataError

MAX_WINDOW_SAMPLES = 256
MAX_WINDOW_NBYTES = 4 << 20
WINDOWS_WANTED = 64
MAX_SHARDS = 100_000


class Samples(Protocol):
    """The input of write_shards: an array, or an object that returns the samples of an index array on demand."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray: ...


def write_shards(
    out: str | Path,
    features: Samples,
    labels: np.ndarray | None,
    nshards: int = 1,
    *,
    classes: Sequence[str] | int | None = None,
    window: int | None = None,
    shuffle_seed: int | None = None,
    notes: Sequence[str] = (),
    overwrite: bool = False,
) -> Manifest:
    """Write `features` and `labels` as a folder of `nshards` shards with a manifest and statistics.

    features: (N, H, W, C) uint8 images, or (N, D) numbers; uint8 stays uint8, other types become float32. Read window
        by window, so they may be a memory map or an object that decodes samples on demand.
    labels: (N,) whole numbers, or None.
    window: samples per window; by default there are about 64 windows or more, each of at most 256 samples and 4 MiB.
    shuffle_seed: write the samples in this random order; None keeps the order. Training reads neighbouring samples
        together, so data sorted by class must be shuffled.
    The shards are written to a temporary folder next to `out` and renamed at the end: a crash leaves no partial data
    set. Raises DataError if `out` exists (and overwrite is False), or if the data has a wrong shape, type or label.
    """
    out = Path(out).absolute()
    shape, dtype = _stored_form(features)
    total = features.shape[0]
    labels = _stored_labels(labels, total, classes)
    if window is None:
        window = choose_window(total, math.prod(shape) * dtype.itemsize)
    if window < 1:
        raise DataError(f"window: must be at least 1 sample. Received: {window}.")
    if not 1 <= nshards <= min(total, MAX_SHARDS):
        raise DataError(
            f"nshards: must be from 1 to {min(total, MAX_SHARDS)} for {total} samples. Received: {nshards}."
        )
    order = np.arange(total) if shuffle_seed is None else permutation((shuffle_seed, total), total)
    with replace_folder(out, overwrite) as folder:
        statistics = _Statistics(shape)
        shards = []
        for index in range(nshards):
            rows = order[total * index // nshards : total * (index + 1) // nshards]
            name = f"shard-{index:05d}.h5"
            hashes = _write_shard(folder / name, features, labels, rows, window, shape, dtype, statistics)
            shards.append(Shard(name, rows.size, hashes))
        images = len(shape) == 3
        mean, std = statistics.over((0, 1) if images else None)
        manifest = Manifest(
            total,
            shape,
            dtype.name,
            "HWC" if images else "flat",
            labels is not None,
            classes if classes is None or isinstance(classes, int) else tuple(classes),
            window,
            mean,
            std,
            tuple(shards),
            tuple(notes),
            out,
        )
        statistics.write(folder / STATISTICS_FILE)
        (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
        sync(folder / MANIFEST_FILE)
        Manifest.load(folder)  # check that the result can be read
    return Manifest.load(out)


def choose_window(total: int, sample_nbytes: int) -> int:
    """Samples per window, a power of two: at most 256 and 4 MiB, and small enough for 64 windows."""
    most = min(MAX_WINDOW_SAMPLES, MAX_WINDOW_NBYTES // sample_nbytes, total // WINDOWS_WANTED)
    return 1 << (max(1, most).bit_length() - 1)


def _stored_form(features: Samples) -> tuple[tuple[int, ...], np.dtype]:
    """Sample shape and type on disk: uint8 stays uint8, everything else becomes float32."""
    rank = len(features.shape)
    if rank not in (2, 4) or 0 in features.shape:
        raise DataError(
            f"features: must be (samples, height, width, channels) or (samples, values), none of them 0. "
            f"Received: {features.shape}. Reshape the array first."
        )
    if rank == 4 and features.dtype != np.uint8:
        raise DataError(
            f"features: images must be uint8. Received: {features.dtype}. Convert them, or flatten each to (values,)."
        )
    if features.dtype.kind not in "buif":
        raise DataError(f"features: must be numbers. Received: {features.dtype}.")
    return tuple(features.shape[1:]), np.dtype(np.uint8 if features.dtype == np.uint8 else "<f4")


def _stored_labels(labels: np.ndarray | None, total: int, classes: Sequence[str] | int | None) -> np.ndarray | None:
    if labels is None:
        return None
    labels = np.asarray(labels)
    if labels.shape != (total,) or labels.dtype.kind not in "bui":
        raise DataError(
            f"labels: must be {total} whole numbers, one for each sample. Received: {labels.dtype} {labels.shape}."
        )
    count = classes if classes is None or isinstance(classes, int) else len(classes)
    if count is not None and (labels.min() < 0 or labels.max() >= count):
        raise DataError(
            f"labels: must be 0 to {count - 1} for {count} classes. Received: {labels.min()} to {labels.max()}."
        )
    return labels.astype(LABEL_DTYPE, copy=False)


def _write_shard(
    path: Path,
    features: Samples,
    labels: np.ndarray | None,
    rows: np.ndarray,
    window: int,
    shape: tuple[int, ...],
    dtype: np.dtype,
    statistics: _Statistics,
) -> tuple[str, ...]:
    hashes = []
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("features", (rows.size, *shape), dtype)
        stored_labels = None if labels is None else file.create_dataset("labels", (rows.size,), LABEL_DTYPE)
        for start in range(0, rows.size, window):
            members = rows[start : start + window]
            part = np.ascontiguousarray(features[members], dtype=dtype)
            if dtype.kind == "f" and not np.isfinite(part).all():
                bad = members[~np.isfinite(part).all(axis=1)][0]
                raise DataError(
                    f"features: sample {bad} holds a value that is not a finite float32. Remove or fill it."
                )
            part_labels = None if labels is None else labels[members]
            stored[start : start + window] = part
            if stored_labels is not None:
                stored_labels[start : start + window] = part_labels
            hashes.append(window_hash(part, part_labels))
            statistics.add(part)
    sync(path)
    return tuple(hashes)


class _Statistics:
    """Mean and standard deviation of every position of a sample, merged window by window (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]):
        self.count = 0
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)  # sum of squared distances from the mean

    def add(self, part: np.ndarray) -> None:
        count = part.shape[0]
        mean = part.mean(axis=0, dtype=np.float64)
        squares = np.square(part - mean).sum(axis=0)
        delta = mean - self.mean
        total = self.count + count
        self.squares += squares + np.square(delta) * (self.count * count / total)
        self.mean += delta * (count / total)
        self.count = total

    def over(self, axes: tuple[int, ...] | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation over these axes of a sample too; None: over all."""
        mean = self.mean.mean(axis=axes)
        variance = (self.squares / self.count + np.square(self.mean - mean)).mean(axis=axes)
        return tuple(np.atleast_1d(mean).tolist()), tuple(np.sqrt(np.atleast_1d(variance)).tolist())

    def write(self, path: Path) -> None:
        """`mean` and `std`, float32, in the sample's shape. std is 1 at constant positions, where (x - mean) / std is
        then 0."""
        std = np.sqrt(self.squares / self.count)
        with h5py.File(path, "w") as file:
            file.create_dataset("mean", data=self.mean.astype("<f4"))
            file.create_dataset("std", data=np.where(std > 0, std, 1).astype("<f4"))
        sync(path)


@contextmanager
def replace_folder(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder next to `out` that is renamed to `out` when the block ends, and removed if it fails.

    Raises DataError if `out` exists, unless it is a folder of shards and overwrite is True.
    """
    _check_free(out, overwrite)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.part-", dir=out.parent))
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror}). Choose another folder.") from error
    try:
        yield temporary
        temporary.chmod(0o755)
        sync(temporary)
        _check_free(out, overwrite)
        if out.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old-", dir=out.parent))
            out.rename(old / out.name)
            temporary.rename(out)
            shutil.rmtree(old, ignore_errors=True)
        else:
            temporary.rename(out)
        sync(out.parent)
    except OSError as error:
        raise DataError(f"{out}: could not be written ({error}). Is the disk full?") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_free(out: Path, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    ours = out.is_dir() and any((folder / MANIFEST_FILE).exists() for folder in (out, *out.iterdir()))
    if not overwrite:
        raise DataError(f"{out}: exists already. Choose another folder, remove it, or set overwrite.")
    if not ours:
        raise DataError(f"{out}: is not a folder of shards and is not overwritten. Choose another folder.")


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
