"""Buckets: the stretches of the flat gradients that are sent together, each as soon as it is complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from singa_dask.comm.communicator import part_of
from singa_dask.layers.partition import even_bounds
from singa_dask.net.flat import Entry


@dataclass(frozen=True)
class Bucket:
    """Elements [start, stop) of the flat parameters. counts: elements of every rank's part, in rank order."""

    start: int
    stop: int
    counts: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def elements(self) -> slice:
        """Where the bucket lies in a flat array."""
        return slice(self.start, self.stop)

    def part(self, rank: int) -> slice:
        """Where a rank's part lies in a flat array."""
        part = part_of(rank, self.counts)
        return slice(self.start + part.start, self.start + part.stop)


def bucket_bounds(starts: Iterable[int], size: int, wanted: int) -> list[int]:
    """Where `size` elements are cut into buckets: 0, ..., size.

    starts: where the parameters begin. Counted from the end, where backward passes begin, a bucket is closed once it
    has at least `wanted` elements. The rest at the front is a bucket of its own, the last to be complete.

    >>> bucket_bounds([0, 16, 48, 64], 96, 32)
    [0, 16, 64, 96]
    """
    bounds = [size]
    for start in sorted(starts, reverse=True):
        if 0 < start <= bounds[-1] - wanted:
            bounds.append(start)
    return [0, *reversed(bounds)] if size else [0]


def fused_buckets(entries: Sequence[Entry], size: int, threshold: int, nranks: int) -> list[Bucket]:
    """The flat gradients as SINGA's DistOpt sends them: parameters of more than `threshold` elements alone, smaller
    ones fused.

    Counted from the end, where backward passes begin, fused parameters are sent once they are more than `threshold`.
    """
    bounds = [size]
    behind = size
    for entry in reversed(entries):
        alone = entry.size > threshold
        if alone and behind < bounds[-1]:
            bounds.append(behind)
        if alone or bounds[-1] - entry.start > threshold:
            bounds.append(entry.start)
        behind = entry.start
    bounds = sorted({0, *bounds})
    return [Bucket(a, b, even_counts(b - a, nranks)) for a, b in pairwise(bounds)]


def even_counts(size: int, nranks: int) -> tuple[int, ...]:
    """How many of `size` elements each rank owns.

    >>> even_counts(8, 3)
    (2, 3, 3)
    """
    return tuple(stop - start for start, stop in pairwise(even_bounds(size, nranks)))
