"""Waiting for workers that other runs use, with workers and runs that the test plays, by its own clock."""

from types import SimpleNamespace

import pytest

from singa_dask.cluster.leases import run_key
from singa_dask.cluster.workers import WorkerInfo
from singa_dask.errors import ClusterError
from singa_dask.supervision import queue as module
from singa_dask.supervision.events import JoinAsked, LeaveAsked, StopAsked
from singa_dask.supervision.queue import Queue, wait_all


class Played:
    """A cluster. users: run key by worker, "" while it is free; alive: workspaces of the runs that answer; at: what
    happens at a time."""

    def __init__(self, monkeypatch):
        self.now, self.users, self.alive, self.at, self.notes = 100.0, {}, set(), {}, []
        self.listening, self.asked = [], 0
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, "wait_workers", self.wait_workers)
        monkeypatch.setattr(module, "active_runs", self.active_runs)
        monkeypatch.setattr(module, "listening", self.listen)

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

    def listen(self, client, name, workspace, post):
        self.post = post
        played = self

        class Listening:
            def __enter__(self):
                played.listening.append((name, workspace))

            def __exit__(self, *exc):
                played.listening.clear()

        return Listening()

    def wait(self, count, max_queue_s=None):
        free = Queue(count, self.notes.append, 30.0, max_queue_s).wait("client", "mine", "/runs/mine")
        assert not self.listening
        return [info.address for info in free]


@pytest.fixture
def played(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return Played(monkeypatch)


def test_free_workers_are_taken_at_once(played, tmp_path):
    played.users = {"w0": run_key("digits", "/runs/a"), "w1": "", "w2": ""}
    assert played.wait(2) == ["w1", "w2"] and played.notes == [] and played.now == 100.0


def test_a_plan_waits_until_all_workers_have_come_and_are_free(played, tmp_path):
    played.users = {"w0": "", "w1": run_key("digits", "/runs/a")}
    played.alive = {"/runs/a"}
    played.at[102.0] = lambda: played.users.update(w1="")
    played.at[102.5] = lambda: played.users.update(w2="")
    wait_all("client", "mine", "/runs/mine", played.notes.append, 30.0, None)
    assert played.notes == ["waiting for 1 worker: 'digits' (/runs/a) is using it"]
    assert set(played.users) == {"w0", "w1", "w2"} and 103.0 <= played.now < 105.0


def test_a_run_waits_until_others_end_and_says_who_they_are(played, tmp_path):
    first, second = run_key("digits", f"{tmp_path}/runs/a"), run_key("cifar10", "/elsewhere/b")
    played.users, played.alive = (
        {"w0": first, "w1": first, "w2": second, "w3": ""},
        {f"{tmp_path}/runs/a", "/elsewhere/b"},
    )
    played.at = {
        3600.0: lambda: played.users.update(w0="", w1=""),
        7200.0: lambda: played.users.update(w2=""),
    }
    assert played.wait(4) == ["w0", "w1", "w2", "w3"] and played.now >= 7200.0
    assert played.notes == [
        "waiting for 3 workers: 'cifar10' (/elsewhere/b) and 'digits' (runs/a) are using them",
        "waiting for 1 worker: 'cifar10' (/elsewhere/b) is using it",
    ]


@pytest.fixture
def blocked(played):
    played.users, played.alive = {"w0": run_key("digits", "/runs/a")}, {"/runs/a"}
    return played


def test_who_gives_no_sign_of_life_is_waited_for_in_vain_for_a_while_only(blocked):
    def gone():
        blocked.alive = {"/runs/other"}

    blocked.at = {1000.0: gone}
    with pytest.raises(ClusterError, match=r"'digits' \(/runs/a\) is using 1 of .* without a sign of life for 30 s"):
        blocked.wait(1)
    assert 1025.0 <= blocked.now <= 1036.0 and blocked.asked < 200, "it is asked every few seconds"


def test_the_lease_of_a_dead_run_ends_and_blocks_nobody(blocked):
    blocked.alive = set()
    blocked.at = {108.0: lambda: blocked.users.update(w0="")}
    assert blocked.wait(1) == ["w0"]


def test_a_run_may_give_up(blocked):
    with pytest.raises(ClusterError, match=r"gave up after 60 s: 'digits' \(/runs/a\) is still using 1 of"):
        blocked.wait(1, max_queue_s=60.0)
    assert 160.0 <= blocked.now < 161.0


def test_missing_workers_end_the_wait(blocked):
    blocked.at = {200.0: blocked.users.clear}
    with pytest.raises(ClusterError, match="only 0 of 1 came"):
        blocked.wait(1)


def test_a_run_in_the_queue_answers(blocked):
    replies = []
    blocked.at = {
        110.0: lambda: blocked.post(JoinAsked(replies.append)),
        120.0: lambda: blocked.post(LeaveAsked(replies.append, 1)),
        130.0: lambda: (blocked.post(StopAsked("singa-dask stop")), blocked.post(lambda: replies.append("stops"))),
    }
    with pytest.raises(ClusterError, match="stopped while it waited for workers, by singa-dask stop"):
        blocked.wait(1)
    assert replies == ["refused: the run waits for workers"] * 2 + ["stops"] and blocked.now < 131.0


def test_ctrl_c_ends_the_wait_at_once(blocked):
    def press():
        raise KeyboardInterrupt

    blocked.at = {110.0: press}
    with pytest.raises(KeyboardInterrupt):
        blocked.wait(1)
    assert blocked.now < 111.0 and not blocked.listening


def test_a_group_of_no_run_is_named_as_it_is(played, monkeypatch):
    played.users = {"w0": ""}
    monkeypatch.setattr(module, "wait_workers", lambda *args: [WorkerInfo("w0", group="group-1a2b")])
    with pytest.raises(ClusterError, match="without a sign of life"):
        played.wait(1)
    assert played.notes == ["waiting for 1 worker: group-1a2b is using it"]


@pytest.mark.parametrize(("leaves", "waited_s"), [(True, 5.0), (False, 10.0)])
def test_workers_that_a_lost_driver_has_left_are_waited_for(played, leaves, waited_s):
    played.users = {"w1": run_key("mine", "/runs/mine"), "w2": "", "w3": run_key("other", "/runs/other")}
    if leaves:
        played.at[105.0] = lambda: played.users.update(w1="")
    began = played.now
    assert played.wait(1) == (["w1", "w2"] if leaves else ["w2"])
    assert waited_s <= played.now - began < waited_s + 1.0 and not played.notes
