"""Sequences: each row of a mini-batch has consecutive records and continues the same row of the previous one."""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.data.manifest import Manifest
from singa_dask.data.plan import BaseStream, StreamConf, draw_skip, share_rows
from singa_dask.errors import ConfigError, Problem

RULE = 1  # of the order of records: increase it with every change of the order, so that old checkpoints are refused


class SequenceStream(BaseStream):
    """The stream of sequences, for nets that carry their state from step to step.

    T = sequence, L = lookahead, B = batch size. Group g of G has the records [N g // G, N (g + 1) // G) of all N
    records, as a ring of n. Row b starts at record start_b = (n // B) b. Position t of T + L in row b of mini-batch k
    is

        record (skip + start_b + k T + t) mod n

    Row b of mini-batch k + 1 thus continues after the first T records of row b of mini-batch k. Nothing is shuffled.
    One pass has the whole sequences of T records that fit between the starts of two rows: no record is in two of them,
    and the fewer than T + L that are left of each row are in none.

    Raises ConfigError for values out of range, if the records were shuffled, and if the group has fewer than B (T + L)
    records: a mini-batch would contain a record twice.
    """

    def __init__(self, manifest: Manifest, conf: StreamConf):
        super().__init__(manifest, conf)
        _check_sequence(conf)
        check_order(manifest, conf)
        begin, end = _span(manifest.total, conf)
        self.first = begin + (end - begin) * conf.group // conf.ngroups
        self.samples = begin + (end - begin) * (conf.group + 1) // conf.ngroups - self.first
        self._check_room()
        self.skip = draw_skip(conf) % self.samples
        self._starts = self.samples // conf.batchsize * np.arange(conf.batchsize, dtype=np.int64)

    @property
    def row_records(self) -> int:
        """Records in a row of a mini-batch: T + L."""
        return self.conf.sequence + self.conf.lookahead

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch: the distance between the starts of two rows over T, rounded up."""
        longest = self.samples - int(self._starts[-1])
        return -(-longest // self.conf.sequence)

    @property
    def steps(self) -> int | None:
        """The steps of one pass; None if the stream is endless."""
        last = self.samples - int(self._starts[-1]) - self.conf.lookahead
        return min(self.samples // self.batchsize, last) // self.conf.sequence if self.conf.once else None

    def rows(self, step: int) -> int:
        """The rows of the mini-batch at `step`."""
        return self.batchsize

    def _order(self) -> list[Any]:
        conf = self.conf
        fields = ["sequence", RULE, self.manifest.digest, conf.batchsize, conf.sequence, conf.lookahead]
        return [*fields, conf.group, conf.ngroups, self.skip, *self._choice()]

    def batch(self, step: int) -> np.ndarray:
        """The record numbers of the group's mini-batch at `step`: (batchsize, T + L) int64."""
        return self._rows(step, 0, self.batchsize)

    def share(self, step: int, rank: int, nranks: int) -> tuple[int, np.ndarray]:
        """The first row, and the record numbers (rows, T + L), of worker `rank`'s contiguous share of the batch."""
        first, last = share_rows(self.batchsize, rank, nranks)
        return first, self._rows(step, first, last)

    def _rows(self, step: int, first: int, last: int) -> np.ndarray:
        begin = (self.skip + step * self.conf.sequence) % self.samples
        places = begin + self._starts[first:last, np.newaxis] + np.arange(self.row_records)
        return self.first + places % self.samples

    def _check_room(self) -> None:
        conf, total = self.conf, self.samples
        if total >= conf.batchsize * self.row_records:
            return
        part = f"the {total:,} records of {self.manifest.folder}"
        if conf.ngroups > 1:
            part += f" of one of {conf.ngroups} worker groups"
        most = total // self.row_records
        message = f"{conf.batchsize} rows of {self.row_records} records do not fit into {part}"
        hint = f"Use at most {most}, or a shorter sequence." if most else "Use a shorter sequence, or more data."
        raise ConfigError(Problem("store_conf.batchsize", message, str(conf.batchsize), hint))


def check_order(manifest: Manifest, conf: StreamConf) -> None:
    """Raise ConfigError if the records were shuffled when they were written."""
    if manifest.shuffled:
        message = f"reads sequences, and the records of {manifest.where} were written in random order"
        hint = "Write them again in the order of time: `singa-dask shard --no-shuffle`, or shard(shuffle=False)."
        raise ConfigError(Problem("store_conf.sequence", message, str(conf.sequence), hint))


def _span(total: int, conf: StreamConf) -> tuple[int, int]:
    """The records that training reads, or those that are held out of it: the last ones."""
    cut = total - round(total * conf.validation_share)
    return (cut, total) if conf.held_out and conf.validation_share else (0, cut)


def _check_sequence(conf: StreamConf) -> None:
    if conf.sequence < 1:
        raise ConfigError(Problem("store_conf.sequence", "must be at least 1", str(conf.sequence)))
    if conf.lookahead < 0:
        raise ConfigError(Problem("store_conf.lookahead", "must not be negative", str(conf.lookahead)))
    if conf.shuffle:
        message = "sequences cannot be shuffled: they keep the order of the records"
        raise ConfigError(Problem("store_conf.shuffle", message, "true", "Leave out shuffle or sequence."))
