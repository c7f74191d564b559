"""What one worker does in a training step: the calls of its layers, what they send, and its parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from singa_dask.job import ClusterTopology, active_phases
from singa_dask.job.job_pb2 import JobProto, NetProto, Phase
from singa_dask.job.stores import store_of
from singa_dask.layers.base import Layer, LossLayer
from singa_dask.layers.param import Param
from singa_dask.layers.partition import Shape, Sharding
from singa_dask.layers.registry import layer_class
from singa_dask.layers.transition import LabelTransition, Transition
from singa_dask.net import Net
from singa_dask.net.flat import GroupLayout
from singa_dask.net.setup import told_apart
from singa_dask.ops import Ops
from singa_dask.server import Partition
from singa_dask.training.memory import Need, need_of
from singa_dask.training.nets import make_nets
from singa_dask.training.placement import parameter_partition
from singa_dask.updaters import states_of

NBYTES = 4  # of an element


@dataclass(frozen=True, order=True)
class Work:
    """What one call of a layer computes.

    kind: the layer's class, with the settings that select its kernels. rows: of the mini-batch, times the time steps.
    inputs, outputs: elements of a row. positions: places of an image at which the parameters are applied. params:
    elements. steps: time steps. gradient: whether the backward pass computes the gradient for the source.
    """

    kind: str
    rows: int
    inputs: int
    outputs: int
    positions: int = 1
    params: int = 0
    steps: int = 1
    gradient: bool = True

    @property
    def operations(self) -> int:
        """Multiplications and additions of the forward pass."""
        return 2 * self.rows * self.positions * self.params

    @property
    def elements(self) -> int:
        """Elements that the forward pass reads and writes, without parameters."""
        return self.rows * (self.inputs + self.outputs)


@dataclass(frozen=True)
class Collective:
    """An operation of the group. nbytes: of the buffer that holds every rank's part; of an all-to-all those that all
    ranks hand over together."""

    operation: str
    nbytes: float

    def sent(self, ranks: int) -> float:
        """Bytes that a rank sends to others."""
        factor = {"all_reduce": 2.0, "all_to_all": 1 / ranks}.get(self.operation, 1.0)
        return factor * (ranks - 1) / ranks * self.nbytes


@dataclass(frozen=True)
class ScheduledCall:
    """One call of a layer in a step. collectives: that it waits for, in order. completes: the parameters whose
    gradients are complete after it. early: whether the collectives may start in the middle of the call before, which
    then still computes the gradients of its parameters. moves: whether it is a transition."""

    layer: str
    work: Work
    collectives: tuple[Collective, ...] = ()
    completes: tuple[Param, ...] = ()
    early: bool = False
    moves: bool = False


@dataclass(frozen=True)
class PlannedNets:
    """The nets of the last worker of a group, which has the largest share, without memory.

    rows: of the worker; batch: of the group. forward, backward: calls in order.
    """

    nets: dict[int, Net]
    rows: int
    batch: int
    forward: tuple[ScheduledCall, ...]
    backward: tuple[ScheduledCall, ...]

    @property
    def net(self) -> Net:
        """The training net."""
        return self.nets[Phase.kTrain]

    @property
    def calls(self) -> tuple[ScheduledCall, ...]:
        return self.forward + self.backward

    @property
    def shardings(self) -> dict[str, tuple[Sharding, Sharding]]:
        """What each layer of the job reads and makes."""
        return {name: (each.partition.reads, each.partition.makes) for name, each in self.net.layers.items()}


@dataclass(frozen=True)
class WorkerStep(PlannedNets):
    """A training step of this worker.

    partition: how parameters are cut into buckets and slices, where workers exchange messages; whole: the same where
    they share memory. need: memory, if workers exchange messages; shared_need: if they share memory.
    """

    partition: Partition
    whole: Partition
    need: Need
    shared_need: Need

    @property
    def values(self) -> int:
        """Elements of a row that the loader delivers."""
        return sum(prod(self.net.shapes[name]) for name in self.net.input_layers)

    @property
    def own(self) -> int:
        """Elements of the worker's shards."""
        return self.net.own.size

    @property
    def replicated(self) -> int:
        """Elements of the parameters that every worker has."""
        return self.partition.buckets[-1].stop if self.partition.buckets else 0


