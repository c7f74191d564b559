"""What nannies hold of runs and of their starts, and for how long: memory of processes, replicas, deposits."""

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest
from support.lost import Replicated, update
from support.nannies import broken_room, no_room, room
from support.servers import ones

from singa_dask.cluster import nanny_store
from singa_dask.cluster.formation import NoAnswer
from singa_dask.cluster.nanny_store import HELD, NannyStore, let_go
from singa_dask.comm.shared_memory import Memory
from singa_dask.memory.owner import CHECKPOINT, SERVERS, Owner, Saved, Version
from singa_dask.memory.region import RegionsAddress
from singa_dask.memory.store import Kept
from singa_dask.server.kept import read_kept
from singa_dask.server.messages import Put

RUN, OTHER = "job/folder#id", "job/folder#other.5"
FIRST, SECOND, THIRD = (f"{RUN}.{start}" for start in range(3))


class Machines:
    """Two machines; their nannies. Nanny i holds what server i of a group of two has left."""

    def __init__(self, nannies):
        self.nannies, self.places = nannies, [nannies.start(), nannies.start()]

    def hold(self, run, generation=1, group=0, ranks=(0, 1), *, settled=True, also="", orphan_s=60.0):
        for rank in ranks:
            memory = Memory.create(64)
            owner, version = Owner(SERVERS, group, rank, 2), Version(run, generation)
            holder = self.nannies.store(self.places[rank], owner, version, orphan_s)
            saved = Saved(owner, version, (RegionsAddress(memory.address, ()),))
            assert holder.hold(saved, only=settled, also=also)

    def found(self, run=THIRD, *, earlier=True):
        return self.nannies.found(run, *self.places, earlier=earlier).run

    def held(self, place=0):
        return sorted((of.run, of.generation) for _, of in HELD[self.places[place]])


@pytest.fixture
def machines(nannies):
    return Machines(nannies)


def test_the_newest_start_counts_if_earlier_ones_do_at_all(machines):
    machines.hold(SECOND, 11)
    machines.hold(FIRST, 1)
    machines.hold(OTHER, 21)  # of another run in the same folder
    assert machines.found() == SECOND and machines.found(earlier=False) == ""


def test_memory_that_is_held_again_stays_settled(machines):
    machines.hold(FIRST, 1)
    machines.hold(FIRST, 1, settled=False)
    machines.hold(SECOND, 11, ranks=(0,), settled=False)
    assert machines.found() == FIRST


def test_one_start_is_let_go_or_all_others_of_the_run(machines):
    for generation, run in enumerate((FIRST, SECOND, THIRD, OTHER)):
        machines.hold(run, generation)
    let_go(None, machines.places, THIRD, own=False, earlier=True)
    assert machines.held(0) == [(THIRD, 2), (OTHER, 3)]
    let_go(None, machines.places, THIRD)
    assert machines.held(1) == [(OTHER, 3)]


def test_a_run_whose_worker_another_run_has_taken_may_still_go_on_from_memory(machines):
    """It has just lost a process, say, and forms again on others."""
    for run in (FIRST, OTHER):
        machines.hold(run, ranks=(0,), orphan_s=0.1)
    assert machines.held() == [(FIRST, 1), (OTHER, 1)]
    deadline = time.monotonic() + 20
    while machines.held() != [(OTHER, 1)]:
        assert time.monotonic() < deadline, "its process lives, but is of another run by now"
        time.sleep(0.01)


def test_memory_of_another_worker_of_the_machine_stays(machines):
    beside = {"ranks": (1,), "also": machines.places[0], "orphan_s": 0.05}
    machines.hold(FIRST, **beside)
    machines.hold(OTHER, ranks=(0,), orphan_s=0.05)
    machines.hold(FIRST, **beside)
    machines.nannies.run(asyncio.sleep(0.1))
    assert machines.held() == [(FIRST, 1), (OTHER, 1)]


def test_former_generations_stay_until_all_processes_of_the_group_have_theirs(machines):
    for run, generation in ((FIRST, 1), (OTHER, 1), (FIRST, 2)):
        machines.hold(run, generation, settled=False)
    assert machines.held() == [(FIRST, 1), (FIRST, 2), (OTHER, 1)]
    machines.hold(FIRST, 2)
    assert machines.held() == [(FIRST, 2), (OTHER, 1)]


def test_memory_that_is_gone_is_not_held(machines):
    memory = Memory.create(64)
    owner, version = Owner(SERVERS), Version(FIRST, 1)
    saved = Saved(owner, version, (RegionsAddress(memory.address, ()),))
    del memory
    assert not machines.nannies.store(machines.places[0], owner, version).hold(saved)
    assert machines.held() == []


REPLICATED, GROUP = "job/folder#1", "server group 0"


