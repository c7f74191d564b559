"""The servers of a server group as the driver holds them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

from singa_dask.cluster.leases import server_key
from singa_dask.cluster.remote import alive
from singa_dask.errors import ClusterError
from singa_dask.server import Address, ServerActor, ServerPlan
from singa_dask.server.messages import Origin

_START_S = 60.0
_ALIVE_EVERY_S = 0.5
_CALL_S = 30.0
_CLOSE_S = 2.0


class ServerGroup:
    """One server group: from making its actors to letting them go.

    number: from 0; where: the Dask worker of each server; run: that it is of (leases.server_key).
    generation: grows whenever the group is made anew; addresses: of the servers, empty while it is down.
    """

    def __init__(self, number: int, where: Sequence[str], run: str = "") -> None:
        self.number = number
        self.where = list(where)
        self.run = run
        self.generation = 0
        self.restarts = 0
        self.addresses: list[Address] = []
        self._client: Any = None
        self._futures: list[Any] = []
        self._actors: list[Any] = []
        self._call_s = _CALL_S

    @property
    def up(self) -> bool:
        """Whether its servers answer, as far as is known."""
        return bool(self.addresses)

    def start(self, client: Any, plans: Sequence[ServerPlan]) -> None:
        """Make the servers. Raises ClusterError when that fails."""
        self.generation += 1
        self._client = client
        self._call_s = _CALL_S + max(plan.transfer_s for plan in plans)
        suffix = f"{self.number}-{self.generation}-{uuid4().hex[:8]}"
        named = [replace(plan, key=server_key(f"{i}-of-group-{suffix}", self.run)) for i, plan in enumerate(plans)]
        self._futures = [
            client.submit(
                ServerActor, plan, actor=True, key=plan.key, workers=[address], pure=False, allow_other_workers=False
            )
            for plan, address in zip(named, self.where, strict=True)
        ]
        try:
            self._actors = [self._made(client, future) for future in self._futures]
        except Exception as error:
            self.stop()
            places = ", ".join(self.where)
            raise ClusterError(f"server group {self.number} could not be made on {places}: {error!r}") from error
        self.addresses = [Address(address, plan.key) for plan, address in zip(named, self.where, strict=True)]

    def _made(self, client: Any, future: Any) -> Any:
        """The actor, once it is there. Dask would wait for ever where its worker is not there any more."""
        deadline = time.monotonic() + _START_S
        while True:
            try:
                return future.result(timeout=_ALIVE_EVERY_S)
            except TimeoutError:
                gone = set(self.where) - alive(client, self.where)
                if gone or time.monotonic() > deadline:
                    raise

    def meet(self, right: ServerGroup) -> None:
        """Exchange with this right neighbour from now on."""
        self._each("meet", [(address,) for address in right.addresses])

    def take_over(self, neighbour: ServerGroup) -> None:
        """Begin with what a living neighbour has."""
        self._each("take_over", self._introduce(neighbour))

    def hand_on(self, neighbour: ServerGroup) -> None:
        """Make a living neighbour begin anew with what this group has."""
        self._each("hand_on", self._introduce(neighbour))

    def dismiss(self, group: int, generation: int) -> None:
        """Wait no more for a worker group: it will not come, or not come back."""
        self._each("dismiss", [(Origin(group, generation),)] * len(self._actors), timeout_s=2.0)

    def flush(self) -> None:
        """Exchange everything with the right neighbour."""
        self._each("flush", [()] * len(self._actors))

    def lost(self) -> None:
        """Its servers answer no more, or will not soon."""
        self.addresses = []

    def stop(self) -> None:
        """Let the servers go. Those in processes that live, though the group was lost, would go on exchanging."""
        deadline, calls = time.monotonic() + _CLOSE_S, []
        with suppress(ClusterError):
            living = alive(self._client, self.where, _CLOSE_S) if self._actors else ()
            for actor, where in zip(self._actors, self.where, strict=False):
                if where in living:
                    with suppress(Exception):  # lost a moment ago
                        calls.append(actor.close())
        for call in calls:
            with suppress(Exception):
                call.result(timeout=max(0.0, deadline - time.monotonic()))
        for future in self._futures:
            future.release()
        self.addresses, self._futures, self._actors = [], [], []

    def _introduce(self, neighbour: ServerGroup) -> list[tuple]:
        left, right = sorted((self, neighbour), key=lambda group: group.number)
        side = "left" if neighbour is left else "right"
        return [(address, side, (left.generation, right.generation)) for address in neighbour.addresses]

    def _each(self, method: str, args: Sequence[tuple], timeout_s: float | None = None) -> None:
        """Call every server, and wait for all. Raises ClusterError when one fails."""
        deadline = time.monotonic() + (self._call_s if timeout_s is None else timeout_s)
        calls = []
        for actor, given, where in zip(self._actors, args, self.where, strict=True):
            with self._naming(method, where):  # of a lost actor even this raises
                calls.append(getattr(actor, method)(*given))
        for call, where in zip(calls, self.where, strict=True):
            with self._naming(method, where):
                call.result(timeout=max(0.0, deadline - time.monotonic()))

    @contextmanager
    def _naming(self, method: str, where: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise ClusterError(f"server group {self.number}: {method} failed at {where}: {error!r}") from error
