"""What a worker group has in common between steps: put, restored, fetched and saved."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.data.plan import share_rows
from singa_dask.errors import CheckpointError
from singa_dask.exchange.residuals import ResidualState, gather_residuals, share_residuals
from singa_dask.job.job_pb2 import JobProto
from singa_dask.net import Net
from singa_dask.training.checkpoint import Checkpoint, fitting
from singa_dask.training.stages import ServerStages
from singa_dask.updaters import updater_class


class GroupState:
    """Parameters and updater state on the servers, residuals of codecs, and the state that recurrent layers carry.

    All methods are collective. carries: whether recurrent layers carry state from one mini-batch to the next.
    """

    def __init__(self, job: JobProto, comm: Communicator, net: Net, stages: ServerStages, *, carries: bool) -> None:
        self._job, self._comm, self._net, self._stages, self._carries = job, comm, net, stages, carries
        self._has_residuals = job.cluster.codec != job.cluster.kFull and (
            comm.size > 1 or not stages.in_process_servers
        )
        self._residuals: ResidualState | None = None
        self._restored_step: int | None = None

    def initialise(self, given: Mapping[str, np.ndarray] | None = None) -> None:
        """Draw the initial parameters, replace some by the given ones, and put them on the servers.

        The first worker's reach every worker. Raises CheckpointError where the given ones do not fit (`fitting`).
        """
        values = self._net.initial_values(self._job.seed)
        if given:
            shapes = {name: value.shape for name, value in values.items()}
            values = values | fitting(given, shapes, self._net.drawn)
        replicated = {entry.name: values[entry.name] for entry in self._net.flat.entries}
        own = {entry.name: values[entry.name] for entry in self._net.own.entries}
        self._put(self._net.flat.flattened(replicated), self._net.own.flattened(own), {}, 0)

    def restore(self, checkpoint: Checkpoint | None, *, carry: bool = True) -> None:
        """Put the first worker's checkpoint (None on the others) on the servers.

        carry: whether the state of recurrent layers and the residuals are those of this group.
        Raises CheckpointError where the checkpoint is of another net or updater.
        """
        flat, comm = self._net.flat, self._comm
        names = self._updater_state
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
            comm.broadcast(states[name])
        step = np.array([checkpoint.step if checkpoint else 0])
        comm.broadcast(step)
        self._put(values, self._net.own.flattened({}), states, int(step[0]))
        if not carry:
            return
        self._restored_step = int(step[0])
        self._residuals = share_residuals(comm, {} if checkpoint is None else checkpoint.residuals, flat)
        if self._carries:
            self._share_carried(None if checkpoint is None else checkpoint.carried)

    def fetch(self, first: int = 0) -> int:
        """Take the servers' parameters. Returns the step with which the group begins: `first`, or a later one that the
        servers know of."""
        stages, stub = self._stages, self._stages.stub
        steps_and_clocks = np.zeros((2, self._comm.size))
        steps_and_clocks[:, self._comm.rank] = stub.get(stages.values, first), stub.clock
        with stages.patiently():
            self._comm.all_reduce(steps_and_clocks.reshape(-1))
        stages.receive_own()
        begin, clock = map(int, steps_and_clocks.max(axis=1))
        stub.begin(begin, clock)
        residuals, self._residuals = self._residuals, None
        if self._restored_step not in (None, begin):  # the servers have gone on without this group
            residuals = None
            self._net.forget()
        self._restored_step = None
        if residuals is None or stages.exchange.exact:
            stages.gather_exactly()
        if residuals is not None:
            self._take_over(residuals)
        return begin

    def snapshot(self, step: int, job_text: str, data: Mapping[str, str]) -> Checkpoint | None:
        """The group's state as a checkpoint, on the first worker; None on the others."""
        flat, stages = self._net.flat, self._stages
        held = stages.stub.inspect()
        wholes = {}
        for name in ("", *self._updater_state):  # "": the parameters
            whole = np.zeros(flat.size, flat.values.dtype)
            if held is not None:
                rest = self._net.ops.to_host(held.state[name] if name else held.values)
                for s in stages.stub.slices:
                    whole[s.start : s.stop], rest = rest[: s.size], rest[s.size :]
            for bucket in stages.exchange.buckets:
                self._comm.all_gather(whole[bucket.elements], bucket.counts)
            wholes[name] = flat.named(whole)
        carried = self._gather_carried() if self._carries else {}
        residuals = self._gather_residuals() if self._has_residuals else {}
        if self._comm.rank != 0:
            return None
        return Checkpoint(step, self._job.seed, job_text, wholes.pop(""), wholes, data, carried, residuals)

    @property
    def _updater_state(self) -> tuple[str, ...]:
        return tuple(updater_class(self._job.updater).states)

    def _put(self, values: np.ndarray, own: np.ndarray, states: Mapping[str, np.ndarray], step: int) -> None:
        """Begin, here and on the servers, with the first worker's flat values and the own portions."""
        self._comm.broadcast(values)
        self._stages.put(values, own)
        self._comm.barrier()  # memory that workers share is written by all of them
        self._stages.stub.put(self._stages.values, states, step)

    def _gather_residuals(self) -> dict[str, dict[str, np.ndarray]]:
        stub, flat = self._stages.stub, self._net.flat
        pushes = np.zeros(flat.size, flat.values.dtype)
        for i, part in stub.residual.items():
            pushes[stub.slices[i].start : stub.slices[i].stop] = part
        values = self._net.ops.to_host(flat.values)
        return gather_residuals(self._stages.exchange, self._comm, flat, values, pushes)

    def _take_over(self, residuals: ResidualState) -> None:
        """Adopt the residuals. What no codec here can keep becomes part of the next step's gradients."""
        stages, stub = self._stages, self._stages.stub
        owed = stages.exchange.take_over(residuals.residual)
        if not stages.exchange.exact:
            stages.staging.put(residuals.values)
        kept = {i: residuals.pushes[s.start : s.stop].copy() for i, s in enumerate(stub.slices)}
        for i, rest in stub.take_over(kept).items():
            owed[stub.slices[i].start : stub.slices[i].stop] += rest
        stages.owed = owed if owed.any() else None

    def _gather_carried(self) -> dict[str, list[np.ndarray]]:
        """The state that recurrent layers carry, of all rows of the mini-batch; complete on the first worker only."""
        comm = self._comm
        carried: dict[str, list[np.ndarray]] = {}
        for name, arrays in self._net.state.items():
            for array in map(self._net.ops.to_host, arrays):
                rows = np.zeros(comm.size)
                rows[comm.rank] = array.shape[0]
                comm.all_reduce(rows)
                width = array.shape[1]
                whole = np.empty((int(rows.sum()), width), array.dtype) if comm.rank == 0 else None
                counts = [int(count) * width for count in rows]
                flat = None if whole is None else whole.reshape(-1)
                comm.gather(np.ascontiguousarray(array).reshape(-1), flat, counts)
                if whole is not None:
                    carried.setdefault(name, []).append(whole)
        return carried

    def _share_carried(self, carried: Mapping[str, list[np.ndarray]] | None) -> None:
        """Give every worker its rows of the first worker's state of recurrent layers."""
        comm = self._comm
        image = np.frombuffer(pickle.dumps(dict(carried or {})), np.uint8).copy()
        size = np.array([image.size])
        comm.broadcast(size)
        if carried is None:
            image = np.empty(int(size[0]), np.uint8)
        comm.broadcast(image)
        state = pickle.loads(image.tobytes())  # from this group's first worker
        own = {}
        for name, arrays in state.items():
            first, last = share_rows(len(arrays[0]), comm.rank, comm.size)
            own[name] = [self._net.ops.asarray(array[first:last]) for array in arrays]
        self._net.state = own
