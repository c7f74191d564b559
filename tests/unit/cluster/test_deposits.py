"""Bytes that nannies keep for a run."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from support.nannies import Nanny, broken_room, found_by, no_room, room

from singa_dask.cluster import deposits, held
from singa_dask.cluster.deposits import Depositor
from singa_dask.cluster.formation import NoAnswer
from singa_dask.cluster.held import CHECKPOINT, NannyHolder, memory_of

START = "job/folder#1.a"
DATA = np.arange(100, dtype=np.uint8)


@pytest.fixture
def data(tmp_path):
    """A file with DATA + n."""

    def data(n=0):
        (tmp_path / f"{n}").write_bytes((DATA + n).tobytes())
        return tmp_path / f"{n}"

    return data


@pytest.fixture(autouse=True)
def nothing_held(monkeypatch):
    monkeypatch.setattr(held, "_held", type(held._held)(dict))
    monkeypatch.setattr(deposits, "_BLOCK", 30)


@pytest.fixture
def depositor():
    """One of a generation, to nannies that Dask's thread reaches."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def depositor(*nannies, generation=1, run=START, room=room):
        reach = {nanny.address: nanny for nanny in nannies}
        rpc = lambda address: reach[address].rpc(address)  # noqa: E731
        worker = SimpleNamespace(rpc=rpc, nanny="near", loop=SimpleNamespace(asyncio_loop=loop))
        return Depositor(worker, NannyHolder(worker, run, CHECKPOINT, generation, 60.0), room)

    yield depositor
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def bytes_of(depositor, deposit):
    parts = []
    depositor.read(deposit, parts.append)
    return b"".join(parts)


def test_a_deposit_is_found_and_read_block_by_block(depositor, monkeypatch, data):
    nanny = Nanny()
    own = depositor(nanny)
    assert own.keep("far", 7, "step 7", data())
    (deposit,) = found_by(monkeypatch, held, START, nanny).deposits
    assert (deposit.content, deposit.nbytes, deposit.holder) == ("step 7", 100, "far")
    assert bytes_of(own, deposit) == DATA.tobytes()


def test_a_later_one_replaces_it_once_it_is_whole(depositor, monkeypatch, data):
    nanny = Nanny()
    own = depositor(nanny)
    assert own.keep("far", 7, "step 7", data())
    wrote, written = deposits.write_at, []

    def breaks(*args, **options):
        written.append(args)
        if len(written) == 3:
            raise OSError("the connection broke")
        return wrote(*args, **options)

    monkeypatch.setattr(deposits, "write_at", breaks)
    with pytest.raises(OSError, match="the connection broke"):
        own.keep("far", 9, "step 9", data(1))
    assert found_by(monkeypatch, held, START, nanny).deposits[0].content == "step 7"
    assert own.keep("far", 11, "step 11", data(2))
    assert [owner.replica for owner in memory_of("far")] == [11]
    assert bytes_of(own, found_by(monkeypatch, held, START, nanny).deposits[0]) == (DATA + 2).tobytes()


@pytest.mark.parametrize("room", [no_room, broken_room])
def test_a_nanny_without_memory_keeps_none(depositor, room, data):
    assert not depositor(Nanny(), room=room).keep("far", 1, None, data())
    assert memory_of("far") == {}


def test_the_last_generation_counts_and_then_the_last_number(depositor, monkeypatch, data):
    nannies = Nanny("a"), Nanny("b"), Nanny("c")
    for nanny, generation, number in zip("abc", (1, 2, 2), (30, 10, 20), strict=True):
        assert depositor(*nannies, generation=generation).keep(nanny, number, (generation, number), data())
    assert found_by(monkeypatch, held, START, *nannies).deposits[0].content == (2, 20)
    assert found_by(monkeypatch, held, START, nannies[0]).deposits[0].content == (1, 30)


def test_what_an_earlier_start_has_left_counts_for_a_run_that_resumes(depositor, monkeypatch, data):
    nanny = Nanny()
    assert depositor(nanny).keep("far", 7, "step 7", data())
    later = "job/folder#1.b"
    assert found_by(monkeypatch, held, later, nanny).deposits == ()
    assert found_by(monkeypatch, held, later, nanny, earlier=True).deposits[0].content == "step 7"
    assert found_by(monkeypatch, held, "job/folder#2.a", nanny, earlier=True).deposits == ()


def test_one_that_is_gone_is_an_error(depositor, monkeypatch, data):
    nanny = Nanny()
    own = depositor(nanny)
    assert own.keep("far", 7, "step 7", data())
    (deposit,) = found_by(monkeypatch, held, START, nanny).deposits
    memory_of("far").clear()
    with pytest.raises(NoAnswer, match="let its deposit go"):
        own.read(deposit, lambda block: None)
