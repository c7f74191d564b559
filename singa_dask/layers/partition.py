"""How layers and their parameters are partitioned over the workers of a group.

On a group of n workers an activation has one of four shardings. The gradient of a replicated activation is a partial
sum, and that of a partial sum is replicated: a layer's backward pass stays as it is, and the gradients of all workers
are summed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod

import numpy as np

Shape = tuple[int, ...]


class Sharding(StrEnum):
    """What a worker has of an activation.

    BATCH: all features of its share of the mini-batch. FEATURES: its share of the features (channels) of all rows.
    REPLICATED: everything. PARTIAL: an array of the whole shape; the sum over the workers is the activation.
    """

    BATCH = "batch"
    REPLICATED = "replicated"
    FEATURES = "features"
    PARTIAL = "partial sum"

    @property
    def of_gradient(self) -> Sharding:
        """The sharding of the gradient of an activation of this sharding."""
        return {Sharding.REPLICATED: Sharding.PARTIAL, Sharding.PARTIAL: Sharding.REPLICATED}.get(self, self)


@dataclass(frozen=True)
class LayerPartition:
    """How one layer is partitioned.

    reads, makes: the shardings of its sources and of its output. sources: the sample shapes of its sources, of all
    workers together; rank, size: this worker and the number of workers in the group.
    """

    reads: Sharding = Sharding.BATCH
    makes: Sharding = Sharding.BATCH
    sources: tuple[Shape, ...] = ()
    rank: int = 0
    size: int = 1

    @property
    def splits(self) -> bool:
        """Whether the worker has only its share of the features, of the sources or of the output."""
        return Sharding.FEATURES in (self.reads, self.makes)

    @property
    def local_sources(self) -> tuple[Shape, ...]:
        """The sample shapes of this worker's sources."""
        if self.reads is not Sharding.FEATURES:
            return self.sources
        return tuple((*shape[:-1], _length(self.own(shape[-1]))) for shape in self.sources)

    @property
    def summary(self) -> str:
        """What is divided among the workers, for display."""
        if (self.reads, self.makes) == (Sharding.REPLICATED, Sharding.PARTIAL):
            return "heads"
        names = {
            Sharding.BATCH: "batch",
            Sharding.REPLICATED: "none",
            Sharding.FEATURES: "features",
            Sharding.PARTIAL: "input features",
        }
        if self.reads is not self.makes and self.makes is not Sharding.FEATURES and self.makes is not Sharding.PARTIAL:
            return f"{self.reads} to {self.makes}"
        return names[self.makes]

    @property
    def others(self) -> float:
        """The share of the other workers, (n - 1) / n: what a worker sends of d values that n workers gather, or sum
        and scatter."""
        return (self.size - 1) / self.size

    @property
    def transition(self) -> tuple[float, float]:
        """Values that a worker sends in a transition, forward and backward, per row of the mini-batch and time step.

        Of d values an all-gather and a reduce-scatter send (n - 1) / n d each, an all-to-all (n - 1) / n^2 d.
        """
        share = prod(self.sources[0]) * self.others
        divided = {Sharding.BATCH, Sharding.FEATURES}
        if self.reads is self.makes or self.reads is Sharding.REPLICATED:
            return 0.0, 0.0
        if {self.reads, self.makes} == divided:
            return share / self.size, share / self.size
        return (
            (2 * share, 2 * share)
            if (self.reads, self.makes) == (Sharding.PARTIAL, Sharding.REPLICATED)
            else (share, share)
        )

    def bounds(self, features: int) -> tuple[int, ...]:
        """Where each worker's share of `features` begins, and the end."""
        return even_bounds(features, self.size)

    def own(self, features: int) -> tuple[int, int]:
        """This worker's share [first, last) of `features`."""
        bounds = self.bounds(features)
        return bounds[self.rank], bounds[self.rank + 1]


@dataclass(frozen=True)
class ArrayShard:
    """A worker's shard of an array that is split: a range of one axis.

    shape: of the whole array. axis: the one that is split. bounds: where each worker's range begins, and the end; 0
    first. rank: the worker. outer: how often the range occurs along the axis: the features of an image are
    (height x width, channels), and a worker has its channels of each position.

    >>> ArrayShard((6, 2), axis=0, bounds=(0, 1, 3), rank=1, outer=2).local_shape
    (4, 2)
    """

    shape: Shape
    axis: int
    bounds: tuple[int, ...]
    rank: int
    outer: int = 1

    @property
    def start(self) -> int:
        return self.bounds[self.rank]

    @property
    def stop(self) -> int:
        return self.bounds[self.rank + 1]

    @property
    def local_shape(self) -> Shape:
        """The shape of the shard."""
        return *self.shape[: self.axis], self.outer * (self.stop - self.start), *self.shape[self.axis + 1 :]

    @property
    def size(self) -> int:
        return prod(self.local_shape)

    @property
    def view(self) -> Shape:
        """A shape of the whole array in which the shard is `index`."""
        return *self.shape[: self.axis], self.outer, self.bounds[-1], *self.shape[self.axis + 1 :]

    @property
    def index(self) -> tuple[slice, ...]:
        return (*(slice(None),) * (self.axis + 1), slice(self.start, self.stop))

    def of(self, rank: int) -> ArrayShard:
        """The shard of another worker."""
        return replace(self, rank=rank)

    def of_whole(self, whole: np.ndarray) -> np.ndarray:
        """The shard of a whole array, in `local_shape`."""
        return whole.reshape(self.view)[self.index].reshape(self.local_shape)

    def write(self, whole: np.ndarray, shard: np.ndarray) -> None:
        """Set the shard of a contiguous whole array."""
        view = whole.reshape(self.view)
        view[self.index] = shard.reshape(view[self.index].shape)


def _length(bounds: tuple[int, int]) -> int:
    return bounds[1] - bounds[0]


def even_bounds(size: int, count: int) -> tuple[int, ...]:
    """Where `count` near-equal ranges of `size` elements begin, and the end.

    >>> even_bounds(10, 3)
    (0, 3, 6, 10)
    """
    return tuple(size * i // count for i in range(count + 1))
