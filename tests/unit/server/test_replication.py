"""Replicas of servers: a reply waits for the replica, whose successor has everything that was acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial, wraps

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.lost import SIZE, Replicated, update
from support.servers import ones, until

from singa_dask.memory.region import Regions
from singa_dask.memory.store import PutResult
from singa_dask.server import replication
from singa_dask.server.messages import Done, Fresh, GoBack, Inspect, Moved, Origin, Put
from singa_dask.server.replication import Replicator


def filled(**options) -> Replicated:
    """A server with zeros and a whole replica of them."""
    server = Replicated(**options)
    for index in range(len(server.cut.slices)):
        server.server.call(Put(index, ones(0))).result(1)
    server.replicate()
    return server


def test_a_reply_waits_for_the_replica():
    server = filled()
    reply = server.server.call(update(0, 0))
    assert not reply.done() and (server.protocol.slices[0].values == -1).all()
    assert not (again := server.server.call(update(0, 0))).done(), "a repeated one waits too"
    assert not (other := server.server.call(Inspect(0))).done(), "and what shows it to others"
    server.send()
    assert reply.result(0).version == again.result(0).version == other.result(0).version == 1
    assert server.server.call(Inspect(0)).done(), "nothing has changed since"


def test_one_message_brings_the_newest_copy_of_several_updates():
    server = filled(slices=2)
    replies = [server.server.call(update(0, step, index=index)) for index in range(2) for step in range(3)]
    pieces = server.server.replication.lacking()
    assert [(piece.layout.key[0], piece.version) for piece in pieces] == [(0, 3), (1, 3)]
    late = server.server.call(update(0, 3))
    server.replica.write(pieces)
    server.server.replication.sent(pieces)
    assert all(reply.done() for reply in replies) and not late.done(), "it was saved after the message was made"


def test_large_messages_are_divided_and_slices_take_turns(monkeypatch):
    monkeypatch.setattr(replication, "MESSAGE_NBYTES", 2 * 2 * 4 * SIZE)  # values and momentum of two slices
    server = filled(slices=3)
    sent = []
    for step in range(3):
        for index in range(3):
            server.server.call(update(0, step, index=index))
        pieces = server.server.replication.lacking()
        server.server.replication.sent(pieces)
        sent.append([piece.layout.key[0] for piece in pieces])
    assert sent == [[2, 0], [1, 2], [0, 1]]


def test_a_request_that_waits_for_the_replica_is_repeated_and_not_lost():
    server = filled()
    reply = server.server.call(update(0, 0))
    assert server.server.withdraw(reply, 0)
    again = server.server.call(update(0, 0))
    server.send()
    assert again.result(0).version == 1


def test_a_successor_can_go_back_a_step():
    server = Replicated(groups=(0,))
    server.server.call(Put(0, ones(0))).result(1)
    server.server.call(update(0, 0)), server.server.call(update(0, 1))
    server.replicate()
    after = server.successor()
    after.replicate()
    again = after.successor()
    reply = again.server.call(GoBack(0, Origin(0, 1), 1)).result(0)
    assert (reply.values[0], reply.next_step) == (-1, 1)


def test_a_message_to_a_neighbour_waits_for_the_replica():
    """Else a successor could say something else with the same number."""
    left, right = Replicated(0, 2), Replicated(1, 2)
    for server in (left, right):
        server.server.call(Put(0, ones(0))).result(1)
    left.replicate()
    left.server.call(update(0, 0))
    sync = left.server.begin_sync(0, force=True)
    kept = left.server.kept(0)
    assert not kept.done()
    left.send()
    assert kept.result(0) == Done()
    answer = right.server.call(sync).result(0)
    after = left.successor()
    again = after.server.begin_sync(0)
    assert (again.sequence, again.delta[0]) == (sync.sequence, sync.delta[0])
    after.server.finish_sync(again, right.server.call(again).result(0))
    assert (answer.delta == 0).all() and (right.protocol.slices[0].values == -1).all()


# Sending


class Nanny:
    """A Store with one replica.

    held: answers wait until it is set; broken: how many messages are lost with their connection; fault: what messages
    are answered with.
    """

    def __init__(self, server: Replicated) -> None:
        self.server, self.room, self.broken, self.fault = server, True, 0, None
        self.held = asyncio.Event()
        self.held.set()
        self.whole, self.number, self.messages = False, 0, []

    async def open(self, nanny, saved) -> bool:
        self.number, self.replica = saved.version.number, Regions.create(saved.regions[0].layouts)
        return self.room

    async def put(self, nanny, saved, pieces, *, whole: bool) -> PutResult:
        self.messages.append([piece.version for piece in pieces])
        if self.broken:
            self.broken -= 1
            raise OSError("the connection broke")
        await self.held.wait()
        if self.fault is not None:
            return self.fault
        self.whole = self.whole or whole
        return PutResult.KEPT if self.replica.write(pieces) else PutResult.SUPERSEDED


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("SILENT_S", "OPEN_S", "ALIVE_S"):
        monkeypatch.setattr(replication, name, 0.2)
    for name in ("TELL_S", "AGAIN_S", "RETRY_S"):
        monkeypatch.setattr(replication, name, 0.02)


def played(test: Callable, begun: bool = True) -> Callable:
    """A test with a server on an event loop. begun: whether the server has a whole replica."""

    @wraps(test)
    def run(*args) -> None:
        async def in_time() -> None:
            server, lost = Replicated(), []
            server.server.call(Put(0, ones(0))).result(1)
            nanny = Nanny(server)
            told = {"there": lambda: True, "tell_lost": lambda *told: lost.append(told)}
            sender = Replicator(server.server, nanny, server.saved, server.regions, **told)
            if begun:
                await asyncio.wait_for(sender.begin("nanny"), 20)
            try:
                await asyncio.wait_for(test(server, sender, nanny, lost, *args), 20)
            finally:
                sender.end()

        asyncio.run(in_time())

    del run.__wrapped__  # its arguments are no fixtures
    return run


@played
async def test_an_update_is_acknowledged_once_the_replica_has_it(server, sender, nanny, lost):
    assert nanny.whole and nanny.number == 1 and nanny.messages == [[0], []]
    nanny.held.clear()
    reply = server.server.call(update(0, 0))
    await until(lambda: len(nanny.messages) == 3)
    assert not reply.done()
    nanny.held.set()
    await until(reply.done)
    assert reply.result().version == 1 and lost == []


FAULTS = {
    "its connection breaks for a moment": (lambda server, nanny: setattr(nanny, "broken", 3), Fresh),
    "a successor of the server has read it": (lambda server, nanny: server.successor(), Moved),
    "it is silent": (lambda server, nanny: nanny.held.clear(), None),
    "it is gone": (lambda server, nanny: setattr(nanny, "fault", PutResult.GONE), None),
    "it fails": (lambda server, nanny: nanny.replica.clear(), None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reply_waits_for_a_replica_that_is_lost_until_the_driver_knows(fault):
    happen, answer = FAULTS[fault]

    @played
    async def plays(server, sender, nanny, lost):
        server.replica = nanny.replica
        happen(server, nanny)
        reply = server.server.call(update(0, 0))
        await until(lambda: reply.done() or len(lost) > 3)
        if answer is not None:
            assert isinstance(reply.result(0), answer) and lost == []
            assert server.server.retired == (server.server.kept(0).result(0) == Moved()) == (answer is Moved)
            return
        await sender.lost(2, "")
        assert set(lost) == {(1, True)} and not reply.done(), "a successor may have read the replica"
        await sender.lost(1, "")
        assert reply.result(0).version == 1 and server.server.call(update(0, 1)).done()
        await until(lambda: lost[-1] == (1, False))  # it still has none

    plays()


@played
async def test_an_idle_replica_that_is_gone_is_missed(server, sender, nanny, lost):
    await until(lambda: len(nanny.messages) > 3)
    nanny.fault = PutResult.GONE
    await until(lambda: lost)
    assert lost[0] == (1, True)


@pytest.mark.parametrize("turns", range(8))
def test_nothing_is_sent_any_more_whenever_it_ends(turns):
    """Also while it is being told of a change: another nanny would seem to have what this one is sent."""

    @played
    async def plays(server, sender, nanny, lost):
        server.server.call(update(0, 0))
        for _ in range(turns):
            await asyncio.sleep(0)
        sender.end()
        before = len(nanny.messages)
        server.server.call(update(0, 1))
        await asyncio.sleep(0.1)
        assert len(nanny.messages) == before

    plays()


@partial(played, begun=False)
async def test_nobody_waits_for_a_replica_before_it_is_whole(server, sender, nanny, lost):
    nanny.room = False
    await sender.begin("nanny")
    assert server.server.call(update(0, 0)).done()
    await until(lambda: lost)
    assert set(lost) == {(1, False)}
    nanny.room = True
    nanny.held.clear()
    filling = asyncio.create_task(sender.lost(1, "another nanny"))
    await until(lambda: nanny.messages)
    assert server.server.call(update(0, 1)).done(), "nor while it is filled"
    nanny.held.set()
    await filling
    assert nanny.whole and (nanny.replica[0, ""].newest.arrays[""] == -2).all()


@partial(played, begun=False)
async def test_a_server_that_is_closed_leaves_no_replica_that_seems_to_be_whole(server, sender, nanny, lost):
    server.server.retire()
    await sender.begin("nanny")
    assert not nanny.whole and nanny.messages == [] and lost == []


# All that may happen


@settings(max_examples=32, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
class History(RuleBasedStateMachine):
    """Updates of two groups; messages to the replica are lost, repeated and late; the server is lost, with its memory
    or only with its replica."""

    def __init__(self) -> None:
        super().__init__()
        self.now = filled(slices=2)
        self.step = {(group, index): 0 for group in range(2) for index in range(2)}
        self.open: dict[tuple[int, int], list] = {}
        self.messages: list = []

    @rule(group=st.integers(0, 1), index=st.integers(0, 1))
    def say(self, group, index):
        """An update, or a repeated one."""
        reply = self.now.server.call(update(group, self.step[group, index], 1 << (8 * group), index))
        self.open.setdefault((group, index), []).append(reply)

    @rule()
    def make(self):
        if pieces := self.now.server.replication.lacking():
            self.messages.append(pieces)

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), answered=st.booleans())
    def arrive(self, data, answered):
        pieces = data.draw(st.sampled_from(self.messages))
        assert self.now.replica.write(pieces)
        if answered:
            self.now.server.replication.sent(pieces)

    @rule()
    def lose_host(self):
        before, self.now = self.now, self.now.successor()
        before.server.retire()
        self.open, self.messages = {}, []
        self.now.replicate()

    @rule()
    def lose_replica(self):
        """And the driver knows."""
        self.now.server.replication.drop()
        self.messages = []
        self.check()
        self.now.replicate()

    @invariant()
    def check(self):
        for place, replies in list(self.open.items()):
            given = [reply.result(0) for reply in replies if reply.done()]
            if any(isinstance(reply, Fresh) for reply in given):
                assert all(reply.next_step == self.step[place] + 1 for reply in given)
                self.step[place] += 1
                del self.open[place]
        for index in range(2):
            values = -self.now.protocol.slices[index].values[0]
            for group in range(2):
                contained = int(values) >> (8 * group) & 255
                acknowledged = self.step[group, index]
                assert contained - acknowledged in (0, 1), "an acknowledged update is missing, or one is twice"
        assert np.isfinite(values)


TestHistory = History.TestCase
