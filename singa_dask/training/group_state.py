"""What a worker group has in common between steps: put, restored, fetched and saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.comm.objects import all_gather_objects, broadcast_object
from singa_dask.errors import CheckpointError
from singa_dask.exchange.residuals import RANK, ResidualState, gather_residuals, share_residuals
from singa_dask.exchange.sharded import Gathered, Holding, holdings, read_all, send_shards
from singa_dask.job.job_pb2 import JobProto
from singa_dask.layers.init import initial_value
from singa_dask.layers.partition import ArrayShard
from singa_dask.memory.owner import Saved
from singa_dask.memory.region import VALUES
from singa_dask.net import Net
from singa_dask.ops import Ops
from singa_dask.server import Stub
from singa_dask.server.clocks import SliceNote
from singa_dask.server.ledger import Ledger
from singa_dask.server.messages import State
from singa_dask.training.carried import gather_carried, joined_carried, own_carried, share_carried
from singa_dask.training.checkpoint import Checkpoint, contents_of, ledger_row, misfits, model_of
from singa_dask.training.decisions import reductions_in
from singa_dask.training.initial_parameters import fitting
from singa_dask.training.shadows import LATEST, moving_of, provider_of, step_of
from singa_dask.training.stages import ServerStages
from singa_dask.updaters import EMA, states_of

# Of a ledger that other groups extend while a checkpoint is written. It grows by some bytes with every restart.
_LEDGER_ROOM = 4096


class GroupState:
    """Parameters and updater state on the servers, residuals of codecs, and the state that recurrent layers carry.

    All methods are collective. carries: whether recurrent layers carry state from one mini-batch to the next. data:
    fingerprints of the training data.

    In flat arrays, a worker's shards of split parameters (`net.own`) follow the replicated ones (`net.flat`).
    """

    def __init__(
        self,
        job: JobProto,
        comm: Communicator,
        net: Net,
        stages: ServerStages,
        *,
        carries: bool,
        data: Mapping[str, str],
    ) -> None:
        self._data = data
        self._job, self._comm, self._net, self._stages, self._carries = job, comm, net, stages, carries
        self._held = holdings(net.flat, net.own, stages.exchange)
        self._contents = contents_of({h.name: h.shape for h in self._held}, states_of(job.updater))
        self._size = net.flat.size + net.own.size
        self._has_residuals = job.cluster.codec != job.cluster.kFull and (
            comm.size > 1 or not stages.in_process_servers
        )
        self._residuals: ResidualState | None = None
        self._restored_step: int | None = None
        self.outdated = False  # whether what `recover` has found is older than a checkpoint

    def initialise(self, given: Mapping[str, Any] | None = None) -> None:
        """Draw the initial parameters, replace some by the first worker's given ones, and put them on the servers.

        The first worker's replicated parameters reach every worker; each worker draws its shards of split ones.
        Raises CheckpointError where the given ones do not fit (`fitting`).
        """
        net, comm = self._net, self._comm
        given = fitting(given, {h.name: h.shape for h in self._held}, net.drawn) if given else {}
        known = np.array([float(param.name in given) for param in net.own.params])
        comm.broadcast(known)
        values, own = self._zeros(net.flat.size), self._own_on_host()
        for entry, param in zip(net.flat.entries, net.flat.params, strict=True):
            if param.name in given:
                read_all(given[param.name], values[entry.start : entry.stop])
            elif comm.rank == 0:
                initial_value(param, self._job.seed, values[entry.start : entry.stop].reshape(param.shape))
        for entry, param, is_given in zip(net.own.entries, net.own.params, known, strict=True):
            place = own[entry.start : entry.stop]
            if is_given:
                assert param.shard is not None
                send_shards(comm, param.shard, given.get(param.name), place)
            else:
                initial_value(param, self._job.seed, place.reshape(param.shape))
        self._put(values, own, {}, 0)

    def restore(self, checkpoint: Checkpoint | None, *, carry: bool = True) -> None:
        """Go on from the first worker's checkpoint (None on the others).

        carry: whether the state of recurrent layers and the residuals are those of this group.
        Raises CheckpointError where the checkpoint is of another net or updater.
        """
        flat, saved = self._net.flat, checkpoint or Checkpoint(0, 0, "", {})
        values, own, states = self._zeros(flat.size), self._own_on_host(), self._empty_states()
        if checkpoint is not None:
            if faults := misfits(checkpoint.contents, self._contents):
                raise CheckpointError(f"the checkpoint does not fit this job: {'; '.join(faults)}.")
            for entry in flat.entries:
                read_all(saved.parameters[entry.name], values[entry.start : entry.stop])
        for h in self._held:
            if h.split:
                out = own[h.start - flat.size :][: h.shard.size]
                send_shards(self._comm, h.shard, saved.parameters.get(h.name), out)
            for name in self._contents[h.name][1]:
                send_shards(self._comm, h.shard, saved.updater.get(name, {}).get(h.name), states[name][h.elements])
        self._begin(values, own, states, saved, carry=carry)

    def recover(self, lost: Sequence[Saved], least: int = 0) -> Mapping[str, Any] | None:
        """Go on from what the ranks of a lost group have left in memory: the newest step that all of it knows. Returns
        what evaluations had decided; None, and nothing has changed, if something is missing or of another net, or the
        step is before `least`.

        lost: by rank. A group of another size divides the state anew, unless layers are split.
        """
        comm, flat = self._comm, self._net.flat.size
        providers, mine = provider_of(comm, lost)
        straight = len(lost) == comm.size and providers == list(range(comm.size))
        alien = any(saved.model != self.fingerprint for saved in lost)
        if alien or min(providers) < 0 or (self._net.own.size and not straight):
            return None
        steps = [known for rank, left in mine.items() if (known := step_of(lost[rank], left)) is not None]
        step = int(comm.all_gather_number(min(steps, default=LATEST)).min())
        images = [(of, left[of.key].at(step)) for rank, left in mine.items() for of in lost[rank].regions[0].layouts]
        self.outdated = step < least
        if self.outdated or comm.all_gather_number(sum(image is None for _, image in images)).any():
            return None
        values, own, states = self._zeros(flat), self._own_on_host(), self._empty_states()
        ledgers = []
        for of, image in images:
            assert image is not None
            place = slice(of.start, of.stop)
            out = values[place] if of.start < flat else own[of.start - flat : of.stop - flat]
            out[...] = image.arrays[VALUES]
            for name in of.arrays[1:]:
                states[name][place] = image.arrays[name]
            ledgers.append(SliceNote.decode(image.note).ledger)
        for array in (values, *(state[:flat] for state in states.values())):
            comm.all_reduce(array)  # what a rank does not bring is zero there
        own_moving = {rank: moving_of(lost[rank], left, step) or {} for rank, left in mine.items()}
        told = all_gather_objects(comm, (ledgers, own_moving))
        moving = dict(item for _, each in told for item in each.items())
        ranks = [moving[rank] for rank in range(len(lost))]
        decisions = ranks[0].get("decisions") or {}
        saved = Checkpoint(step, self._job.seed, "", {}, residuals=self._left_residuals(ranks), decisions=decisions)
        saved.ledgers = ledger_row(Ledger.joint(ledger for of_rank, _ in told for ledger in of_rank))[None]
        saved.carried = joined_carried([rank["carried"] for rank in ranks]) if self._carries else {}
        self._begin(values, own, states, saved)
        return decisions

    def _begin(
        self,
        values: np.ndarray,
        own: np.ndarray,
        states: Mapping[str, np.ndarray],
        saved: Checkpoint,
        *,
        carry: bool = True,
    ) -> None:
        """Go on from these arrays, and from what else the first worker knows of the saved state."""
        comm, net = self._comm, self._net
        step, reductions, ledger = broadcast_object(comm, (saved.step, reductions_in(saved.decisions), saved.ledger))
        self._put(values, own, states, step, reductions, ledger)
        if not carry:
            return
        self._restored_step, first = step, comm.rank == 0
        self._residuals = share_residuals(
            comm, saved.residuals if first else {}, saved.parameters, net.flat, net.own, self._held
        )
        if self._carries:
            share_carried(net, comm, saved.carried if first else None)

    def _left_residuals(self, ranks: Sequence[Mapping[str, Any]]) -> Mapping[str, Mapping[str, np.ndarray]]:
        """The residuals that lost ranks have left, as in a checkpoint; none where one of them had none."""
        if any("residual" not in each for each in ranks):
            return {}
        none = self._zeros(self._net.flat.size)
        left = {RANK.format(i): none if each["residual"] is None else each["residual"] for i, each in enumerate(ranks)}
        return {
            key: {entry.name: array[entry.start : entry.stop] for entry in self._net.flat.entries}
            for key, array in {**left, "values": ranks[0]["values"]}.items()
        }

    @property
    def fingerprint(self) -> int:
        """The same for groups of any size that can resume from each other's state."""
        return model_of(self._contents, self._data)

    @property
    def moves(self) -> bool:
        """Whether there is a moving state, which changes at every step."""
        return self._carries or self._has_residuals

    def moving(self) -> dict[str, Any]:
        """This rank's moving state between steps (see shadows.py), of which other processes have nothing."""
        state: dict[str, Any] = {"carried": own_carried(self._net) if self._carries else {}}
        if self._has_residuals:
            state["residual"] = self._stages.exchange.residual
            state["values"] = self._net.ops.to_host(self._net.flat.values) if self._comm.rank == 0 else None
        return state

    def fetch(self, first: int = 0) -> int:
        """Take the servers' parameters and reductions of the learning rate. Returns the step with which the group
        begins: `first`, or a later one that the servers know of."""
        stages, stub = self._stages, self._stages.stub
        known = stub.get(stages.values, first)
        if self._job.cluster.nworker_groups == 1 and not stages.in_process_servers:
            known = self._even(first)
        told = np.zeros((3, self._comm.size))
        told[:, self._comm.rank] = known, stub.clock, stub.known_reductions
        with stages.patiently():
            self._comm.all_reduce(told.reshape(-1))
        stages.receive_own()
        begin, clock, stub.reductions = map(int, told.max(axis=1))
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

    def _even(self, first: int) -> int:
        """Have the slices go back to the step that all of them have; returns it, at least `first`. Collective.

        A worker may be lost in the midst of a step: then some slices contain its gradient, and others do not. The only
        worker group makes the step again. A slice that cannot go back answers it without applying it again.
        """
        stub, stages = self._stages.stub, self._stages
        with stages.patiently():
            least = int(self._comm.all_gather_number(min(stub.steps, default=LATEST)).min())
        stub.go_back(stages.values, max(first, least))
        return max(first, least)

    def snapshot(
        self, step: int, job_text: str, data: Mapping[str, str], comm: Communicator, *, own_values: bool = False
    ) -> Checkpoint:
        """The group's state as it is until the next step: the first worker saves it while the others contribute.

        comm: of the same workers; it gathers the arrays. own_values: save the parameters that this group has, not
        those that its servers have now, which updates by other groups may have changed.
        """
        carried = gather_carried(self._net, comm) if self._carries else {}
        residuals = self._gather_residuals(comm) if self._has_residuals else {}
        servers = _Servers(self._stages.stub, self._net.ops, self._stages.values if own_values else None)
        found: dict[str, dict[str, Gathered]] = {name: {} for name in ("", *self._empty_states(0))}
        for h in self._held:
            for name in ("", *self._contents[h.name][1]):
                held, dtype = partial(servers.elements, h, name), self._net.flat.values.dtype
                found[name][h.name] = Gathered(comm, h.shard, h.shape, dtype, held)
        ledgers = servers.gather_ledgers(comm)
        return Checkpoint(step, self._job.seed, job_text, found.pop(""), found, data, carried, residuals, ledgers)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the net has the moving averages of the parameters, if the updater keeps them. No update may be under
        way. Collective; an exception inside leaves the averages, for it ends the run."""
        if not self._job.updater.ema_decay:
            yield
            return
        flat, own = self._net.flat, self._net.own
        kept = flat.values.copy(), own.values.copy()
        averages = self._averages()
        self._set(averages[: flat.size], averages[flat.size :])
        yield
        self._set(*kept)

    def _averages(self) -> np.ndarray:
        """The moving averages of the replicated parameters and of the own shards. Collective."""
        stages, values = self._stages, self._zeros(self._size)
        for i, s in enumerate(stages.stub.slices):
            values[s.start : s.stop] = self._net.ops.to_host(stages.stub.inspect(i).state[EMA])
        for bucket in stages.exchange.buckets:
            self._comm.all_gather(values[bucket.elements], bucket.counts)
        return values

    def _set(self, flat: Any, own: Any) -> None:
        """Set the values of the net; what the servers have stays. Workers may share the memory of `flat`."""
        ops, dtype = self._net.ops, self._net.ops.dtype
        self._comm.barrier()
        self._net.flat.values[...] = ops.asarray(flat, dtype)
        self._net.own.values[...] = ops.asarray(own, dtype)
        self._comm.barrier()

    def _empty_states(self, size: int | None = None) -> dict[str, np.ndarray]:
        """The updater's arrays by name, of zeros."""
        names = dict.fromkeys(name for _, states in self._contents.values() for name in states)
        return {name: self._zeros(self._size if size is None else size) for name in names}

    def _zeros(self, size: int) -> np.ndarray:
        return np.zeros(size, self._net.flat.values.dtype)

    def _own_on_host(self) -> np.ndarray:
        """Where the values of own shards are set: the net's array, which needs no second one, if it is there."""
        values = self._net.own.values
        return values if isinstance(values, np.ndarray) else self._zeros(values.size)

    def _put(
        self,
        values: np.ndarray,
        own: np.ndarray,
        states: Mapping[str, np.ndarray],
        step: int,
        reductions: int = 0,
        ledger: Ledger | None = None,
    ) -> None:
        """Begin, here and on the servers, with the first worker's values, and own shards of split parameters."""
        self._comm.broadcast(values)
        self._stages.put(values, own)
        self._comm.barrier()  # memory that workers share is written by all of them
        self._stages.stub.put(self._stages.values, states, step, reductions, ledger)

    def _gather_residuals(self, comm: Communicator) -> dict[str, dict[str, Gathered]]:
        stub, pushes = self._stages.stub, self._zeros(self._size)
        for i, part in stub.residual.items():
            pushes[stub.slices[i].start : stub.slices[i].stop] = part
        flat = self._net.flat
        values = self._net.ops.to_host(flat.values)
        return gather_residuals(self._stages.exchange, comm, flat, self._held, values, pushes)

    def _take_over(self, residuals: ResidualState) -> None:
        """Adopt the residuals. What no codec here can keep becomes part of the next step's gradients."""
        stages, stub = self._stages, self._stages.stub
        owed = np.concatenate([stages.exchange.take_over(residuals.residual), residuals.owed])
        if not stages.exchange.exact:
            stages.staging.put(residuals.values)
        kept = {i: residuals.pushes[s.start : s.stop].copy() for i, s in enumerate(stub.slices)}
        for i, rest in stub.take_over(kept).items():
            owed[stub.slices[i].start : stub.slices[i].stop] += rest
        stages.owed = owed if owed.any() else None


