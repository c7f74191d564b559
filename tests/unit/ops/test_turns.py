"""Who computes on which GPU of a machine, and who waits, without a GPU: threads and processes see the same locks."""

import multiprocessing
import os
import tempfile
import threading
from contextlib import closing

import pytest

from singa_dask.errors import ClusterError
from singa_dask.ops.gpu import turns, visible


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """Of two GPUs, in a process that has none yet."""
    monkeypatch.setattr(visible, "visible_gpus", lambda: tuple(visible.Gpu(i, f"m/{i}") for i in range(2)))
    monkeypatch.setattr(visible, "has_cupy", lambda: True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(turns, "_own", turns._Own())


def elsewhere(function, *args):
    """What another process returns, that has ended, and one that holds what it got until it is told to end."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child():
        turns._own = turns._Own()
        theirs.send(function(*args))
        theirs.recv()

    process = context.Process(target=child, daemon=True)
    process.start()
    return ours.recv(), lambda: (ours.send(None), process.join())


def test_each_process_gets_a_gpu_of_its_own_and_keeps_it():
    first, end_first = elsewhere(turns.own_gpu)
    second, end_second = elsewhere(turns.own_gpu)
    assert (first, second) == (0, 1)
    assert turns.own_gpu() == 0  # all are taken
    end_second()
    assert turns.own_gpu() == 0 and turns.own_gpu([1]) == 1 and turns.own_gpu() == 1
    end_first()


@pytest.mark.parametrize(
    ("listed", "places", "own"),
    [
        ([], [(0, 0), (1, 0)], 0),
        ([1], [(1, 0)], 1),
        ([1, 1, 0], [(1, 0), (1, 1), (0, 0)], 1),
        ([-1], [], None),
        ([7], [], 7),
    ],
)
def test_a_job_lists_the_gpus(listed, places, own):
    assert turns.places_here(listed) == places
    assert turns.own_gpu(listed) == own


def test_without_cupy_a_process_computes_on_the_cpu(monkeypatch):
    monkeypatch.setattr(visible, "has_cupy", lambda: False)
    assert turns.own_gpu() is None


@pytest.mark.parametrize("listed", [[], [0], [0, 0, 1]])
def test_as_many_compute_on_a_gpu_at_once_as_are_listed(listed):
    at_once, most, meeting = 0, 0, threading.Lock()
    room = max(1, listed.count(0))
    full = threading.Barrier(room)

    def compute():
        nonlocal at_once, most
        with closing(turns.in_turns(range(3), 0, listed)) as items:
            for number, _ in enumerate(items):
                with meeting:
                    at_once += 1
                    most = max(most, at_once)
                if number == 0:
                    full.wait(10)
                with meeting:
                    at_once -= 1

    threads = [threading.Thread(target=compute) for _ in range(2 * room)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most == room


def test_a_turn_ends_with_what_uses_it(monkeypatch):
    monkeypatch.setattr(turns, "_LONG_S", 0.01)

    def interrupted():
        with closing(turns.in_turns(range(3), 0)) as items:
            for _ in items:
                with pytest.raises(ClusterError, match=r"GPU 0 of .*: another process has predicted there for 0.01 s"):
                    next(turns.in_turns([1], 0))
                with turns.turn(1), turns.turn(None):  # others are free
                    raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    with turns.turn(0):
        pass


def test_a_process_that_ends_leaves_its_turn(monkeypatch):
    monkeypatch.setattr(turns, "_LONG_S", 0.01)
    _, end = elsewhere(lambda: turns._next(0, 1))
    with pytest.raises(ClusterError):
        turns._next(0, 1)
    end()
    os.close(turns._next(0, 1))
