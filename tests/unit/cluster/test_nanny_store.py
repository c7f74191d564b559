"""What nannies keep of runs and of their starts, and for how long: memory of processes, replicas of servers, files."""

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest
from support.lost import Replicated, update
from support.nannies import broken_room, no_room, room
from support.played_groups import deposit
from support.servers import ones

from singa_dask.cluster import nanny_store
from singa_dask.cluster.formation import NoAnswer
from singa_dask.cluster.nanny_store import HELD, NannyStore, let_go
from singa_dask.comm.shared_memory import Memory
from singa_dask.memory.owner import CHECKPOINT, SERVERS, Owner, Saved, Version
from singa_dask.memory.region import RegionsAddress
from singa_dask.memory.store import PutResult
from singa_dask.server.kept import read_kept
from singa_dask.server.messages import Put

RUN, OTHER = "job/folder#id", "job/folder#other.5"
FIRST, SECOND, THIRD = (f"{RUN}.{start}" for start in range(3))
SOON = 0.05


class Machines:
    """Two machines; their nannies. Nanny i holds what server i of a group of two has left."""

    def __init__(self, nannies):
        self.nannies, self.places = nannies, [nannies.start(), nannies.start()]

    def hold(self, run, generation=1, ranks=(0, 1), *, group=0, settled=False, beside=False, orphan_s=60.0):
        for rank in ranks:
            memory = Memory.create(64)
            owner, version = Owner(SERVERS, group, rank, 2), Version(run, generation)
            store = self.nannies.store(self.places[rank], owner, version, orphan_s)
            saved = Saved(owner, version, (RegionsAddress(memory.address, ()),))
            assert store.hold(saved, only=settled, also=self.places[0] if beside else "")

    def held(self, place=0):
        return sorted((of.run, of.generation) for _, of in HELD[self.places[place]])


@pytest.fixture
def machines(nannies):
    return Machines(nannies)


def within(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("holds", "held", "found"),
    [
        ([(FIRST, 1), (SECOND, 2), (OTHER, 3)], [(FIRST, 1), (SECOND, 2), (OTHER, 3)], SECOND),
        (
            [(FIRST, 1, {"settled": True}), (FIRST, 1), (SECOND, 2, {"ranks": (0,), "group": 1})],
            [(FIRST, 1), (SECOND, 2)],
            FIRST,
        ),
        ([(FIRST, 1), (OTHER, 1), (FIRST, 2)], [(FIRST, 1), (FIRST, 2), (OTHER, 1)], FIRST),
        ([(FIRST, 1), (OTHER, 1), (FIRST, 2, {"settled": True})], [(FIRST, 2), (OTHER, 1)], FIRST),
        ([(FIRST, 1, {"orphan_s": SOON}), (OTHER, 1, {"orphan_s": SOON})], [(OTHER, 1)], ""),
        (
            [(FIRST, 1, {"ranks": (1,), "beside": True, "orphan_s": SOON}), (OTHER, 1, {"orphan_s": SOON})],
            [(FIRST, 1), (OTHER, 1)],
            "",
        ),
    ],
    ids=[
        "the newest start counts",
        "what is held again has succeeded still",
        "former generations stay until all processes have theirs",
        "and then go",
        "what another run's worker has left of its former run goes, once that had time to resume from it",
        "but not that of another worker of the machine",
    ],
)
def test_what_processes_have_saved_is_held_as_long_as_it_may_be_needed(machines, holds, held, found):
    for run, generation, *options in holds:
        machines.hold(run, generation, **dict(*options))
    machines.nannies.run(asyncio.sleep(3 * SOON))
    within(lambda: machines.held() == held)
    assert machines.nannies.found(THIRD, *machines.places, earlier=True).run == found
    assert not machines.nannies.found(THIRD, *machines.places).run


def test_one_start_is_let_go_or_all_others_of_the_run(machines):
    for generation, run in enumerate((FIRST, SECOND, THIRD, OTHER)):
        machines.hold(run, generation, orphan_s=60)
    let_go(None, machines.places, THIRD, own=False, earlier=True)
    assert machines.held(0) == [(THIRD, 2), (OTHER, 3)]
    let_go(None, machines.places, THIRD)
    assert machines.held(1) == [(OTHER, 3)]


def test_memory_that_is_gone_is_not_held(machines):
    memory = Memory.create(64)
    saved = Saved(Owner(SERVERS), Version(FIRST, 1), (RegionsAddress(memory.address, ()),))
    del memory
    assert not machines.nannies.store(machines.places[0], *saved.place).hold(saved) and machines.held() == []


# What messages bring


DATA = np.arange(100, dtype=np.uint8)


class Sent:
    """State that messages bring to a nanny: the replica of a server with an update, or a file."""

    def __init__(self, kind, nannies, far, generation=1, orphan_s=60.0, room=room):
        self.nannies, self.far, version = nannies, far, Version(FIRST, generation, 1)
        self.saved = replace(deposit("content", DATA.size), version=version)
        self.pieces = [(0, DATA[:30]), (30, DATA[30:])]
        if kind == "replica":
            made = Replicated()
            for message in (Put(0, ones(0)), update(0, 0)):
                made.server.call(message).result(1)
            made.server.replication.begin(made.regions)
            self.saved, self.pieces = replace(made.saved, version=version), made.server.replication.lacking()
        self.store = nannies.store("near", self.saved.owner, version, orphan_s, room=room)

    def open(self):
        return self.nannies.run(self.store.open(self.far, self.saved))

    def put(self, *, whole, pieces=()):
        return self.nannies.run(self.store.put(self.far, self.saved, pieces, whole=whole))

    def found(self):
        """What a run resumes from."""
        found = self.nannies.found(FIRST)
        return [*found.checkpoint, *(of for group in found.groups.values() for of in group)]


