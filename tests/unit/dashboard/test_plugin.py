"""What the scheduler does for the page, without Bokeh."""

from types import SimpleNamespace

import pytest
from distributed.http.routing import RoutingApplication

from singa_dask.dashboard import plugin as module
from singa_dask.dashboard.plugin import NAME, TOPIC, Training, follow, open_door, put_off

RUN = {"topic": "t", "client": "c", "job": "digits", "strategy": "downpour", "workspace": "/x", "steps": 600}
CHECKPOINT = {"kind": "checkpoint", "step": 4}


@pytest.fixture
def scheduler():
    application = RoutingApplication([])
    server = SimpleNamespace(port=8787)
    made = SimpleNamespace(plugins={}, http_application=application, http_server=server)
    made.add_plugin = lambda plugin, name: made.plugins.__setitem__(name, plugin)
    return made


def test_without_a_dashboard_nothing_is_added(scheduler):
    assert follow(RUN, dask_scheduler=scheduler) == 0
    assert scheduler.plugins == {} and scheduler.http_application.applications == []


def test_a_dashboard_that_was_put_off_has_one_door_for_all_runs(scheduler):
    plugin = open_door(scheduler, whole=True)
    assert follow(RUN, dask_scheduler=scheduler) == 8787 and follow({**RUN, "topic": "u"}, dask_scheduler=scheduler)
    assert scheduler.plugins == {NAME: plugin} and len(scheduler.http_application.applications) == 1
    assert [topic for topic, _ in plugin.runs.newest_first()] == ["u", "t"]


def test_only_events_of_runs_are_taken(scheduler):
    plugin = Training()
    plugin.runs.begin(now=0.0, **RUN)
    for topic, event in (("t", CHECKPOINT), (TOPIC, {"run": "t", **CHECKPOINT}), ("other", {"x": 1}), ("all", "text")):
        plugin.log_event(topic, event)
    plugin.log_event(TOPIC, {"run": "of an earlier scheduler", **CHECKPOINT})
    assert len(plugin.runs["t"].marks) == 2
    plugin.remove_client(scheduler, "c")
    assert plugin.runs["t"].state == "lost"


def test_a_scheduler_without_bokeh_is_as_before(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert put_off() == {}
