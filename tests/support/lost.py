"""Servers that are lost, and come back."""

from __future__ import annotations

from copy import copy

import numpy as np
from support.servers import detached, ones, server_plan

from singa_dask.memory.owner import SERVERS, Owner, Saved, Version
from singa_dask.memory.region import Regions
from singa_dask.ops import Ops
from singa_dask.server import Server, partition
from singa_dask.server.kept import read_kept, save_slices
from singa_dask.server.messages import Delta, Origin, Update
from singa_dask.server.slice_protocol import LEFT, RIGHT

SIZE = 16


class Lost:
    """A server that is lost whenever the test wants, and comes back. number: of its group, in a line of so many."""

    def __init__(self, number: int = 0, line: int = 1, slices: int = 1, generation: int = 1, **options) -> None:
        self.cut, self.generation = partition(SIZE * slices, slices, 1, beside=False), generation - 1
        self.sides = [LEFT] * (number > 0) + [RIGHT] * (number < line - 1)
        self.options = {"groups": (0, 1, 2), **options}
        self.make(dict.fromkeys(self.sides, (1, 1)))

    def make(self, accounts, left: Saved | None = None, **options) -> None:
        self.generation += 1
        plan = server_plan(self.cut, accounts=accounts, **self.options | options)
        self.protocol = plan.protocol(Ops())
        kept = None if left is None else read_kept(left)
        assert left is None or kept is not None
        self.regions = save_slices(self.protocol, self.sides, lambda nbytes: True)
        where = (self.regions.address,)
        self.saved = Saved(Owner(SERVERS), Version("run", self.generation), where, note=accounts)
        if kept is not None:
            self.protocol.restore(kept)
        self.server = Server(self.protocol)

    def lose(self, **options) -> None:
        """It is lost, and comes back."""
        regions = self.regions  # which its nanny holds
        self.make(self.saved.note, self.saved, **options)
        del regions

    def ask(self, request):
        future = self.server.call(request)
        return detached(future.result(1)) if future.done() else None


class Replicated(Lost):
    """A server with a replica, and the messages between the two."""

    def replicate(self) -> None:
        """A new replica that is whole."""
        self.server.replication.begin(self.regions)
        self.replica = Regions.create(self.saved.regions[0].layouts)
        self.send()

    def send(self) -> None:
        while pieces := self.server.replication.lacking():
            assert self.replica.write(pieces)
            self.server.replication.sent(pieces)

    def successor(self) -> Replicated:
        """One that resumes from the replica, after the loss of the server and of its memory."""
        memories, before, after = [of.address for of in self.replica.memories], self.saved, copy(self)
        after.make(before.note, before.moved(memories, "another nanny"))
        return after


def update(group: int, step: int, value: float = 1.0, index: int = 0) -> Update:
    return Update(index, Origin(group), step, ones(value, SIZE))


def same(one, other) -> bool:
    """Whether two replies are equal, or two servers' states."""
    pairs = zip(vars(one).items(), vars(other).items(), strict=True)
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for (_, a), (_, b) in pairs)


def exchange(left: Lost, right: Lost, lost: tuple[str, ...]) -> None:
    """One exchange, with servers lost at these moments: nothing that was said is said again in vain."""

    def moment(name: str) -> None:
        for server in (left, right):
            if f"{'left' if server is left else 'right'} {name}" in lost:
                server.lose()

    sync = left.server.begin_sync(0, force=True)
    moment("began")
    if "left began" in lost:
        again = left.server.begin_sync(0)
        assert same(again, sync), "the message under way is repeated"
        sync = again
    reply = right.ask(sync)
    moment("answered")
    if "right answered" in lost or "left answered" in lost:
        sync = left.server.begin_sync(0)
        again = right.ask(sync)
        assert isinstance(again, Delta) and same(again, reply)
        reply = again
    left.server.finish_sync(sync, reply)
    moment("finished")
