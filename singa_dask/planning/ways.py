"""The ways in which a job can partition each of its layers, and what each of them costs on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

from singa_dask.errors import ConfigError, SingaError
from singa_dask.job.job_pb2 import JobProto, LayerProto, NetProto, Phase
from singa_dask.job.unroll import origin
from singa_dask.layers import InnerProduct, layer_class
from singa_dask.layers.base import Layer
from singa_dask.layers.input import InputLayer
from singa_dask.layers.partition import ArrayShard, LayerPartition, Shape, Sharding
from singa_dask.layers.transition import Transition
from singa_dask.net import Net
from singa_dask.net.graph import Graph, build_graph
from singa_dask.net.partition import Partitioner
from singa_dask.net.passes import failure
from singa_dask.net.setup import told_apart
from singa_dask.ops import Ops
from singa_dask.planning.work import NBYTES, Collective, Work, batch_of, collectives_of, layer_work, transition_work
from singa_dask.updaters import states_of, updater_class

Shardings = tuple[Sharding, Sharding]


@dataclass(frozen=True)
class Way:
    """What a job says of a layer. dim: its partition_dim, None to leave the layer as it is. axis: the partition_dim of
    its first parameter."""

    dim: int | None = None
    axis: int | None = None

    @classmethod
    def of(cls, layer: LayerProto) -> Way:
        """What `write` has said."""
        axis = layer.param[0].partition_dim if layer.param and layer.param[0].HasField("partition_dim") else None
        return cls(layer.partition_dim if layer.HasField("partition_dim") else None, axis)

    def write(self, layer: LayerProto) -> None:
        """Say so."""
        if self.dim is not None:
            layer.partition_dim = self.dim
        if self.axis is not None:
            param = layer.param[0] if layer.param else layer.param.add()
            param.partition_dim = self.axis


class NotPartitioned(ConfigError):
    """A layer cannot be partitioned in the way that was tried."""


class WayCosts(Protocol):
    """Seconds of the parts of a step."""

    def call(self, work: Work) -> tuple[float, float]:
        """Of a layer, forward and backward."""

    def collective(self, collective: Collective) -> float:
        """Of an operation of the group."""

    def exchange(self, nbytes: float) -> float:
        """Of the gradients and values of replicated parameters if nothing hides it."""

    def update(self, elements: float) -> float:
        """Of the updater in one worker."""


class MovedActivation(NamedTuple):
    """A transition in one of the passes, the layer that it reads, and the bytes of a mini-batch in it."""

    name: str
    source: str
    nbytes: float
    backward: bool


@dataclass(frozen=True)
class PartitionContext:
    """All that a layer's partition depends on.

    shardings: that its sources make. there: transitions of its sources that are there already. shards: of the
    parameters that it shares with earlier layers, by owner. first: the shardings of the first instance of its layer.
    """

    shardings: tuple[Sharding, ...]
    there: frozenset[MovedActivation]
    shards: tuple[tuple[str, ArrayShard | None], ...]
    first: Shardings | None


@dataclass(frozen=True)
class PartitionedLayer:
    """A layer, partitioned in one way.

    shards: of its parameters, by owner. moved: new transitions. seconds: of its calls, those of the new transitions
    included, and of the update of its parameters; exchange: of the exchange of its parameters, if nothing hides it.
    nbytes: of memory.
    """

    reads: Sharding
    makes: Sharding
    shards: tuple[tuple[str, ArrayShard | None], ...]
    moved: frozenset[MovedActivation]
    seconds: float
    exchange: float
    nbytes: float

    @property
    def shardings(self) -> Shardings:
        return self.reads, self.makes


class _Partitioned(NamedTuple):
    """A layer as one worker has it, the sample shapes of what it reads and makes, the shards of its parameters, and
    the transitions before it, each with the position at which the layer reads it."""

    local: Layer
    sources: list[Shape]
    shape: Any
    shards: dict[str, ArrayShard | None]
    transitions: list[tuple[int, Transition]]


class Ways:
    """The ways to partition the layers of a job, which is prepared, over the workers of its groups.

    net: the training net of one worker. layers: in order, by name. All choices are made by the product's own
    Partitioner, so that nets realise them.
    """

    def __init__(self, job: JobProto, costs: WayCosts) -> None:
        self._costs, self.size = costs, job.cluster.nworkers_per_group
        proto = NetProto()
        proto.CopyFrom(job.neuralnet)
        proto.ClearField("partition_dim")
        self._proto = proto
        self.net = net = Net(proto, Phase.kTrain, Ops(), allocate=False)
        self.graph: Graph = build_graph(proto, Phase.kTrain)
        self.layers = net.layers
        self.batch = batch_of(net)
        self._rows = -(-self.batch // self.size)
        self._sources = {
            name: tuple(net.source_shape(name, i) for i in range(len(layer.proto.srclayers)))
            for name, layer in net.layers.items()
        }
        self._wanted = {plan.layer.name: set(plan.wanted) for plan in net.routing.forward}
        self._trained = {plan.layer.name for plan in net.routing.backward}
        self._states = len(states_of(job.updater))
        self._whole_parameters = updater_class(job.updater).whole_parameters
        self._owners = set(net.params)
        self._known: dict[tuple[str, Way, PartitionContext], PartitionedLayer | NotPartitioned] = {}

    def of(self, name: str) -> tuple[Way, ...]:
        """The ways to partition a layer. The job may have said how."""
        layer = self.layers[name]
        if layer.proto.partition_dim >= 0 or any(param.HasField("partition_dim") for param in layer.proto.param):
            return (Way(),)
        if isinstance(layer, InputLayer) or not layer.proto.srclayers:
            return (Way(),)
        if isinstance(layer, InnerProduct) and layer.splits_features:
            return Way(0), Way(1, layer.output_axis), Way(1, 1 - layer.output_axis)
        return Way(0), Way(1)

    def place(self, name: str, way: Way, context: PartitionContext) -> PartitionedLayer:
        """The layer in this way. Raises NotPartitioned where it cannot be partitioned so."""
        key = name, way, context
        if key not in self._known:
            try:
                chosen = self._partitioned(*key)
            except ConfigError as error:
                self._known[key] = NotPartitioned(error.problems)
            else:
                self._known[key] = self._placed(context, chosen)
        found = self._known[key]
        if isinstance(found, NotPartitioned):
            raise found
        return found

    def _partitioned(self, name: str, way: Way, context: PartitionContext) -> _Partitioned:
        whole = self.layers[name]
        proto = LayerProto()
        proto.CopyFrom(whole.proto)
        way.write(proto)
        layer = type(whole).from_proto(proto)
        layer.params, layer.targets = whole.params, whole.targets
        axes = {owner: None if shard is None else shard.axis for owner, shard in context.shards}
        rank = self.size - 1  # the last worker has the largest share
        partitioner = Partitioner(
            self._proto, self.graph, self.layers, self.net.shapes, self._sources, axes, rank, self.size
        )
        for source, sharding in zip(proto.srclayers, context.shardings, strict=True):
            partitioner.partitions[source] = LayerPartition(makes=sharding)
        if context.first is not None:
            partitioner.partitions[f"0#{origin(proto)}"] = LayerPartition(*context.first)
        partitioner.place(layer)
        partition, read = partitioner.partitions[name], list(partitioner.messages[name].srclayers)
        local, sources, shape = self._local(layer, partition, read)
        shards = dict(context.shards)
        for param, here in zip(whole.params, local.params, strict=True):
            known = shards.setdefault(param.owner.name, here.shard)
            if here.shard is not None and known != here.shard:
                raise whole.problem(f"would split {here.name!r} otherwise than a layer that shares it")
            if here.shard is not None and self._whole_parameters:
                raise whole.problem(f"would split {here.name!r}, which the updater needs as a whole")
        transitions = [
            (i, _transition(partitioner.messages[source], partitioner.partitions[source], layer, i))
            for i, source in enumerate(read)
            if source != proto.srclayers[i]
        ]
        return _Partitioned(local, sources, shape, shards, transitions)

    def _placed(self, context: PartitionContext, chosen: _Partitioned) -> PartitionedLayer:
        local, shape = chosen.local, chosen.shape
        name, whole = local.name, self.layers[local.name]
        seconds = self._seconds(local, *self._shapes(name, local, chosen.sources, shape))
        nbytes, moved = self._held(local, shape), set[MovedActivation]()
        for i, transition in chosen.transitions:
            made = transition.setup()
            sent = collectives_of(transition, self.batch, forward=True, gradient=True)
            calls = self._of_transition(transition, name, i)
            for backward, took in enumerate(calls):
                source = transition.proto.srclayers[0]
                each = MovedActivation(transition.name, source, sum(c.nbytes for c in sent), bool(backward))
                if took is None or each in moved or each in context.there:
                    continue
                moved.add(each)
                seconds += took
                nbytes += 0.0 if backward else self._held(transition, made)
        replicated, own = (
            sum(
                here.size
                for param, here in zip(whole.params, local.params, strict=True)
                if param in self._owners and (here.shard is None) == everywhere
            )
            for everywhere in (True, False)
        )
        seconds += self._costs.update(replicated / self.size + own)
        nbytes += NBYTES * (replicated * (2 + (2 + self._states) / self.size) + own * (2 + self._states))
        return PartitionedLayer(
            *(local.partition.reads, local.partition.makes),
            tuple(sorted(chosen.shards.items())),
            frozenset(moved),
            seconds,
            self._costs.exchange(NBYTES * replicated),
            nbytes,
        )

    def _local(self, layer: Layer, partition: LayerPartition, read: Sequence[str]) -> tuple[Layer, list[Shape], Any]:
        """The layer as the worker has it, the sample shapes of what it reads, and of what it makes."""
        local = type(layer).from_proto(layer.proto)
        local.partition, local.targets = partition, layer.targets
        sources = []
        for i, (source, whole) in enumerate(zip(layer.proto.srclayers, partition.sources, strict=True)):
            if i in layer.label_positions:
                sources.append(whole if read[i] == source else layer.targets.get(i, ()))
            elif partition.reads is Sharding.FEATURES and i not in layer.undivided_sources:
                sources.append(_columns(partition, whole))
            else:
                sources.append(whole)
        try:
            return local, sources, local.setup(*sources)
        except SingaError:
            raise
        except Exception as error:
            raise failure(local, Phase.kTrain, "setup", sources, error) from error

    def _shapes(self, name: str, local: Layer, sources: list[Shape], shape: Any) -> tuple[Sequence[Shape], Any]:
        """What a layer reads and makes, which may compute after the pooling that reads it."""
        pooling = self.net.pooled_first.get(name)
        if pooling is None:
            return sources, shape
        pooled = self.net.shapes[pooling]
        pooled = _columns(local.partition, pooled) if local.partition.makes is Sharding.FEATURES else pooled
        return (pooled,), pooled

    def _seconds(self, local: Layer, sources: Sequence[Shape], shape: Any) -> float:
        name, gradient = local.name, bool(self._wanted[local.name])
        work = layer_work(local, self.batch, self._rows, sources, shape, gradient=gradient)
        forward, backward = self._of_calls(local, work, gradient=gradient)
        return forward + (backward if name in self._trained else 0.0)

    def _of_transition(self, transition: Transition, reader: str, position: int) -> tuple[float, float | None]:
        """Seconds of both passes; None without a backward pass for this reader."""
        gradient = position in self._wanted[reader]
        work = transition_work(transition, self.batch, gradient=gradient)
        forward, backward = self._of_calls(transition, work, gradient=gradient)
        return forward, backward if gradient and reader in self._trained else None

    def _of_calls(self, layer: Layer, work: Work, *, gradient: bool) -> tuple[float, float]:
        forward, backward = self._costs.call(work)
        sent = (collectives_of(layer, self.batch, forward=way, gradient=gradient) for way in (True, False))
        waits = [sum(map(self._costs.collective, each)) for each in sent]
        return forward + waits[0], backward + waits[1]

    def _held(self, layer: Layer, shape: Any) -> float:
        """Bytes of a layer's output and its gradient."""
        rows = self._rows if layer.partition.makes is Sharding.BATCH else self.batch
        pieces = shape if told_apart(layer, shape) else (shape,)
        copies = 1 if layer.name in self.net.input_layers else 2
        return NBYTES * copies * rows * layer.steps * sum(map(prod, pieces))


def _transition(message: LayerProto, partition: LayerPartition, reader: Layer, position: int) -> Transition:
    """The transition that `reader` reads at `position`."""
    transition = layer_class(message).from_proto(message)
    assert isinstance(transition, Transition)
    transition.partition = partition
    if position in reader.label_positions and position in reader.targets:
        transition.targets = {0: reader.targets[position]}
    return transition


def _columns(partition: LayerPartition, shape: Shape) -> Shape:
    first, last = partition.own(shape[-1])
    return *shape[:-1], last - first
