"""One worker: its nets, its algorithm, and its part in the group's synchronous step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from singa_dask.algorithms import algorithm
from singa_dask.comm.communicator import Communicator
from singa_dask.exchange import BucketExchange, SharedExchange
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.group import WorkerGroup
from singa_dask.exchange.make import bucket_exchange
from singa_dask.exchange.overlap import OverlapTuner
from singa_dask.exchange.pipeline import GradientPipeline
from singa_dask.exchange.staging import InPlace, OnDevice, Staging, ThroughHost
from singa_dask.job import ClusterTopology, active_phases
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Metric, Step
from singa_dask.net import Batch, Net
from singa_dask.net.flat import FlatParams
from singa_dask.ops import Ops
from singa_dask.server import Link, LocalLink, Server, Slice, Stub
from singa_dask.training.group_state import GroupState
from singa_dask.training.placement import form_shared_parameters, parameter_partition, server_plan, suits_sharing
from singa_dask.training.stages import ServerStages


class Replica:
    """The nets of one worker (train, and test or validation sharing its parameters) and its way to its servers.

    The parameters are cut into buckets, and each worker of a group owns a part of every bucket. One step is

        gradients of the own rows  ->  reduce-scatter  ->  update of the own parts by the servers  ->  all-gather

    Several buckets travel beside the backward pass where there is a network between the workers. On one machine the
    parameters of all CPU workers are the same memory, and nothing is sent, unless the job has a codec.

    group_state: puts, restores, fetches and saves what the group has in common. wait_s: seconds so far in which the
    worker could do nothing but wait for its group. `form` makes one.
    """

    def __init__(
        self,
        job: JobProto,
        comm: Communicator,
        device_comm: Communicator | None,
        nets: dict[int, Net],
        exchange: BucketExchange,
        stub: Stub,
        *,
        threaded: bool,
        in_process_servers: bool,
    ) -> None:
        self.job, self.comm, self.device_comm = job, comm, device_comm
        self.nets, self.net, self.exchange, self.stub = nets, nets[Phase.kTrain], exchange, stub
        self.in_process_servers = in_process_servers
        self.algorithm = algorithm(job.train_one_batch)
        # A device may complete a step long after the host, which could not time it: every step overlaps.
        tuner = OverlapTuner() if device_comm is None else None
        self.executor = CollectiveExecutor(exchange.comm, threaded=threaded, tuner=tuner, initializer=self.net.ops.use)
        group = WorkerGroup(self.executor, comm, self.net.ops)
        for net in nets.values():
            net.carries = self.algorithm.carries
            net.join(group)
        self.stages = ServerStages(
            job,
            comm,
            self.net,
            exchange,
            stub,
            self.executor,
            _staging(self.net, device_comm),
            in_process_servers=in_process_servers,
        )
        self.group_state = GroupState(job, comm, self.net, self.stages, carries=self.algorithm.carries)
        entries, ahead = self.net.flat.entries, exchange.comm.goes_on
        self.pipeline = GradientPipeline(self.executor, exchange.buckets, entries, ahead=ahead)

    @classmethod
    def form(
        cls,
        job: JobProto,
        comm: Communicator,
        ops: Ops,
        links: Mapping[int, Link] | None = None,
        device_comm: Communicator | None = None,
        **stub: Any,
    ) -> Replica:
        """The replica of every worker of the group. Collective.

        links: to the servers, by number; None makes a server in each worker's process, which works on the worker's
        parameters in place. device_comm: of the same ranks as `comm`, for arrays where `ops` has them; it carries the
        buckets, if the job `suits_device_comm`, and `comm` the rest. stub: keyword arguments of Stub.
        """
        topology, nets = ClusterTopology.from_proto(job.cluster), _nets(job, ops)
        flat = nets[Phase.kTrain].flat
        one_machine = comm.size > 1 and device_comm is None and comm.one_machine()
        shared = form_shared_parameters(flat, comm) if one_machine and suits_sharing(job, ops) else None
        whole = links is None and shared is not None
        cut = parameter_partition(topology, flat.entries, flat.size, whole=whole)
        slices = cut.of_worker(comm.rank)
        codec = {"name": topology.codec, "sparsity": topology.sparsity}
        exchange: BucketExchange
        if shared is not None:
            exchange = SharedExchange(comm, cut.buckets, shared)
        else:
            exchange = bucket_exchange(
                device_comm or comm,
                cut.buckets,
                codec,
                flat.values.dtype,
                uncoded=flat.places(lambda entry: entry.statistic),
                frozen=flat.places(lambda entry: entry.lr_scale == 0 and not entry.statistic),
            )
        stub = {"behind": int(topology.one_behind), "codec": codec, "exactly": _exactly(slices, flat), **stub}
        return cls(
            job,
            comm,
            device_comm,
            nets,
            exchange,
            Stub(slices, _in_process(job, ops, flat, slices) if links is None else links, **stub),
            threaded=comm.size > 1 and not one_machine and len(cut.buckets) > 1,
            in_process_servers=links is None,
        )

    @property
    def wait_s(self) -> float:
        return self.executor.wait_s

    @property
    def operations(self) -> dict[str, dict[str, float]]:
        """Bytes and seconds so far, by operation; those between devices are "device reduce_scatter" and so on."""
        of_device = {} if self.device_comm is None else self.device_comm.operations
        return {**self.comm.operations, **{f"device {name}": done for name, done in of_device.items()}}

    @property
    def overflows(self) -> int:
        """Values so far that a codec could not hold, on this worker."""
        return self.exchange.overflows + self.stub.overflows

    def train_step(self, feed: Mapping[str, Batch], step: Step) -> dict[str, Metric]:
        """One synchronous step of the group; returns the metrics of the own rows of the mini-batch."""
        self.stages.begin(step.number)
        return self.pipeline.run(self.stages, partial(self.algorithm.train_one_batch, self.net, feed, step))

    def drain(self) -> None:
        """Take the replies to all updates that are under way. Collective."""
        self.stages.drain()

    def warm_up(self, feed: Mapping[str, Batch], step: Step) -> None:
        """Compute, and discard, the gradients of one mini-batch: compiles what this net needs."""
        state = {name: [array.copy() for array in arrays] for name, arrays in self.net.state.items()}
        self.algorithm.train_one_batch(self.net, feed, step)
        self.net.state = state
        self.exchange.warm_up()

    def close(self) -> None:
        """End the thread of the exchange."""
        self.executor.close()


def _nets(job: JobProto, ops: Ops) -> dict[int, Net]:
    """The net of every phase of the job, all with the parameters of the training net."""
    nets: dict[int, Net] = {Phase.kTrain: Net(job.neuralnet, Phase.kTrain, ops)}
    for phase in active_phases(job):
        if phase != Phase.kTrain:
            nets[phase] = Net(job.neuralnet, phase, ops, share=nets[Phase.kTrain])
    return nets


def _in_process(job: JobProto, ops: Ops, flat: FlatParams, slices: tuple[Slice, ...]) -> dict[int, Link]:
    """Links to a server in this process, which works on the worker's parameters in place."""
    plan = server_plan(job, tuple(flat.entries), slices)
    return {s.server: LocalLink(Server(plan.protocol(ops, copy=False), live=True)) for s in slices}


def _exactly(slices: tuple[Slice, ...], flat: FlatParams) -> set[int]:
    """Positions of the slices that hold running statistics, of which nothing may be kept back."""
    statistics = [entry for entry in flat.entries if entry.statistic]
    return {i for i, s in enumerate(slices) if any(s.start < e.stop and e.start < s.stop for e in statistics)}


def _staging(net: Net, device_comm: Communicator | None) -> Staging:
    grads, values = net.flat.grads, net.flat.values
    if net.ops.device == "cpu":
        return InPlace(grads, values)
    return ThroughHost(net.ops, grads, values) if device_comm is None else OnDevice(net.ops, grads, values)
