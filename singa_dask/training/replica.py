"""One worker: its nets, its algorithm, and its part in the group's synchronous step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from singa_dask.algorithms import algorithm
from singa_dask.comm.communicator import Communicator
from singa_dask.exchange import Bucket, BucketExchange, SharedExchange
from singa_dask.exchange.clipping import norm_clip
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.group import CommGroup
from singa_dask.exchange.make import bucket_exchange
from singa_dask.exchange.overlap import OverlapTuner
from singa_dask.exchange.pipeline import GradientPipeline
from singa_dask.exchange.staging import make_staging
from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Metric, Step
from singa_dask.memory.region import Regions
from singa_dask.memory.store import Store
from singa_dask.net import Batch, Net
from singa_dask.net.flat import Entry, FlatParams, GroupLayout
from singa_dask.ops import Ops
from singa_dask.server import Keeper, Link, LocalLink, ParameterSlice, Server, Stub
from singa_dask.server.kept import SLICE, layout_of
from singa_dask.training.group_state import GroupState
from singa_dask.training.nets import make_nets
from singa_dask.training.placement import form_shared_parameters, parameter_partition, server_plan, suits_sharing
from singa_dask.training.shadows import RankShadow
from singa_dask.training.stages import ServerStages
from singa_dask.updaters import states_of
from singa_dask.updaters.groups import scaled


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
        regions: Regions | None = None,
        holder: Store | None = None,
        data: Mapping[str, str] | None = None,
    ) -> None:
        self.job, self.comm, self.device_comm = job, comm, device_comm
        self.nets, self.net, self.exchange, self.stub = nets, nets[Phase.kTrain], exchange, stub
        self.in_process_servers = in_process_servers
        self.algorithm = algorithm(job.train_one_batch)
        # A device may complete a step long after the host, which could not time it: every step overlaps.
        tuner = OverlapTuner() if device_comm is None else None
        self.executor = CollectiveExecutor(exchange.comm, threaded=threaded, tuner=tuner, initializer=self.net.ops.use)
        self.group = self._worker_group()
        for net in nets.values():
            net.carries = self.algorithm.carries
            net.join(self.group)
        self.stages = ServerStages(
            job,
            comm,
            self.net,
            exchange,
            stub,
            self.executor,
            make_staging(
                self.net.ops,
                self.net.flat,
                on_device=device_comm is not None,
                updates_on_device=in_process_servers,
            ),
            make_staging(self.net.ops, self.net.own, on_device=in_process_servers),
            norm_clip(job.updater, self.net.flat, self.net.own, self.net.ops),
            in_process_servers=in_process_servers,
            regions=regions,
        )
        carries = self.algorithm.carries
        self.group_state = GroupState(job, comm, self.net, self.stages, carries=carries, data=data or {})
        self.shadow: RankShadow | None = None
        if regions is not None and holder is not None:
            self.shadow = RankShadow(
                comm, regions, holder, self.group_state.fingerprint, every_step=self.group_state.moves
            )
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
        holder: Store | None = None,
        room: Callable[[int], bool] = lambda nbytes: True,
        data: Mapping[str, str] | None = None,
        **stub: Any,
    ) -> Replica:
        """The replica of every worker of the group. Collective.

        links: to the servers, by number; None makes a server in each worker's process, which works on the worker's
        parameters in place. device_comm: of the same ranks as `comm`, for arrays where `ops` has them; it carries the
        buckets, and `comm` the rest. holder: has what the rank leaves in memory outlive its process; None to leave
        nothing. room: whether all workers have memory for so many bytes of it. data: fingerprints of the training
        data. stub: keyword arguments of Stub.
        """
        topology, nets = ClusterTopology.from_proto(job.cluster), make_nets(job, ops, comm.rank, comm.size)
        flat = nets[Phase.kTrain].flat
        layout = GroupLayout.of(flat, nets[Phase.kTrain].own, comm.size)
        entries = layout.of_worker(comm.rank)
        one_machine = comm.size > 1 and device_comm is None and comm.one_machine()
        shared = form_shared_parameters(flat, comm) if one_machine and suits_sharing(job, ops) else None
        whole = links is None and shared is not None
        cut = parameter_partition(topology, layout, job.updater, whole=whole, workers=comm.size)
        slices = cut.of_worker(comm.rank)
        codec = {"name": topology.codec, "sparsity": topology.sparsity}
        exchange: BucketExchange
        if shared is not None:
            exchange = SharedExchange(comm, cut.buckets, shared)
        else:
            on = None if device_comm is None else ops
            exchange = _exchange(job, device_comm or comm, cut.buckets, codec, flat, on)
        states = states_of(job.updater)
        regions = None
        moves = topology.codec != "kFull" or algorithm(job.train_one_batch).carries
        # A moving state would have to leave the GPU at each step.
        if holder is not None and links is None and not (moves and ops.device != "cpu"):
            of_slices = [layout_of((s.index, SLICE), s.start, s.stop, states, flat.values.dtype) for s in slices]
            regions = Regions.create(of_slices, room, ops.copies)
        stub = {"behind": int(topology.one_behind), "codec": codec, "exactly": _exactly(slices, entries), **stub}
        return cls(
            job,
            comm,
            device_comm,
            nets,
            exchange,
            Stub(slices, _in_process(job, ops, entries, slices, regions) if links is None else links, **stub),
            threaded=comm.size > 1 and not one_machine and (len(cut.buckets) > 1 or nets[Phase.kTrain].partitioned),
            in_process_servers=links is None,
            regions=regions,
            holder=holder,
            data=data,
        )

    @property
    def wait_s(self) -> float:
        return self.executor.wait_s

    @property
    def operations(self) -> dict[str, dict[str, float]]:
        """Bytes and seconds so far, by operation. The names of those between devices begin with "device", of those of
        layers in a partitioned net with "transition"."""
        prefixed = {"device": self.device_comm, "transition": self.group.comm if self.net.partitioned else None}
        operations = dict(self.comm.operations)
        for prefix, comm in prefixed.items():
            for name, done in (comm.operations if comm is not None else {}).items():
                operations[f"{prefix} {name}"] = done
        return operations

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

    def warm_up(self, feed: Mapping[str, Batch], step: Step, timeout_s: float) -> None:
        """Compute, and discard, the gradients of one mini-batch, and on a GPU an update: compiles what this net needs.

        timeout_s: of what travels between GPUs meanwhile, as other ranks compile too. Collective.
        """
        with ExitStack() as stack:
            if self.net.ops.device != "cpu":
                for comm in {self.comm, self.device_comm or self.comm, self.group.comm}:
                    stack.enter_context(comm.patiently(timeout_s))
            self._warm_up(feed, step)

    def _warm_up(self, feed: Mapping[str, Batch], step: Step) -> None:
        if self.device_comm is not None:
            self.device_comm.warm_up()
        state = {name: [array.copy() for array in arrays] for name, arrays in self.net.state.items()}
        self.algorithm.train_one_batch(self.net, feed, step)
        self.net.state = state
        self.exchange.warm_up()
        if self.in_process_servers and self.net.ops.device != "cpu":
            size = self.net.flat.size
            entries = (*self.net.flat.entries, *(entry.moved(size) for entry in self.net.own.entries))
            server_plan(self.job, entries, self.stub.slices).warm_up(self.net.ops)
            self.stages.warm_up()

    def close(self, *, failed: bool = False) -> None:
        """End the thread of the exchange. failed: whether other workers may still be in an operation of the layers,
        and do not release their communicator."""
        self.executor.close()
        if self.net.partitioned:
            if failed:
                self.group.comm.abort("the worker failed")
            self.group.comm.close()

    def _worker_group(self) -> CommGroup:
        """The group as the layers see it; in a partitioned net with a communicator of its own."""
        comm = self.comm if self.device_comm is None else self.device_comm
        if self.net.partitioned:
            comm = comm.split(0)
        return CommGroup(self.executor, comm, self.net.ops, on_device=self.device_comm is not None)


def _exchange(
    job: JobProto,
    comm: Communicator,
    buckets: Sequence[Bucket],
    codec: Mapping[str, Any],
    flat: FlatParams,
    ops: Ops | None,
) -> BucketExchange:
    """By messages, of the gradients in `flat`. ops: of their GPU, if `comm` carries them from there."""
    return bucket_exchange(
        comm,
        buckets,
        codec,
        flat.values.dtype,
        uncoded=flat.places(lambda entry: entry.statistic),
        frozen=flat.places(lambda entry: scaled(entry, job.updater).lr_scale == 0 and not entry.statistic),
        ops=ops,
    )


def _in_process(
    job: JobProto, ops: Ops, entries: tuple[Entry, ...], slices: tuple[ParameterSlice, ...], regions: Regions | None
) -> dict[int, Link]:
    """Links to a server in this process, which works on the worker's parameters in place. It is all servers whose
    slices the worker has."""
    plan = server_plan(job, entries, slices)
    keepers = {} if regions is None else Keeper.all_of(regions)
    link = LocalLink(Server(plan.protocol(ops, copy=False, keepers=keepers), live=True))
    return {s.server: link for s in slices}


def _exactly(slices: tuple[ParameterSlice, ...], entries: tuple[Entry, ...]) -> set[int]:
    """Positions of the slices that hold running statistics, of which nothing may be kept back."""
    statistics = [entry for entry in entries if entry.statistic]
    return {i for i, s in enumerate(slices) if any(s.start < e.stop and e.start < s.stop for e in statistics)}
