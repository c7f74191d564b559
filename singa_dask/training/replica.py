"""One worker's copy of the model, and its part in the group's synchronous step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from singa_dask.algorithms import algorithm
from singa_dask.comm.communicator import Communicator
from singa_dask.comm.exchange import SliceExchange
from singa_dask.errors import CheckpointError
from singa_dask.job import active_phases
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.base import Metric, Step
from singa_dask.net import Batch, Net
from singa_dask.ops import Ops
from singa_dask.training.checkpoint import Checkpoint
from singa_dask.updaters import make_updater


class Replica:
    """The nets of one worker (train, and test or validation sharing its parameters) and its slice of the updater.

    The parameters of the group are cut into `nservers_per_group` slices; slice i is updated by worker i, which alone
    holds the updater's state for it. One step is

        gradients of the own share  ->  reduce-scatter  ->  update of the own slice  ->  all-gather
    """

    def __init__(self, job: JobProto, comm: Communicator, ops: Ops):
        self.job = job
        self.comm = comm
        self.ops = ops
        self.net = Net(job.neuralnet, Phase.kTrain, ops)
        self.nets: dict[int, Net] = {Phase.kTrain: self.net}
        for phase in active_phases(job):
            if phase != Phase.kTrain:
                self.nets[phase] = Net(job.neuralnet, phase, ops, share=self.net)
        self.algorithm = algorithm(job.train_one_batch)

        flat = self.net.flat
        nslices = job.cluster.nservers_per_group
        counts = flat.slices(nslices) + [0] * (comm.size - nslices)
        self.exchange = SliceExchange(comm, counts)
        self.own = slice(self.exchange.start, self.exchange.stop)
        self.updater = make_updater(job.updater, ops)
        self.updater.bind(flat.entries, self.own.start, self.own.stop)
        self._on_host = isinstance(flat.values, np.ndarray)

    def initialise(self, given: Mapping[str, np.ndarray] | None = None) -> None:
        """Draw the initial parameters, put the given ones in their place; the first worker's reach every worker.

        Raises CheckpointError where none of the given ones is of this net, or one has another shape.
        """
        self.net.initialise(self.job.seed)
        if given:
            flat = self.net.flat
            values = flat.named(self.ops.to_host(flat.values).copy())
            names = values.keys() & given.keys()
            if not names:
                raise CheckpointError(
                    f"checkpoint_path: none of its parameters is of this net. They are {', '.join(sorted(given))}; "
                    f"the net has {', '.join(values)}."
                )
            flat.values[...] = self.ops.asarray(flat.flattened(values | {name: given[name] for name in names}))
        self._broadcast_values()

    def train_step(self, feed: Mapping[str, Batch], step: Step) -> dict[str, Metric]:
        """One synchronous step of the group; returns the metrics of the own share of the mini-batch."""
        metrics = self.algorithm.train_one_batch(self.net, feed, step)
        flat, ops = self.net.flat, self.ops
        gradient = ops.asarray(self.exchange.reduce_scatter(ops.to_host(flat.grads)))
        self.updater.update(step.number, flat.values[self.own], gradient)
        if self._on_host:
            self.exchange.all_gather(flat.values)
        else:
            values = ops.to_host(flat.values)
            self.exchange.all_gather(values)
            flat.values[...] = ops.asarray(values)
        return metrics

    def warm_up(self, feed: Mapping[str, Batch], step: Step) -> None:
        """Compute, and throw away, the gradients of one mini-batch: compiles what this net needs."""
        self.algorithm.train_one_batch(self.net, feed, step)

    def snapshot(self, step: int, job_text: str, data: Mapping[str, str]) -> Checkpoint | None:
        """The group's state as a checkpoint, on the first worker; None on the others. Every worker must call it."""
        flat, ops = self.net.flat, self.ops
        states = {}
        for name, part in self.updater.state.items():
            whole = np.empty(flat.size, flat.values.dtype) if self.comm.rank == 0 else None
            self.comm.gather(ops.to_host(part), whole, self.exchange.counts)
            if whole is not None:
                states[name] = flat.named(whole)
        if self.comm.rank != 0:
            return None
        values = flat.named(ops.to_host(flat.values))
        return Checkpoint(step, self.job.seed, job_text, values, states, data)

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Take over the first worker's checkpoint (None on the others). Every worker must call it.

        Raises CheckpointError where it is of another net or updater.
        """
        flat, ops = self.net.flat, self.ops
        if checkpoint is not None:
            if set(checkpoint.updater) != set(self.updater.state):
                raise CheckpointError(
                    f"the checkpoint holds updater state {sorted(checkpoint.updater)}, this job's updater has "
                    f"{sorted(self.updater.state)}. Resume with the updater of the job.conf beside it."
                )
            flat.values[...] = ops.asarray(flat.flattened(checkpoint.parameters))
        self._broadcast_values()
        states = {}
        for name in self.updater.state:
            whole = np.zeros(flat.size, flat.values.dtype)
            if checkpoint is not None:
                whole[...] = flat.flattened(checkpoint.updater[name])
            self.comm.broadcast(whole)
            states[name] = whole[self.own]
        self.updater.load_state(states)

    def _broadcast_values(self) -> None:
        values = self.ops.to_host(self.net.flat.values)
        self.comm.broadcast(values)
        if not self._on_host:
            self.net.flat.values[...] = self.ops.asarray(values)
