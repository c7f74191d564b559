"""The actor: what it answers, and its exchange with neighbours, over a network without processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

import distributed
import numpy as np
import pytest
from support.servers import ones, server_plan, until

from singa_dask.comm.codecs import codec
from singa_dask.errors import ClusterError
from singa_dask.server import Address, ServerActor, actor, link, partition
from singa_dask.server.messages import (
    Coded,
    Fresh,
    Get,
    Inspect,
    NotYet,
    Origin,
    Put,
    Refused,
    State,
    Update,
)

LARGE = 1 << 15  # elements; more bytes than are applied on the event loop


class Network:
    """Dask workers in one event loop. Each holds one actor, whose key is the worker's address."""

    def __init__(self) -> None:
        self.actors: dict[str, Any] = {}
        self.workers: dict[str, SimpleNamespace] = {}
        self.asked: list[tuple[str, str, Any]] = []  # sender, receiver, request
        self.before: Callable[[str], Any] = lambda receiver: None

    def worker(self, address: str) -> SimpleNamespace:
        def rpc(receiver: str) -> SimpleNamespace:
            async def actor_execute(actor, function, args, kwargs):
                assert function == "call" and kwargs == {}
                request = args[0].data
                self.asked.append((address, receiver, request))
                answer = self.before(receiver)
                if answer is not None:
                    await answer
                return {"status": "OK", "result": await self.actors[actor].call(request)}

            return SimpleNamespace(actor_execute=actor_execute)

        return SimpleNamespace(rpc=rpc, state=SimpleNamespace(actors={}), address=address)

    def start(self, address: str, size: int = 16, nslices: int = 1, **options) -> ServerActor:
        worker = self.workers[address] = self.worker(address)
        distributed.get_worker = lambda: worker
        made = ServerActor(server_plan(partition(size, nslices, 1, beside=False), key=address, **options))
        self.actors[address] = worker.state.actors[address] = made
        return made


@pytest.fixture
def network(monkeypatch):
    monkeypatch.setattr(distributed, "get_worker", distributed.get_worker)
    monkeypatch.setattr(actor, "HOLD_S", 0.1)
    monkeypatch.setattr(actor, "RETRY_S", 0.01)
    monkeypatch.setattr(link, "RETRY_S", 0.01)
    monkeypatch.setattr(actor, "server_here", lambda worker, key: None)  # no short cuts within this process
    return Network()


def played(test: Callable) -> Callable:
    """A test that runs on an event loop, and ends in time."""

    @wraps(test)
    def run(network: Network, **others: Any) -> None:
        async def in_time() -> None:
            try:
                await asyncio.wait_for(test(network, **others), 30)
            finally:
                for each in network.actors.values():
                    await each.close()

        asyncio.run(in_time())

    return run


def update(group: int = 0, step: int = 0, value: float = 1.0, size: int = 16, index: int = 0) -> Update:
    return Update(index, Origin(group), step, ones(value, size))


async def value_of(server: ServerActor, index: int = 0) -> float:
    state = await server.call(Inspect(index))
    assert isinstance(state, State) and (state.values == state.values[0]).all()
    return float(state.values[0])


async def becomes(value: float, *servers: ServerActor, index: int = 0) -> None:
    """Wait until the servers have this value."""
    for server in servers:
        while await value_of(server, index) != value:
            await asyncio.sleep(0.01)


def waiting_in(server: ServerActor) -> int:
    return sum(len(state.waiting) for state in server.server.protocol.slices.values())


# Requests


@pytest.mark.parametrize(
    ("size", "warm", "beside"),
    [(16, True, False), (LARGE, True, True), (16, False, True)],
    ids=["small", "large", "while the server compiles"],
)
@played
async def test_small_updates_are_applied_on_the_event_loop_and_others_beside_it(network, size, warm, beside):
    server, threads = network.start("a", size), []
    await until(server._warm.done)
    server._warm = SimpleNamespace(done=lambda: warm)
    call = server.server.call
    server.server.call = lambda request: (threads.append(threading.current_thread().name), call(request))[1]
    await server.call(Put(0, ones(0.0, size)))
    reply = await server.call(update(size=size))
    assert isinstance(reply, Fresh) and reply.version == 1
    assert [name.startswith("server") for name in threads] == [False, beside]


@played
async def test_the_server_decodes_gradients_that_travel_in_a_code(network):
    server = network.start("a")
    await until(server._warm.done)
    await server.call(Put(0, ones(0.0)))
    half = codec(name="kHalf")
    payload = half.encode(ones(3.0), np.empty(half.max_nbytes(16, np.float32), np.uint8))
    reply = await server.call(Update(0, Origin(0), 0, Coded(16, "float32", {"name": "kHalf"}, payload)))
    assert isinstance(reply, Fresh) and (reply.values == -3).all()


