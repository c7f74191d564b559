"""A net of one phase: layers in order, their shapes and parameters, and the two passes over them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.job.job_pb2 import NetProto
from singa_dask.job.unroll import origin
from singa_dask.layers import layer_class
from singa_dask.layers.base import Layer, LossLayer, OutputLayer
from singa_dask.layers.context import Context, Metric, RecurrentState, Scratch, Step
from singa_dask.layers.group import LayerGroup
from singa_dask.layers.init import check_initial_value, initial_value
from singa_dask.layers.input import InputLayer
from singa_dask.layers.param import Param
from singa_dask.layers.rbm import RBM
from singa_dask.layers.sharing import resolve_sharing
from singa_dask.layers.transition import Transition
from singa_dask.net.flat import FlatParams
from singa_dask.net.graph import Graph, build_graph
from singa_dask.net.partition import partition_net
from singa_dask.net.passes import Passes
from singa_dask.net.plan import NetPlan, make_plan
from singa_dask.net.setup import labels_from, set_up, source_shape_of
from singa_dask.ops import Ops
from singa_dask.ops.arrays import Array
from singa_dask.ops.pending import settled
from singa_dask.tracing import span


class LayerRow(NamedTuple):
    """One line of `Net.describe`. shape: of the layer's samples, on all workers together. parameters: elements that it
    owns, on all workers together. partition: what is divided among the workers. steps: time steps of the output. sent:
    values that a worker sends to others, per row of the mini-batch (and time step), forward and backward. sources,
    labels: the layers that it reads, and those of them that it reads labels from."""

    layer: str
    type: str
    shape: Any
    parameters: int
    partition: str
    steps: int = 1
    sent: tuple[float, float] = (0.0, 0.0)
    sources: tuple[str, ...] = ()
    labels: frozenset[str] = frozenset()


class Net:
    """The layers of one phase, set up on `ops`, with their parameters in `flat` and `own`.

    rank, size: this worker and the number of workers in its group, over which `partition_dim` partitions the net.
    flat: parameters that every worker of the group has; own: this worker's shards of those that are split. allocate:
    whether they have memory; without it the net can be described and checked. partitioned: whether any layer computes
    on other than this worker's rows. whole_shapes: of the layers of the job, on all workers together.

    share: the training net. A test or validation net uses its parameters, matched by name.
    fold: whether to compute the time steps of an unrolled net together if possible (net/fold.py).
    layers: name -> layer, sources first. shapes: name -> sample shape, or a tuple with one per destination if setup
    returned one. input_layers: names of the layers that `forward` feeds. params: parameters that own their array.
    pooled_first: layer -> the max-pooling that reads it and runs before it. contexts: name -> the layer's Context.
    carries: whether recurrent layers start a forward call from their last state instead of zero. routing: the order of
    the calls in both passes.

    Raises ConfigError if graph, shapes or parameters do not fit, TrainingError if a layer's setup fails.
    """

    def __init__(
        self,
        proto: NetProto,
        phase: int,
        ops: Ops,
        share: Net | None = None,
        *,
        fold: bool = True,
        rank: int = 0,
        size: int = 1,
        allocate: bool = True,
    ):
        self.proto = proto
        self.phase = phase
        self.ops = ops
        self.carries = False
        self._parameter_net: Net | None = None if share is None else share._parameter_net or share
        outer = None if share is None else share.named_params
        self._graph = graph = build_graph(proto, phase, fold=fold)
        self.layers = _made(graph)
        self.shapes = set_up(self.layers, graph, phase)
        self.params: list[Param] = resolve_sharing(self._every_param(), outer)
        self.whole_shapes = self.shapes
        self.partitioned = False
        if size > 1:
            self._partition_over(rank, size, outer)
        self.input_layers = [
            name for name, layer in self.layers.items() if isinstance(layer, InputLayer) and not layer.proto.srclayers
        ]
        every = self._every_param()
        self.named_params: dict[str, Param] = {param.name: param for param in every}
        graph = self._graph
        self._memories = {origin(layer.proto): RecurrentState() for layer in self.layers.values() if layer.recurrent}
        self._scratch = Scratch()
        self.contexts = {name: self._context(layer) for name, layer in self.layers.items()}
        self.routing = plan = make_plan(graph, self.layers, self.contexts, self.input_layers, self.params)
        _freeze(self.layers, plan)
        self.flat: FlatParams
        self.own: FlatParams
        if share is None:
            self.flat, self.own = _flat_params(self.params, ops, allocate=allocate)
        else:
            self.flat, self.own = share.flat, share.own
        self._passes = Passes(plan, self.params, self.shapes, phase, ops, partitioned=self.partitioned)
        self._outputs = plan.outputs
        self.pooled_first = {name: step.layer.name for name, step in plan.pooled_first.items()}
        self._measuring = [
            (origin(layer.proto), layer, self.contexts[name])
            for name, layer in self.layers.items()
            if type(layer).metrics is not Layer.metrics
        ]

    def _every_param(self) -> list[Param]:
        return [param for layer in self.layers.values() for param in layer.params]

    def _partition_over(self, rank: int, size: int, outer: Mapping[str, Param] | None) -> None:
        """Replace the layers by those of one worker of `size`, if any is not simply divided by rows."""
        sources = {
            name: tuple(self.source_shape(name, i) for i in range(len(layer.proto.srclayers)))
            for name, layer in self.layers.items()
        }
        axes = {name: None if p.shard is None else p.shard.axis for name, p in (outer or {}).items()}
        plan = partition_net(self.proto, self._graph, self.layers, self.shapes, sources, axes, rank, size)
        self.partitioned = plan.partitioned
        if not plan.partitioned:
            return
        self._graph, self.layers = plan.graph, _made(plan.graph)
        for name, layer in self.layers.items():
            layer.partition = plan.layers[name]
        self.shapes = set_up(self.layers, self._graph, self.phase)
        self.params = resolve_sharing(self._every_param(), outer)

    def _context(self, layer: Layer) -> Context:
        ctx = Context(self.ops, scratch=self._scratch)
        ctx.memory = self._memories.get(origin(layer.proto), ctx.memory)
        # Not a bound method: a net in a reference cycle would keep its memory until the garbage collector runs.
        net = weakref.ref(self)
        ctx.last_output = lambda name: _last_output(net(), name)
        return ctx

    def forget(self) -> None:
        """Let the next forward call start from the initial state of recurrent layers."""
        for memory in self._memories.values():
            memory.state = None

    @property
    def state(self) -> dict[str, list[Array]]:
        """The state of recurrent layers for the next forward call, by layer: arrays (B, H), valid until then."""
        return {name: memory.state for name, memory in self._memories.items() if memory.state is not None}

    @state.setter
    def state(self, state: Mapping[str, list[Array]]) -> None:
        for name, memory in self._memories.items():
            memory.state = [array.copy() for array in state[name]] if name in state else None

    def join(self, group: LayerGroup) -> None:
        """Let layers exchange with those of the other workers of the group."""
        for ctx in self.contexts.values():
            ctx.group = group

    def allocate(self) -> None:
        """Give the parameters memory, zeroed, in a net that was made without."""
        for flat in (self.flat, self.own):
            flat.allocate(self.ops)

    def initialise(self, seed: int) -> None:
        """Set every parameter to its initial value, a function of (seed, name) and its `init` block."""
        for param in (self._parameter_net or self).params:
            param.value[...] = self.ops.asarray(initial_value(param, seed), self.ops.dtype)

    def check_initial_values(self, seed: int) -> None:
        """Raise ConfigError if a parameter's `init` block is wrong. Draws only what user functions draw."""
        for param in self.params:
            check_initial_value(param, seed)

    @property
    def drawn(self) -> frozenset[str]:
        """The names of the parameters with an `init` block."""
        return frozenset(param.name for param in self.params if param.proto.HasField("init"))

    def forward(self, feed: Mapping[str, Any], step: Step) -> None:
        """Run every layer once. feed: input layer -> Batch (anything with `features` and `labels`).

        Raises DataError if an input layer is not fed or fed another shape, TrainingError if a layer fails.
        """
        if not self.carries:
            self.forget()
        with span("forward"):
            self._passes.forward(feed, step)

    def backward(self, on_gradient: Callable[[Param], None] | None = None) -> None:
        """Run the layers below the losses in reverse order and fill `flat.grads`, once after each `forward`.

        Parameters without a contribution get a zero gradient. on_gradient: called once with each parameter when its
        gradient is complete. Raises TrainingError if a layer fails, or if `forward` was not called before.
        """
        with span("backward"):
            self._passes.backward(on_gradient)

    def divide_by(self, rows: int) -> None:
        """Let the next `backward` give gradients of sums over the rows, divided by so many."""
        for ctx in self.contexts.values():
            ctx.step = replace(ctx.step, total_rows=rows)

    @contextmanager
    def gradients(self, on_gradient: Callable[[Param], None] | None = None) -> Iterator[None]:
        """Inside, the caller fills `flat.grads` instead of `backward`. Gradients that it does not fill become zero."""
        with span("backward"):
            self._passes.start()
            yield
            self._passes.complete(on_gradient)

    def metrics(self) -> dict[str, Metric]:
        """The metrics of the last forward call: "loss", "accuracy"; "<layer>.loss" if several layers measure one."""
        measured: dict[tuple[str, str], Metric] = {}
        for layer_name, layer, ctx in self._measuring:
            for key, metric in layer.metrics(ctx).items():
                measured[layer_name, key] = measured.get((layer_name, key), Metric()) + metric
        if not self.ops.sees_values and any(metric.total != metric.total for metric in measured.values()):
            for name, layer in self.layers.items():
                layer.check(self.contexts[name])
        uses = Counter(key for _, key in measured)
        return {key if uses[key] == 1 else f"{name}.{key}": metric for (name, key), metric in measured.items()}

    def output(self, name: str) -> Array:
        """The output of layer `name` at the last forward call; valid until the next one."""
        if name not in self.layers:
            raise KeyError(f"no layer {name!r} in this net. {nearest(name, self.layers)}")
        if name in self.routing.rectified:
            rectified: Any = self.layers[name]
            return rectified.unbounded(self.contexts[name])
        value = settled(self._passes.values[self._outputs[name]], self.ops)
        return self.layers[name].forward(Context(self.ops), value) if name in self.pooled_first else value

    def sources_of(self, name: str) -> list[Array]:
        """What layer `name` read from its sources at the last forward call; valid until the next one."""
        return [settled(value, self.ops) for value in self._passes.read_by(name)]

    def predictions(self) -> dict[str, bool]:
        """The layers whose outputs are predictions: the losses, or else the last layer. For each, whether it outputs
        class probabilities. Raises ConfigError if the net has only input layers."""
        losses = {name: layer.type for name, layer in self.layers.items() if isinstance(layer, LossLayer)}
        if losses:
            return {name: kind in ("kSoftmaxLoss", "kCudnnSoftmaxLoss") for name, kind in losses.items()}
        names = [name for name in self.layers if name not in self.input_layers]
        if not names:
            raise ConfigError(Problem("neuralnet", "has only input layers and cannot predict"))
        return {names[-1]: False}

    def scores(self) -> tuple[str, bool]:
        """The first of `predictions`."""
        return next(iter(self.predictions().items()))

    def piece(self, name: str, position: int) -> int:
        """The index of the output that layer `name` reads from its `position`-th source with several outputs."""
        source = self.layers[name].proto.srclayers[position]
        edges = self._graph.consumers[source]
        return next(i for i, edge in enumerate(edges) if (edge.consumer, edge.position) == (name, position))

    def source_shape(self, name: str, position: int) -> Any:
        """The sample shape, or that of the target, that the layer `name` reads from its `position`-th source."""
        return source_shape_of(self.layers, self._graph, self.shapes, name, position)

    def labels_from(self, name: str) -> list[Layer]:
        """The layers whose labels the layer `name` reads, directly or through others."""
        layer = self.layers[name]
        return [labels_from(self.layers, layer.proto.srclayers[i]) for i in layer.label_positions]

    @property
    def parameter_net(self) -> Net:
        """The net whose parameters this one uses: the training net."""
        return self._parameter_net or self

    def input_layer(self, name: str) -> InputLayer:
        """The input layer with this name."""
        layer = self.layers[name]
        assert isinstance(layer, InputLayer)
        return layer

    def wrap_calls(self, around: Callable[[str, str, Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace each layer's `call` in both passes by around(layer, "forward" | "backward", call), for profiling."""
        self._passes.wrap(around)

    def describe(self) -> list[LayerRow]:
        """One row per layer, in order, for display."""
        owned = set(self.params)
        rows = []
        for name, layer in self.layers.items():
            transition = isinstance(layer, Transition)
            shape = layer.partition.sources[0] if transition else self.whole_shapes[name]
            parameters = sum(prod(param.whole_shape) for param in layer.params if param in owned)
            forward, backward = layer.sent
            sent = forward, 0.0 if transition and not self.contexts[name].needs_input_grad else backward
            partition = self._partition(layer)
            sources = tuple(layer.proto.srclayers)
            labels = frozenset(sources[i] for i in layer.label_positions)
            kind = type(layer).__name__
            rows.append(LayerRow(name, kind, shape, parameters, partition, layer.output_steps, sent, sources, labels))
        return rows

    def close(self) -> None:
        """Finish and close the files of output layers."""
        for layer in self.layers.values():
            if isinstance(layer, OutputLayer):
                layer.close()

    def _partition(self, layer: Layer) -> str:
        if layer.partition.size > 1:
            return layer.partition.summary
        dim = layer.proto.partition_dim if layer.proto.partition_dim >= 0 else self.proto.partition_dim
        return {0: "batch", 1: "features"}.get(dim, "none")


def _made(graph: Graph) -> dict[str, Layer]:
    return {name: layer_class(message).from_proto(message) for name, message in graph.layers.items()}


def _flat_params(params: Sequence[Param], ops: Ops, *, allocate: bool) -> tuple[FlatParams, FlatParams]:
    """Of the replicated parameters, and of this worker's shards of those that are split."""
    replicated = [param for param in params if param.shard is None]
    own = [param for param in params if param.shard is not None]
    return FlatParams.of(replicated, ops, allocate=allocate), FlatParams.of(own, ops, allocate=allocate)


def _last_output(net: Net | None, name: str) -> Array:
    return net._passes.values[net._outputs[name]] if net is not None and name in net._outputs else None


def _freeze(layers: Mapping[str, Layer], plan: NetPlan) -> None:
    """Freeze the layers below an RBM, or what no loss reaches: they get no gradient, and must not decay."""
    machines = {param.owner for layer in layers.values() if isinstance(layer, RBM) for param in layer.params}
    if machines:
        for param in (param for layer in layers.values() for param in layer.params):
            param.owner.frozen = param.owner not in machines
    elif any(step.is_loss for step in plan.forward):
        for param in plan.idle:
            param.frozen = True
