"""Servers that go on from what others have left in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.servers import Post, contained, ones, server_plan

from singa_dask.ops import Ops
from singa_dask.server import Keeping, MemoryLost, ServerActor, Shadow, partition
from singa_dask.server.kept import KeptServer
from singa_dask.server.messages import Get, GoBack, Inspect, Leave, Origin, Put, Refused, TakenOver, Update
from singa_dask.server.protocol import ServerProtocol
from singa_dask.updaters import SGD

CUT = partition(16, 1, 1, beside=False)
MOMENTUM = SGD(lr=1.0, momentum=0.5).proto.SerializeToString()


class Nanny:
    """A holder that remembers what it was asked. calls: (generation, whether former ones go, the other nanny)."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool, str]] = []

    def hold(self, described, *, only=False, also=""):
        self.calls.append((described.generation, only, also))
        return True

    async def holding(self, described, *, only=False, also=""):
        return self.hold(described, only=only, also=also)


def server(left=None, generation=1, holder=None, **options) -> tuple[ServerProtocol, KeptServer | None]:
    """A server with one slice, and momentum; the first one, or the successor of who has left this address."""
    protocol = replace(server_plan(CUT, **options), updater=MOMENTUM).protocol(Ops())
    keeping = Keeping("run", generation, 0, 1, "other nanny", left)
    return protocol, KeptServer.keep(protocol, keeping, holder or Nanny(), lambda nbytes: True)


def update(step: int, group: int = 0, generation: int = 0, reductions: int = 0) -> Update:
    return Update(0, Origin(group, generation), step, ones(), reductions=reductions)


def told(to: Post) -> tuple:
    """All that a server knows."""
    state, of = to.ask(Inspect(0)), to.protocol.slices[0]
    arrays = state.values.tolist(), state.state["velocity"].tolist()
    return *arrays, state.version, state.reductions, state.ledger, of.members, of.reductions


@pytest.mark.parametrize("max_staleness", [None, 2, 0])
def test_the_successor_of_a_server_knows_all_that_it_has_acknowledged(max_staleness):
    options = {"groups": (0, 1), "dealt_to": 2, "max_staleness": max_staleness}
    protocol, kept = server(**options)
    first = Post(protocol)
    first.ask(Put(0, ones(3.0)))
    for step in range(3):
        sent = [first.say(update(step, group, reductions=step)) for group in (0, 1)]
        assert not any(map(first.waits, sent))
    second = Post(server(kept.address, 2, **options)[0])
    assert told(second) == told(first) and contained(second.protocol.slices[0].ledger, 1) == {0, 1, 2}
    again = second.ask(update(2, 1))
    assert (again.version, again.next_step, again.reductions) == (6, 3, 2), "it was applied before"
    for post in (first, second):
        post.say(update(3, 0)), post.say(update(3, 1))
    assert told(second) == told(first)


def test_a_slice_without_parameters_waits_for_them_again():
    _, kept = server()
    to = Post(server(kept.address, 2)[0])
    asked = to.say(Get(0, Origin(0)))
    assert to.waits(asked)
    to.ask(Put(0, ones(3.0)))
    assert to.got[asked].values[0] == 3


def test_the_parameters_are_left_before_the_first_update():
    protocol, kept = server()
    Post(protocol).ask(Put(0, ones(3.0), {"velocity": ones(0.5)}, version=40, step=10))
    to = Post(server(kept.address, 2)[0])
    state = to.ask(Inspect(0))
    assert (state.values[0], state.state["velocity"][0], state.version) == (3, 0.5, 40)
    assert to.ask(Get(0, Origin(0))).next_step == 10


def test_nobody_waits_for_groups_that_have_left_or_are_not_expected_any_more():
    options = {"dealt_to": 3, "max_staleness": 0}
    protocol, kept = server(groups=(0, 1, 2), **options)
    first = Post(protocol)
    first.ask(Put(0, ones(0.0)))
    first.say(update(0, 0)), first.say(update(0, 1)), first.say(update(0, 2))
    first.ask(Leave(0, Origin(1)))
    second = Post(server(kept.address, 2, groups=(0, 1), **options)[0])
    assert second.ask(update(1, 0)).version == 4


def test_a_message_of_an_ended_generation_is_refused_by_successors_too():
    protocol, kept = server()
    first = Post(protocol)
    first.ask(Put(0, ones(0.0)))
    first.ask(update(0, generation=3))
    second = Post(server(kept.address, 2)[0])
    assert isinstance(second.ask(update(1, generation=2)), Refused)


