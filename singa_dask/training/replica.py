"""One worker's copy of the model, and its part in the group's synchronous step."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from singa_dask.algorithms import algorithm
from singa_dask.comm.communicator import Communicator
from singa_dask.data.plan import share_rows
from singa_dask.errors import CheckpointError
from singa_dask.exchange.buckets import Readiness, Stage, due
from singa_dask.exchange.coded import bucket_exchange
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.full import BucketExchange, SharedExchange
from singa_dask.exchange.overlap import OverlapTuner
from singa_dask.job import ClusterTopology, active_phases
from singa_dask.job.job_pb2 import AlgProto, JobProto, Phase
from singa_dask.layers.context import Metric, Step
from singa_dask.layers.param import Param
from singa_dask.net import Batch, Net
from singa_dask.ops import Ops
from singa_dask.server import Link, LocalLink, Server, Stub
from singa_dask.training.checkpoint import Checkpoint, fitting
from singa_dask.training.placement import parameter_partition, server_plan, share_parameters
from singa_dask.training.unsent import ResidualState, gather_unsent, share_unsent
from singa_dask.updaters import updater_class


class Replica:
    """The nets of one worker (train, and test or validation sharing its parameters) and its way to its servers.

    The parameters are cut into buckets, and each worker of a group has a run of every bucket; the servers that own it
    update it. One step is

        gradients of the own share  ->  reduce-scatter  ->  update by the servers  ->  all-gather
                                                            of the own runs

    Where there are several buckets, and a network between the workers, each is on its way as soon as the backward pass
    has completed it, in a thread of its own, while that goes on. On one machine the parameters of all CPU workers are
    the same memory, and nothing is sent, unless a codec is asked for. links: to the servers, by number. Where none are
    given each worker's server is in its own process, for it alone, and works on the worker's parameters in place.
    stub: keyword arguments of Stub. wait_s: seconds so far that the worker could not compute for waiting for the
    others of its group.

    wire: of the same ranks as `comm`, for arrays where `ops` has them; carries the buckets, which then do not come to
    the host. Only where `suits_wire`. Everything else goes through `comm`.
    """

    def __init__(
        self,
        job: JobProto,
        comm: Communicator,
        ops: Ops,
        links: Mapping[int, Link] | None = None,
        wire: Communicator | None = None,
        **stub: Any,
    ):
        self.job = job
        self.comm = comm
        self.wire = wire
        self.ops = ops
        self.net = Net(job.neuralnet, Phase.kTrain, ops)
        self.nets: dict[int, Net] = {Phase.kTrain: self.net}
        for phase in active_phases(job):
            if phase != Phase.kTrain:
                self.nets[phase] = Net(job.neuralnet, phase, ops, share=self.net)
        self.algorithm = algorithm(job.train_one_batch)
        for net in self.nets.values():
            net.carries = self.algorithm.carries

        flat = self.net.flat
        topology = ClusterTopology.from_proto(job.cluster)
        self.private = links is None
        self._held_back = not self.private and topology.nworker_groups > 1 and topology.max_staleness is not None
        together = comm.size > 1 and wire is None and comm.one_machine()
        own_algorithm = job.train_one_batch.alg == AlgProto.kUserAlg  # may write to the parameters while it computes
        suits = together and ops.device == "cpu" and topology.codec == "kFull" and not own_algorithm
        every_grads = share_parameters(flat, comm) if suits else None
        cut = parameter_partition(topology, flat.entries, flat.size, whole=self.private and every_grads is not None)
        settings = {"name": topology.codec, "sparsity": topology.sparsity}
        self.exchange: BucketExchange
        if every_grads is not None:
            self.exchange = SharedExchange(comm, cut.buckets, every_grads)
        else:
            self.exchange = bucket_exchange(
                wire or comm,
                cut.buckets,
                settings,
                flat.values.dtype,
                aside=flat.places(lambda entry: entry.statistic),
                still=flat.places(lambda entry: entry.lr_scale == 0 and not entry.statistic),
                shared=topology.nworker_groups > 1,
            )
        slices = cut.of_worker(comm.rank)
        if links is None:
            plan = server_plan(job, tuple(flat.entries), slices, "", (0,))
            links = {s.server: LocalLink(Server(plan.protocol(ops, copy=False), live=True)) for s in slices}
        statistics = [range(entry.start, entry.stop) for entry in flat.entries if entry.statistic]
        whole = {i for i, s in enumerate(slices) if any(s.start < r.stop and r.start < s.stop for r in statistics)}
        self.stub = Stub(slices, links, behind=int(topology.one_behind), codec=settings, exactly=whole, **stub)
        # Communicators and servers elsewhere work on the host. On the CPU the mirror is the parameters themselves.
        self._on_host = ops.device == "cpu"
        self._through_host = not self._on_host and wire is None
        self._mirror = flat.values if self._on_host else ops.to_host(flat.values)
        self._own = flat.values if self.private else self._mirror
        if not self.exchange.exact:  # the servers' values are not those that everybody has
            self._own = ops.empty((flat.size,)) if self.private else np.empty_like(self._mirror)
        self._staged = np.empty(0 if self._on_host else flat.size, flat.values.dtype)
        self._outgoing = flat.grads if self._on_host or wire is not None else self._staged
        self._summed = self._outgoing
        if not self.exchange.in_place:
            self._summed = ops.empty((flat.size,)) if wire is not None else np.empty(flat.size, flat.values.dtype)
        # Where the exchange puts new values, and where it takes those of the own run from.
        self._places = (
            flat.values if wire is not None else self._mirror,
            self._staged if self._through_host and self.private else self._own,
        )
        self._readiness = Readiness(cut.buckets)
        for entry in flat.entries:
            self._readiness.expect(entry.name, entry.start)
        threaded = comm.size > 1 and not together and len(cut.buckets) > 1
        self._ahead = (wire or comm).goes_on
        trial = (
            OverlapTuner() if wire is None else None
        )  # over the wire a step is told done before the device has done it
        self._lane = CollectiveExecutor(wire or comm, threaded=threaded, trial=trial, initializer=ops.use)
        for net in self.nets.values():
            net.share_sums(self._lane.all_reduce)
        self._codec = topology.codec
        self._coded = topology.codec != "kFull" and (comm.size > 1 or not self.private)
        self._unsent: ResidualState | None = None
        self._restored: int | None = None  # the step whose state was carried on
        self._owed: np.ndarray | None = None

    @property
    def wait_s(self) -> float:
        return self._lane.wait_s

    @property
    def way(self) -> str:
        """What gradients travel by inside the group, and how, for people."""
        if isinstance(self.exchange, SharedExchange):
            return "shared memory"
        kind = (self.wire or self.comm).kind
        return kind if self.exchange.exact else f"{kind}, {self._codec}"

    @property
    def operations(self) -> dict[str, dict[str, float]]:
        """Bytes and seconds so far, by operation; those of the wire are "wire reduce_scatter" and so on."""
        of_wire = {} if self.wire is None else self.wire.operations
        return {**self.comm.operations, **{f"wire {name}": done for name, done in of_wire.items()}}

    @property
    def overflows(self) -> int:
        """Values so far that a codec could not hold, on this worker."""
        return self.exchange.overflows + self.stub.overflows

    def close(self) -> None:
        """End the thread of the exchange."""
        self._lane.close()

    def initialise(self, given: Mapping[str, np.ndarray] | None = None) -> None:
        """Draw the initial parameters, put the given ones in their place, and put them on the servers.

        The first worker's reach every worker. Raises CheckpointError where the given ones do not fit (`fitting`).
        """
        values = self.net.initial_values(self.job.seed)
        if given:
            shapes = {name: value.shape for name, value in values.items()}
            values = values | fitting(given, shapes, self.net.drawn)
        self._put(self.net.flat.flattened(values), {}, 0)

    def restore(self, checkpoint: Checkpoint | None, *, carry: bool = True) -> None:
        """Put the first worker's checkpoint (None on the others) on the servers. Every worker must call it.

        carry: whether the state of recurrent layers, and what codecs have kept back, is this group's.
        Raises CheckpointError where it is of another net or updater.
        """
        flat = self.net.flat
        names = self._state_names()
        values = np.zeros(flat.size, flat.values.dtype)
        if checkpoint is not None:
            if set(checkpoint.updater) != set(names):
                raise CheckpointError(
                    f"the checkpoint holds updater state {sorted(checkpoint.updater)}, this job's updater has "
                    f"{sorted(names)}. Resume with the updater of the job.conf beside it."
                )
            values = flat.flattened(checkpoint.parameters)
        states = {}
        for name in names:
            states[name] = np.zeros(flat.size, flat.values.dtype)
            if checkpoint is not None:
                states[name][...] = flat.flattened(checkpoint.updater[name])
            self.comm.broadcast(states[name])
        step = np.array([checkpoint.step if checkpoint else 0])
        self.comm.broadcast(step)
        self._put(values, states, int(step[0]))
        if not carry:
            return
        self._restored = int(step[0])
        kept, at = ({}, 0) if checkpoint is None else (checkpoint.unsent, checkpoint.step)
        self._unsent = share_unsent(self.comm, kept, at, flat)
        if self.algorithm.carries:
            self._carry_on(None if checkpoint is None else checkpoint.carried)

    def fetch(self, first: int = 0) -> int:
        """Take the servers' parameters; returns the step with which the group begins: `first`, or a later one that the
        servers know of. Every worker must call it."""
        seen = np.zeros((2, self.comm.size))  # steps and clocks, by worker
        seen[:, self.comm.rank] = self.stub.get(self._own, first), self.stub.clock
        with self._patiently():
            self.comm.all_reduce(seen.reshape(-1))
        begin, clock = map(int, seen.max(axis=1))
        self.stub.begin(begin, clock)
        unsent, self._unsent = self._unsent, None
        if self._restored not in (None, begin):  # the servers have gone on without this group
            unsent = None
            self.net.forget()
        self._restored = None
        if unsent is None or self.exchange.exact:
            self._spread(range(len(self.exchange.buckets)), exactly=True)
        if unsent is not None:
            self._go_on_with(unsent)
        return begin

    def train_step(self, feed: Mapping[str, Batch], step: Step) -> dict[str, Metric]:
        """One synchronous step of the group; returns the metrics of the own share of the mini-batch."""
        self._readiness.begin()
        self.exchange.begin(step.number)
        self._lane.begin_step()
        beside, buckets = self._lane.beside, len(self.exchange.buckets)
        stages = {"start": self._start, "update": self._update, "gather": self._gather}
        under_way: list[Future[None]] = []

        def go_on(calls: Iterable[tuple[Stage, int]]) -> None:
            for stage, bucket in calls:
                stages[stage](bucket, step.number)

        def send(leaving: Iterable[int]) -> None:
            for bucket in leaving:
                if self._on_host:  # at once; beside the computing it would take turns with it, and leave later
                    self._prepare(bucket)
                calls = due(bucket, buckets, ahead=self._ahead, beside=beside)
                under_way.append(self._lane.submit(go_on, calls))

        def on_gradient(param: Param) -> None:
            send(self._readiness.done(param.owner.name))

        metrics = self.algorithm.train_one_batch(self.net, feed, step, on_gradient if beside else None)
        send(self._readiness.rest())  # an algorithm of one's own need not tell
        for future in under_way:
            self._lane.wait(future)
        self._owed = None
        self._collect(everywhere=self.private)
        self._lane.end_step()
        return metrics

    def _prepare(self, bucket: int) -> None:
        """Bring the gradients of a bucket to where the exchange takes them, ready to be sent."""
        grads, elements = self.net.flat.grads, self.exchange.buckets[bucket].elements
        if self._owed is not None:
            grads[elements] += self.ops.asarray(self._owed[elements])
        if self._outgoing is not grads:
            self._outgoing[elements] = self.ops.to_host(grads[elements])
        self.exchange.prepare(bucket, self._outgoing)

    def _start(self, bucket: int, step: int) -> None:
        """Send the gradients of a bucket."""
        if not self._on_host:  # a device computes on meanwhile
            self._prepare(bucket)
        self.exchange.start(bucket, self._outgoing, self._summed)

    def _update(self, bucket: int, step: int) -> None:
        """Have the servers update the own run of a bucket; where they are here, it is on its way to everybody."""
        run = self.exchange.runs[bucket]
        self.exchange.reduce_scatter(bucket, self._outgoing, self._summed)
        self.stub.push(step, self._summed, self._own, range(run.start, run.stop))
        if self.private:
            self._offer(bucket)
            self.exchange.start_all_gather(bucket, *self._places)

    def _gather(self, bucket: int, step: int) -> None:
        """Take what the servers of all workers have made of a bucket, where they are there."""
        if self.private:
            self.exchange.all_gather(bucket, *self._places)
            self._take(bucket)

    def settle(self) -> None:
        """Take the replies to all updates that are under way. Every worker must call it."""
        if self.stub.behind:
            self._collect(everything=True)

    def warm_up(self, feed: Mapping[str, Batch], step: Step) -> None:
        """Compute, and throw away, the gradients of one mini-batch: compiles what this net needs."""
        state = {name: [array.copy() for array in arrays] for name, arrays in self.net.state.items()}
        self.algorithm.train_one_batch(self.net, feed, step)
        self.net.state = state
        self.exchange.warm_up()

    def snapshot(self, step: int, job_text: str, data: Mapping[str, str]) -> Checkpoint | None:
        """The servers' state as a checkpoint, on the first worker; None on the others. Every worker must call it."""
        flat = self.net.flat
        own = self.stub.inspect()
        wholes = {}
        for name in ("", *self._state_names()):  # "": the parameters
            whole = np.zeros(flat.size, flat.values.dtype)
            if own is not None:
                held = self.ops.to_host(own.state[name] if name else own.values)
                for s in self.stub.slices:
                    whole[s.start : s.stop], held = held[: s.size], held[s.size :]
            for bucket in self.exchange.buckets:
                self.comm.all_gather(whole[bucket.elements], bucket.counts)
            wholes[name] = flat.named(whole)
        carried = self._gather_carried() if self.algorithm.carries else {}
        unsent = {}
        if self._coded:
            unsent = gather_unsent(self.comm, self.exchange, self.stub, flat, self.ops.to_host(flat.values))
        if self.comm.rank != 0:
            return None
        return Checkpoint(step, self.job.seed, job_text, wholes.pop(""), wholes, data, carried, unsent)

    def _go_on_with(self, unsent: ResidualState) -> None:
        """Take over what was kept back: where nothing can hold it any more, it is part of the next gradient."""
        owed = self.exchange.take_over(unsent.residual).copy()
        if not self.exchange.exact:
            self._mirror[...] = unsent.values
            if not self._on_host:
                self.net.flat.values[...] = self.ops.asarray(self._mirror)
        slices = self.stub.slices
        kept = {i: unsent.pushes[s.start : s.stop].copy() for i, s in enumerate(slices)}
        for i, rest in self.stub.take_over(kept).items():
            owed[slices[i].start : slices[i].stop] += rest
        self._owed = owed if owed.any() else None

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

    def _state_names(self) -> tuple[str, ...]:
        return tuple(updater_class(self.job.updater).states)

    def _put(self, values: np.ndarray, states: Mapping[str, np.ndarray], step: int) -> None:
        """Begin, here and on the servers, with the first worker's flat values."""
        self.comm.broadcast(values)
        self.net.flat.values[...] = self.ops.asarray(values)
        self.comm.barrier()  # memory that workers share is written by all of them
        if not self._on_host:
            self._mirror[...] = values
        if not self.exchange.exact:
            self._own[...] = self.ops.asarray(values) if self.private else values
        self.stub.put(self._own, states, step)

    def _collect(self, *, everything: bool = False, everywhere: bool = False) -> None:
        """Take the servers' replies. everywhere: every worker has the new parameters already."""
        self.stub.pull(self._own, everything=everything)
        if not everywhere:
            with self._patiently():
                self._lane.run(self._spread, range(len(self.exchange.buckets)))

    def _patiently(self) -> AbstractContextManager[None]:
        """Inside, workers are waited for whom a server may let wait for another group; those without a slice come here
        at once."""
        return self.comm.patiently(self.stub.patience_s) if self._held_back else nullcontext()

    def _spread(self, buckets: Iterable[int], *, exactly: bool = False) -> None:
        """Bring every worker's run of these buckets of the parameters to every worker."""
        gather = self.exchange.gather_exactly if exactly else self.exchange.all_gather
        for bucket in buckets:
            self._offer(bucket)
            gather(bucket, *self._places)
            self._take(bucket)

    def _offer(self, bucket: int) -> None:
        """Bring the new values of the own run to where the exchange takes them."""
        if self._through_host and self.private:
            run = self.exchange.runs[bucket]
            self._staged[run] = self.ops.to_host(self._own[run])

    def _take(self, bucket: int) -> None:
        """Bring the new values of a bucket from where the exchange has put them."""
        if self._through_host:
            elements = self.exchange.buckets[bucket].elements
            self.net.flat.values[elements] = self.ops.asarray(self._mirror[elements])
