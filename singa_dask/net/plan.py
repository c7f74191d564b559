"""The routing of a net, computed once: which array is which argument of which call.

The arrays of a step are in two lists, indexed by slot numbers. A slot of `values` holds a layer's output, one of
several outputs, or a layer's labels. A slot of `gradients` holds the gradient of one output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from singa_dask.layers.activation import ReLU
from singa_dask.layers.base import Layer, LossLayer
from singa_dask.layers.batch_norm import BatchNorm
from singa_dask.layers.context import Context
from singa_dask.layers.convolution import Convolution, TransposedConvolution
from singa_dask.layers.inner_product import InnerProduct
from singa_dask.layers.loss import SoftmaxLoss
from singa_dask.layers.param import Param
from singa_dask.layers.pooling import Pooling
from singa_dask.layers.transition import Transition
from singa_dask.layers.value_loss import EuclideanLoss, MSELoss
from singa_dask.net.graph import Graph

PRODUCTS: tuple[type[Layer], ...] = (Convolution, TransposedConvolution, InnerProduct)
READERS: tuple[type[Layer], ...] = (Convolution, Pooling, SoftmaxLoss, EuclideanLoss, MSELoss)


@dataclass(slots=True)
class LayerPlan:
    """One layer's routing.

    arguments: slots of `values` for forward. output, labels: slots to fill. pieces: slots of the outputs of a layer
    with several. feed: whether the loader feeds it. label_source: slot of the labels it passes on. step_source: slot
    of the output whose rows it continues, -1 without sources.
    dy: slots of `gradients` for backward. dx: for each source the slot to add its gradient to, or -1; wanted: the
    positions of those with a slot. completes: owners whose gradient is complete after this backward call.
    """

    layer: Layer
    ctx: Context
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    arguments: tuple[int, ...]
    output: int
    labels: int
    feed: bool
    is_loss: bool
    pieces: tuple[int, ...] = ()
    label_source: int = -1
    step_source: int = -1
    dy: tuple[int, ...] = ()
    dx: tuple[int, ...] = ()
    wanted: tuple[int, ...] = ()
    completes: tuple[Param, ...] = ()


@dataclass
class NetPlan:
    """Routing of a whole net. forward: every layer, in order; backward: layers with a backward call, in reverse order.

    idle: owners that no backward call can reach; values, gradients: numbers of slots. outputs: the slot of every
    layer's output, and of the input of a layer that runs after its pooling. pooled_first: the step of that pooling, by
    layer. rectified: the layers that compute the ReLU behind them.
    """

    forward: list[LayerPlan]
    backward: list[LayerPlan]
    idle: list[Param]
    values: int
    gradients: int
    outputs: dict[str, int]
    pooled_first: dict[str, LayerPlan]
    rectified: frozenset[str]


def make_plan(
    graph: Graph,
    layers: Mapping[str, Layer],
    contexts: Mapping[str, Context],
    fed: Sequence[str],
    owners: Sequence[Param],
) -> NetPlan:
    """Compute the routing, and set every context's `needs_input_grad`."""
    trains = _reaching_parameters(layers)
    slots = _Slots(graph, layers)
    steps: dict[str, LayerPlan] = {}
    for name, layer in layers.items():
        sources = list(layer.proto.srclayers)
        labelled = layer.label_positions
        step = LayerPlan(
            layer=layer,
            ctx=contexts[name],
            forward=layer.forward,
            backward=layer.backward,
            arguments=tuple(
                slots.labels[source] if i in labelled else slots.read(name, i) for i, source in enumerate(sources)
            ),
            output=slots.output[name],
            labels=slots.labels[name],
            feed=name in fed,
            is_loss=isinstance(layer, LossLayer),
            pieces=slots.pieces[name],
            label_source=slots.labels[sources[0]] if layer.passes_labels and sources else -1,
            step_source=slots.output[sources[0]] if sources else -1,
            dx=tuple(
                slots.gradient(name, i) if trains[source] and i not in labelled | layer.cut_off else -1
                for i, source in enumerate(sources)
            ),
        )
        step.dy = slots.gradients[name]
        step.wanted = tuple(i for i, slot in enumerate(step.dx) if slot >= 0)
        step.ctx.wanted, step.ctx.needs_input_grad = step.wanted, bool(step.wanted)
        steps[name] = step
    active = _below_a_loss(graph, layers, steps)
    for name, layer in layers.items():
        if active[name] and layer.stops_gradient and trains[name]:
            message = "no gradient flows through this layer, so the parameters below it would not be trained"
            hint = "Let the layers above read its source, and train the layers below separately."
            raise layer.problem(message, hint=hint)
    backward = [step for name, step in reversed(steps.items()) if active[name] and trains[name]]
    reached = _mark_completion(backward)
    idle = [owner for owner in owners if owner not in reached]
    _send_early(graph, steps)
    remembered = {layer.proto.rnn_dummy_conf.dynamic_srclayer for layer in layers.values()}
    rectified = _rectify(graph, steps, remembered, PRODUCTS)
    pooled_first = _pool_first(graph, steps, remembered)
    rectified |= _rectify(graph, steps, remembered, (BatchNorm,))
    _leave_biases(graph, steps, rectified, remembered)
    outputs = {**slots.output, **{name: step.arguments[0] for name, step in pooled_first.items()}}
    counts = slots.count, slots.gradient_count
    return NetPlan(list(steps.values()), backward, idle, *counts, outputs, pooled_first, rectified)


