"""The servers of a server group as the driver reaches them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import ref

from singa_dask.cluster import leases
from singa_dask.cluster.departure import OTHERS_S, Departure
from singa_dask.cluster.formation import NoAnswer, WorkersInUse
from singa_dask.cluster.leases import server_key
from singa_dask.cluster.nanny_store import NannyStore
from singa_dask.cluster.remote import alive
from singa_dask.cluster.successors import prepare_successor
from singa_dask.errors import ClusterError
from singa_dask.memory.owner import Owner, Saved, Version
from singa_dask.memory.region import Regions
from singa_dask.server import Address, ServerActor, ServerPlan
from singa_dask.server.kept import read_kept, save_slices
from singa_dask.server.messages import Origin
from singa_dask.server.replication import Replicator
from singa_dask.tracing import Recorder
from singa_dask.training.dask_task import memory_limit
from singa_dask.training.memory import has_room_here

_START_S = 60.0
_LOOK_EVERY_S = 0.5
_CALL_S = 30.0
_CLOSE_S = 2.0
# After the last request: the first worker group waits for the others, and then saves what all have reached.
_QUIET_S = 2 * OTHERS_S
REPLICA_LOST = "replica lost"  # an event of a server; `lost`: the fields of ReplicaLost


@dataclass(frozen=True)
class Servers:
    """The servers of one server group, of which `generation` says how often it was made. addresses: of each."""

    number: int
    generation: int
    where: tuple[str, ...]
    addresses: tuple[Address, ...]
    _client: Any = field(repr=False)
    _futures: Sequence[Any] = field(repr=False)
    _actors: Sequence[Any] = field(repr=False)
    _call_s: float = _CALL_S

    def meet(self, right: Servers) -> None:
        """Exchange with this right neighbour from now on."""
        self._each("meet", [(address,) for address in right.addresses])

    def take_over(self, neighbour: Servers) -> None:
        """Start from the parameters of a living neighbour."""
        self._each("take_over", self._introduce(neighbour))

    def hand_on(self, neighbour: Servers) -> None:
        """Make a living neighbour start again from the parameters of this group."""
        self._each("hand_on", self._introduce(neighbour))

    def dismiss(self, group: int, generation: int) -> None:
        """Stop waiting for a worker group: it will not come, or not come back."""
        self._each("dismiss", [(Origin(group, generation),)] * len(self._actors), timeout_s=2.0)

    def replicate(self, nannies: Sequence[str]) -> None:
        """Have these nannies, by server, keep replicas ("": none)."""
        self._each("replicate", [(nanny,) for nanny in nannies])

    def settle(self) -> bool:
        """Let go what former servers have left; whether what these leave is held."""
        return all(self._each("settle", [()] * len(self._actors)))

    def replica_lost(self, rank: int, replica: int, nanny: str) -> None:
        """Tell a server that the driver knows of the loss of its replica. nanny: keeps the next one, "" for none. Does
        not wait: the server tells of the loss again if it has not heard this."""
        with suppress(Exception):  # lost too
            self._actors[rank].replica_lost(replica, nanny)

    def flush(self) -> None:
        """Exchange everything with the right neighbour."""
        self._each("flush", [()] * len(self._actors))

    def stop(self) -> None:
        """Let the servers go. Those in processes that live, though the group was lost, would go on exchanging."""
        deadline, calls = time.monotonic() + _CLOSE_S, []
        with suppress(ClusterError):
            living = alive(self._client, self.where, _CLOSE_S)
            for actor, where in zip(self._actors, self.where, strict=False):  # fewer if they could not all be made
                if where in living:
                    with suppress(Exception):  # lost a moment ago
                        calls.append(actor.close())
        for call in calls:
            with suppress(Exception):
                call.result(timeout=max(0.0, deadline - time.monotonic()))
        for future in self._futures:
            future.release()

    def _introduce(self, neighbour: Servers) -> list[tuple]:
        left, right = sorted((self, neighbour), key=lambda group: group.number)
        side = "left" if neighbour is left else "right"
        return [(address, side, (left.generation, right.generation)) for address in neighbour.addresses]

    def _each(self, method: str, args: Sequence[tuple], timeout_s: float | None = None) -> list[Any]:
        """What every server returns. Raises NoAnswer when one or its neighbour does not answer, ClusterError
        when one fails."""
        deadline = time.monotonic() + (self._call_s if timeout_s is None else timeout_s)
        calls = []
        for actor, given, where in zip(self._actors, args, self.where, strict=True):
            with self._naming(method, where):  # of a lost actor even this raises
                calls.append(getattr(actor, method)(*given))
        returned = []
        for call, where in zip(calls, self.where, strict=True):
            with self._naming(method, where):
                returned.append(call.result(timeout=max(0.0, deadline - time.monotonic())))
        return returned

    @contextmanager
    def _naming(self, method: str, where: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            kind = NoAnswer if isinstance(error, OSError | ClusterError) else ClusterError
            raise kind(f"server group {self.number}: {method} failed at {where}: {error!r}") from error


@dataclass(frozen=True)
class Keeping:
    """How a server leaves its slices in memory, and what it resumes from.

    sides: on which there are neighbours. also: another nanny of its machine, "" for none. left: by the server that it
    succeeds. model: as in Saved. orphan_s: for how long its memory outlives its driver.
    """

    owner: Owner
    version: Version
    sides: tuple[str, ...] = ()
    also: str = ""
    left: Saved | None = None
    model: int = 0
    orphan_s: float = 600.0


class RunServer(ServerActor):
    """A server on a worker that no other run has. Raises WorkersInUse, and ClusterError if what it resumes from is
    gone."""

    def __init__(self, plan: ServerPlan, keeping: Keeping) -> None:
        from distributed import get_worker

        worker, run = get_worker(), keeping.version.run
        others = [key for key in leases.servers(worker.state.actors) if not key.endswith(f"@{run}")]
        if leases.run_of(worker.address) not in ("", run):
            others.append(leases.holder(worker.address))
        if others:  # it was free when the run chose it
            raise WorkersInUse(f"{plan.key} cannot be made: {worker.address} is in use by {', '.join(others)}.")
        left = keeping.left
        self._store = NannyStore(worker, keeping.owner, keeping.version, keeping.orphan_s, room=_has_room)
        plan = plan if left is None else replace(plan, accounts=left.note)
        super().__init__(plan)
        protocol, kept = self.server.protocol, {}
        if left is not None:
            kept = self._store.ask(left.holder, read_kept, left, timeout_s=_CALL_S + plan.transfer_s)
            if kept is None:
                raise NoAnswer(f"{plan.key}: what the lost server has left in memory is gone.")
        self._also, self._keeping = keeping.also, keeping
        if plan.trace is not None:
            who = "server", keeping.owner.group, keeping.owner.rank, keeping.version.generation
            emit = partial(worker.log_event, run)
            self.server.recorder = Recorder(plan.trace, emit, who, worker.address, track="updates")
        self._saved: tuple[Regions, Saved] | None = None
        self._replicator: Replicator | None = None
        if worker.nanny:
            room = partial(has_room_here, dask_limit=memory_limit(worker.memory_manager))
            if (regions := save_slices(protocol, keeping.sides, room)) is not None:
                place, opened = (keeping.owner, keeping.version, (regions.address,)), dict(plan.accounts)
                self._saved = regions, Saved(*place, keeping.model, opened)
        if kept:
            protocol.restore(kept)
        self._hold()
        prepare_successor(worker)
        self._departure = Departure(plan.key, worker, partial(_may_close, ref(self), worker))

    def settle(self) -> bool:
        """Let go what former servers have left: all servers of the group hold theirs. Whether its memory is held."""
        return self._hold(only=True)

    def _hold(self, *, only: bool = False) -> bool:
        return self._saved is not None and self._store.hold(self._saved[1], only=only, also=self._also)

    async def replicate(self, nanny: str) -> None:
        """Have a nanny keep a replica from now on ("": none). Returns once it is whole, or lost."""
        if not nanny or self._saved is None:
            return
        if self._replicator is None:
            self._replicator = Replicator(
                self.server,
                self._store,
                self._saved[1],
                self._saved[0],
                there=self.there,
                tell_lost=self._tell_lost,
            )
        await self._replicator.begin(nanny)

    async def replica_lost(self, replica: int, nanny: str) -> None:
        """Go on without this replica, as the driver knows of its loss, or with another one."""
        if self._replicator is not None:
            await self._replicator.lost(replica, nanny)

    async def close(self) -> None:
        if self._replicator is not None:
            self._replicator.end()
        self.closed = True
        if self.server.recorder is not None:
            self.server.recorder.send()
        await self._departure.remove()
        await super().close()

    def _tell_lost(self, replica: int, awaited: bool) -> None:
        owner, version = self._keeping.owner, self._keeping.version
        lost = owner.group, version.generation, owner.rank, replica, awaited
        self._worker.log_event(version.run, {"kind": REPLICA_LOST, "lost": lost})


def _may_close(server: ref[RunServer], worker: Any, waited_s: float) -> bool:
    """Whether a Dask worker that has lost its scheduler may close: the worker groups of its server have saved what
    they have reached. Dask may release the server without closing it."""
    stream, found = worker.batched_stream, server()
    connected = stream is not None and stream.comm is not None and not stream.comm.closed()
    return connected or found is None or found.closed or found.is_deserted(_QUIET_S)


def _has_room(nbytes: int) -> bool:
    """Whether there is memory for a replica, where it is called."""
    return has_room_here(nbytes, dask_limit=None)


def make_servers(
    client: Any,
    number: int,
    generation: int,
    where: Sequence[str],
    plans: Sequence[ServerPlan],
    keeping: Sequence[Keeping],
) -> Servers:
    """Make a server of each plan, on the Dask worker beside it in `where`.

    Raises WorkersInUse where another run has the worker, NoAnswer where what a lost server has left is gone, and
    ClusterError when that fails otherwise.
    """
    suffix = f"{number}-{generation}-{uuid4().hex[:8]}"
    named = [
        replace(plan, key=server_key(f"{i}-of-group-{suffix}", keep.version.run))
        for i, (plan, keep) in enumerate(zip(plans, keeping, strict=True))
    ]
    futures = [
        client.submit(
            RunServer, plan, keep, actor=True, key=plan.key, workers=[address], pure=False, allow_other_workers=False
        )
        for plan, keep, address in zip(named, keeping, where, strict=True)
    ]
    addresses = tuple(Address(address, plan.key) for plan, address in zip(named, where, strict=True))
    call_s = _CALL_S + max(plan.transfer_s for plan in plans)
    actors: list[Any] = []
    servers = Servers(number, generation, tuple(where), addresses, client, futures, actors, call_s)
    try:
        for future in futures:
            actors.append(_made(client, future, where))
    except Exception as error:
        servers.stop()
        if isinstance(error, WorkersInUse):
            raise
        places = ", ".join(where)
        kind = NoAnswer if isinstance(error, NoAnswer) else ClusterError
        raise kind(f"server group {number} could not be made on {places}: {error!r}") from error
    return servers


def _made(client: Any, future: Any, where: Sequence[str]) -> Any:
    """The actor, once it is there. Dask would wait for ever where its worker is not there any more."""
    deadline = time.monotonic() + _START_S
    while True:
        try:
            return future.result(timeout=_LOOK_EVERY_S)
        except TimeoutError:
            if set(where) - alive(client, where) or time.monotonic() > deadline:
                raise