def worker_step(job: JobProto) -> WorkerStep:
    """The step of the worker of a group that has most to do: the last one, which has the largest share.

    job: prepared, so that it has the shapes of its data. Allocates nothing. Raises ConfigError as Net does.
    """
    topology = ClusterTopology.from_proto(job.cluster)
    size, servers = topology.nworkers_per_group, topology.in_process_servers
    planned = planned_nets(job, size)
    layout = GroupLayout.of(planned.net.flat, planned.net.own, size)
    return WorkerStep(
        **vars(planned),
        partition=parameter_partition(topology, layout, job.updater),
        whole=parameter_partition(topology, layout, job.updater, whole=True),
        need=need_of(planned.nets, job, size, in_process_servers=servers, shares=False),
        shared_need=need_of(planned.nets, job, size, in_process_servers=servers, shares=size > 1),
    )


def planned_nets(job: JobProto, size: int) -> PlannedNets:
    """Of a job whose groups have `size` workers; its cluster block does not matter. Raises ConfigError as Net does."""
    net = job.neuralnet
    classes = tuple(layer_class(layer) for layer in net.layer)  # a user may have defined one anew
    return _planned_nets(net.SerializeToString(deterministic=True), classes, tuple(active_phases(job)), size)


@lru_cache(maxsize=32)  # most candidates of a plan differ in their cluster block alone
def _planned_nets(message: bytes, classes: tuple[type[Layer], ...], phases: tuple[int, ...], size: int) -> PlannedNets:
    job = JobProto(neuralnet=NetProto.FromString(message))
    nets = make_nets(job, Ops(), size - 1, size, phases=phases, allocate=False)
    net = nets[Phase.kTrain]
    batch = batch_of(net)
    rows = -(-batch // size)
    calls = _Calls(net, batch, rows)
    return PlannedNets(nets, rows, batch, tuple(calls.forward()), tuple(calls.backward()))


def server_memory(job: JobProto, step: WorkerStep) -> int:
    """Bytes of the values and the updater's state of the largest server; 0 where workers have them themselves."""
    if ClusterTopology.from_proto(job.cluster).in_process_servers:
        return 0
    held = Counter[int]()
    for piece in step.partition.slices:
        held[piece.server] += piece.size
    return NBYTES * (1 + len(states_of(job.updater))) * max(held.values(), default=0)


def batch_of(net: Net) -> int:
    """Rows of a mini-batch of the group."""
    stores = [store_of(net.layers[name].proto) for name in net.input_layers]
    return max((max(store.batchsize, default=1) for store in stores), default=1)


class _Calls:
    """The calls of a net's layers, in the order in which it makes them."""

    def __init__(self, net: Net, batch: int, rows: int) -> None:
        self._net, self._batch, self._rows = net, batch, rows

    def forward(self) -> Iterator[ScheduledCall]:
        for plan in self._net.routing.forward:
            layer = plan.layer
            collectives = self._collectives(layer, forward=True)
            yield ScheduledCall(layer.name, self.work(layer), collectives, moves=isinstance(layer, Transition))

    def backward(self) -> Iterator[ScheduledCall]:
        for plan in self._net.routing.backward:
            layer = plan.layer
            completes = tuple(param for param in plan.completes if param.shard is None)
            collectives = self._collectives(layer, forward=False)
            moves = isinstance(layer, Transition)
            yield ScheduledCall(layer.name, self.work(layer), collectives, completes, _early(layer), moves)

    def work(self, layer: Layer) -> Work:
        """What a call of the layer computes on this worker."""
        net, name = self._net, layer.name
        gradient = net.contexts[name].needs_input_grad
        if isinstance(layer, Transition):
            return transition_work(layer, self._batch, gradient=gradient)
        pooled = net.pooled_first.get(name)  # computes after the pooling that reads it
        shape = net.shapes[pooled or name]
        sources = (shape,) if pooled else [net.source_shape(name, i) for i in range(len(layer.proto.srclayers))]
        return layer_work(layer, self._batch, self._rows, sources, shape, gradient=gradient)

    def _collectives(self, layer: Layer, *, forward: bool) -> tuple[Collective, ...]:
        gradient = self._net.contexts[layer.name].needs_input_grad
        return collectives_of(layer, self._batch, forward=forward, gradient=gradient)


def layer_work(layer: Layer, batch: int, rows: int, sources: Sequence[Shape], shape: Any, *, gradient: bool) -> Work:
    """What a call of a layer computes. layer: set up on this worker. rows: of the mini-batch of `batch` that are the
    worker's. sources, shape: what it reads and makes here. gradient: see Work."""
    pieces = shape if told_apart(layer, shape) else (shape,)
    return Work(
        kind=kind_of(layer),
        rows=layer.steps * (rows if layer.partition.reads is Sharding.BATCH else batch),
        inputs=sum(map(prod, sources)),
        outputs=sum(map(prod, pieces)),
        positions=_positions(sources, shape) if layer.params else 1,
        params=sum(param.size for param in layer.params),
        steps=layer.steps,
        gradient=gradient,
    )


def _positions(sources: Sequence[Shape], shape: Shape) -> int:
    """The places of an image at which a layer applies its parameters: a transposed convolution reads fewer than it
    makes."""
    return min(prod(shape[:-1]), prod(sources[0][:-1])) if len(shape) > 1 and len(sources[0]) > 1 else 1


def transition_work(layer: Transition, batch: int, *, gradient: bool) -> Work:
    """What a call of a transition moves."""
    partition = layer.partition
    whole = prod(partition.sources[0])
    here = {Sharding.BATCH: -(-whole // partition.size), Sharding.FEATURES: -(-whole // partition.size)}
    inputs, outputs = here.get(partition.reads, whole), here.get(partition.makes, whole)
    return Work(kind_of(layer), batch * layer.steps, inputs, outputs, steps=layer.steps, gradient=gradient)


def collectives_of(layer: Layer, batch: int, *, forward: bool, gradient: bool) -> tuple[Collective, ...]:
    """What a call of a layer waits for, of the forward or the backward pass. gradient: see Work."""
    if not layer.sent[not forward]:
        return ()
    rows = batch * layer.steps
    if isinstance(layer, Transition):
        return tuple(_transition(layer, rows, forward=forward)) if forward or gradient else ()
    if layer.recurrent:  # its state after every time step but the last
        state = NBYTES * batch * layer.conf.dim_hidden
        return (Collective("all_gather" if forward else "reduce_scatter", state),) * (layer.steps - 1)
    n = layer.partition.size
    sent, sums = layer.sent[not forward], tuple[Collective, ...]()
    if isinstance(layer, LossLayer) or sent < n - 1:  # a sum over the classes
        sent, sums = sent - 2 * layer.partition.others, (Collective("all_reduce", NBYTES * rows),)
    gathered = NBYTES * rows * n * sent / (n - 1)
    return (*((Collective("all_gather", gathered),) if sent > 0 else ()), *sums)


def _early(layer: Layer) -> bool:
    return isinstance(layer, Transition) and layer.sums_gradients


def _transition(layer: Transition, rows: int, *, forward: bool) -> Iterator[Collective]:
    reads, makes = layer.partition.reads, layer.partition.makes
    if not forward:
        reads, makes = makes.of_gradient, reads.of_gradient
    classes = isinstance(layer, LabelTransition) and not layer.targets
    whole = (2 if classes else 1) * NBYTES * rows * max(1, prod(layer.partition.sources[0]))
    if {reads, makes} == {Sharding.BATCH, Sharding.FEATURES}:
        yield Collective("all_to_all", whole)
        return
    if reads is Sharding.PARTIAL:
        yield Collective("reduce_scatter", whole)
    if makes is Sharding.REPLICATED:
        yield Collective("all_gather", whole)


def kind_of(layer: Layer) -> str:
    """The layer's class, with the settings that select its kernels."""
    name = type(layer).__name__
    if isinstance(layer, Transition):
        return f"{name} {layer.partition.reads}-{layer.partition.makes}"
    conf = layer.conf if layer.conf_field else None
    fields = ("pool", "kernel", "kernel_x", "kernel_y", "stride", "stride_x", "stride_y", "local_size", "causal")
    settings = [f"{f}={getattr(conf, f)}" for f in fields if conf is not None and hasattr(conf, f)]
    unusual = [
        f for f in ("groups", "dilation", "kernel_z") if conf is not None and hasattr(conf, f) and conf.HasField(f)
    ]
    settings += [f"{f}={getattr(conf, f)}" for f in unusual]
    return " ".join([name, *settings])