@pytest.fixture
def far(nannies):
    return nannies.start()


@pytest.fixture(params=["replica", "file"])
def sent(request, nannies, far):
    return lambda **options: Sent(request.param, nannies, far, **options)


def test_what_messages_bring_is_found_once_it_is_whole(sent, far):
    own = sent()
    assert own.open() and own.put(whole=False, pieces=own.pieces) is PutResult.KEPT and own.found() == []
    assert own.put(whole=True) is PutResult.KEPT
    (found,) = own.found()
    assert found == replace(own.saved, regions=found.regions, holder=far)
    if found.owner.kind == SERVERS:
        assert (read_kept(found)[0, ""][-1].arrays[""] == -1).all() and own.put(whole=True) is PutResult.SUPERSEDED
    else:
        parts = []
        own.store.read(found, parts.append)
        assert b"".join(parts) == DATA.tobytes()
    assert sent().open() and sent().found() == [], "it is made anew"


@pytest.mark.parametrize("room", [no_room, broken_room])
def test_a_nanny_without_memory_keeps_nothing(sent, far, room):
    assert not sent(room=room).open() and HELD[far] == {}


def test_a_nanny_that_was_started_meanwhile_has_nothing(sent, nannies, far):
    own = sent()
    own.open()
    HELD[far].clear()
    assert own.put(whole=True, pieces=own.pieces) is PutResult.GONE
    nannies.there[far].handlers["singa_dask_saved"] = lambda message: None  # what Dask answers
    assert own.put(whole=True) is PutResult.GONE


def test_former_ones_go_once_all_of_the_last_is_there_and_it_goes_on(sent, far, monkeypatch):
    monkeypatch.setattr(nanny_store, "_READ_S", SOON)
    for generation in (1, 2):
        own = sent(generation=generation)
        own.open()
        own.put(whole=True)
    assert [of.generation for _, of in HELD[far]] == [1, 2], "others of its group may not have one yet"
    own.put(whole=True)
    within(lambda: [of.generation for _, of in HELD[far]] == [2])


def test_what_could_not_be_completed_goes_with_the_next(sent, far):
    for generation in (1, 2):
        sent(generation=generation).open()
    assert [of.generation for _, of in HELD[far]] == [2]


def test_what_nobody_brings_any_more_is_let_go_and_a_file_with_its_time(sent, nannies, far):
    own = sent(orphan_s=0.5)
    own.open()
    for _ in range(12):
        nannies.run(asyncio.sleep(0.1))
        kept = own.put(whole=True)
    assert kept is (PutResult.KEPT if own.saved.owner.kind == SERVERS else PutResult.GONE)
    within(lambda: HELD[far] == {})


# Files


def test_a_later_file_takes_the_place_of_one_once_it_is_whole(nannies, monkeypatch, far, tmp_path):
    monkeypatch.setattr(nanny_store, "_BLOCK", 30)
    store = nannies.store("near", Owner(CHECKPOINT), Version(FIRST, 1))
    put, written, parts = NannyStore.put, [], []

    def keep(number):
        (tmp_path / "file").write_bytes((DATA + number).tobytes())
        saved = Saved(Owner(CHECKPOINT), Version("", 0, number), (), note=f"step {number}")
        return store.keep(far, saved, tmp_path / "file")

    async def breaks(store, nanny, saved, pieces, *, whole):
        written.append(pieces)
        if len(written) == 3:
            raise OSError("the connection broke")
        return await put(store, nanny, saved, pieces, whole=whole)

    assert keep(7)
    monkeypatch.setattr(NannyStore, "put", breaks)
    with pytest.raises(OSError, match="the connection broke"):
        keep(9)
    assert nannies.found(FIRST).checkpoint[0].note == "step 7"
    assert keep(11) and [of.number for _, of in HELD[far]] == [11]
    let_go(None, [far], FIRST, deposits=False)
    (found,) = nannies.found(FIRST).checkpoint
    store.read(found, parts.append)
    assert b"".join(parts) == (DATA + 11).tobytes() and len(parts) == 4
    let_go(None, [far], FIRST)
    with pytest.raises(NoAnswer, match="no longer has its checkpoint in memory"):
        store.read(found, parts.append)
    store.leaves = lambda: True
    assert not keep(13)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_nanny_that_does_not_answer_is_not_waited_for_for_long(nannies, monkeypatch, far, tmp_path, leaves):
    answers = asyncio.Event()

    async def silent(*args):
        await answers.wait()

    store, file = nannies.store("near", Owner(CHECKPOINT), Version(FIRST, 1)), tmp_path / "file"
    store.leaves = lambda: leaves
    file.write_bytes(b"x")
    monkeypatch.setattr(NannyStore, "_run", silent)
    monkeypatch.setattr(nanny_store, "_CALL_S", 60 if leaves else 0.1)
    with pytest.raises(TimeoutError):
        store.keep(far, deposit("content", 1), file)
    monkeypatch.setattr(nanny_store, "_CALL_S", 0.1)
    assert not store.hold(deposit("content", 1))
    with pytest.raises(NoAnswer, match="does not answer"):
        store.read(deposit("content", 1, far), print)
    nannies.loop.call_soon_threadsafe(answers.set)
    nannies.run(asyncio.sleep(0.05))
