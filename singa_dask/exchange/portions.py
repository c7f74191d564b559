"""Arrays of which every rank holds a portion, gathered on the first rank and sent from there block by block.

A block is a range of the whole array in C order. No rank holds more than its portion and a block.
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
from singa_dask.layers.partition import Portion, Shape
from singa_dask.net.flat import FlatParams

BLOCK = 1 << 20
"""Elements of a block, at most: large enough for disks and networks, and small beside a model."""


class Gathered:
    """An array of which each rank holds the portion `portion`.

    shape: of the whole array, with as many elements as `portion.shape`. held: (first, last) -> these elements of the
    own portion, in C order.
    """

    def __init__(
        self, comm: Communicator, portion: Portion, shape: Shape, dtype: Any, held: Callable[[int, int], np.ndarray]
    ) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self._comm, self._portion, self._held = comm, portion.of(comm.rank), held
        self._blocks = self._gather()

    @classmethod
    def of_array(cls, comm: Communicator, portion: Portion, shape: Shape, array: np.ndarray) -> Gathered:
        """An array whose portion this rank has in memory: flat, in C order."""
        return cls(comm, portion, shape, array.dtype, lambda first, last: array[first:last])

    @property
    def own_nbytes(self) -> int:
        """Bytes of the own portion."""
        return self._portion.size * self.dtype.itemsize

    def taken(self) -> Gathered:
        """The same array with a copy of the own portion as it is now."""
        own = np.array(self._held(0, self._portion.size), self.dtype)
        return Gathered.of_array(self._comm, self._portion, self.shape, own)

    def blocks(self) -> Iterator[np.ndarray]:
        """The blocks of the whole array in order, on the first rank; nothing on the others. Each is gathered once: who
        asks again gets those that are left. Collective."""
        return self._blocks

    def _gather(self) -> Iterator[np.ndarray]:
        comm, portion = self._comm, self._portion
        for first, last in blocks(portion):
            counts = _counts(portion, first, last)
            begin = _before(portion, first)
            # What a server sends need not be aligned, as MPI wants it.
            part = np.require(self._held(begin, begin + counts[comm.rank]), self.dtype, ["C", "ALIGNED"])
            whole = np.empty(last - first, self.dtype) if comm.rank == 0 else None
            comm.gather(part, whole, counts)
            if whole is not None:
                yield _joined(portion, whole, counts)


def send_portions(comm: Communicator, portion: Portion, array: Any, out: np.ndarray) -> None:
    """Set `out`, flat, to each rank's portion of the first rank's array, which the others need not give. Collective.

    array: has `flat[first:last]`, like NumPy's; None: zeros.
    """
    portion = portion.of(comm.rank)
    for first, last in blocks(portion):
        counts = _counts(portion, first, last)
        begin = _before(portion, first)
        send, sent = np.empty(0, out.dtype), [0] * comm.size
        if comm.rank == 0:
            whole = np.zeros(last - first, out.dtype) if array is None else array.flat[first:last]
            send, sent = _cut(portion, whole.astype(out.dtype, copy=False), counts), counts
        received = [counts[comm.rank], *[0] * (comm.size - 1)]
        comm.all_to_all(send, sent, out[begin : begin + received[0]], received)


def blocks(portion: Portion) -> Iterator[tuple[int, int]]:
    """Ranges [first, last) of the whole array: several runs along the axis that is split, or a piece of one.

    >>> list(blocks(Portion((2, 3), axis=1, bounds=(0, 1, 3), rank=0)))
    [(0, 6)]
    """
    run = _run(portion)
    size = prod(portion.shape)
    if run > BLOCK:
        for start in range(0, size, run):
            for first in range(start, start + run, BLOCK):
                yield first, min(first + BLOCK, start + run)
    elif size:
        step = BLOCK // run * run
        for first in range(0, size, step):
            yield first, min(first + step, size)


def held_by(rank: int, size: int, ranks: int) -> Portion:
    """The portions of a flat array that one rank has on its own."""
    return Portion((size,), 0, tuple(size if i > rank else 0 for i in range(ranks + 1)), rank)


def read_all(array: Any, out: np.ndarray) -> None:
    """Set `out`, flat, to all elements of an array that has `flat[first:last]`, block by block."""
    for first in range(0, out.size, BLOCK):
        last = min(first + BLOCK, out.size)
        out[first:last] = array.flat[first:last]


@dataclass(frozen=True)
class Holding:
    """What a rank has of a parameter on its servers, and where: from element `start` of its flat arrays.

    shape: of the whole parameter. portion: of as many elements; of a replicated parameter the rank's part, of a split
    one what the rank trains.
    """

    name: str
    shape: Shape
    portion: Portion
    start: int
    split: bool

    @property
    def elements(self) -> slice:
        return slice(self.start, self.start + self.portion.size)


def holdings(flat: FlatParams, own: FlatParams, exchange: BucketExchange) -> list[Holding]:
    """This rank's holdings: parts of the parameters that the exchange replicates, then its own portions of others."""
    found = []
    for entry in flat.entries:
        bucket = next(bucket for bucket in exchange.buckets if entry.start < bucket.stop)
        starts = [bucket.part(rank).start for rank in range(exchange.comm.size)]
        bounds = tuple(min(max(start - entry.start, 0), entry.size) for start in [*starts, bucket.stop])
        portion = Portion((entry.size,), 0, bounds, exchange.comm.rank)
        found.append(Holding(entry.name, entry.shape, portion, entry.start + portion.start, split=False))
    for entry, param in zip(own.entries, own.params, strict=True):
        assert param.portion is not None
        found.append(Holding(entry.name, param.whole_shape, param.portion, flat.size + entry.start, split=True))
    return found


def _tail(portion: Portion) -> int:
    return prod(portion.shape[portion.axis + 1 :])


def _run(portion: Portion) -> int:
    """Elements from one occurrence of the portion's range to the next."""
    return portion.bounds[-1] * _tail(portion)


def _before(portion: Portion, position: int) -> int:
    """How many elements of the portion are among the first `position` of the whole array."""
    occurrence, rest = divmod(position, _run(portion))
    tail = _tail(portion)
    width = (portion.stop - portion.start) * tail
    return occurrence * width + min(max(rest - portion.start * tail, 0), width)


def _counts(portion: Portion, first: int, last: int) -> list[int]:
    """Elements of each rank's portion in [first, last)."""
    portions = (portion.of(rank) for rank in range(len(portion.bounds) - 1))
    return [_before(each, last) - _before(each, first) for each in portions]


def _joined(portion: Portion, parts: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """The block whose ranks' parts these are, one after the other."""
    run = _run(portion)
    if parts.size <= run:
        return parts
    whole = np.empty((parts.size // run, run), parts.dtype)
    for columns, part in _columns(portion, parts, counts):
        whole[:, columns] = part.reshape(whole.shape[0], -1)
    return whole.reshape(-1)


def _cut(portion: Portion, whole: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """The inverse of `_joined`."""
    run = _run(portion)
    if whole.size <= run:
        return whole
    parts = np.empty(whole.size, whole.dtype)
    for columns, part in _columns(portion, parts, counts):
        part[...] = whole.reshape(-1, run)[:, columns].reshape(-1)
    return parts


def _columns(portion: Portion, parts: np.ndarray, counts: Sequence[int]) -> Iterator[tuple[slice, np.ndarray]]:
    """Where each rank's part lies in every run, and the part."""
    tail = _tail(portion)
    for rank, (start, stop) in enumerate(pairwise(portion.bounds)):
        if counts[rank]:
            yield slice(start * tail, stop * tail), parts[part_of(rank, counts)]
