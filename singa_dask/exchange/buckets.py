"""What of the flat gradients travels together: runs that are sent as soon as they are complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from singa_dask.comm.buffers import run_of
from singa_dask.errors import TrainingError

Stage = Literal["start", "update", "gather"]


@dataclass(frozen=True)
class Bucket:
    """Elements [start, stop) of the flat parameters. counts: elements of every worker's run of them, in rank order."""

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

    def run(self, rank: int) -> slice:
        """Where a worker's run lies in a flat array."""
        run = run_of(rank, self.counts)
        return slice(self.start + run.start, self.start + run.stop)


def bucket_bounds(starts: Iterable[int], size: int, wanted: int) -> list[int]:
    """Where `size` elements are cut into buckets: 0, ..., size.

    starts: where the parameters begin. A bucket is closed once it has at least `wanted` elements, counted from the
    end, where backward passes begin; what is left at the front, the last to be complete, is a bucket of its own.

    >>> bucket_bounds([0, 16, 48, 64], 96, 32)
    [0, 16, 64, 96]
    """
    bounds = [size]
    for start in sorted(starts, reverse=True):
        if 0 < start <= bounds[-1] - wanted:
            bounds.append(start)
    return [0, *reversed(bounds)] if size else [0]


def due(bucket: int, count: int, *, ahead: bool, beside: bool) -> list[tuple[Stage, int]]:
    """What of an exchange comes next when a bucket is complete, the last of `count` buckets being the first; in the
    same order on all ranks.

    ahead: whether a bucket is started while the one before it is updated and the one before that is gathered, so that
    it travels meanwhile. beside: whether backward passes go on meanwhile; then no bucket waits for bucket 0, the
    gradients of which are the last.

    >>> due(3, 4, ahead=True, beside=True), due(2, 4, ahead=True, beside=True)
    ([('start', 3)], [('start', 2), ('update', 3)])
    >>> due(1, 4, ahead=True, beside=True)
    [('start', 1), ('update', 2), ('gather', 3), ('update', 1), ('gather', 2), ('gather', 1)]
    >>> due(0, 4, ahead=True, beside=True)
    [('start', 0), ('update', 0), ('gather', 0)]
    """
    first, last = (count - 1, int(beside and count > 1)) if ahead and (bucket > 0 or not beside) else (bucket, bucket)
    under_way: list[tuple[Stage, int]] = [("start", bucket), ("update", bucket + 1), ("gather", bucket + 2)]
    if bucket == last:
        under_way += [("update", last), ("gather", last + 1), ("gather", last)]
    return [(stage, each) for stage, each in under_way if each <= first]


class Readiness:
    """Which buckets may leave, told parameter by parameter: the last first, each once those behind it have left."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        self._missing: list[set[str]] = [set() for _ in buckets]
        self._left: list[set[str]] = []
        self._waiting: list[int] = []
        self._of: dict[str, int] = {}

    def expect(self, name: str, start: int) -> None:
        """A parameter that begins at element `start`."""
        index = next(i for i, bucket in enumerate(self._buckets) if bucket.start <= start < bucket.stop)
        self._missing[index].add(name)
        self._of[name] = index

    def begin(self) -> None:
        """A new step: nothing is complete."""
        self._left = [set(names) for names in self._missing]
        self._waiting = list(range(len(self._buckets)))

    def done(self, name: str) -> list[int]:
        """The gradient of a parameter is complete; the buckets that thereby leave, in their order.

        Raises TrainingError where it was so before: what has been sent cannot be changed.
        """
        left = self._left[self._of[name]]
        if name not in left:
            raise TrainingError(
                f"the gradient of {name!r} was reported complete twice in one step: say so once, at its end."
            )
        left.remove(name)
        leaving = []
        while self._waiting and not self._left[self._waiting[-1]]:
            leaving.append(self._waiting.pop())
        return leaving

    def rest(self) -> list[int]:
        """All gradients are complete; the buckets that had not left."""
        leaving, self._waiting = self._waiting[::-1], []
        return leaving
