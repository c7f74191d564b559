"""Sending to a replica: in time, in order, and what happens when it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial, wraps

import pytest
from support.lost import Replicated, update
from support.servers import ones, until

from singa_dask.memory.region import Regions
from singa_dask.server import replication
from singa_dask.server.messages import Moved, Put
from singa_dask.server.replication import Kept, Replicator


class Place:
    """Where a replica is.

    held: answers wait until it is set; broken: how many messages are lost with their connection; fault: what the next
    messages are answered with.
    """

    def __init__(self, server: Replicated) -> None:
        self.server, self.room, self.broken, self.fault = server, True, 0, None
        self.held = asyncio.Event()
        self.held.set()
        self.whole, self.number, self.messages = False, 0, []

    async def open(self, nanny, saved) -> bool:
        self.number, self.replica = saved.version.number, Regions.create(saved.regions[0].layouts)
        await self.held.wait()
        return self.room

    async def put(self, nanny, saved, pieces, *, whole: bool) -> Kept:
        self.messages.append([piece.version for piece in pieces])
        if self.broken:
            self.broken -= 1
            raise OSError("the connection broke")
        await self.held.wait()
        if self.fault is not None:
            return self.fault
        self.whole = self.whole or whole
        return Kept.KEPT if self.replica.write(pieces) else Kept.SUPERSEDED


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("SILENT_S", "OPEN_S", "ALIVE_S"):
        monkeypatch.setattr(replication, name, 0.2)
    for name in ("TELL_S", "AGAIN_S", "RETRY_S"):
        monkeypatch.setattr(replication, name, 0.02)


def played(test: Callable, begun: bool = True) -> Callable:
    """A test with a server on an event loop. begun: whether the server has a whole replica."""

    @wraps(test)
    def run() -> None:
        async def in_time() -> None:
            server, lost = Replicated(), []
            server.server.call(Put(0, ones(0))).result(1)

            place = Place(server)
            sender = Replicator(
                server.server,
                place,
                server.saved,
                server.regions,
                there=lambda: True,
                tell_lost=lambda *told: lost.append(told),
            )
            if begun:
                await asyncio.wait_for(sender.begin("nanny"), 20)
            try:
                await asyncio.wait_for(test(server, sender, place, lost), 20)
            finally:
                sender.end()

        asyncio.run(in_time())

    del run.__wrapped__  # its arguments are no fixtures
    return run


@played
async def test_an_update_is_acknowledged_once_the_replica_has_it(server, sender, place, lost):
    assert place.whole and place.number == 1 and place.messages == [[0], []]
    place.held.clear()
    reply = server.server.call(update(0, 0))
    await until(lambda: len(place.messages) == 3)
    assert not reply.done()
    place.held.set()
    await until(reply.done)
    assert reply.result().version == 1 and lost == []


@played
async def test_a_broken_connection_is_no_loss(server, sender, place, lost):
    place.broken = 3
    reply = server.server.call(update(0, 0))
    await until(reply.done)
    assert place.messages[2:] == [[1]] * 4 and lost == []


@partial(played, begun=False)
async def test_nobody_waits_for_a_replica_that_was_never_whole(server, sender, place, lost):
    place.room = False
    await sender.begin("nanny")
    assert server.server.call(update(0, 0)).done()
    await until(lambda: lost)
    assert set(lost) == {(1, False)}
    place.room = True
    assert sender.lost(1)
    await sender.begin("nanny")
    assert place.whole and place.number == 2 and not sender.lost(1)


@played
async def test_a_silent_replica_is_waited_for_until_the_driver_knows(server, sender, place, lost):
    place.held.clear()
    reply = server.server.call(update(0, 0))
    await until(lambda: len(lost) > 3)
    assert set(lost) == {(1, True)} and not reply.done(), "a successor may have read the replica"
    assert not sender.lost(2) and not reply.done()
    assert sender.lost(1) and reply.done()
    assert server.server.call(update(0, 1)).done()
    told = len(lost)
    await until(lambda: len(lost) > told)
    assert lost[-1] == (1, False), "it still has none"


@played
async def test_a_replica_is_filled_while_updates_go_on(server, sender, place, lost):
    place.fault = Kept.GONE
    server.server.call(update(0, 0))
    await until(lambda: lost)
    sender.lost(1)
    place.fault = None
    place.held.clear()
    filling = asyncio.create_task(sender.begin("another nanny"))
    await until(lambda: place.number == 2)
    assert server.server.call(update(0, 1)).done(), "nobody waits while it is filled"
    place.held.set()
    await filling
    assert place.whole and place.number == 2
    assert (place.replica[0, ""].newest.arrays[""] == -2).all()


@played
async def test_an_idle_replica_that_is_gone_is_missed(server, sender, place, lost):
    await until(lambda: len(place.messages) > 3)
    place.fault = Kept.GONE
    await until(lambda: lost)
    assert lost[0] == (1, True)


@played
async def test_a_server_whose_replica_a_successor_has_read_is_retired(server, sender, place, lost):
    server.replica = place.replica
    server.successor()
    reply = server.server.call(update(0, 0))
    await until(reply.done)
    assert reply.result() == Moved() and server.server.retired and lost == []


@partial(played, begun=False)
async def test_a_server_that_is_closed_leaves_no_replica_that_seems_to_be_whole(server, sender, place, lost):
    server.server.retire()
    await sender.begin("nanny")
    assert not place.whole and place.messages == [] and lost == []


@played
async def test_a_fault_of_a_message_is_a_loss(server, sender, place, lost):
    place.replica.clear()
    reply = server.server.call(update(0, 0))
    await until(lambda: lost)
    assert lost[0] == (1, True) and not reply.done()
