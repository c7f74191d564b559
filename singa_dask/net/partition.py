"""Partitioning: which sharding each layer computes in, and the transitions between layers that disagree.

`partition_dim` of a layer, else of the net: 0 divides the mini-batch over the workers of a group, 1 the features.
See layers/partition.py for the shardings, and layers/transition.py for the transitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import LayerProto, LayerType, NetProto
from singa_dask.job.unroll import origin
from singa_dask.layers.base import Layer, LossLayer
from singa_dask.layers.input import InputLayer
from singa_dask.layers.partition import LayerPartition, Sharding
from singa_dask.net.graph import Edge, Graph
from singa_dask.net.rows import must_see_all


@dataclass
class NetPartition:
    """The graph of a worker with its transitions, and the partition of every layer in it, by name."""

    graph: Graph
    layers: dict[str, LayerPartition]

    @property
    def partitioned(self) -> bool:
        """Whether any layer computes in another sharding than rows."""
        return any(
            layer.reads is not Sharding.BATCH or layer.makes is not Sharding.BATCH for layer in self.layers.values()
        )


def partition_net(
    proto: NetProto,
    graph: Graph,
    layers: Mapping[str, Layer],
    shapes: Mapping[str, Any],
    sources: Mapping[str, tuple[Any, ...]],
    axes: Mapping[str, int | None],
    rank: int,
    size: int,
) -> NetPartition:
    """Partition a net over `size` workers.

    layers: set up with the shapes of the whole net. shapes: of their outputs; sources: of their sources. axes: along
    which the training net splits its parameters, by name, if this net uses them.
    Raises ConfigError if the job asks for a layer to be split that cannot be, or leaves the choice to a cost model.
    """
    if proto.partition == NetProto.auto:
        message = f"the net has no partition over {size} workers yet: it must be chosen before the net is built"
        hint = "Train with `train` or `singa-dask train`, which choose it, or set partition_dim."
        raise ConfigError(Problem("neuralnet.partition", message, "auto", hint))
    return Partitioner(proto, graph, layers, shapes, sources, dict(axes), rank, size).run()


@dataclass
class Partitioner:
    """Partitions the layers of a net in order. Fields: see partition_net and NetPartition.

    messages: of the layers so far and of their transitions. partitions: theirs.
    """

    proto: NetProto
    graph: Graph
    layers: Mapping[str, Layer]
    shapes: Mapping[str, Any]
    sources: Mapping[str, tuple[Any, ...]]
    axes: dict[str, int | None]
    rank: int
    size: int
    messages: dict[str, LayerProto] = field(default_factory=dict)
    partitions: dict[str, LayerPartition] = field(default_factory=dict)
    moved: dict[Edge, str] = field(default_factory=dict)  # edges that lead to a transition instead

    def run(self) -> NetPartition:
        """Partition every layer."""
        for layer in self.layers.values():
            self.place(layer)
        return NetPartition(Graph(self.messages, self._consumers()), self.partitions)

    def place(self, layer: Layer) -> None:
        """Partition the next layer, whose sources have been placed, and insert the transitions that it needs."""
        name, sources = layer.name, list(layer.proto.srclayers)
        layer.partition = LayerPartition(sources=self.sources[name], rank=self.rank, size=self.size)
        reads, makes = self._shardings(layer, [self.partitions[source].makes for source in sources])
        self.partitions[name] = replace(layer.partition, reads=reads, makes=makes)
        message = LayerProto()
        message.CopyFrom(layer.proto)
        message.srclayers[:] = [
            self._source(Edge(name, i), source, reads, labels=i in layer.label_positions)
            for i, source in enumerate(sources)
        ]
        self.messages[name] = message

    def _shardings(self, layer: Layer, sources: list[Sharding]) -> tuple[Sharding, Sharding]:
        if isinstance(layer, InputLayer) or not sources:
            return Sharding.BATCH, Sharding.BATCH
        first = self.partitions.get(f"0#{origin(layer.proto)}")
        if first is not None:  # instances of a layer hand on their state
            return first.reads, first.makes
        owners = [param.owner.name for param in layer.params]
        known = [self.axes[name] for name in owners if name in self.axes]
        dim = self._dim(layer, sources) if not known else int(any(axis is not None for axis in known))
        if layer.splits_features and layer.proto.partition_dim not in (-1, dim):
            raise _disagrees(layer, f"has partition_dim {dim}", f"partition_dim: {layer.proto.partition_dim}")
        axis = next((self.axes[name] for name in owners[:1] if self.axes.get(name) is not None), None)
        reads, makes = layer.shardings(dim, sources, axis)
        if layer.splits_features and not self._enough(layer, reads, makes):
            if self._asked(layer):
                has = f"it has {layer.units} heads" if layer.units else f"it has {self._outputs(layer)} features"
                if reads is Sharding.FEATURES:
                    has = f"its source has {layer.partition.sources[0][-1]} features or channels"
                asked = "partition_dim: 1" if layer.proto.partition_dim == 1 else "param.partition_dim"
                message = f"cannot be split over {self.size} workers: {has}"
                raise layer.problem(message, asked, "Leave it out, and set partition_dim: 0 for this layer.")
            reads, makes = layer.shardings(0, sources)
        alone = reads is makes is Sharding.BATCH and not layer.passes_labels
        if alone and must_see_all(layer, self.sources[layer.name]):
            if isinstance(layer, LossLayer):
                message = "the gradient of a row depends on other rows, and each worker has a part of them"
                hint = "Write it as a function in Loss(...), which gets all rows, or set takes = (Sharding.BATCH,) "
                raise layer.problem(message, f"{self.size} workers", f"{hint}if those of one worker are meant.")
            reads = makes = Sharding.REPLICATED if Sharding.REPLICATED in layer.takes else Sharding.BATCH
        self._remember(layer, reads, makes)
        return reads, makes

    def _dim(self, layer: Layer, sources: list[Sharding]) -> int:
        """The layer's partition_dim, else the net's. A layer that could compute on split features and leaves the
        choice to its net goes on with those of its source."""
        if layer.proto.partition_dim >= 0:
            return layer.proto.partition_dim
        follows = sources[0] is Sharding.FEATURES and Sharding.FEATURES in layer.takes and not layer.splits_features
        return 1 if follows or self._asked(layer) else self.proto.partition_dim

    @staticmethod
    def _asked(layer: Layer) -> bool:
        """Whether the job asks for this layer to be split, not only for its net."""
        return layer.proto.partition_dim == 1 or any(param.HasField("partition_dim") for param in layer.proto.param)

    def _enough(self, layer: Layer, reads: Sharding, makes: Sharding) -> bool:
        """Whether every worker gets at least one feature, or head."""
        if layer.units:
            return makes is Sharding.BATCH or layer.units >= self.size
        if reads is Sharding.FEATURES:
            return layer.partition.sources[0][-1] >= self.size
        return makes is not Sharding.FEATURES or self._outputs(layer) >= self.size

    def _outputs(self, layer: Layer) -> int:
        return int(self.shapes[layer.name][-1])

    def _remember(self, layer: Layer, reads: Sharding, makes: Sharding) -> None:
        """Set up a copy of the layer as it is partitioned, to know along which axes its parameters are split."""
        if not layer.params:
            return
        copy = type(layer).from_proto(layer.proto)
        copy.partition = replace(layer.partition, reads=reads, makes=makes)
        copy.setup(*copy.partition.local_sources)
        for param, made in zip(layer.params, copy.params, strict=True):
            axis = None if made.shard is None else made.shard.axis
            known = self.axes.setdefault(param.owner.name, axis)
            if known != axis:
                raise _disagrees(layer, f"splits it along {_axis(known)}", f"{param.name} along {_axis(axis)}")

    def _source(self, edge: Edge, source: str, reads: Sharding, *, labels: bool) -> str:
        """What a layer reads in place of `source`: a transition where that is in another sharding."""
        makes = self.partitions[source].makes
        if labels:
            makes, target = (
                Sharding.BATCH if sharding is Sharding.BATCH else Sharding.REPLICATED for sharding in (makes, reads)
            )
            if makes is target:
                return source
            kind = LayerType.kLabelTransition
        else:
            undivided = reads is Sharding.FEATURES and edge.position in self.layers[edge.consumer].undivided_sources
            target = Sharding.REPLICATED if undivided else reads
            if target is makes:
                return source
            kind = LayerType.kTransition
        layer = self.layers[source]
        name = f"{source}:{'labels' if labels else target}"
        if layer.multiple_outputs:
            name = f"{name}:{edge.consumer}.{edge.position}"
        self.moved[edge] = name
        if name not in self.messages:
            self.messages[name] = LayerProto(name=name, type=kind, srclayers=[source], unroll_len=layer.output_steps)
            classes = labels and edge.position not in self.layers[edge.consumer].targets
            whole = () if classes else self.sources[edge.consumer][edge.position]
            self.partitions[name] = LayerPartition(makes, target, (whole,), self.rank, self.size)
        return name

    def _consumers(self) -> dict[str, tuple[Edge, ...]]:
        """The uses of each output, in the order of the unpartitioned graph: it decides which piece a layer reads."""
        consumers: dict[str, list[Edge]] = {name: [] for name in self.messages}
        for name, edges in self.graph.consumers.items():
            for edge in edges:
                transition = self.moved.get(edge)
                if transition is None:
                    consumers[name].append(edge)
                    continue
                consumers[transition].append(edge)
                if Edge(transition, 0) not in consumers[name]:
                    consumers[name].append(Edge(transition, 0))
        return {name: tuple(edges) for name, edges in consumers.items()}


def _disagrees(layer: Layer, other: str, received: str) -> ConfigError:
    return layer.problem(
        f"shares a parameter with a layer that {other}", received, "Set the same partition_dim for both layers, or 0."
    )


def _axis(axis: int | None) -> str:
    return "no axis" if axis is None else f"axis {axis}"
