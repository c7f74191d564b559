"""Bytes that nannies keep for a run."""

import numpy as np
import pytest
from support.nannies import broken_room, no_room, room

from singa_dask.cluster import deposits
from singa_dask.cluster.deposits import Depositor
from singa_dask.cluster.formation import NoAnswer
from singa_dask.cluster.held import CHECKPOINT, memory_of

START = "job/folder#1.a"
DATA = np.arange(100, dtype=np.uint8)


@pytest.fixture
def depositor(nannies, monkeypatch, tmp_path):
    """Of a generation. keep: DATA + n, at a nanny."""
    monkeypatch.setattr(deposits, "_BLOCK", 30)

    class OwnDepositor(Depositor):
        def __init__(self, generation=1, room=room):
            holder = nannies.holder("near", START, CHECKPOINT, generation)
            super().__init__(holder.worker, holder, room)

        def keep(self, nanny, number, n=0):
            (tmp_path / f"{n}").write_bytes((DATA + n).tobytes())
            return super().keep(nanny, number, f"step {number}", tmp_path / f"{n}")

    return OwnDepositor


@pytest.fixture
def far(nannies):
    return nannies.start()


def bytes_of(depositor, deposit):
    parts = []
    depositor.read(deposit, parts.append)
    return b"".join(parts)


def test_a_deposit_is_found_and_read_block_by_block_until_it_is_gone(depositor, nannies, far):
    own = depositor()
    assert own.keep(far, 7)
    (deposit,) = nannies.found(START).deposits
    assert (deposit.content, deposit.nbytes, deposit.holder) == ("step 7", 100, far)
    assert bytes_of(own, deposit) == DATA.tobytes()
    memory_of(far).clear()
    with pytest.raises(NoAnswer, match="let its deposit go"):
        bytes_of(own, deposit)


def test_a_later_one_replaces_it_once_it_is_whole(depositor, nannies, monkeypatch, far):
    own = depositor()
    assert own.keep(far, 7)
    wrote, written = deposits.write_at, []

    def breaks(*args, **options):
        written.append(args)
        if len(written) == 3:
            raise OSError("the connection broke")
        return wrote(*args, **options)

    monkeypatch.setattr(deposits, "write_at", breaks)
    with pytest.raises(OSError, match="the connection broke"):
        own.keep(far, 9, 1)
    assert nannies.found(START).deposits[0].content == "step 7"
    assert own.keep(far, 11, 2) and [owner.replica for owner in memory_of(far)] == [11]
    assert bytes_of(own, nannies.found(START).deposits[0]) == (DATA + 2).tobytes()


@pytest.mark.parametrize("room", [no_room, broken_room])
def test_a_nanny_without_memory_keeps_none(depositor, far, room):
    assert not depositor(room=room).keep(far, 1) and memory_of(far) == {}


def test_the_last_generation_counts_and_then_the_last_number(depositor, nannies):
    places = [nannies.start() for _ in range(3)]
    for place, generation, number in zip(places, (1, 2, 2), (30, 10, 20), strict=True):
        assert depositor(generation).keep(place, number)
    assert [deposit.content for deposit in nannies.found(START).deposits] == ["step 20"]
    assert [deposit.content for deposit in nannies.found(START, places[0]).deposits] == ["step 30"]


def test_what_an_earlier_start_has_left_counts_for_a_run_that_resumes(depositor, nannies, far):
    assert depositor().keep(far, 7)
    for run, earlier, found in (("1.b", False, 0), ("1.b", True, 1), ("2.a", True, 0)):
        assert len(nannies.found(f"job/folder#{run}", earlier=earlier).deposits) == found
