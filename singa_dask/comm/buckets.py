"""What of the flat gradients travels together: runs that are sent as soon as they are complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from singa_dask.comm.buffers import run_of
from singa_dask.errors import TrainingError


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


class Readiness:
    """Which buckets are complete, told parameter by parameter."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        self._missing: list[set[str]] = [set() for _ in buckets]
        self._left: list[set[str]] = []
        self._of: dict[str, int] = {}

    def expect(self, name: str, start: int) -> None:
        """A parameter that begins at element `start`."""
        index = next(i for i, bucket in enumerate(self._buckets) if bucket.start <= start < bucket.stop)
        self._missing[index].add(name)
        self._of[name] = index

    def begin(self) -> None:
        """A new step: nothing is complete."""
        self._left = [set(names) for names in self._missing]

    def done(self, name: str) -> int | None:
        """The gradient of a parameter is complete; the bucket that is thereby complete, or None.

        Raises TrainingError where it was so before: what has been sent cannot be changed.
        """
        index = self._of[name]
        if name not in self._left[index]:
            raise TrainingError(
                f"the gradient of {name!r} was reported complete twice in one step: say so once, at its end."
            )
        self._left[index].remove(name)
        return None if self._left[index] else index
