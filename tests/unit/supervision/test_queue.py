"""Waiting for workers that other runs use, with workers and runs that the test plays, by its own clock."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from singa_dask.cluster.leases import run_key
from singa_dask.cluster.workers import WorkerInfo
from singa_dask.errors import ClusterError
from singa_dask.supervision import queue as module
from singa_dask.supervision.events import JoinAsked, LeaveAsked, StopAsked
from singa_dask.supervision.queue import Queue, wait_all

DIGITS = run_key("digits", "/runs/a")


class Played:
    """A cluster. users: run key by worker, "" while it is free; alive: workspaces of the runs that answer; at: what
    happens at a time."""

    def __init__(self, monkeypatch):
        self.now, self.users, self.alive, self.at, self.notes = 100.0, {}, set(), {}, []
        self.listens, self.asked = False, 0
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(module, "time", clock)
        for name in ("wait_workers", "active_runs", "listening"):
            monkeypatch.setattr(module, name, getattr(self, name))

    def sleep(self, seconds):
        self.now += seconds
        for moment in [moment for moment in self.at if moment <= self.now]:
            self.at.pop(moment)()

    def wait_workers(self, client, count, patience_s):
        if len(self.users) < count:
            raise ClusterError(f"only {len(self.users)} of {count} came")
        return [WorkerInfo(a, group=run and f"train-{a}", run=run) for a, run in self.users.items()]

    def active_runs(self, client):
        self.asked += 1
        return self.alive

    @contextmanager
    def listening(self, client, name, workspace, post):
        self.post, self.listens = post, (name, workspace) == ("mine", "/runs/mine")
        try:
            yield
        finally:
            self.listens = False

    def wait(self, count, max_queue_s=None):
        free = Queue(count, self.notes.append, 30.0, max_queue_s).wait("client", "mine", "/runs/mine")
        return [info.address for info in free]


@pytest.fixture
def played(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return Played(monkeypatch)


def test_free_workers_are_taken_at_once(played):
    played.users = {"w0": DIGITS, "w1": "", "w2": ""}
    assert played.wait(2) == ["w1", "w2"] and played.notes == [] and played.now == 100.0


def test_a_plan_waits_until_all_workers_have_come_and_are_free(played):
    played.users, played.alive = {"w0": "", "w1": DIGITS}, {"/runs/a"}
    played.at = {102.0: lambda: played.users.update(w1=""), 102.5: lambda: played.users.update(w2="")}
    wait_all("client", "mine", "/runs/mine", played.notes.append, 30.0, None)
    assert set(played.users) == {"w0", "w1", "w2"} and 103.0 <= played.now < 105.0


def test_a_run_waits_until_others_end_and_says_who_they_are(played, tmp_path):
    first, second = run_key("digits", f"{tmp_path}/runs/a"), run_key("cifar10", "/elsewhere/b")
    played.users = {"w0": first, "w1": first, "w2": second, "w3": ""}
    played.alive = {f"{tmp_path}/runs/a", "/elsewhere/b"}
    played.at = {200.0: lambda: played.users.update(w0="", w1=""), 400.0: lambda: played.users.update(w2="")}
    assert played.wait(4) == ["w0", "w1", "w2", "w3"] and played.now >= 400.0 and not played.listens
    assert played.notes == [
        "waiting for 3 workers: 'cifar10' (/elsewhere/b) and 'digits' (runs/a) are using them",
        "waiting for 1 worker: 'cifar10' (/elsewhere/b) is using it",
    ]


@pytest.fixture
def blocked(played):
    played.users, played.alive = {"w0": DIGITS}, {"/runs/a"}
    return played


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("at", "happens", "max_queue_s", "says", "after", "before"),
    [
        (300.0, lambda played: played.alive.clear(), None, "without a sign of life for 30 s", 325.0, 336.0),
        (
            300.0,
            lambda played: None,
            60.0,
            r"gave up after 60 s: 'digits' \(/runs/a\) is still using 1 of",
            160.0,
            161.0,
        ),
        (200.0, lambda played: played.users.clear(), None, "only 0 of 1 came", 200.0, 201.0),
        (
            110.0,
            lambda played: played.post(StopAsked("x")),
            None,
            "stopped while it waited for workers, by x",
            110.0,
            111.0,
        ),
        (110.0, lambda played: interrupt(), None, None, 110.0, 111.0),
    ],
    ids=["others die", "it may give up", "workers go", "it is stopped", "Ctrl-C"],
)
def test_what_ends_the_wait(blocked, at, happens, max_queue_s, says, after, before):
    blocked.at = {at: lambda: happens(blocked)}
    with pytest.raises((ClusterError, KeyboardInterrupt), match=says):
        blocked.wait(1, max_queue_s)
    assert after <= blocked.now < before and not blocked.listens
    assert blocked.asked < 60, "it is asked every few seconds"


def test_the_lease_of_a_dead_run_ends_and_blocks_nobody(blocked):
    blocked.alive = set()
    blocked.at = {108.0: lambda: blocked.users.update(w0="")}
    assert blocked.wait(1) == ["w0"]


def test_a_run_in_the_queue_answers(blocked):
    replies = []
    blocked.at = {
        110.0: lambda: blocked.post(JoinAsked(replies.append)),
        120.0: lambda: blocked.post(LeaveAsked(replies.append, 1)),
        130.0: lambda: (blocked.post(StopAsked("stop")), blocked.post(lambda: replies.append(blocked.listens))),
    }
    with pytest.raises(ClusterError):
        blocked.wait(1)
    assert replies == ["refused: the run waits for workers"] * 2 + [True]


def test_a_group_of_no_run_is_named_as_it_is(played, monkeypatch):
    monkeypatch.setattr(module, "wait_workers", lambda *args: [WorkerInfo("w0", group="group-1a2b")])
    with pytest.raises(ClusterError, match="group-1a2b"):
        played.wait(1)


@pytest.mark.parametrize(("leaves", "waited_s"), [(True, 5.0), (False, 10.0)])
def test_workers_that_a_lost_driver_has_left_are_waited_for(played, leaves, waited_s):
    played.users = {"w1": run_key("mine", "/runs/mine"), "w2": "", "w3": run_key("other", "/runs/other")}
    if leaves:
        played.at[105.0] = lambda: played.users.update(w1="")
    began = played.now
    assert played.wait(1) == (["w1", "w2"] if leaves else ["w2"])
    assert waited_s <= played.now - began < waited_s + 1.0 and not played.notes