class _Servers:
    """What this worker's servers hold, slice by slice: it keeps those of one parameter at a time.

    values: the parameters, where they are not those of the servers.
    """

    def __init__(self, stub: Stub, ops: Ops, values: Any = None) -> None:
        self._stub, self._ops, self._values = stub, ops, values
        self._states: dict[int, State] = {}
        self._ledgers: list[Ledger] = [] if values is None else [ledger.copy() for ledger in stub.ledgers]

    def elements(self, held: Holding, name: str, first: int, last: int) -> np.ndarray:
        """Elements [first, last) of a holding: of the updater's state `name`, or of the parameter with ""."""
        found, own = [np.empty(0, self._ops.dtype)], self._values is not None and not name
        wanted = {
            i: s
            for i, s in enumerate(self._stub.slices)
            if s.start < held.elements.stop and held.elements.start < s.stop
        }
        self._states = {} if own else {i: self._states[i] if i in self._states else self._inspect(i) for i in wanted}
        for i, s in wanted.items():
            begin, end = max(held.start + first, s.start), min(held.start + last, s.stop)
            if begin < end and own:
                found.append(self._ops.to_host(self._values[begin:end]))
            elif begin < end:
                array = self._states[i].state[name] if name else self._states[i].values
                found.append(self._ops.to_host(array[begin - s.start : end - s.start]))
        return found[1] if len(found) == 2 else np.concatenate(found)

    def gather_ledgers(self, comm: Communicator) -> Gathered:
        """The ledgers of all workers' slices: uint8 (workers, bytes), each row JSON and spaces. They are known once
        the parameters were gathered. Collective."""
        known = ledger_row(Ledger.joint(self._stub.ledgers))
        nbytes = int(comm.all_gather_number(2 * known.size + _LEDGER_ROOM).max())
        shard = ArrayShard((comm.size, nbytes), 0, tuple(range(comm.size + 1)), comm.rank)

        def elements(first: int, last: int) -> np.ndarray:
            row = ledger_row(Ledger.joint(self._ledgers)) if self._ledgers else np.empty(0, np.uint8)
            if row.size > nbytes:
                raise ValueError(f"the ledger has {row.size} bytes, and the checkpoint has room for {nbytes}")
            return np.pad(row, (0, nbytes - row.size), constant_values=ord(" "))[first:last]

        return Gathered(comm, shard, shard.shape, np.uint8, elements)

    def _inspect(self, i: int) -> State:
        state = self._stub.inspect(i)
        if self._values is None:
            self._ledgers.append(state.ledger)
        return state
