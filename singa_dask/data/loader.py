"""The loader: tasks read and normalise chunks of steps ahead, and the training loop takes slices of them."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

import numpy as np

from singa_dask.data.columns import Column, Role
from singa_dask.data.generated import generate_steps
from singa_dask.data.manifest import Manifest
from singa_dask.data.normalise import Normaliser, make_normaliser, make_target_normaliser
from singa_dask.data.plan import share_rows
from singa_dask.data.shards import ShardFolder, ShardReader
from singa_dask.data.store import AnyStream, columns_of, record_column, sample_shapes
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.job.job_pb2 import StoreProto
from singa_dask.job.stores import answers_of, records_of, row_shape
from singa_dask.layers import GeneratedInput

MAX_CHUNK_NBYTES = 16 << 20
MIN_CHUNK_STEPS = 32
# Dask counts mapped pages as memory of the worker, and ends a worker that has too much.
MAX_MAPPED_NBYTES = 128 << 20


class Future(Protocol):
    """A future of concurrent.futures or `dask_submit`."""

    def result(self, timeout: float | None = None) -> Any: ...

    def cancel(self) -> Any: ...


Submit = Callable[..., Future]


@dataclass(frozen=True)
class LoadedBatch:
    """One worker's share of a mini-batch: rows [first_row, first_row + len(features)) of `total_rows`.

    features: (rows, *sample shape), normalised. labels: (rows,) int64 classes, (rows, *target shape) targets or
    classes of positions, or None.
    For sequences of K records: features (rows, K, *sample shape), or (rows, K) if a record is one value; labels
    (rows, K) or (rows, K, *target shape).
    """

    features: np.ndarray
    labels: np.ndarray | None
    first_row: int
    total_rows: int


@dataclass(frozen=True)
class LoadSpec:
    """The arguments that all loading tasks of a loader share: small and hashable."""

    folder: str
    digest: str
    store: bytes
    dtype: str


class Loader:
    """The mini-batches of one worker from `start_step` on, loaded ahead of the training loop.

    submit: `submit(function, *arguments) -> Future`, for example of a ThreadPoolExecutor or `dask_submit`.
    ahead: chunks that are loaded or loading besides the current one. A chunk is a block of the stream: at least 32
        steps, at most 16 MiB of this worker's rows.
    stop_step: the first step that is not needed; by default the end of the stream, if it has one.
    generated: the layer whose samples the stream numbers, if no shards hold them; a chunk is then one step.
    timeout_s: of one wait. `wait_s` is the total time that `next` has waited.
    Raises ConfigError if the mini-batch has fewer rows than the group has workers.
    """

    def __init__(
        self,
        stream: AnyStream,
        store: StoreProto,
        submit: Submit,
        rank: int = 0,
        nranks: int = 1,
        start_step: int = 0,
        ahead: int = 2,
        *,
        stop_step: int | None = None,
        dtype: Any = np.float32,
        timeout_s: float = 30.0,
        generated: GeneratedInput | None = None,
    ):
        if stream.batchsize < nranks:
            message = f"a mini-batch of {stream.batchsize} rows cannot be shared by {nranks} workers"
            hint = f"Use at least {nranks}: it is the mini-batch of the whole worker group."
            raise ConfigError(Problem("store_conf.batchsize", message, str(stream.batchsize), hint))
        self.stream = stream
        self.rank, self.nranks = rank, nranks
        self.step = start_step
        self.stop_step = stream.steps if stop_step is None else stop_step
        self.timeout_s = timeout_s
        self.wait_s = 0.0
        first_row, last_row = share_rows(stream.batchsize, rank, nranks)
        self.rows = last_row - first_row  # of a whole mini-batch
        column, labels = columns_of(store, stream.manifest)
        column = record_column(store, column)
        self.sample_shape = row_shape(records_of(store), sample_shapes(tuple(store.shape), column)[1])
        several = labels is not None and (labels.role is not Role.LABEL or labels.of_positions)
        target = labels.net_shape if labels is not None and several else ()
        self._label_shape = ((answers,) if (answers := answers_of(store)) else ()) + target
        self._target_values = math.prod(self._label_shape) if target else 0
        self._folder = str(stream.manifest.folder)
        self._load: Callable[..., Any]
        self._spec: LoadSpec | GeneratedInput
        if generated is None:
            self.chunk_steps = self._steps_per_chunk(np.dtype(dtype).itemsize)
            text = store.SerializeToString(deterministic=True)
            spec = LoadSpec(self._folder, stream.manifest.digest, text, np.dtype(dtype).name)
            self._load, self._spec = load_steps, spec
        else:
            self.chunk_steps = 1
            self._load, self._spec = generate_steps, generated
        self._submit = submit
        self._ahead = ahead
        self._asked = start_step  # first step that no task loads yet
        self._pending: deque[tuple[int, int, Future]] = deque()
        self._chunk_stop = start_step
        self._taken = 0  # rows of the current chunk
        self._features: np.ndarray | None = None
        self._labels: np.ndarray | None = None
        _loaders.add(self)
        self._read_ahead()

    def next(self) -> LoadedBatch:
        """This worker's share of the next mini-batch: views of the loaded chunk, valid until they are dropped.

        Raises DataError for damaged shards and if loading takes longer than `timeout_s`, IndexError at `stop_step`.
        """
        if self.step == self.stop_step:
            raise IndexError(f"the loader was asked to stop before step {self.stop_step}")
        if self.step == self._chunk_stop:
            self._take_chunk()
        total_rows = self.stream.rows(self.step)
        first_row, last_row = share_rows(total_rows, self.rank, self.nranks)
        rows = slice(self._taken, self._taken + last_row - first_row)
        self._taken = rows.stop
        self.step += 1
        features, labels = self._features, self._labels
        if features is None:
            _closed()
        return LoadedBatch(features[rows], None if labels is None else labels[rows], first_row, total_rows)

    def close(self) -> None:
        """Cancel pending tasks and free all memory. The last loader of a process closes its shards too."""
        while self._pending:
            self._pending.popleft()[2].cancel()
        self._features = self._labels = None
        self._asked = self._chunk_stop = self.step
        self._ahead = 0
        self._submit = _closed  # Dask keeps results while their submitter exists
        _loaders.discard(self)
        _close_unused()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _steps_per_chunk(self, itemsize: int) -> int:
        step_nbytes = self.rows * (math.prod(self.sample_shape) + self._target_values) * itemsize
        step_records = self.stream.batchsize * self.stream.row_records
        wanted = max(self.stream.block_samples // step_records, MIN_CHUNK_STEPS)
        return max(1, min(wanted, MAX_CHUNK_NBYTES // step_nbytes))

    def _read_ahead(self) -> None:
        while len(self._pending) < self._ahead:
            steps = self.chunk_steps
            if self.stop_step is not None:
                steps = min(steps, self.stop_step - self._asked)
            if steps <= 0:
                return
            future = self._submit(self._load, self._spec, self.stream, self.rank, self.nranks, self._asked, steps)
            self._pending.append((self._asked, steps, future))
            self._asked += steps

    def _take_chunk(self) -> None:
        """Make the oldest pending chunk the current one, and free the memory of the previous one."""
        if self._ahead < 1 or not self._pending:
            _closed()
        self._features = self._labels = None
        start, steps, future = self._pending.popleft()
        self._read_ahead()
        began = time.perf_counter()
        try:
            features, labels = future.result(self.timeout_s)
        except TimeoutError as error:
            future.cancel()
            raise DataError(
                f"{self._folder}: steps {start} to {start + steps - 1} were not loaded within "
                f"{self.timeout_s:g} s. Does the file system hang, or is the machine too busy?"
            ) from error
        finally:
            self.wait_s += time.perf_counter() - began
        self._features = features.reshape(-1, *self.sample_shape)
        self._labels = None if labels is None else labels.reshape(-1, *self._label_shape)
        self._chunk_stop, self._taken = start + steps, 0


def _closed(*_: Any) -> NoReturn:
    raise DataError("the loader is closed.")


def load_steps(
    spec: LoadSpec, stream: AnyStream, rank: int, nranks: int, start: int, steps: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """The task: worker `rank`'s rows of `steps` consecutive mini-batches from `start` on.

    Returns features (records, values), normalised, and labels (records,) or targets (records, values), or None.
    Raises DataError.
    """
    source = _source(spec)
    try:
        rows = np.concatenate([stream.share(step, rank, nranks)[1] for step in range(start, start + steps)])
        return source.read(rows, stream.conf.horizon)
    finally:
        _close_unused()  # the loader may have closed meanwhile


@dataclass(frozen=True)
class _Reading:
    """A column that is read: numbers, or labels."""

    column: Column
    normaliser: Normaliser
    steps: int = 1  # of a sample; `column` is of one of them

    def empty(self, rows: int) -> np.ndarray:
        return _buffers.empty((rows * self.steps, self.column.values), np.dtype(self.normaliser.dtype))

    def gather(self, reader: ShardReader, positions: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
        stored = reader.column(self.column.name)
        if self.steps > 1:
            stored = stored.reshape(-1, self.column.values)
            positions, places = (
                (of[:, np.newaxis] * self.steps + np.arange(self.steps)).reshape(-1) for of in (positions, places)
            )
        self.normaliser.gather(stored, positions, places, out)


@dataclass(frozen=True)
class _Source:
    """The open files and settings of a LoadSpec in one process."""

    shards: ShardFolder
    features: _Reading
    labels: _Reading | None

    def read(self, rows: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The records `rows`; of windows, (windows, T + H), the features of the first T and the answers of the last H
        ones."""
        labels = [] if self.labels is None else [self.labels]
        parts = [(rows, [self.features, *labels])]
        if horizon:
            parts = [(rows[:, :-horizon], [self.features]), (rows[:, -horizon:], labels)]
        features, *answers = (array for part, read in parts if read for array in self._read(part, read))
        return features, answers[0] if answers else None

    def _read(self, rows: np.ndarray, read: Sequence[_Reading]) -> list[np.ndarray]:
        manifest, rows = self.shards.manifest, rows.reshape(-1)
        arrays = [reading.empty(rows.size) for reading in read]
        shards = np.searchsorted(manifest.shard_starts, rows, side="right") - 1
        for shard in np.flatnonzero(np.bincount(shards)).tolist():
            places = np.flatnonzero(shards == shard)
            positions = rows[places] - manifest.shard_starts[shard]
            reader = self.shards.checked(shard, positions)
            for reading, array in zip(read, arrays, strict=True):
                reading.gather(reader, positions, places, array)
            if manifest.total * manifest.sample_nbytes > MAX_MAPPED_NBYTES:
                reader.release()
        return arrays


