"""Replicas in the memory of a nanny, and what the driver finds of them."""

import asyncio
from dataclasses import replace

import pytest
from support.lost import Replicated, update
from support.nannies import broken_room, no_room, room
from support.servers import ones

from singa_dask.cluster.held import memory_of
from singa_dask.cluster.replicas import NannyReplica
from singa_dask.server.kept import read_kept
from singa_dask.server.messages import Put
from singa_dask.server.replicator import Kept

RUN, GROUP = "job/folder#1", "server group 0"


class Target:
    """The replica, at a nanny, of a server with an update, which the nanny `near` has."""

    def __init__(self, nannies, far, near="near", generation=1, orphan_s=60.0, room=room):
        self.made, self.nannies = Replicated(generation=generation), nannies
        for message in (Put(0, ones(0)), update(0, 0)):
            self.made.server.call(message).result(1)
        self.made.server.replicate(self.made.shadow)
        self.holder = nannies.holder(near, RUN, GROUP, generation, orphan_s)
        self.replica = NannyReplica(self.holder, far, self.made.shadow.described, room)

    def open(self, number=1):
        return self.nannies.run(self.replica.open(number))

    def write(self, pieces=(), *, whole=True):
        return self.nannies.run(self.replica.write(pieces, whole=whole))

    def write_all(self, *, whole):
        return self.write(self.made.server.lacking(wait=True), whole=whole)


@pytest.fixture
def far(nannies):
    return nannies.start()


def test_a_replica_is_found_once_it_is_whole(nannies, far):
    target = Target(nannies, far)
    assert target.open() and target.write_all(whole=False) is Kept.KEPT
    assert nannies.found(RUN).groups == {}
    assert target.write() is Kept.KEPT
    (kept,) = nannies.found(RUN).groups[GROUP]
    assert kept == replace(target.made.shadow.described, slices=kept.slices, holder=far, replica=1)
    assert (read_kept(kept)[0].values == -1).all()
    assert target.write() is Kept.SUPERSEDED


@pytest.mark.parametrize("room", [no_room, broken_room])
def test_a_nanny_without_memory_keeps_none(nannies, far, room):
    assert not Target(nannies, far, room=room).open() and memory_of(far) == {}


def test_a_nanny_that_was_started_meanwhile_has_none(nannies, far):
    target = Target(nannies, far)
    target.open()
    memory_of(far).clear()
    assert target.write_all(whole=True) is Kept.GONE
    nannies.there[far].handlers["singa_dask_replica"] = lambda copies: None  # what Dask answers
    assert target.write() is Kept.GONE


def test_the_last_replica_counts_and_memory_of_the_server_before_it(nannies):
    places = [nannies.start() for _ in range(3)]
    for number, place in ((2, places[1]), (1, places[2])):
        target = Target(nannies, place, near=places[0])
        target.open(number)
        target.write()
    (kept,) = nannies.found(RUN).groups[GROUP]
    assert (kept.replica, kept.holder) == (2, places[1])
    assert target.holder.hold(target.made.shadow.described)
    (kept,) = nannies.found(RUN).groups[GROUP]
    assert (kept.replica, kept.holder) == (0, places[0])


def test_former_replicas_go_once_the_server_goes_on_with_the_last(nannies, far):
    for generation in (1, 2):
        target = Target(nannies, far, generation=generation)
        target.open()
        target.write()
    assert [owner.generation for owner in memory_of(far)] == [1, 2], "others of its group may not have one yet"
    target.write()
    assert [owner.generation for owner in memory_of(far)] == [2]


def test_a_replica_whose_server_is_silent_is_let_go(nannies, far):
    target = Target(nannies, far, orphan_s=0.1)
    target.open()
    for _ in range(4):
        nannies.run(asyncio.sleep(0.08))
        assert target.write() is Kept.KEPT
    nannies.run(asyncio.sleep(0.25))
    assert memory_of(far) == {} and target.write() is Kept.GONE