def test_of_a_copy_that_was_being_written_the_one_before_counts():
    protocol, kept = server()
    first = Post(protocol)
    first.ask(Put(0, ones(0.0)))
    first.ask(update(0)), first.ask(update(1))
    torn = Shadow.open(kept.address.slices).slices[0].newest
    torn.head[0], torn.values[...] = -1, np.nan
    second = Post(server(kept.address, 2)[0])
    assert (second.ask(Inspect(0)).values == -1).all()
    assert second.ask(update(1)).values[0] == -2.5 and contained(second.protocol.slices[0].ledger, 0) == {0, 1}


def test_memory_that_cannot_be_reached_is_an_error():
    _, kept = server()
    address = kept.address
    gone = address.moved([replace(address.slices.memory, token=1)])
    with pytest.raises(MemoryLost, match="server 0 has left in memory is gone, or on another machine"):
        server(gone, 2)


def test_what_is_left_is_held_and_what_others_have_left_let_go():
    nanny = Nanny()
    _, kept = server(generation=4, holder=nanny)
    asyncio.run(kept.settle())
    assert nanny.calls == [(4, False, "other nanny"), (4, True, "other nanny")]
    address = kept.address
    assert (address.run, address.generation, address.rank, address.size) == ("run", 4, 0, 1)


def test_without_a_nanny_or_room_nothing_is_left():
    keeping = Keeping("run", 1, 0, 1)
    for holder, room in ((None, True), (Nanny(), False)):
        protocol = server_plan(CUT).protocol(Ops())
        assert KeptServer.keep(protocol, keeping, holder, lambda nbytes, room=room: room) is None
        assert Post(protocol).ask(Put(0, ones())) is not None


def test_a_server_acknowledges_nothing_once_it_has_a_successor(monkeypatch):
    monkeypatch.setattr("distributed.get_worker", lambda: SimpleNamespace(address="w"))
    plan = server_plan(CUT, keeping=Keeping("run", 1, 0, 1))

    async def play():
        actor = ServerActor(plan, Nanny())
        await actor.call(Put(0, ones(0.0)))
        assert (await actor.call(update(0))).version == 1
        ServerActor(
            server_plan(CUT, key="successor", keeping=replace(plan.keeping, left=actor._kept.address)), Nanny()
        )
        assert await actor.call(update(1)) == TakenOver()

    asyncio.run(play())


# Back to the step before


def test_a_slice_goes_back_to_the_step_that_all_have():
    protocol, _ = server()
    to = Post(protocol)
    to.ask(Put(0, ones(0.0)))
    for step in range(3):
        to.ask(update(step, reductions=step))
        if step == 1:
            before = told(to)
    to.ask(Get(0, Origin(0, 1, first=2)))
    reply = to.ask(GoBack(0, Origin(0, 1, first=2), 2))
    assert (reply.next_step, reply.version) == (2, 2) and contained(reply.ledger, 0) == {0, 1}
    after = told(to)
    assert after[:3] == before[:3] and after[4] == before[4] and after[3] == 2, "but for the learning rate of the step"
    to.ask(GoBack(0, Origin(0, 1, first=2), 2))
    assert told(to) == after, "repeated"
    assert to.ask(update(2, generation=1)).values[0] == -1 - 1.5 - 1.75


def test_a_successor_can_go_back_too():
    protocol, kept = server()
    first = Post(protocol)
    first.ask(Put(0, ones(0.0)))
    first.ask(update(0)), first.ask(update(1))
    second = Post(server(kept.address, 2)[0])
    assert second.ask(GoBack(0, Origin(0, 1), 1)).values[0] == -1


@pytest.mark.parametrize("why", ["two steps", "two groups", "no memory", "nothing to undo"])
def test_a_slice_that_cannot_go_back_says_where_it_is(why):
    if why == "no memory":
        protocol = server_plan(CUT).protocol(Ops())
    else:
        protocol, _ = server(groups=(0, 1) if why == "two groups" else (0,))
    to = Post(protocol)
    to.ask(Put(0, ones(0.0)))
    for step in range(3):
        to.ask(update(step))
    reply = to.ask(GoBack(0, Origin(0, 1), {"two steps": 1, "nothing to undo": 3}.get(why, 2)))
    assert (reply.next_step, reply.version) == (3, 3)
    assert isinstance(to.ask(GoBack(0, Origin(0, 0), 2)), Refused)
