"""Requests to a run, over a topic that the test plays."""

import asyncio

import pytest

from singa_dask.errors import ClusterError
from singa_dask.supervision import control
from singa_dask.supervision.control import TOPIC, active_runs, ask_run, listening
from singa_dask.supervision.events import JoinAsked, LeaveAsked, StopAsked


class Client:
    """Logs events, and brings those of the topic to its handler, of which it has one."""

    def __init__(self):
        self.events, self.receive = {}, None

    def log_event(self, topic, message):
        self.events.setdefault(topic, []).append((0.0, message))
        if topic == TOPIC and self.receive:
            asyncio.run(self.receive((0.0, message)))

    def get_events(self, topic):
        return self.events.get(topic, [])

    def subscribe_topic(self, topic, receive):
        self.receive = receive

    def unsubscribe_topic(self, topic):
        self.receive = None


@pytest.fixture
def client(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(control.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(control.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    return Client()


@pytest.fixture
def asked():
    """What the run was asked. It does at once what it is asked."""
    return []


@pytest.fixture
def post(asked):
    def post(item):
        match item:
            case JoinAsked(asker):
                asked.append("join")
                asker("worker group 2 joins on w4")
            case LeaveAsked(asker, group):
                asked.append(group)
                asker("refused: it leads" if group == 0 else f"worker group {group} leaves")
            case StopAsked(by):
                asked.append(by)
            case _:
                item()

    return post


def test_a_run_is_asked_and_answers(client, post, asked):
    with listening(client, "digits", "/runs/a", post):
        assert ask_run(client, "join") == "worker group 2 joins on w4"
        assert ask_run(client, "leave", "digits", group=1) == "worker group 1 leaves"
        assert ask_run(client, "leave", "/runs/a", group=3) == "worker group 3 leaves"
        with pytest.raises(ClusterError, match=r"digits \(/runs/a\): refused: it leads"):
            ask_run(client, "leave", group=0)
        with pytest.raises(ClusterError, match="no run of the name other"):
            ask_run(client, "join", "other")
    assert asked == ["join", 1, 3, 0]
    with pytest.raises(ClusterError, match="no run is under way"):
        ask_run(client, "join")


def test_of_several_runs_one_is_named_by_the_folder_that_users_type(client, post, asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path / "runs" / "b")
    with listening(client, "digits", "/runs/a", lambda item: item()), listening(client, "digits", here, post):
        for name in ((), ("digits",)):
            with pytest.raises(ClusterError, match=rf"digits \(/runs/a\), digits \({here}\).* by its folder"):
                ask_run(client, "stop", *name)
        assert ask_run(client, "stop", "runs/b") == f"digits ({here}) was asked to stop"
    assert asked == ["singa-dask stop"]


def test_active_runs_answer_however_busy_they_are(client):
    with listening(client, "digits", "/runs/a", lambda item: None):
        with listening(client, "digits", "/runs/b", lambda item: None):
            assert active_runs(client) == {"/runs/a", "/runs/b"}
        assert active_runs(client) == {"/runs/a"}, "the end of one run does not make another one deaf"
    assert active_runs(client) == set() and client.receive is None


def test_what_is_no_request_ends_nothing(client, post, asked):
    with listening(client, "digits", "/runs/a", post):
        client.log_event(TOPIC, {"op": "leave", "group": "x", "reply": "there"})
        client.log_event(TOPIC, {"op": "leave", "group": 1})
    assert client.events["there"][0][1]["answer"].startswith("refused: not a request") and not asked


def test_a_run_that_does_not_answer_is_named(client, post):
    deaf = listening(client, "digits", "/runs/a", lambda item: None if isinstance(item, JoinAsked) else post(item))
    with deaf, pytest.raises(ClusterError, match=r"digits \(/runs/a\) has not answered within 30 s"):
        ask_run(client, "join")