def _send_early(graph: Graph, steps: Mapping[str, LayerPlan]) -> None:
    """Let a layer that alone reads a transition start its backward pass, while the layer goes on computing."""
    for name, step in steps.items():
        layer, edges = step.layer, graph.consumers[name]
        if isinstance(layer, Transition) and layer.sums_gradients and step.wanted and len(edges) == 1:
            reader = steps[edges[0].consumer]
            if reader.wanted == (edges[0].position,):
                reader.ctx.send_gradient = partial(layer.start_backward, step.ctx)


def _pool_first(graph: Graph, steps: Mapping[str, LayerPlan], remembered: Collection[str]) -> dict[str, LayerPlan]:
    """Swap each max-pooling with a monotonic layer before it: max f(x) = f(max x), and fewer elements remain after
    pooling. Returns the pooling of each swapped layer."""
    pooled_first: dict[str, LayerPlan] = {}
    for name, first in steps.items():
        passed_on = first.forward is _pass_on
        if passed_on or not _keeps_order(first.layer) or len(graph.consumers[name]) != 1 or name in remembered:
            continue
        second = steps[graph.consumers[name][0].consumer]
        if type(second.layer) is Pooling and second.layer.is_max:
            pooled_first[name] = first
            for field in ("layer", "ctx", "forward", "backward"):
                mine, its = getattr(first, field), getattr(second, field)
                setattr(first, field, its)
                setattr(second, field, mine)
    return pooled_first


def _rectify(
    graph: Graph, steps: Mapping[str, LayerPlan], remembered: Collection[str], types: Collection[type[Layer]]
) -> frozenset[str]:
    """Let each layer of these types that only a ReLU reads compute both, in one pass over memory. Returns their
    names."""
    found = set()
    for name, step in steps.items():
        layer: Any = step.layer
        if (
            type(layer) in types  # and no class of a user
            and layer.rectifies(step.ctx.ops)
            and len(graph.consumers[name]) == 1
            and name not in remembered
        ):
            second = steps[graph.consumers[name][0].consumer]
            if type(second.layer) is ReLU and second.layer.conf.negative_slope == 0:
                layer.bounds = (0.0, second.layer.limit)
                second.forward = second.backward = _pass_on
                found.add(name)
    return frozenset(found)