class Target:
    """The replica, at a nanny, of a server with an update, which the nanny `near` has."""

    def __init__(self, nannies, far, near="near", generation=1, orphan_s=60.0, room=room):
        self.made, self.nannies = Replicated(generation=generation), nannies
        for message in (Put(0, ones(0)), update(0, 0)):
            self.made.server.call(message).result(1)
        self.made.server.replication.begin(self.made.regions)
        self.saved, self.far = replace(self.made.saved, version=Version(REPLICATED, generation, 1)), far
        self.store = nannies.store(near, self.saved.owner, self.saved.version, orphan_s, room=room)

    def open(self):
        return self.nannies.run(self.store.open(self.far, self.saved))

    def write(self, pieces=(), *, whole=True):
        return self.nannies.run(self.store.put(self.far, self.saved, pieces, whole=whole))

    def write_all(self, *, whole):
        return self.write(self.made.server.replication.lacking(), whole=whole)


@pytest.fixture
def far(nannies):
    return nannies.start()


def test_a_replica_is_found_once_it_is_whole(nannies, far):
    target = Target(nannies, far)
    assert target.open() and target.write_all(whole=False) is Kept.KEPT
    assert nannies.found(REPLICATED).groups == {}
    assert target.write() is Kept.KEPT
    (kept,) = nannies.found(REPLICATED).groups[GROUP]
    assert kept == replace(target.saved, regions=kept.regions, holder=far)
    assert (read_kept(kept)[0].arrays[""] == -1).all()
    assert target.write() is Kept.SUPERSEDED


@pytest.mark.parametrize("room", [no_room, broken_room])
def test_a_nanny_without_memory_keeps_none(nannies, far, room):
    assert not Target(nannies, far, room=room).open() and HELD[far] == {}


def test_a_nanny_that_was_started_meanwhile_has_none(nannies, far):
    target = Target(nannies, far)
    target.open()
    HELD[far].clear()
    assert target.write_all(whole=True) is Kept.GONE
    nannies.there[far].handlers["singa_dask_saved"] = lambda message: None  # what Dask answers
    assert target.write() is Kept.GONE


def test_former_replicas_go_once_the_server_goes_on_with_the_last(nannies, far):
    for generation in (1, 2):
        target = Target(nannies, far, generation=generation)
        target.open()
        target.write()
    assert [of.generation for _, of in HELD[far]] == [1, 2], "others of its group may not have one yet"
    target.write()
    assert [of.generation for _, of in HELD[far]] == [2]


def test_a_replica_whose_server_is_silent_is_let_go(nannies, far):
    target = Target(nannies, far, orphan_s=0.1)
    target.open()
    for _ in range(4):
        nannies.run(asyncio.sleep(0.08))
        assert target.write() is Kept.KEPT
    nannies.run(asyncio.sleep(0.25))
    assert HELD[far] == {} and target.write() is Kept.GONE


START = "job/folder#1.a"
DATA = np.arange(100, dtype=np.uint8)


@pytest.fixture
def depositor(nannies, monkeypatch, tmp_path):
    """Of a generation. keep: DATA + n, at a nanny."""
    monkeypatch.setattr(nanny_store, "_BLOCK", 30)

    class Depositor:
        def __init__(self, generation=1, room=room):
            self.store = nannies.store("near", Owner(CHECKPOINT), Version(START, generation), room=room)

        def keep(self, nanny, number, n=0):
            (tmp_path / f"{n}").write_bytes((DATA + n).tobytes())
            return self.store.keep(nanny, number, f"step {number}", tmp_path / f"{n}")

    return Depositor


def bytes_of(depositor, deposit):
    parts = []
    depositor.store.read(deposit, parts.append)
    return b"".join(parts)


def test_a_deposit_is_found_and_read_block_by_block_until_it_is_gone(depositor, nannies, far):
    own = depositor()
    assert own.keep(far, 7)
    (deposit,) = nannies.found(START).checkpoint
    assert (deposit.note, deposit.nbytes, deposit.holder) == ("step 7", 100, far)
    assert bytes_of(own, deposit) == DATA.tobytes()
    HELD[far].clear()
    with pytest.raises(NoAnswer, match="let its checkpoint go"):
        bytes_of(own, deposit)


def test_a_later_one_replaces_it_once_it_is_whole(depositor, nannies, monkeypatch, far):
    own = depositor()
    assert own.keep(far, 7)
    put, written = NannyStore.put, []

    async def breaks(store, nanny, saved, pieces, *, whole):
        written.append(pieces)
        if len(written) == 3:
            raise OSError("the connection broke")
        return await put(store, nanny, saved, pieces, whole=whole)

    monkeypatch.setattr(NannyStore, "put", breaks)
    with pytest.raises(OSError, match="the connection broke"):
        own.keep(far, 9, 1)
    assert nannies.found(START).checkpoint[0].note == "step 7"
    assert own.keep(far, 11, 2) and [of.number for _, of in HELD[far]] == [11]
    assert bytes_of(own, nannies.found(START).checkpoint[0]) == (DATA + 2).tobytes()


@pytest.mark.parametrize("room", [no_room, broken_room])
def test_a_nanny_without_memory_keeps_no_deposit(depositor, far, room):
    assert not depositor(room=room).keep(far, 1) and HELD[far] == {}