@played
async def test_who_has_to_wait_is_told_so_and_an_update_waits_inside_once(network):
    server = network.start("a", groups=(0, 1), max_staleness=0)
    assert await server.call(Get(0, Origin(0))) == NotYet()
    assert waiting_in(server) == 1, "what is small is answered with the others"
    await server.call(Put(0, ones(0.0)))
    assert waiting_in(server) == 0
    for _ in range(2):
        assert await server.call(update(0)) == NotYet()
        assert waiting_in(server) == 0
    actor.HOLD_S = 10.0
    held = asyncio.create_task(server.call(update(0)))
    await until(lambda: waiting_in(server) == 1)
    await server.call(update(1))
    reply = await held
    assert isinstance(reply, Fresh) and reply.version == 2


@played
async def test_an_update_that_is_answered_in_the_last_moment_is_not_lost(network):
    server = network.start("a", groups=(0, 1), max_staleness=0)
    await server.call(Put(0, ones(0.0)))

    def late(future, index):
        server.server.call(update(1))
        return False  # it has been answered

    server.server.withdraw = late
    reply = await server.call(update(0))
    assert isinstance(reply, Fresh) and reply.version == 2


@played
async def test_a_dismissed_group_is_waited_for_on_no_slice(network):
    server = network.start("a", 32, 2, groups=(0, 1), max_staleness=0)
    for index in range(2):
        await server.call(Put(index, ones(0.0)))
    actor.HOLD_S = 10.0
    held = [asyncio.create_task(server.call(update(0, index=index))) for index in range(2)]
    await until(lambda: waiting_in(server) == 2)
    await server.dismiss(Origin(1, 3))
    assert [(await reply).version for reply in held] == [1, 1]
    assert isinstance(await server.call(Get(0, Origin(1, 2))), Refused), "a generation that was dismissed"


@played
async def test_a_closed_server_computes_and_exchanges_no_more(network):
    left, right = await pair(network)
    never = asyncio.get_running_loop().create_future()
    network.before = lambda receiver: never
    network.asked.clear()
    await left.call(update())
    await until(lambda: network.asked)
    await left.close()
    assert left.closed
    await asyncio.wait([left._exchanging], timeout=5)
    assert left._exchanging.cancelled(), "it does not wait for an answer"
    with pytest.raises(RuntimeError, match="shutdown"):
        await left.call(update(size=LARGE))
    await right.close()  # one that never exchanged


# Neighbours


async def pair(network, **options) -> list[ServerActor]:
    """Two servers of two slices each that exchange, with zeros in them."""
    made = [
        network.start("left", 32, 2, groups=(0,), accounts={"right": (0, 0)}, **options),
        network.start("right", 32, 2, groups=(1,), accounts={"left": (0, 0)}, **options),
    ]
    for server in made:
        for index in range(2):
            await server.call(Put(index, ones(0.0)))
    await made[0].meet(Address("right", "right"))
    return made


@pytest.mark.parametrize("short_cut", [False, True], ids=["elsewhere", "in the same process"])
@played
async def test_an_update_goes_on_to_the_right_by_itself(network, short_cut):
    left, right = await pair(network)
    if short_cut:
        actor.server_here = lambda worker, key: network.actors[key].server
    await asyncio.sleep(0.02)
    network.asked.clear()
    await left.call(update(index=1))
    await becomes(-1, right, index=1)
    assert await value_of(right, 0) == 0
    assert bool(network.asked) != short_cut
    await right.call(update(1, value=10.0, index=1))
    await left.call(update(step=1, index=1))
    await becomes(-12, left, right, index=1)


@played
async def test_exchanges_are_due_after_sync_freq_updates_but_a_flush_waits_for_nothing(network):
    left, right = await pair(network, sync_freq=2)
    await right.call(update(1, value=10.0))
    await left.call(update())
    await asyncio.sleep(0.15)
    assert await value_of(right) == -10 and await value_of(left) == -1
    await left.flush()
    assert await value_of(right) == -11 == await value_of(left)
    await right.flush()  # nobody is on its right


@played
async def test_a_flush_also_tells_what_came_while_an_exchange_was_under_way(network):
    left, right = await pair(network, sync_freq=100)
    await left.call(update())
    left.server.begin_sync(0, force=True)  # its answer was lost
    await left.call(update(step=1))
    await left.flush()
    assert await value_of(right) == -2


@played
async def test_a_neighbour_that_is_gone_for_a_while_is_told_again(network):
    left, right = await pair(network)
    failures = [KeyError("no such actor"), ConnectionError("gone"), KeyError("no such actor")]

    def fail(receiver):
        if failures:
            raise failures.pop()

    network.before = fail
    await left.call(update())
    await becomes(-1, right)
    assert not failures


