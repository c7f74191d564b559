"""Which samples form each mini-batch, and which of its rows each worker reads. Opens no files.

The shuffle permutes windows, and then the samples of eight windows at a time. Reading contiguous parts of a file is
far cheaper than reading single samples at random.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from singa_dask.data.manifest import Manifest, ShardWindow
from singa_dask.errors import ConfigError, Problem
from singa_dask.layers.partition import even_bounds

BLOCK_WINDOWS = 8
RULE = 1  # of the order of samples: increase it with every change of the order, so that old checkpoints are refused

# The purpose of a random draw, part of its key.
_GROUPS, _WINDOWS, _SAMPLES, _SKIP, _HELD_OUT = range(5)


@dataclass(frozen=True)
class StreamConf:
    """The settings of a stream. batchsize: of the whole worker group.

    sequence: consecutive records in a row of a mini-batch (0: a row is one sample); lookahead: further records at the
    end of a row. horizon: records after a row, whose labels or targets are those of the row; stride: records between
    the starts of rows that are windows; series: the first record of each series but the first one.
    validation_share: of the samples, held out of training; held_out: whether to read these or the others. once: end
    after every sample, with a short mini-batch if need be. `stream_of` creates the stream.
    """

    batchsize: int
    seed: int = 0
    group: int = 0
    ngroups: int = 1
    shuffle: bool = True
    random_skip: int = 0
    sequence: int = 0
    lookahead: int = 0
    validation_share: float = 0.0
    held_out: bool = False
    once: bool = False
    horizon: int = 0
    stride: int = 0
    series: tuple[int, ...] = ()


class BaseStream:
    """The sequence of mini-batches of one worker group: endless, or one pass with `once`.

    Its contents depend on (manifest, conf) only, not on the number of workers. A stream has no state: resuming at a
    step means requesting that step. samples: of the group.
    """

    samples: int

    def __init__(self, manifest: Manifest, conf: StreamConf):
        check_conf(conf)
        self.manifest, self.conf = manifest, conf

    @property
    def batchsize(self) -> int:
        return self.conf.batchsize

    @property
    def block_samples(self) -> int:
        """Samples in the unit of reading ahead."""
        return min(self.samples, BLOCK_WINDOWS * self.manifest.window)

    @property
    def fingerprint(self) -> str:
        """Equal if and only if every step has the same samples. A checkpoint stores it with the step."""
        return hashlib.blake2b(json.dumps(self._order()).encode(), digest_size=16).hexdigest()

    def _order(self) -> list[Any]:
        """What the order of the samples depends on."""
        raise NotImplementedError

    def _choice(self) -> list[Any]:
        """What it depends on if some samples are held out, or all are read once."""
        conf = self.conf
        share = [conf.validation_share, conf.held_out] if conf.validation_share else []
        return [*share, "once"] if conf.once else share

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.manifest, self.conf)


class Stream(BaseStream):
    """The stream of single samples.

    The group's windows are concatenated epoch after epoch, each epoch in a different order. Mini-batch k has the
    samples [skip + k B, skip + (k + 1) B) of this sequence, where B is the group's batch size. A mini-batch may span
    epochs.

    Raises ConfigError if the batch size is not positive or there are fewer windows than groups.
    """

    _step = 1  # between the numbers of two samples of a window

    def __init__(self, manifest: Manifest, conf: StreamConf):
        super().__init__(manifest, conf)
        windows = self._own_windows()
        _check_windows(manifest, windows, conf)
        self.windows = group_windows(windows, conf)
        self.samples = sum(window.samples for window in self.windows)
        self._starts = np.array([window.start for window in self.windows], dtype=np.int64)
        self._sizes = np.array([window.samples for window in self.windows], dtype=np.int64)
        self.skip = draw_skip(conf)
        # A mini-batch needs one or two epochs and a few blocks, mostly the same as the next ones.
        self._epoch = lru_cache(maxsize=4)(self._plan_epoch)
        self._block = lru_cache(maxsize=8)(self._plan_block)

    def _own_windows(self) -> list[ShardWindow]:
        return own_windows(self.manifest, self.conf)

    @property
    def row_records(self) -> int:
        """Records in a row of a mini-batch."""
        return 1

    @property
    def block_windows(self) -> int:
        """Windows whose samples are shuffled together."""
        return BLOCK_WINDOWS

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch: the epoch's samples over the batch size, rounded up."""
        return -(-self.samples // self.batchsize)

    def _order(self) -> list[Any]:
        conf = self.conf
        fields = [RULE, BLOCK_WINDOWS, self.manifest.digest, conf.batchsize, conf.seed, conf.group, conf.ngroups]
        return [*fields, conf.shuffle, conf.random_skip, *self._choice()]

    @property
    def steps(self) -> int | None:
        """The steps of one pass; None if the stream is endless."""
        return self.steps_per_epoch if self.conf.once else None

    def rows(self, step: int) -> int:
        """The rows of the mini-batch at `step`: the batch size, or what is left of one pass."""
        left = self.samples - step * self.batchsize
        return max(0, min(self.batchsize, left)) if self.conf.once else self.batchsize

    def batch(self, step: int) -> np.ndarray:
        """The sample numbers of the group's mini-batch at `step`, in the order of the files: (rows,) int64."""
        start = self.skip + step * self.batchsize
        return np.sort(self.run(start, start + self.rows(step)))

    def share(self, step: int, rank: int, nranks: int) -> tuple[int, np.ndarray]:
        """The first row and the sample numbers of worker `rank`'s contiguous share of the batch at `step`.

        A mini-batch is in the order of the files, so each worker reads about 1/nranks of each block.
        """
        first, last = share_rows(self.rows(step), rank, nranks)
        return first, self.batch(step)[first:last]

    def run(self, start: int, stop: int) -> np.ndarray:
        """Samples [start, stop) of the endless order: (stop - start,) int64 sample numbers."""
        pieces = []
        while start < stop:
            epoch, offset = divmod(start, self.samples)
            ends = self._epoch(epoch)[1]
            block = int(np.searchsorted(ends, offset, side="right"))
            rows = self._block(epoch, block)
            first = offset - (int(ends[block]) - rows.size)
            piece = rows[first : first + stop - start]
            pieces.append(piece)
            start += piece.size
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    def _plan_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The order of the windows, and the end of each block in samples from the epoch's start."""
        order = np.arange(self._sizes.size)
        if self.conf.shuffle:
            order = permutation((self.conf.seed, _WINDOWS, self.conf.group, epoch), order.size)
        ends = np.cumsum(np.add.reduceat(self._sizes[order], np.arange(0, order.size, self.block_windows)))
        return order, ends

    def _plan_block(self, epoch: int, block: int) -> np.ndarray:
        """The sample numbers of one block, in the order of the stream."""
        order = self._epoch(epoch)[0]
        members = order[block * self.block_windows : (block + 1) * self.block_windows]
        runs = [self._starts[w] + self._step * np.arange(self._sizes[w]) for w in members]
        rows = np.concatenate(runs)
        if self.conf.shuffle:
            rows = rows[permutation((self.conf.seed, _SAMPLES, self.conf.group, epoch, block), rows.size)]
        return rows


def draw_skip(conf: StreamConf) -> int:
    """The samples to skip at the start: 0 to random_skip, drawn from the seed."""
    if not conf.random_skip:
        return 0
    return int(_raw((conf.seed, _SKIP, conf.group), 1)[0] % np.uint64(conf.random_skip + 1))


def share_rows(total: int, rank: int, nranks: int) -> tuple[int, int]:
    """Rows [first, last) of worker `rank` of `nranks` in a mini-batch of `total` rows. Sizes differ by at most 1."""
    bounds = even_bounds(total, nranks)
    return bounds[rank], bounds[rank + 1]


def own_windows(manifest: Manifest, conf: StreamConf) -> list[ShardWindow]:
    """The windows that training reads, or those that are held out of it: a random choice that depends on nothing but
    the number of windows and the share.

    Raises ConfigError if one of the two would be empty.
    """
    windows = list(manifest.windows)
    if not conf.validation_share:
        return windows
    order = permutation((_HELD_OUT, len(windows)), len(windows))
    samples = np.cumsum([windows[index].samples for index in order])
    count = int(np.searchsorted(samples, conf.validation_share * manifest.total)) + 1
    if count >= len(windows):
        message = f"holds out all {len(windows)} windows of {manifest.folder}"
        hint = "Use a smaller share, or write the shards again with a smaller --window."
        raise ConfigError(Problem("store_conf.validation_share", message, f"{conf.validation_share:g}", hint))
    held_out = set(order[:count].tolist())
    return [window for index, window in enumerate(windows) if (index in held_out) == conf.held_out]


def group_windows(windows: Sequence[ShardWindow], conf: StreamConf) -> list[ShardWindow]:
    """The windows of one worker group, in the order of the files.

    The groups' windows are disjoint and cover the data set. Groups differ by at most one window of samples.
    """
    if conf.ngroups == 1:
        return list(windows)
    shuffled = permutation((conf.seed, _GROUPS, conf.ngroups), len(windows))
    # Largest window first, to the smallest group: the short windows at the ends of shards balance the rest.
    loads = [0] * conf.ngroups
    mine = []
    for index in sorted(shuffled, key=lambda i: -windows[i].samples):
        group = loads.index(min(loads))
        loads[group] += windows[index].samples
        if group == conf.group:
            mine.append(int(index))
    return [windows[index] for index in sorted(mine)]


def permutation(key: tuple[int, ...], size: int) -> np.ndarray:
    """A random permutation of range(size) that depends on `key` only: (size,) int64.

    NumPy guarantees the raw output of its bit generators across versions, but not its shuffles.
    """
    return np.argsort(_raw(key, size), kind="stable")


def _raw(key: tuple[int, ...], size: int) -> np.ndarray:
    return np.random.PCG64(np.random.SeedSequence(key)).random_raw(size)


def check_conf(conf: StreamConf) -> None:
    """Check the settings of a stream. Raises ConfigError."""
    if conf.batchsize < 1:
        raise ConfigError(Problem("store_conf.batchsize", "must be at least 1", str(conf.batchsize)))
    if conf.random_skip < 0:
        raise ConfigError(Problem("store_conf.random_skip", "must not be negative", str(conf.random_skip)))
    if not 0 <= conf.group < conf.ngroups:
        raise ConfigError(Problem("group", f"must be from 0 to {conf.ngroups - 1}", str(conf.group)))


def _check_windows(manifest: Manifest, windows: Sequence[ShardWindow], conf: StreamConf) -> None:
    if len(windows) < conf.ngroups:
        message = f"{conf.ngroups} worker groups cannot share the {len(windows)} windows of {manifest.folder}"
        hint = "Use fewer groups, or write the shards again with a smaller --window."
        raise ConfigError(Problem("cluster.nworker_groups", message, str(conf.ngroups), hint))
