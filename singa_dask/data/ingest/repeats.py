"""Samples that are in several splits, counted by hashes of their values."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from singa_dask.data.columns import Role
from singa_dask.data.ingest.run import Report, run_all
from singa_dask.data.manifest import Manifest
from singa_dask.data.shards import ShardFolder

logger = logging.getLogger(__name__)

MAX_SAMPLES = 20_000_000
CHUNK_NBYTES = 1 << 17
COMPARED = (Role.FEATURE, Role.LABEL, Role.TARGET)
NAMES = {"train": "training"}
_A, _B, _C = (np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def note_repeats(
    manifests: Mapping[str, Manifest], client: Any, report: Report, *, durable: bool
) -> dict[str, Manifest]:
    """The manifests with a note where samples of a split are also in an earlier one.

    manifests: of finished folders, by split. client: of a cluster whose workers read the shards; by default,
    threads do it.
    """
    noted = dict(manifests)
    if sum(manifest.total for manifest in noted.values()) > MAX_SAMPLES:
        return noted
    shards = [(split, index) for split, manifest in noted.items() for index in range(len(manifest.shards))]
    told = {place: f"shard {index}" for place, (_, index) in enumerate(shards)}
    found = run_all(shard_hashes, dict(enumerate(shards)), client, report, told, [noted])
    hashes = {
        split: np.sort(np.concatenate([found[place] for place, (own, _) in enumerate(shards) if own == split]))
        for split in noted
    }
    for before, split in combinations(manifests, 2):
        places = np.searchsorted(hashes[before], hashes[split])  # fast, since both are sorted
        count = int((hashes[before].take(places, mode="clip") == hashes[split]).sum())
        if count:
            total, names = noted[split].total, (NAMES.get(name, name) for name in (split, before))
            note = "{:,} of {:,} {} samples are also among the {} samples".format(count, total, *names)
            logger.warning("%s. Remove them, or keep equal ones in one split by groups (--test-groups).", note)
            noted[split] = replace(noted[split], notes=(*noted[split].notes, note))
            noted[split].write(noted[split].path_in(""), durable=durable)
    return noted


def shard_hashes(manifests: Mapping[str, Manifest], split: str, index: int) -> np.ndarray:
    """A hash of the features, labels and targets of each sample of a shard: (samples,) uint64."""
    manifest = manifests[split]
    reader = ShardFolder(manifest).reader(index)
    hashes = np.zeros(reader.shard.samples, np.uint64)
    for place, column in enumerate(column for column in manifest.columns if column.role in COMPARED):
        hashes = row_hashes(reader.column(column.name), place) + hashes * _A
    return hashes


def row_hashes(rows: np.ndarray, seed: int = 0) -> np.ndarray:
    """A hash of the bytes of each row: (n,) uint64. Words of eight bytes are mixed with their places, and added up."""
    rows = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    words = -(-rows.shape[1] // 8)
    keys = _mixed(np.arange(seed << 40, (seed << 40) + words, dtype=np.uint64) * _A + _C)
    step = max(1, CHUNK_NBYTES // (8 * words))
    hashes = np.empty(len(rows), np.uint64)
    padded = np.zeros((min(step, len(rows)), 8 * words), np.uint8)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        padded[: len(part), : rows.shape[1]] = part
        mixed = _mixed(padded[: len(part)].view(np.uint64) + keys)
        hashes[start : start + step] = _mixed(mixed.sum(axis=1, dtype=np.uint64))
    return hashes


def _mixed(words: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64, in place: one to one, and every bit depends on all."""
    for shift, factor in ((30, _B), (27, _C)):
        words ^= words >> np.uint64(shift)
        words *= factor
    words ^= words >> np.uint64(31)
    return words
