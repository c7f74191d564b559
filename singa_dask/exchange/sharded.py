"""Arrays of which every rank holds a shard, gathered on the first rank and sent from there block by block.

A block is a range of the whole array in C order. No rank holds more than its shard and a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator, part_of
from singa_dask.exchange.base import BucketExchange
from singa_dask.layers.partition import ArrayShard, Shape
from singa_dask.net.flat import FlatParams

BLOCK = 1 << 20
"""Elements of a block, at most: large enough for disks and networks, and small beside a model."""


class Gathered:
    """An array of which each rank holds the shard `shard`.

    shape: of the whole array, with as many elements as `shard.shape`. held: (first, last) -> these elements of the
    own shard, in C order.
    """

    def __init__(
        self, comm: Communicator, shard: ArrayShard, shape: Shape, dtype: Any, held: Callable[[int, int], np.ndarray]
    ) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self._comm, self._shard, self._held = comm, shard.of(comm.rank), held
        self._blocks = self._gather()

    @classmethod
    def of_array(cls, comm: Communicator, shard: ArrayShard, shape: Shape, array: np.ndarray) -> Gathered:
        """An array whose shard this rank has in memory: flat, in C order."""
        return cls(comm, shard, shape, array.dtype, lambda first, last: array[first:last])

    @property
    def own_nbytes(self) -> int:
        """Bytes of the own shard."""
        return self._shard.size * self.dtype.itemsize

    def taken(self) -> Gathered:
        """The same array with a copy of the own shard as it is now."""
        own = np.array(self._held(0, self._shard.size), self.dtype)
        return Gathered.of_array(self._comm, self._shard, self.shape, own)

    def blocks(self) -> Iterator[np.ndarray]:
        """The blocks of the whole array in order, on the first rank; nothing on the others. Each is gathered once: who
        asks again gets those that are left. Collective."""
        return self._blocks

    def _gather(self) -> Iterator[np.ndarray]:
        comm, shard = self._comm, self._shard
        for first, last in blocks(shard):
            counts = _counts(shard, first, last)
            begin = _before(shard, first)
            # What a server sends need not be aligned, as MPI wants it.
            part = np.require(self._held(begin, begin + counts[comm.rank]), self.dtype, ["C", "ALIGNED"])
            whole = np.empty(last - first, self.dtype) if comm.rank == 0 else None
            comm.gather(part, whole, counts)
            if whole is not None:
                yield _joined(shard, whole, counts)


def send_shards(comm: Communicator, shard: ArrayShard, array: Any, out: np.ndarray) -> None:
    """Set `out`, flat, to each rank's shard of the first rank's array, which the others need not give. Collective.

    array: has `flat[first:last]`, like NumPy's; None: zeros.
    """
    shard = shard.of(comm.rank)
    for first, last in blocks(shard):
        counts = _counts(shard, first, last)
        begin = _before(shard, first)
        send, sent = np.empty(0, out.dtype), [0] * comm.size
        if comm.rank == 0:
            whole = np.zeros(last - first, out.dtype) if array is None else array.flat[first:last]
            send, sent = _cut(shard, whole.astype(out.dtype, copy=False), counts), counts
        received = [counts[comm.rank], *[0] * (comm.size - 1)]
        comm.all_to_all(send, sent, out[begin : begin + received[0]], received)


def blocks(shard: ArrayShard) -> Iterator[tuple[int, int]]:
    """Ranges [first, last) of the whole array: several runs along the axis that is split, or a piece of one.

    >>> list(blocks(ArrayShard((2, 3), axis=1, bounds=(0, 1, 3), rank=0)))
    [(0, 6)]
    """
    run = _run(shard)
    size = prod(shard.shape)
    if run > BLOCK:
        for start in range(0, size, run):
            for first in range(start, start + run, BLOCK):
                yield first, min(first + BLOCK, start + run)
    elif size:
        step = BLOCK // run * run
        for first in range(0, size, step):
            yield first, min(first + step, size)


def held_by(rank: int, size: int, ranks: int) -> ArrayShard:
    """The shards of a flat array that one rank has on its own."""
    return ArrayShard((size,), 0, tuple(size if i > rank else 0 for i in range(ranks + 1)), rank)


def read_all(array: Any, out: np.ndarray) -> None:
    """Set `out`, flat, to all elements of an array that has `flat[first:last]`, block by block."""
    for first in range(0, out.size, BLOCK):
        last = min(first + BLOCK, out.size)
        out[first:last] = array.flat[first:last]


@dataclass(frozen=True)
class Holding:
    """What a rank has of a parameter on its servers, and where: from element `start` of its flat arrays.

    shape: of the whole parameter. shard: of as many elements; of a replicated parameter the rank's part, of a split
    one what the rank trains.
    """

    name: str
    shape: Shape
    shard: ArrayShard
    start: int
    split: bool

    @property
    def elements(self) -> slice:
        return slice(self.start, self.start + self.shard.size)


def holdings(flat: FlatParams, own: FlatParams, exchange: BucketExchange) -> list[Holding]:
    """This rank's holdings: parts of the parameters that the exchange replicates, then its own shards of others."""
    found = []
    for entry in flat.entries:
        bucket = next(bucket for bucket in exchange.buckets if entry.start < bucket.stop)
        starts = [bucket.part(rank).start for rank in range(exchange.comm.size)]
        bounds = tuple(min(max(start - entry.start, 0), entry.size) for start in [*starts, bucket.stop])
        shard = ArrayShard((entry.size,), 0, bounds, exchange.comm.rank)
        found.append(Holding(entry.name, entry.shape, shard, entry.start + shard.start, split=False))
    for entry, param in zip(own.entries, own.params, strict=True):
        assert param.shard is not None
        found.append(Holding(entry.name, param.whole_shape, param.shard, flat.size + entry.start, split=True))
    return found