class BufferPool:
    """Arrays whose memory returns to the pool when their last view is gone: the system clears new pages first, which
    costs as much as filling them. Keeps at most `max_nbytes` of unused memory. Thread-safe."""

    def __init__(self, max_nbytes: int):
        self.max_nbytes = max_nbytes
        self._free: list[np.ndarray] = []
        # Reentrant: garbage collection may drop an array and call give_back while this thread holds the lock.
        self._lock = threading.RLock()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An uninitialised array, like np.empty."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        return np.asarray(_BufferLease(self, self._take(nbytes), shape, dtype))

    def _take(self, nbytes: int) -> np.ndarray:
        with self._lock:
            for index, memory in enumerate(self._free):
                if nbytes <= memory.nbytes <= 2 * nbytes:
                    return self._free.pop(index)
        return np.empty(nbytes, np.uint8)

    def give_back(self, memory: np.ndarray) -> None:
        """Keep this memory for reuse, and drop the oldest if there is too much."""
        with self._lock:
            self._free.append(memory)
            while sum(free.nbytes for free in self._free) > self.max_nbytes:
                del self._free[0]


class _BufferLease:
    """The owner of an array's memory. Every view of the array refers to it, so it outlives all of them."""

    def __init__(self, pool: BufferPool, memory: np.ndarray, shape: tuple[int, ...], dtype: np.dtype):
        self._pool = pool
        self._memory = memory
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (memory.ctypes.data, False),
        }

    def __del__(self) -> None:
        self._pool.give_back(self._memory)


