"""What the Dask scheduler does for the page Training: it listens to the events of runs, and opens the page."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import dask
from distributed.diagnostics.plugin import SchedulerPlugin
from tornado import web

from singa_dask.dashboard.history import LatestRuns

NAME = TOPIC = "singa-dask-training"
PAGE = "training"


class Training(SchedulerPlugin):
    """Takes the events of runs, which worker groups log for their drivers, and those that drivers log under TOPIC."""

    name = NAME

    def __init__(self) -> None:
        self.runs = LatestRuns()

    def log_event(self, topic: str, msg: Any) -> None:
        if topic == TOPIC:
            topic = msg["run"]
        if topic in self.runs:
            self.runs[topic].take(msg, time.time())

    def remove_client(self, scheduler: Any, client: str) -> None:
        self.runs.lose(client)


def put_off() -> dict[str, Any]:
    """Arguments of a scheduler whose dashboard waits until somebody looks: bokeh takes a second to import."""
    if find_spec("bokeh") is None:
        return {}
    return {"dashboard": False, "preload": [*dask.config.get("distributed.scheduler.preload"), __name__]}


def dask_setup(scheduler: Any) -> None:
    """Called by Dask in a scheduler that preloads this module."""
    open_door(scheduler, whole=True)


def open_door(scheduler: Any, *, whole: bool = False) -> Training | None:
    """The plugin of a scheduler, and the way to its page; None if the scheduler has no dashboard. On its event loop.

    whole: connect Dask's own pages too if they are missing.
    """
    if (plugin := scheduler.plugins.get(NAME)) is not None:
        return plugin
    # Dask's own application of Bokeh.
    there = (app for app in scheduler.http_application.applications if "Bokeh" in type(app).__name__)
    if (dashboard := next(there, None)) is None and not whole:
        return None
    scheduler.add_plugin(plugin := Training(), name=NAME)
    prefix = "" if dashboard is None else dashboard.prefix
    pages = r"/.*" if dashboard is None else rf"{prefix}/{PAGE}(?:/.*)?"
    given = {"scheduler": scheduler, "whole": dashboard is None, "prefix": prefix}
    scheduler.http_application.add_application(web.Application([(pages, _Door, given)]))
    if dashboard is not None:
        list_page(scheduler)
    return plugin


def list_page(scheduler: Any) -> dict[str, Any]:
    """Add the page to the menu of the dashboard; returns what the templates of its pages are given."""
    from distributed.dashboard.scheduler import template_variables

    variables: dict[str, Any] = template_variables(scheduler)
    if PAGE not in variables["pages"]:
        variables["pages"].append(PAGE)
    return variables


def follow(run: Mapping[str, Any], dask_scheduler: Any = None) -> int:
    """On the scheduler: take the events of a run, see Runs.begin. Returns the port of its page, 0 if there is none."""
    if (plugin := open_door(dask_scheduler)) is None:
        return 0
    plugin.runs.begin(now=time.time(), **run)
    return int(dask_scheduler.http_server.port)


class _Door(web.RequestHandler):
    """Connects the page when somebody first looks, and steps aside."""

    def initialize(self, scheduler: Any, whole: bool, prefix: str) -> None:
        self.scheduler, self.whole, self.prefix = scheduler, whole, prefix

    async def get(self) -> None:
        name = f"{__package__}.page"
        try:
            page = await asyncio.get_running_loop().run_in_executor(None, importlib.import_module, name)
        except ImportError as error:
            return self.send_error(503, reason=f"bokeh cannot be imported: {error}")
        applications = self.scheduler.http_application.applications
        if self.application in applications:  # else another request was faster
            applications.remove(self.application)
            page.connect(self.scheduler, self.scheduler.plugins[NAME].runs, self.whole, self.prefix)
        return self.redirect(self.request.uri or f"{self.prefix}/{PAGE}")