def _tail(shard: ArrayShard) -> int:
    return prod(shard.shape[shard.axis + 1 :])


def _run(shard: ArrayShard) -> int:
    """Elements from one occurrence of the shard's range to the next."""
    return shard.bounds[-1] * _tail(shard)


def _before(shard: ArrayShard, position: int) -> int:
    """How many elements of the shard are among the first `position` of the whole array."""
    occurrence, rest = divmod(position, _run(shard))
    tail = _tail(shard)
    width = (shard.stop - shard.start) * tail
    return occurrence * width + min(max(rest - shard.start * tail, 0), width)


def _counts(shard: ArrayShard, first: int, last: int) -> list[int]:
    """Elements of each rank's shard in [first, last)."""
    shards = (shard.of(rank) for rank in range(len(shard.bounds) - 1))
    return [_before(each, last) - _before(each, first) for each in shards]


def _joined(shard: ArrayShard, parts: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """The block whose ranks' parts these are, one after the other."""
    run = _run(shard)
    if parts.size <= run:
        return parts
    whole = np.empty((parts.size // run, run), parts.dtype)
    for columns, part in _columns(shard, parts, counts):
        whole[:, columns] = part.reshape(whole.shape[0], -1)
    return whole.reshape(-1)


def _cut(shard: ArrayShard, whole: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """The inverse of `_joined`."""
    run = _run(shard)
    if whole.size <= run:
        return whole
    parts = np.empty(whole.size, whole.dtype)
    for columns, part in _columns(shard, parts, counts):
        part[...] = whole.reshape(-1, run)[:, columns].reshape(-1)
    return parts


def _columns(shard: ArrayShard, parts: np.ndarray, counts: Sequence[int]) -> Iterator[tuple[slice, np.ndarray]]:
    """Where each rank's part lies in every run, and the part."""
    tail = _tail(shard)
    for rank, (start, stop) in enumerate(pairwise(shard.bounds)):
        if counts[rank]:
            yield slice(start * tail, stop * tail), parts[part_of(rank, counts)]
