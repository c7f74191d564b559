"""What a net hands to its layers' calls: where a call stands, what a layer keeps between them, what it measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array

if TYPE_CHECKING:
    from singa_dask.ops import Ops


@dataclass(frozen=True)
class Step:
    """Where a call stands: which phase and step, and which rows of the group's mini-batch this worker has.

    Random draws (dropout, augmentation) are functions of (seed, number, layer, row), so they depend neither on how
    many workers share the batch nor on where a run was resumed.
    """

    phase: int = Phase.kTrain
    number: int = 0
    seed: int = 0
    first_row: int = 0
    total_rows: int = 1


@dataclass
class Metric:
    """A mean in the making: `total` over `count` samples; metrics of several workers and batches add up."""

    total: float = 0.0
    count: float = 0.0

    def __add__(self, other: Metric) -> Metric:
        return Metric(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else float("nan")


def _alone(array: Array) -> Array:
    return array


@dataclass
class Memory:
    """What a recurrent layer keeps from one forward call to the next; the instances of an unrolled one share it.

    state: arrays (B, ...) after the last time step, None for a fresh start. gradients: for them, in a backward pass.
    """

    state: list[Array] | None = None
    gradients: Array = None


class Scratch:
    """An array for the time of one call, the same one for all layers of a net."""

    def __init__(self) -> None:
        self._array: Array = None

    def of(self, ops: Ops, shape: Shape) -> Array:
        """An uninitialised array of the ops' type; the next call gives the same memory."""
        size = prod(shape)
        if self._array is None or self._array.size < size:
            self._array = ops.empty((size,))
        return self._array[:size].reshape(shape)


@dataclass
class Context:
    """One layer's memory between its forward and backward call, and its store of reused buffers.

    A layer may set any attribute on it. The net sets `step` before each forward call, `labels` of an input layer from
    its feed, and `needs_input_grad`, once: False where no layer below has a use for the gradient of its output.
    group_sum: a host array summed over the workers of the group, all of which must call it, in place. memory: of a
    recurrent layer. last_output: what the layer of a name gave at the forward call before, None at the first one.
    scratch: memory for the time of a call, in which nothing stays.
    """

    ops: Ops
    step: Step = field(default_factory=Step)
    labels: Array = None
    needs_input_grad: bool = True
    group_sum: Callable[[Array], Array] = _alone
    memory: Memory = field(default_factory=Memory)
    last_output: Callable[[str], Array] | None = None
    scratch: Scratch = field(default_factory=Scratch)
    _buffers: dict[str, Array] = field(default_factory=dict)

    def buffer(self, key: str, shape: Shape, dtype: Any = None) -> Array:
        """An uninitialised array that is the same one at every step as long as the shape stays."""
        dtype = self.ops.dtype if dtype is None else dtype
        array = self._buffers.get(key)
        if array is None or array.shape != shape or array.dtype != dtype:
            array = self._buffers[key] = self.ops.empty(shape, dtype)
        return array

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"ctx.{name} is not set: backward was called before forward")
