"""How the flat parameters are cut: into one range per worker of a group, one per server of a group, and the slices in
which both agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from singa_dask.net.flat import ALIGNMENT


@dataclass(frozen=True)
class Slice:
    """Elements [start, stop) of the flat parameters, which worker `worker` of every group exchanges with server
    `server` of its server group, in one message each way."""

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
    """slices: in the order of the parameters, without gaps. counts: elements of every worker's range."""

    size: int
    slices: tuple[Slice, ...]
    counts: tuple[int, ...]

    def of_worker(self, worker: int) -> tuple[Slice, ...]:
        """The slices of one worker's range."""
        return tuple(s for s in self.slices if s.worker == worker)

    def of_server(self, server: int) -> tuple[Slice, ...]:
        """The slices that one server holds."""
        return tuple(s for s in self.slices if s.server == server)


def even_cuts(size: int, n: int) -> list[int]:
    """Lengths of n consecutive ranges: multiples of 16 elements that differ by at most 16 and add up to `size`.

    >>> even_cuts(64, 3)
    [32, 16, 16]
    """
    blocks, extra = divmod(size // ALIGNMENT, n)
    return [ALIGNMENT * (blocks + (i < extra)) for i in range(n)]


def partition(size: int, nworkers: int, nservers: int, *, beside: bool) -> Partition:
    """Cut `size` elements (a multiple of 16) for groups of `nworkers` workers and `nservers` servers.

    beside: servers share the workers' processes. Where every server then has a worker of its own, that worker's range
    is the server's, so that nothing travels twice; else each worker has an equal range, whichever servers own it.
    """
    owned = even_cuts(size, nservers)
    counts = owned + [0] * (nworkers - nservers) if beside and nservers <= nworkers else even_cuts(size, nworkers)
    cuts = sorted({0, *accumulate(counts), *accumulate(owned)})
    workers, servers = _owners(counts, cuts), _owners(owned, cuts)
    slices = [Slice(i, start, stop, workers[i], servers[i]) for i, (start, stop) in enumerate(pairwise(cuts))]
    return Partition(size, tuple(slices), tuple(counts))


def _owners(counts: Sequence[int], cuts: Sequence[int]) -> list[int]:
    """Whose range each piece between two cuts is in."""
    owners: list[int] = []
    member, end = 0, counts[0]
    for start in cuts[:-1]:
        while start >= end:
            member += 1
            end += counts[member]
        owners.append(member)
    return owners
