"""All parameters of a net in one flat array, and all gradients in another.

One kernel call then updates a slice, a message is a slice, and a checkpoint is one write. Every parameter starts at a
multiple of 16 elements (a cache line of float32); the padding in between stays zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from singa_dask.errors import CheckpointError, nearest
from singa_dask.layers.param import Param, Shape
from singa_dask.ops.arrays import Array

if TYPE_CHECKING:
    from singa_dask.ops import Ops

ALIGNMENT = 16


@dataclass(frozen=True)
class Entry:
    """The place of one parameter in the flat arrays, and its factors on learning rate and weight decay.

    statistic: its gradient is subtracted as it is, without an updater.
    """

    name: str
    shape: Shape
    start: int
    size: int
    lr_scale: float = 1.0
    wd_scale: float = 1.0
    statistic: bool = False

    @property
    def stop(self) -> int:
        return self.start + self.size

    def moved(self, by: int) -> Entry:
        """The entry `by` elements further on."""
        return replace(self, start=self.start + by)


@dataclass
class FlatParams:
    """values, grads: (size,) arrays of the net's Ops; params: in order of position; entries: their places."""

    values: Array
    grads: Array
    entries: list[Entry]
    params: Sequence[Param]
    size: int

    @classmethod
    def of(cls, params: Sequence[Param], ops: Ops, *, allocate: bool = True) -> FlatParams:
        """Zeroed arrays for `params`, bound to their places; without `allocate` only the places."""
        entries = layout(params)
        size = _aligned(entries[-1].stop) if entries else 0
        flat = cls(ops.zeros((0,)), ops.zeros((0,)), entries, params, size)
        if allocate:
            flat.allocate(ops)
        return flat

    def allocate(self, ops: Ops) -> None:
        """Bind all parameters to zeroed arrays."""
        self.move(ops.zeros((self.size,)), ops.zeros((self.size,)))

    def move(self, values: Array, grads: Array) -> None:
        """Bind all parameters to these arrays, without copying values."""
        self.values, self.grads = values, grads
        for param, entry in zip(self.params, self.entries, strict=True):
            where = slice(entry.start, entry.stop)
            param.bind(values[where].reshape(entry.shape), grads[where].reshape(entry.shape))

    def places(self, holds: Callable[[Entry], bool]) -> np.ndarray:
        """The positions of all elements of parameters for which `holds` is true, in order: int64."""
        ranges = [np.arange(entry.start, entry.stop) for entry in self.entries if holds(entry)]
        return np.concatenate(ranges) if ranges else np.empty(0, np.int64)

    def named(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Views into a full-length flat host array (values, or a gathered updater state), by parameter name."""
        if flat.shape != (self.size,):
            raise CheckpointError(f"the flat array must have shape ({self.size},), not {flat.shape}")
        return {e.name: flat[e.start : e.stop].reshape(e.shape) for e in self.entries}

    def flattened(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The inverse of `named`: a full-length flat host array of the values' dtype, padding zero.

        Raises CheckpointError if a parameter is missing, unknown or of another shape.
        """
        check_names([e.name for e in self.entries], arrays)
        flat = np.zeros(self.size, self.values.dtype)
        for e in self.entries:
            array = np.asarray(arrays[e.name])
            if array.shape != e.shape:
                raise CheckpointError(
                    f"parameter {e.name!r} has shape {e.shape} in this net, but {array.shape} in the given arrays"
                )
            flat[e.start : e.stop] = array.ravel()
        return flat


def check_names(own: Sequence[str], given: Iterable[str]) -> None:
    """Raise CheckpointError if the names of the given arrays are not those of the parameters."""
    given = list(given)
    missing = [name for name in own if name not in set(given)]
    unknown = [name for name in given if name not in set(own)]
    if missing:
        near = nearest(missing[0], unknown) if unknown else ""
        raise CheckpointError(f"the given arrays lack the parameters {', '.join(missing)}. {near}".rstrip())
    if unknown:
        raise CheckpointError(f"this net has no parameters {', '.join(unknown)}. {nearest(unknown[0], own)}".rstrip())


@dataclass(frozen=True)
class Joined:
    """Two flat arrays, seen as one: the first, then the second. A slice must lie within one of them."""

    first: Array
    second: Array

    def __getitem__(self, elements: slice) -> Array:
        size = self.first.size
        if elements.start < size:
            return self.first[elements]
        return self.second[elements.start - size : elements.stop - size]


@dataclass(frozen=True)
class GroupLayout:
    """Where the servers of a group find its parameters: the replicated ones, then each worker's own shards.

    replicated: entries of `size` elements that every worker has. own: each worker's entries, counted from the start of
    its shards; own_sizes: their elements.

    A worker's own coordinates are those of its replicated parameters followed by its shards.
    """

    replicated: tuple[Entry, ...]
    size: int
    own: tuple[tuple[Entry, ...], ...] = ()
    own_sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, flat: FlatParams, own: FlatParams, workers: int) -> GroupLayout:
        """Of the parameters of one worker of a group."""
        every = [tuple(layout(own.params, rank)) for rank in range(workers)]
        sizes = tuple(_aligned(entries[-1].stop) if entries else 0 for entries in every)
        return cls(tuple(flat.entries), flat.size, tuple(every), sizes)

    @property
    def total(self) -> int:
        """Elements on all servers of a server group together."""
        return self.size + sum(self.own_sizes)

    def start(self, rank: int) -> int:
        """Where a worker's own shards begin."""
        return self.size + sum(self.own_sizes[:rank])

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, as servers see them."""
        return self.replicated + tuple(
            entry.moved(self.start(rank)) for rank, entries in enumerate(self.own) for entry in entries
        )

    def of_worker(self, rank: int) -> tuple[Entry, ...]:
        """The entries of one worker, in its own coordinates."""
        return self.replicated + tuple(entry.moved(self.size) for entry in self.own[rank])


def layout(params: Sequence[Param], rank: int | None = None) -> list[Entry]:
    """The place of each parameter: consecutive, each start a multiple of 16 elements.

    rank: of the worker whose shards of split parameters are laid out; by default those of the parameters.
    """
    entries = []
    start = 0
    for p in params:
        lr_scale = 0.0 if p.frozen else p.proto.lr_scale
        shape = p.shape if rank is None or p.shard is None else p.shard.of(rank).local_shape
        entry = Entry(p.name, shape, start, prod(shape), lr_scale, p.proto.wd_scale, p.statistic and not p.frozen)
        entries.append(entry)
        start = _aligned(entry.stop)
    return entries


def _aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT
