"""What a net passes to its layers' calls: step, context, metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.group import LayerGroup
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array

if TYPE_CHECKING:
    from singa_dask.ops import Ops


@dataclass(frozen=True)
class Step:
    """The phase and step of a call, and this worker's rows of the group's mini-batch.

    Random draws (dropout, augmentation) are functions of (seed, number, layer, row). They depend neither on the number
    of workers nor on where a run was resumed. counts: rows of every worker of the group, in rank order; empty for a
    worker on its own. A layer that has all rows (Sharding.REPLICATED, Sharding.FEATURES) gets first_row 0.
    """

    phase: int = Phase.kTrain
    number: int = 0
    seed: int = 0
    first_row: int = 0
    total_rows: float = 1
    counts: tuple[int, ...] = ()


@dataclass
class Metric:
    """A running mean: `total` over `count` samples. Metrics of workers and mini-batches can be added."""

    total: float = 0.0
    count: float = 0.0

    def __add__(self, other: Metric) -> Metric:
        return Metric(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else float("nan")


@dataclass
class RecurrentState:
    """The state of a recurrent layer between forward calls; the instances of an unrolled layer share it.

    state: arrays (B, ...) after the last time step, None for initial state. gradients: of them, in a backward pass.
    """

    state: list[Array] | None = None
    gradients: Array = None


class Scratch(threading.local):
    """Scratch memory for one call, shared by all layers of a net, or of the loops on a device. Each thread has its
    own."""

    def __init__(self) -> None:
        self._array: Array = None

    def of(self, ops: Ops, shape: Shape) -> Array:
        """An uninitialised array; the next call returns the same memory."""
        size = prod(shape)
        if self._array is None or self._array.size < size or self._array.dtype != ops.dtype:
            self._array = ops.empty((size,))
        return self._array[:size].reshape(shape)


@dataclass
class Context:
    """One layer's memory between its forward and backward calls, with its reused buffers.

    A layer may set any attribute. The net sets `step` before each forward call, `labels` of an input layer from its
    feed, and once `needs_input_grad`: False if no layer below needs a gradient, and `wanted`: the positions of the
    sources that do.
    group: the workers that share the mini-batch; its calls are collective. send_gradient: a split layer calls it with
    the gradient for its source before it computes those of its parameters. output_step: the rows of the output if they
    are not those of `step`. memory: of a recurrent layer. last_output: the output of a named layer at the previous
    forward call, None at the first one. scratch: memory for one call. onto: where calls are launches, the gradient
    that the one source of a backward call has already, by other readers: a layer may add to it, and return it.
    """

    ops: Ops
    step: Step = field(default_factory=Step)
    labels: Array = None
    needs_input_grad: bool = True
    wanted: Sequence[int] = (0,)
    group: LayerGroup = field(default_factory=LayerGroup)
    output_step: Step | None = None
    memory: RecurrentState = field(default_factory=RecurrentState)
    last_output: Callable[[str], Array] | None = None
    send_gradient: Callable[[Array], None] = lambda dx: None
    scratch: Scratch = field(default_factory=Scratch)
    onto: Array = None
    _buffers: dict[str, Array] = field(default_factory=dict)

    def buffer(self, key: str, shape: Shape, dtype: Any = None) -> Array:
        """An uninitialised array, reused at every step while the shape stays the same."""
        dtype = self.ops.dtype if dtype is None else dtype
        array = self._buffers.get(key)
        if array is None or array.shape != shape or array.dtype != dtype:
            array = self._buffers[key] = self.ops.empty(shape, dtype)
        return array

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"ctx.{name} is not set: backward was called before forward")
