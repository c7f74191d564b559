"""The partition of the flat parameters into buckets, and of each bucket into slices of one worker and one server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from singa_dask.exchange.buckets import Bucket
from singa_dask.net.flat import ALIGNMENT


@dataclass(frozen=True)
class ParameterSlice:
    """Elements [start, stop) of the flat parameters, which worker `worker` of every group exchanges with server
    `server` of its server group in one message each way."""

    index: int
    start: int
    stop: int
    worker: int
    server: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Partition:
    """buckets: of the replicated parameters, without gaps. slices: of all parameters, in their order, without gaps.
    own_starts: where each worker's own shards begin, if there are any."""

    size: int
    slices: tuple[ParameterSlice, ...]
    buckets: tuple[Bucket, ...]
    own_starts: tuple[int, ...] = ()

    def of_worker(self, worker: int) -> tuple[ParameterSlice, ...]:
        """The slices of one worker, in its own coordinates: its own shards follow the replicated parameters."""
        replicated = self.buckets[-1].stop if self.buckets else 0
        shift = self.own_starts[worker] - replicated if self.own_starts else 0
        return tuple(
            s if s.start < replicated else replace(s, start=s.start - shift, stop=s.stop - shift)
            for s in self.slices
            if s.worker == worker
        )

    def dealt_to(self, workers: int) -> Partition:
        """The same slices in a group of fewer workers, each with those of one or more workers of a whole group.

        Without own shards, which are of as many workers as the group was made for.
        """
        if not self.buckets:
            return self
        whole = len(self.buckets[0].counts)
        owners = [worker * workers // whole for worker in range(whole)]
        firsts = [*(owners.index(worker) for worker in range(workers)), whole]
        buckets = [replace(b, counts=tuple(sum(b.counts[i:j]) for i, j in pairwise(firsts))) for b in self.buckets]
        slices = [replace(s, worker=owners[s.worker]) for s in self.slices]
        return replace(self, slices=tuple(slices), buckets=tuple(buckets))

    def of_server(self, server: int) -> tuple[ParameterSlice, ...]:
        """The slices of one server."""
        return tuple(s for s in self.slices if s.server == server)


def even_cuts(size: int, n: int) -> list[int]:
    """Lengths of n consecutive ranges: multiples of 16 that differ by at most 16, with sum `size`.

    >>> even_cuts(64, 3)
    [32, 16, 16]
    """
    blocks, extra = divmod(size // ALIGNMENT, n)
    return [ALIGNMENT * (blocks + (i < extra)) for i in range(n)]


def _lengths(first: int, last: int, n: int, cuts: Sequence[int] | None) -> list[int]:
    """Lengths of n consecutive ranges of [first, last), as even as the places where it may be cut allow."""
    if cuts is None:
        return even_cuts(last - first, n)
    allowed = [first, *(cut for cut in cuts if first < cut < last), last]
    even = (first + (last - first) * i / n for i in range(n + 1))
    return [stop - start for start, stop in pairwise(min(allowed, key=lambda cut: abs(cut - end)) for end in even)]


def partition(
    size: int,
    nworkers: int,
    nservers: int,
    *,
    beside: bool,
    bounds: Sequence[int] | None = None,
    own: Sequence[int] = (),
    cuts: Sequence[int] | None = None,
) -> Partition:
    """Partition `size` replicated elements (a multiple of 16) and each worker's `own` for groups of `nworkers` workers
    and `nservers` servers.

    beside: whether servers share the workers' processes. If every server then has a worker in its process, both own
    the same part of a bucket, so that nothing is sent twice. Otherwise each worker has an equal part, for any servers.
    bounds: the bounds of the buckets (multiples of 16); by default one bucket. cuts: where replicated parameters may
    be cut, besides these bounds: ascending multiples of 16; by default at all of them.
    """
    slices: list[ParameterSlice] = []
    buckets: list[Bucket] = []
    for first, last in pairwise([0, size] if bounds is None else bounds):
        owned, counts = (_lengths(first, last, n, cuts) for n in (nservers, nworkers))
        if beside and nservers <= nworkers:
            counts = owned + [0] * (nworkers - nservers)
        buckets.append(Bucket(first, last, tuple(counts)))
        ends = sorted({0, *accumulate(counts), *accumulate(owned)})
        workers, servers = _owners(counts, ends), _owners(owned, ends)
        for worker, server, (start, stop) in zip(workers, servers, pairwise(ends), strict=True):
            slices.append(ParameterSlice(len(slices), first + start, first + stop, worker, server))
    starts = [size + before for before in accumulate(own, initial=0)]
    for worker, (first, last) in enumerate(pairwise(starts)):
        lengths = even_cuts(last - first, nservers)
        if beside and nservers == nworkers:  # the server in the worker's process
            lengths = [(last - first) * (server == worker) for server in range(nservers)]
        for server, (start, stop) in enumerate(pairwise(accumulate(lengths, initial=first))):
            if start < stop:
                slices.append(ParameterSlice(len(slices), start, stop, worker, server))
    return Partition(starts[-1], tuple(slices), tuple(buckets), tuple(starts[:-1]))


def _owners(counts: Sequence[int], cuts: Sequence[int]) -> list[int]:
    """The index of the range that each piece between two cuts belongs to."""
    owners: list[int] = []
    member, end = 0, counts[0]
    for start in cuts[:-1]:
        while start >= end:
            member += 1
            end += counts[member]
        owners.append(member)
    return owners
