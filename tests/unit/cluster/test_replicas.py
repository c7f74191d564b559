"""Replicas in the memory of a nanny, and what the driver finds of them."""

import asyncio
import pickle
from types import SimpleNamespace

import pytest
from support.nannies import Nanny, broken_room, found_by, no_room, room
from support.replicas import Replicated, update
from support.servers import ones

from singa_dask.cluster import held
from singa_dask.cluster.held import HeldMemory, NannyHolder, Owner, memory_of
from singa_dask.cluster.replicas import NannyReplica
from singa_dask.server.kept import read_kept
from singa_dask.server.messages import Put
from singa_dask.server.replicator import Kept

RUN = "job/folder#1"


@pytest.fixture
def nanny(monkeypatch):
    monkeypatch.setattr(held, "_held", type(held._held)(dict))
    return Nanny()


def server(nanny, generation=1, orphan_s=60.0, room=room):
    """A server with an update, and where its replica is."""
    made = Replicated(generation=generation)
    made.server.call(Put(0, ones(0))).result(1)
    made.server.call(update(0, 0)).result(1)
    made.server.replicate(made.shadow)
    worker = SimpleNamespace(rpc=nanny.rpc, nanny="near")
    holder = NannyHolder(worker, RUN, "server group 0", generation, orphan_s)
    return made, NannyReplica(holder, nanny.address, made.shadow.described, room)


def found(monkeypatch, *nannies):
    return found_by(monkeypatch, held, RUN, *nannies).groups


def test_a_replica_is_found_once_it_is_whole(nanny, monkeypatch):
    async def play():
        made, target = server(nanny)
        assert await target.open(1)
        assert await target.write(made.server.lacking(wait=True), whole=False) is Kept.KEPT
        assert found(monkeypatch, nanny) == {}
        assert await target.write([], whole=True) is Kept.KEPT
        (kept,) = found(monkeypatch, nanny)["server group 0"]
        assert (kept.rank, kept.size, kept.generation, kept.replica, kept.holder) == (0, 1, 1, 1, "far")
        assert (read_kept(kept)[0].values == -1).all()
        assert await target.write([], whole=True) is Kept.SUPERSEDED

    asyncio.run(play())


@pytest.mark.parametrize("room", [no_room, broken_room])
def test_a_nanny_without_memory_keeps_none(nanny, room):
    async def play():
        _, target = server(nanny, room=room)
        assert not await target.open(1) and memory_of(nanny.address) == {}

    asyncio.run(play())


def test_a_nanny_that_was_started_meanwhile_has_none(nanny):
    async def play():
        made, target = server(nanny)
        await target.open(1)
        memory_of(nanny.address).clear()
        assert await target.write(made.server.lacking(wait=True), whole=True) is Kept.GONE
        nanny.handlers["singa_dask_replica"] = lambda copies: None  # what Dask answers
        assert await target.write([], whole=True) is Kept.GONE

    asyncio.run(play())


def test_the_last_replica_counts_and_memory_of_the_server_before_it(nanny, monkeypatch):
    async def play():
        other = Nanny("farther")
        for number, place in ((2, nanny), (1, other)):
            _, target = server(place)
            await target.open(number)
            await target.write([], whole=True)
        (kept,) = found(monkeypatch, nanny, other)["server group 0"]
        assert (kept.replica, kept.holder) == (2, "far")
        own = Nanny("near")
        made, _ = server(nanny)
        owner = Owner(RUN, "server group 0", 1, 0, 1, 7)
        memory_of("near")[owner] = HeldMemory(pickle.dumps(made.shadow.described), [made.shadow.slices.memory])
        (kept,) = found(monkeypatch, other, own, nanny)["server group 0"]
        assert (kept.replica, kept.holder) == (0, "near")

    asyncio.run(play())


def test_former_replicas_go_once_the_server_goes_on_with_the_last(nanny):
    async def play():
        targets = [server(nanny, generation)[1] for generation in (1, 2)]
        for target in targets:
            await target.open(1)
            await target.write([], whole=True)
        assert [owner.generation for owner in memory_of("far")] == [1, 2], "others of its group may not have one yet"
        await targets[1].write([], whole=True)
        assert [owner.generation for owner in memory_of("far")] == [2]

    asyncio.run(play())


def test_a_replica_whose_server_is_silent_is_let_go(nanny):
    async def play():
        _, target = server(nanny, orphan_s=0.1)
        await target.open(1)
        for _ in range(4):
            await asyncio.sleep(0.08)
            assert await target.write([], whole=True) is Kept.KEPT
        await asyncio.sleep(0.25)
        assert memory_of("far") == {} and await target.write([], whole=True) is Kept.GONE

    asyncio.run(play())
