"""Parameters that a server sends are copied only where somebody still uses them when they change."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from distributed.protocol import dumps, to_serialize
from support.servers import ones, protocol, server_plan

from singa_dask.ops.cpu import ops as cpu
from singa_dask.server import Server, partition
from singa_dask.server.messages import Fresh, Get, Inspect, Origin, Put, Reply, Update
from singa_dask.server.server import LEAST_RATE

ORIGIN = Origin(0)


@pytest.fixture
def server(monkeypatch) -> Server:
    made = Server(protocol())
    made.copies = 0
    state = made.protocol.slices[0]
    part_with = state.part_with

    def counted() -> None:
        made.copies += 1
        part_with()

    monkeypatch.setattr(state, "part_with", counted)
    ask(made, Put(0, ones(0)))
    return made


def ask(server: Server, request, out: np.ndarray | None = None) -> Reply:
    return server.call(request, out).result(timeout=0)


def update(server: Server, step: int, out: np.ndarray | None = None) -> Reply:
    return ask(server, Update(0, ORIGIN, step, ones()), out)


def test_replies_that_nobody_holds_are_never_copied(server):
    gc.disable()  # what only the collector frees would be copied
    try:
        for step in range(5):
            assert update(server, step).values[0] == -step - 1
    finally:
        gc.enable()
    assert server.copies == 0


def test_a_reply_in_use_stays_as_it_is(server):
    got = ask(server, Get(0, ORIGIN))
    same = ask(server, Get(0, ORIGIN))
    for step in range(3):
        update(server, step)
    assert (got.values == 0).all() and (same.values == 0).all()
    state = ask(server, Inspect(0))
    ask(server, Update(0, ORIGIN, 3, ones(2.0)))
    assert (state.values == -3).all() and (state.state["velocity"] == -1).all()


def test_a_part_of_a_reply_keeps_it(server):
    part = ask(server, Get(0, ORIGIN)).values[2:6][1:].reshape(1, -1)
    update(server, 0)
    assert (part == 0).all() and server.copies == 1


def test_a_message_on_its_way_keeps_its_parameters(server):
    frames = dumps({"result": to_serialize(ask(server, Get(0, ORIGIN)))})
    last = memoryview(frames[-1])
    del frames
    update(server, 0)
    assert (np.frombuffer(last, np.float32) == 0).all() and server.copies == 1
    del last
    update(server, 1)
    update(server, 2)
    assert server.copies == 1


def test_nobody_writes_to_the_parameters_of_others(server):
    reply = ask(server, Get(0, ORIGIN))
    with pytest.raises(ValueError, match="read-only"):
        reply.values[0] = 1


def test_parameters_written_in_place_are_not_lent(server):
    out = ones(7)
    assert update(server, 0, out).values is out
    update(server, 1)
    assert (out == -1).all() and server.copies == 0


def test_an_exchange_with_a_neighbour_leaves_replies_alone():
    left, right = Server(protocol(accounts={"right": (0, 0)})), Server(protocol(accounts={"left": (0, 0)}))
    for server in (left, right):
        ask(server, Put(0, ones(0)))
    update(right, 0)
    held = [ask(server, Get(0, ORIGIN)) for server in (left, right)]
    sync = left.begin_sync(0, force=True)
    assert sync is not None
    left.finish_sync(sync, ask(right, sync))
    assert isinstance(held[0], Fresh) and (held[0].values == 0).all()
    assert (ask(left, Inspect(0)).values == -1).all() and (held[1].values == -1).all()


def test_warming_up_compiles_the_updater_and_changes_nothing(monkeypatch):
    sizes = []
    original = cpu.CpuOps.update

    def seen(self, rule, w, *rest, **hyperparameters):
        sizes.append((w.size, w.dtype))
        original(self, rule, w, *rest, **hyperparameters)

    monkeypatch.setattr(cpu.CpuOps, "update", seen)
    plan = server_plan(partition(64, 1, 2, beside=False), server=1)
    plan.warm_up()
    assert sizes == [(16, np.float32)]
    server_plan(partition(16, 1, 4, beside=False), server=3).warm_up()  # a server without slices
    assert len(sizes) == 1


def test_a_server_may_send_for_as_long_as_its_slices_and_three_arrays_of_the_updater_take():
    cut = partition(1 << 20, 3, 2, beside=False)
    sizes = [sum(s.size for s in cut.of_server(server)) for server in range(2)]
    assert [server_plan(cut, server).transfer_s for server in range(2)] == [16 * size / LEAST_RATE for size in sizes]
    assert sum(sizes) == 1 << 20 and 2 < 16 * (1 << 20) / LEAST_RATE < 3