_buffers = BufferPool(4 * MAX_CHUNK_NBYTES)

# A process maps each shard once for all its loaders and tasks. A forked child starts without mappings.
_lock = threading.Lock()
_loaders: WeakSet[Loader] = WeakSet()  # that are open


@lru_cache(maxsize=16)
def _shard_folder(folder: str, digest: str) -> ShardFolder:
    manifest = Manifest.load(Path(folder))
    if manifest.digest != digest:
        raise DataError(
            f"{folder}: differs from the version of the data set with which the job was prepared. "
            "Give every host the same copy, and start again."
        )
    shards = ShardFolder(manifest)
    shards.check()
    return shards


@lru_cache(maxsize=64)
def _opened(spec: LoadSpec) -> _Source:
    shards = _shard_folder(spec.folder, spec.digest)
    store = StoreProto.FromString(spec.store)
    dtype = np.dtype(spec.dtype)
    column, labels = columns_of(store, shards.manifest)
    column = record_column(store, column)
    features = _Reading(column, make_normaliser(store, column, dtype), max(1, store.time_steps))
    read = None
    if labels is not None and labels.role is Role.LABEL:
        read = _Reading(labels, Normaliser(dtype=dtype.type if labels.of_positions else np.int64))
    elif labels is not None:
        read = _Reading(labels, make_target_normaliser(store, labels, dtype))
    return _Source(shards, features, read)


def _source(spec: LoadSpec) -> _Source:
    with _lock:
        return _opened(spec)


def _close_unused() -> None:
    if not _loaders:
        close_shards()


def close_shards() -> None:
    """Close the shards that this process has mapped; other loaders open them again."""
    with _lock:
        _shard_folder.cache_clear()
        _opened.cache_clear()


def _forget() -> None:
    global _lock, _buffers
    _lock, _buffers = threading.Lock(), BufferPool(4 * MAX_CHUNK_NBYTES)
    _loaders.clear()
    close_shards()


os.register_at_fork(after_in_child=_forget)
