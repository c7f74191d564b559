"""Short slices of processor time, as Linux grants them to a thread."""

from __future__ import annotations

import platform
import threading

import pytest

from singa_dask.comm.solo import SoloCommunicator
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.scheduling import SLICE_S, scheduling, shorten_slices

release = tuple(map(int, platform.release().split("-")[0].split(".")[:2])) if platform.system() == "Linux" else (0, 0)
granted = pytest.mark.skipif(release < (6, 12), reason="Linux before 6.12 has one length of slices for all")


def slice_s():
    return scheduling().runtime / 1e9


def in_a_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


@granted
def test_a_thread_has_short_slices_and_all_others_keep_theirs():
    def shortened():
        before = slice_s()
        shorten_slices()
        return before, slice_s(), in_a_thread(slice_s), scheduling().nice

    before, after, of_its_child, nice = in_a_thread(shortened)
    assert after == pytest.approx(SLICE_S) and before > after
    assert slice_s() == before == in_a_thread(slice_s) == of_its_child
    assert nice == scheduling().nice


@granted
def test_that_of_the_exchange_does():
    called = []
    executor = CollectiveExecutor(SoloCommunicator(), threaded=True, initializer=lambda: called.append(slice_s()))
    try:
        assert executor.run(slice_s) == pytest.approx(SLICE_S)
    finally:
        executor.close()
    assert called == [pytest.approx(SLICE_S)]


def test_where_there_is_no_such_call_nothing_happens(monkeypatch):
    monkeypatch.setattr("singa_dask.exchange.scheduling._CALLS", {})
    shorten_slices()
    assert scheduling() is None
