"""The gradient pipeline: when a bucket is complete, in which order buckets pass their stages, and the waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Literal, Protocol, TypeVar

from singa_dask.errors import TrainingError
from singa_dask.exchange.buckets import Bucket
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.layers.param import Param
from singa_dask.net.flat import Entry
from singa_dask.tracing import span

T = TypeVar("T")
Stage = Literal["start", "update", "gather"]


class Stages(Protocol):
    """What becomes of a bucket, by index. A job and DistOpt each supply one.

    at_once: whether the computing thread prepares a bucket. Arrays on a device are prepared in the thread of the
    collectives instead, so that the computing thread never waits for the device.
    """

    at_once: bool

    def prepare(self, bucket: int) -> None:
        """Make complete gradients ready to be sent; waits for no rank."""

    def start(self, bucket: int) -> None:
        """Start to send them."""

    def update(self, bucket: int) -> None:
        """Make the new values of this rank's part from the sum, and start to send these."""

    def gather(self, bucket: int) -> None:
        """Take the new values of the other ranks."""

    def finish(self) -> None:
        """Complete the step: all buckets have passed their stages."""


class GradientPipeline:
    """Passes the buckets of a step through their stages, beside the backward pass where that is faster.

        result = pipeline.run(stages, compute)

    compute: called with on_gradient, which it calls with each parameter as soon as its gradient is complete; with None
    in a step without overlap. entries: of the parameters. One that lies in no bucket takes no part. ahead: whether
    buckets are started before earlier ones are complete, for communicators whose operations proceed by themselves.
    """

    def __init__(
        self, executor: CollectiveExecutor, buckets: Sequence[Bucket], entries: Iterable[Entry], *, ahead: bool
    ) -> None:
        self._executor, self._ahead = executor, ahead
        self._count = len(buckets)
        self._readiness = Readiness(buckets, entries)

    def run(self, stages: Stages, compute: Callable[[Callable[[Param], None] | None], T]) -> T:
        """One step; returns what `compute` returns. Raises what it raises, or what a stage of this rank raised."""
        self._readiness.begin()
        self._executor.begin_step()
        overlaps = self._executor.overlaps
        submitted: list[Future[None]] = []

        def leave(buckets: Iterable[int]) -> None:
            for bucket in buckets:
                if stages.at_once:  # beside the computing it would compete for the core, and leave later
                    _run(stages, "prepare", bucket)
                following = stages_after(bucket, self._count, ahead=self._ahead, overlaps=overlaps)
                submitted.append(self._executor.submit(_pass, stages, following))

        def on_gradient(param: Param) -> None:
            leave(self._readiness.complete(param.owner.name))

        result = compute(on_gradient if overlaps else None)
        leave(self._readiness.rest())  # without overlap all; a user's algorithm need not report parameters
        for future in submitted:
            self._executor.wait(future)
        stages.finish()
        self._executor.end_step()
        return result


def _pass(stages: Stages, following: Iterable[tuple[Stage, int]]) -> None:
    for stage, bucket in following:
        if stage == "start" and not stages.at_once:
            _run(stages, "prepare", bucket)
        _run(stages, stage, bucket)


def _run(stages: Stages, stage: str, bucket: int) -> None:
    with span(stage, bucket=bucket):
        getattr(stages, stage)(bucket)


def stages_after(bucket: int, count: int, *, ahead: bool, overlaps: bool) -> list[tuple[Stage, int]]:
    """The stages that follow when a bucket is complete, in the same order on all ranks. The last of `count` buckets is
    complete first.

    ahead: buckets are pipelined: start k, update k + 1, gather k + 2. overlaps: with the backward pass; then no bucket
    waits for bucket 0, whose gradients are complete last.

    >>> stages_after(3, 4, ahead=True, overlaps=True), stages_after(2, 4, ahead=True, overlaps=True)
    ([('start', 3)], [('start', 2), ('update', 3)])
    >>> stages_after(1, 4, ahead=True, overlaps=True)
    [('start', 1), ('update', 2), ('gather', 3), ('update', 1), ('gather', 2), ('gather', 1)]
    >>> stages_after(0, 4, ahead=True, overlaps=True)
    [('start', 0), ('update', 0), ('gather', 0)]
    """
    pipelined = ahead and (bucket > 0 or not overlaps)
    first, last = (count - 1, int(overlaps and count > 1)) if pipelined else (bucket, bucket)
    stages: list[tuple[Stage, int]] = [("start", bucket), ("update", bucket + 1), ("gather", bucket + 2)]
    if bucket == last:
        stages += [("update", last), ("gather", last + 1), ("gather", last)]
    return [(stage, each) for stage, each in stages if each <= first]


class Readiness:
    """Which buckets may leave: the last first, each once it is complete and all behind it have left."""

    def __init__(self, buckets: Sequence[Bucket], entries: Iterable[Entry]) -> None:
        self._bucket_of = {
            entry.name: index
            for entry in entries
            for index, bucket in enumerate(buckets)
            if bucket.start <= entry.start < bucket.stop
        }
        self._count = len(buckets)
        self._incomplete: set[str] = set()
        self._missing: list[int] = []
        self._waiting: list[int] = []

    def begin(self) -> None:
        """Begin a step: nothing is complete."""
        self._incomplete = set(self._bucket_of)
        self._missing = [0] * self._count
        for index in self._bucket_of.values():
            self._missing[index] += 1
        self._waiting = list(range(self._count))

    def complete(self, name: str) -> list[int]:
        """The gradient of a parameter is complete; returns the buckets that leave now, in their order.

        Raises TrainingError if it was complete before: what was sent cannot be changed.
        """
        if name not in self._bucket_of:
            return []
        if name not in self._incomplete:
            raise TrainingError(
                f"the gradient of {name!r} was reported complete twice in one step: report it once, at its end."
            )
        self._incomplete.remove(name)
        self._missing[self._bucket_of[name]] -= 1
        leaving = []
        while self._waiting and not self._missing[self._waiting[-1]]:
            leaving.append(self._waiting.pop())
        return leaving

    def rest(self) -> list[int]:
        """All gradients are complete; returns the buckets that have not left."""
        leaving, self._waiting = self._waiting[::-1], []
        return leaving
