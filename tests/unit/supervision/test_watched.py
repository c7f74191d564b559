"""The driver and the page: a run goes on, whatever becomes of the page."""

from types import SimpleNamespace

import pytest
from support.played_runs import JOB

from singa_dask.errors import SchedulerLost
from singa_dask.job import Job
from singa_dask.supervision import watched as module
from singa_dask.supervision.watched import Watched
from singa_dask.training.prepare import prepare

SUMMARY = {"status": "failed", "error": "why"}
WAY = "The page needs singa_dask on the machine of the scheduler."


class Client:
    """Its scheduler has the page at a port, or an error in its place."""

    id, status, cluster = "c", "running", None

    def __init__(self, page):
        self.page, self.told, self.followed = page, [], []
        self.scheduler = SimpleNamespace(address="tcp://10.0.0.7:8786", log_event=self._log)
        self.loop = SimpleNamespace(add_callback=lambda function, event: self.sync(function, event))

    def _run_on_scheduler(self, function, run):
        self.followed.append(run)
        if isinstance(self.page, Exception):
            raise self.page
        return self.page

    async def _log(self, topic, msg):
        self.told.append(msg)

    def sync(self, function, event, callback_timeout=None):
        with pytest.raises(StopIteration):
            function(event).send(None)


@pytest.fixture
def watched(monkeypatch):
    """A run, its client, and what the user is told. page: the port of the page, or an error."""
    monkeypatch.setattr(module, "ask_scheduler", lambda client, question, timeout_s: question())
    monkeypatch.setattr(module.asyncio, "wait_for", lambda coroutine, timeout_s: coroutine)

    def watched(page, **client):
        made, said = Client(page), []
        for name, value in client.items():
            setattr(made, name, value)
        prepared = prepare(Job.from_text(JOB), with_data=False)
        return Watched(made, "t", prepared, "/runs/points", said.append), made, said

    return watched


def test_the_user_reads_where_the_page_is_and_the_page_what_happens(watched):
    run, client, said = watched(8787)
    assert said == ["watch the run: http://10.0.0.7:8787/training"]
    about = {"job": "points", "strategy": "downpour", "workspace": "/runs/points", "steps": 8}
    assert client.followed == [{"topic": "t", "client": "c", **about}]
    run.tell("restart", groups=(1,))
    run.over(SUMMARY)
    over = {"run": "t", "kind": "over", "status": "failed", "result": "why"}
    assert client.told == [{"run": "t", "kind": "restart", "groups": (1,)}, over]


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("https://hub/user/me/proxy/8787/status", "https://hub/user/me/proxy/8787/training"),
        ("https://gateway/clusters/7", "https://gateway/clusters/7"),
    ],
)
def test_the_address_is_the_one_by_which_dask_reaches_its_dashboard(watched, link, said):
    assert watched(8787, cluster=SimpleNamespace(dashboard_link=link))[2] == [f"watch the run: {said}"]


def test_without_a_dashboard_nothing_is_said(watched):
    run, client, said = watched(0)
    run.tell("restart", groups=(1,))
    run.over(SUMMARY)
    assert said == client.told == []


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'singa_dask'"), SchedulerLost("it is gone")])
def test_a_scheduler_that_cannot_show_the_run_is_named_in_a_line(watched, error):
    run, client, said = watched(error)
    run.over(SUMMARY)
    assert (
        said == [f"the Dask dashboard does not show this run: {type(error).__name__}: {error}. {WAY}"]
        and client.told == []
    )


def test_a_closed_client_is_told_nothing(watched):
    run, client, _ = watched(8787, status="closed")

    def closed(*given):
        raise RuntimeError("the loop is closed")

    client.loop.add_callback = closed
    run.tell("restart", groups=(1,))
    run.over(SUMMARY)
    assert client.told == []
