"""One worker's copy of the model, and its part in the group's synchronous step."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

from singa_dask.algorithms import algorithm
from singa_dask.comm.communicator import Communicator
from singa_dask.comm.exchange import SliceExchange
from singa_dask.data.plan import share_rows
from singa_dask.errors import CheckpointError
from singa_dask.job import ClusterTopology, active_phases
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.base import Metric, Step
from singa_dask.net import Batch, Net
from singa_dask.net.flat import Entry
from singa_dask.ops import Ops
from singa_dask.server import Link, LocalLink, Partition, Server, ServerPlan, Slice, Stub, partition
from singa_dask.training.checkpoint import Checkpoint, fitting
from singa_dask.updaters import updater_class


def parameter_partition(topology: ClusterTopology, size: int) -> Partition:
    """How `size` elements of parameters are cut for the workers and servers of this topology."""
    return partition(
        size,
        topology.nworkers_per_group,
        topology.nservers_per_group,
        beside=not topology.server_worker_separate,
    )


def server_plan(
    job: JobProto,
    entries: tuple[Entry, ...],
    slices: tuple[Slice, ...],
    key: str,
    groups: tuple[int, ...],
    **more: Any,
) -> ServerPlan:
    """What a server of this job must know that these worker groups will come to."""
    topology = ClusterTopology.from_proto(job.cluster)
    return ServerPlan(
        key=key,
        updater=job.updater.SerializeToString(),
        entries=entries,
        slices=slices,
        groups=groups,
        max_staleness=topology.max_staleness,
        sync_freq=topology.sync_freq,
        **more,
    )


class Replica:
    """The nets of one worker (train, and test or validation sharing its parameters) and its way to its servers.

    Each worker of a group has a range of the parameters; the servers that own it update it. One step is

        gradients of the own share  ->  reduce-scatter  ->  update by the servers  ->  all-gather
                                                            of the own range

    links: to the servers, by number. Where none are given each worker's server is in its own process, for it alone,
    and works on the worker's parameters in place. stub: keyword arguments of Stub.
    """

    def __init__(
        self, job: JobProto, comm: Communicator, ops: Ops, links: Mapping[int, Link] | None = None, **stub: Any
    ):
        self.job = job
        self.comm = comm
        self.ops = ops
        self.net = Net(job.neuralnet, Phase.kTrain, ops)
        self.nets: dict[int, Net] = {Phase.kTrain: self.net}
        for phase in active_phases(job):
            if phase != Phase.kTrain:
                self.nets[phase] = Net(job.neuralnet, phase, ops, share=self.net)
        self.algorithm = algorithm(job.train_one_batch)
        for net in self.nets.values():
            net.carries = self.algorithm.carries
            net.share_sums(self._group_sum)

        flat = self.net.flat
        topology = ClusterTopology.from_proto(job.cluster)
        cut = parameter_partition(topology, flat.size)
        self.exchange = SliceExchange(comm, cut.counts)
        self.private = links is None
        slices = cut.of_worker(comm.rank)
        if links is None:
            plan = server_plan(job, tuple(flat.entries), slices, "", (0,))
            links = {s.server: LocalLink(Server(plan.shard(ops, copy=False), live=True)) for s in slices}
        self.stub = Stub(slices, links, behind=int(topology.one_behind), **stub)
        # Communicators and servers elsewhere work on the host. On the CPU the mirror is the parameters themselves.
        self._on_host = isinstance(flat.values, np.ndarray)
        self._mirror = flat.values if self._on_host else ops.to_host(flat.values)
        self._range = slice(self.exchange.start, self.exchange.stop)
        self._own = (flat.values if self.private else self._mirror)[self._range]

    def initialise(self, given: Mapping[str, np.ndarray] | None = None) -> None:
        """Draw the initial parameters, put the given ones in their place, and put them on the servers.

        The first worker's reach every worker. Raises CheckpointError where the given ones do not fit (`fitting`).
        """
        self.net.initialise(self.job.seed)
        if given:
            flat = self.net.flat
            values = flat.named(self.ops.to_host(flat.values).copy())
            shapes = {name: value.shape for name, value in values.items()}
            fit = fitting(given, shapes, self.net.drawn)
            flat.values[...] = self.ops.asarray(flat.flattened(values | fit))
        self._put({}, 0)

    def restore(self, checkpoint: Checkpoint | None, *, carry: bool = True) -> None:
        """Put the first worker's checkpoint (None on the others) on the servers. Every worker must call it.

        carry: whether the state of recurrent layers in it is this group's.
        Raises CheckpointError where it is of another net or updater.
        """
        flat = self.net.flat
        names = self._state_names()
        if checkpoint is not None:
            if set(checkpoint.updater) != set(names):
                raise CheckpointError(
                    f"the checkpoint holds updater state {sorted(checkpoint.updater)}, this job's updater has "
                    f"{sorted(names)}. Resume with the updater of the job.conf beside it."
                )
            flat.values[...] = self.ops.asarray(flat.flattened(checkpoint.parameters))
        states = {}
        for name in names:
            whole = np.zeros(flat.size, flat.values.dtype)
            if checkpoint is not None:
                whole[...] = flat.flattened(checkpoint.updater[name])
            self.comm.broadcast(whole)
            states[name] = whole[self._range]
        step = np.array([checkpoint.step if checkpoint else 0])
        self.comm.broadcast(step)
        self._put(states, int(step[0]))
        if self.algorithm.carries and carry:
            self._carry_on(None if checkpoint is None else checkpoint.carried)

    def fetch(self, first: int = 0) -> int:
        """Take the servers' parameters; returns the step with which the group begins: `first`, or a later one that the
        servers know of. Every worker must call it."""
        seen = np.zeros((2, self.comm.size))  # steps and clocks, by worker
        seen[:, self.comm.rank] = self.stub.get(self._own, first), self.stub.clock
        self.comm.all_reduce(seen.reshape(-1))
        begin, clock = map(int, seen.max(axis=1))
        self.stub.begin(begin, clock)
        self._spread()
        return begin

    def train_step(self, feed: Mapping[str, Batch], step: Step) -> dict[str, Metric]:
        """One synchronous step of the group; returns the metrics of the own share of the mini-batch."""
        metrics = self.algorithm.train_one_batch(self.net, feed, step)
        gradient = self.exchange.reduce_scatter(self.ops.to_host(self.net.flat.grads))
        self.stub.push(step.number, gradient, self._own)
        self._collect()
        return metrics

    def settle(self) -> None:
        """Take the replies to all updates that are under way. Every worker must call it."""
        if self.stub.behind:
            self._collect(everything=True)

    def warm_up(self, feed: Mapping[str, Batch], step: Step) -> None:
        """Compute, and throw away, the gradients of one mini-batch: compiles what this net needs."""
        state = {name: [array.copy() for array in arrays] for name, arrays in self.net.state.items()}
        self.algorithm.train_one_batch(self.net, feed, step)
        self.net.state = state

    def snapshot(self, step: int, job_text: str, data: Mapping[str, str]) -> Checkpoint | None:
        """The servers' state as a checkpoint, on the first worker; None on the others. Every worker must call it."""
        flat = self.net.flat
        own = self.stub.inspect()
        wholes = {}
        for name in ("", *self._state_names()):  # "": the parameters
            part = np.empty(self.exchange.stop - self.exchange.start, flat.values.dtype)
            if own is not None:
                part[...] = self.ops.to_host(own.state[name] if name else own.values)
            whole = np.empty(flat.size, flat.values.dtype) if self.comm.rank == 0 else None
            self.comm.gather(part, whole, self.exchange.counts)
            if whole is not None:
                wholes[name] = flat.named(whole)
        carried = self._gather_carried() if self.algorithm.carries else {}
        if self.comm.rank != 0:
            return None
        return Checkpoint(step, self.job.seed, job_text, wholes.pop(""), wholes, data, carried)

    def _gather_carried(self) -> dict[str, list[np.ndarray]]:
        """The state that recurrent layers carry on, of all rows of the mini-batch; whole on the first worker only."""
        carried: dict[str, list[np.ndarray]] = {}
        for name, arrays in self.net.state.items():
            for array in map(self.ops.to_host, arrays):
                rows = np.zeros(self.comm.size)
                rows[self.comm.rank] = array.shape[0]
                self.comm.all_reduce(rows)
                width = array.shape[1]
                whole = np.empty((int(rows.sum()), width), array.dtype) if self.comm.rank == 0 else None
                counts = [int(count) * width for count in rows]
                flat = None if whole is None else whole.reshape(-1)
                self.comm.gather(np.ascontiguousarray(array).reshape(-1), flat, counts)
                if whole is not None:
                    carried.setdefault(name, []).append(whole)
        return carried

    def _carry_on(self, carried: Mapping[str, list[np.ndarray]] | None) -> None:
        """Give every worker its rows of the first worker's state of recurrent layers."""
        image = np.frombuffer(pickle.dumps(dict(carried or {})), np.uint8).copy()
        size = np.array([image.size])
        self.comm.broadcast(size)
        if carried is None:
            image = np.empty(int(size[0]), np.uint8)
        self.comm.broadcast(image)
        state = pickle.loads(image.tobytes())  # of our own making, a moment ago
        own = {}
        for name, arrays in state.items():
            first, last = share_rows(len(arrays[0]), self.comm.rank, self.comm.size)
            own[name] = [self.ops.asarray(array[first:last]) for array in arrays]
        self.net.state = own

    def _group_sum(self, array: np.ndarray) -> np.ndarray:
        self.comm.all_reduce(array.reshape(-1))
        return array

    def _state_names(self) -> tuple[str, ...]:
        return tuple(updater_class(self.job.updater).states)

    def _put(self, states: Mapping[str, np.ndarray], step: int) -> None:
        flat = self.net.flat
        values = self.ops.to_host(flat.values)
        self.comm.broadcast(values)
        if not self._on_host:
            flat.values[...] = self.ops.asarray(values)
            self._mirror[...] = values
        self.stub.put(self._own, states, step)

    def _collect(self, *, everything: bool = False) -> None:
        self.stub.pull(self._own, everything=everything)
        self._spread()

    def _spread(self) -> None:
        """Bring every worker's range of the parameters to every worker."""
        flat = self.net.flat
        if not self._on_host and self.private:
            self._mirror[self._range] = self.ops.to_host(self._own)
        self.exchange.all_gather(self._mirror)
        if not self._on_host:
            flat.values[...] = self.ops.asarray(self._mirror)