@played
async def test_one_exchange_per_slice_is_under_way_at_a_time(network):
    left, _ = await pair(network, sync_freq=100)
    under_way = []

    async def counted(receiver):
        under_way.append(receiver)
        assert len(under_way) <= 2, "there are two slices"
        await asyncio.sleep(0.01)
        under_way.pop()

    network.before = counted
    await asyncio.gather(left.flush(), left.flush())


@played
async def test_a_neighbour_that_is_gone_is_not_asked_without_a_pause(network):
    left, _ = await pair(network)
    actor.RETRY_S = 60.0

    def fail(receiver):
        raise KeyError("no such actor")

    await asyncio.sleep(0.02)
    network.before = fail
    network.asked.clear()
    await left.call(update())
    await until(lambda: network.asked)
    await asyncio.sleep(0.1)
    assert len(network.asked) == 1


@played
async def test_another_neighbour_is_not_kept_waiting_by_the_one_before(network):
    left, _ = await pair(network)
    never = asyncio.get_running_loop().create_future()
    network.before = lambda receiver: never if receiver == "right" else None
    await left.call(update())
    stuck = left._exchanging
    await until(lambda: [asked for asked in network.asked if asked[1] == "right"])
    other = network.start("other", 32, 2, groups=(1,), accounts={"left": (0, 0)})
    for index in range(2):
        await other.call(Put(index, ones(0.0)))
    await left.meet(Address("right", "right"))
    assert left._exchanging is stuck and not stuck.done(), "it is the same neighbour"
    await left.meet(Address("other", "other"))
    await becomes(-1, other)
    assert stuck.done()
    await left.meet(None)
    await left.call(update(step=1))
    await asyncio.sleep(0.05)
    assert await value_of(other) == -1
    await left.meet(Address("other", "other"))
    await becomes(-2, other)  # it is told what happened before


@played
async def test_a_server_that_dask_has_let_go_ends(network):
    left, _ = await pair(network)
    assert not left._exchanging.done()
    del network.workers["left"].state.actors["left"]
    await until(left._exchanging.done)
    assert left._exchanging.exception() is None and left._pool._shutdown


@pytest.mark.parametrize("side", ["left", "right"])
@played
async def test_a_server_made_anew_begins_as_a_copy_of_its_neighbour(network, side):
    left, right = await pair(network)
    await left.call(update(value=5.0))
    await left.call(update(value=7.0, index=1))
    await left.flush()
    neighbour, account = (left, (0, 1)) if side == "left" else (right, (1, 0))
    anew = network.start("anew", 32, 2, groups=(1,), accounts={side: account})
    await anew.take_over(Address(side, side), side, account)
    states = [await anew.call(Inspect(index)) for index in range(2)]
    assert [state.values[0] for state in states] == [-5, -7]
    assert [state.version for state in states] == [(await neighbour.call(Inspect(0))).version] * 2
    assert list(states[0].state) == ["velocity"]
    # The two have one account now, which holds what both know.
    await anew.call(update(1))
    first, second = (left, anew) if side == "left" else (anew, right)
    await first.meet(Address("anew", "anew") if side == "left" else Address("right", "right"))
    await first.flush()
    assert await value_of(first) == -6 == await value_of(second)


@played
async def test_a_neighbour_begins_anew_with_what_it_is_handed_and_adds_what_nobody_heard(network):
    left, right = await pair(network, sync_freq=100)
    await left.call(update(value=5.0))
    await left.flush()
    await right.call(update(1, value=10.0))  # which nobody has heard of
    anew = network.start("anew", 32, 2, groups=(0,), accounts={"right": (1, 0)}, sync_freq=100)
    for index in range(2):
        await anew.call(Put(index, ones(-20.0)))
    await anew.hand_on(Address("right", "right"), "right", (1, 0))
    assert [await value_of(right, index) for index in range(2)] == [-30, -20]
    await anew.meet(Address("right", "right"))
    await anew.flush()
    assert [await value_of(anew, index) for index in range(2)] == [-30, -20]


@played
async def test_a_neighbour_that_does_not_hand_over_is_an_error(network):
    left, right = await pair(network)
    right.server.open_account(0, "left", (0, 5))
    actor.server_here = lambda worker, key: network.actors[key].server
    with pytest.raises(ClusterError, match=r"server at right did not send its parameters: Refused\(.*account"):
        await left.take_over(Address("right", "right"), "right", (0, 1))


@played
async def test_an_exchange_may_take_the_time_that_its_bytes_need(network, monkeypatch):
    monkeypatch.setattr(actor, "ATTEMPT_S", 0.02)
    left, right = await pair(network)
    left._transfer_s = 5.0

    def slowly(receiver):
        return asyncio.sleep(0.2)

    network.before = slowly
    network.asked.clear()
    await left.call(update())
    await becomes(-1, right)
    assert len([request for *_, request in network.asked if request.slice == 0]) == 1