def _leave_biases(
    graph: Graph, steps: Mapping[str, LayerPlan], rectified: Collection[str], remembered: Collection[str]
) -> None:
    """Let products leave their bias, and the ReLU behind them, to the one layer that reads what they make, if its
    kernels add a bias as they read."""
    for name, step in steps.items():
        layer: Any = step.layer
        last = graph.consumers[name][0].consumer if name in rectified else name
        edges = graph.consumers[last]
        if type(layer) not in (Convolution, InnerProduct) or len(edges) != 1 or {name, last}.intersection(remembered):
            continue
        reader = steps[edges[0].consumer]
        passed_on = reader.is_loss and graph.consumers[edges[0].consumer]  # its output is what it reads
        reads = type(reader.layer) in READERS and edges[0].position == 0 and reader.layer.reads_pending()
        layer.leaves_bias = layer.rectifies(step.ctx.ops) and reads and not passed_on


def _pass_on(ctx: Context, array: Any) -> Any:
    return array


def _keeps_order(layer: Layer) -> bool:
    return layer.keeps_order and (layer.type != Layer.type or type(layer).keeps_order)


def _reaching_parameters(layers: Mapping[str, Layer]) -> dict[str, bool]:
    """Whether a layer or any below it has parameters."""
    reach: dict[str, bool] = {}
    for name, layer in layers.items():
        reach[name] = bool(layer.params) or any(reach[source] for source in layer.proto.srclayers)
    return reach


def _below_a_loss(graph: Graph, layers: Mapping[str, Layer], steps: Mapping[str, LayerPlan]) -> dict[str, bool]:
    """Whether a layer is a loss or feeds one through its features."""
    active: dict[str, bool] = {}
    for name in reversed(list(layers)):
        active[name] = steps[name].is_loss or any(
            active[edge.consumer] and steps[edge.consumer].dx[edge.position] >= 0 for edge in graph.consumers[name]
        )
    return active


def _mark_completion(backward: Sequence[LayerPlan]) -> set[Param]:
    """Set the owners that each step completes. Returns all owners that some step reaches."""
    reached: set[Param] = set()
    for step in reversed(backward):
        mine = dict.fromkeys(param.owner for param in step.layer.params)
        step.completes = tuple(owner for owner in mine if owner not in reached)
        reached.update(mine)
    return reached


class _Slots:
    """Numbers the slots: outputs, then labels, then the pieces of layers with several outputs."""

    def __init__(self, graph: Graph, layers: Mapping[str, Layer]):
        n = len(layers)
        self.output = {name: i for i, name in enumerate(layers)}
        self.labels = {name: n + i for i, name in enumerate(layers)}
        self.pieces: dict[str, tuple[int, ...]] = {}
        self.gradients: dict[str, tuple[int, ...]] = {}
        self.layers = layers
        self.count = 2 * n
        self.gradient_count = 0
        self._piece_of: dict[tuple[str, int], int] = {}
        for name, layer in layers.items():
            edges = graph.consumers[name] if layer.multiple_outputs else ()
            self.pieces[name] = tuple(range(self.count, self.count + len(edges)))
            self.count += len(edges)
            width = len(edges) if layer.multiple_outputs else 1
            self.gradients[name] = tuple(range(self.gradient_count, self.gradient_count + width))
            self.gradient_count += width
            self._piece_of.update({(edge.consumer, edge.position): i for i, edge in enumerate(edges)})

    def read(self, consumer: str, position: int) -> int:
        """The slot of `values` for the consumer's source at this position."""
        source = self.layers[consumer].proto.srclayers[position]
        piece = self._piece_of.get((consumer, position))
        return self.output[source] if piece is None else self.pieces[source][piece]

    def gradient(self, consumer: str, position: int) -> int:
        """The slot of `gradients` for the output at `read`."""
        source = self.layers[consumer].proto.srclayers[position]
        return self.gradients[source][self._piece_of.get((consumer, position), 0)]
