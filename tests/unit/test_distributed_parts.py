"""The private and the undocumented parts of distributed that the package uses: each must still be there.

pyproject.toml has an upper bound for distributed because of them. Run this test before that bound is raised.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import distributed
import pytest
from distributed import Client, LocalCluster, Nanny, Scheduler
from distributed.actor import Actor
from distributed.core import Status
from distributed.nanny import WorkerProcess

from singa_dask.cluster.dask_settings import SETTINGS

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Part:
    """A part of distributed. look: raises an exception where it is missing, or returns False. words: of the lines that
    use it; why: and what else would do."""

    name: str
    look: Callable[[Any], Any]
    words: tuple[str, ...]
    why: str

    @property
    def used(self) -> list[str]:
        """The files of the package that use it."""
        texts = {path: path.read_text() for path in sorted((ROOT / "singa_dask").rglob("*.py"))}
        return [str(path.relative_to(ROOT)) for path, text in texts.items() if any(w in text for w in self.words)]

    def check(self, there: Any) -> None:
        try:
            found = self.look(there)
        except Exception as error:
            found, cause = False, f" ({error!r})"
        else:
            cause = ""
        assert found is not False, (
            f"distributed {distributed.__version__} has no {self.name} any more{cause}. It is used in "
            f"{', '.join(self.used)}: {self.why} Until that is done, lower the upper bound of distributed in "
            "pyproject.toml."
        )


def takes(function: Callable, *names: str) -> bool:
    parameters = inspect.signature(function).parameters
    return all(name in parameters for name in names)


class Nothing:
    """An actor."""

    def call(self, x: int) -> int:
        return x + 1


@dataclass
class There:
    """A scheduler, a worker and a client in this process, and an actor on the worker."""

    cluster: LocalCluster
    client: Client
    worker: Any
    actor: Actor

    def on_loop(self, coroutine: Callable[[], Any]) -> Any:
        async def in_time() -> Any:
            return await asyncio.wait_for(coroutine(), 10)

        return self.client.sync(in_time)

    def ask_actor(self, **changed: Any) -> dict[str, Any]:
        message = {"actor": self.actor.key, "function": "call", "args": [2], "kwargs": {}} | changed
        return self.on_loop(lambda: self.worker.rpc(self.worker.address).actor_execute(**message))


@pytest.fixture(scope="module")
def there() -> Iterator[There]:
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        actor = client.submit(Nothing, actor=True).result(10)
        yield There(cluster, client, next(iter(cluster.workers.values())), actor)


def state_of_a_task(there: There) -> bool:
    """A task that runs, and one that has seceded, as the worker sees itself."""

    def own_state(secedes: bool) -> str:
        worker, key = distributed.get_worker(), distributed.worker.thread_state.key
        wanted = "long-running" if secedes else "executing"
        if secedes:
            distributed.secede()
        deadline = time.monotonic() + 5  # the event loop hears of it a moment later
        while worker.state.tasks[key].state != wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        return str(worker.state.tasks[key].state)

    found = [there.client.submit(own_state, secedes, pure=False).result(10) for secedes in (False, True)]
    assert found == ["executing", "long-running"], found
    return True


def pages() -> Any:
    return importlib.import_module("distributed.dashboard.scheduler")


PARTS = [
    Part(
        "Client._run(function, *args, nanny=, workers=)",
        lambda there: takes(Client._run, "function", "nanny", "workers"),
        ("client._run(",),
        "Client.run waits for a stopped worker for ever. Whatever replaces it must take a deadline per worker.",
    ),
    Part(
        "Client.sync(callback_timeout=)",
        lambda there: takes(Client.sync, "callback_timeout"),
        ("callback_timeout=",),
        "calls to the scheduler have a deadline. asyncio.run_coroutine_threadsafe and Future.result would do.",
    ),
    Part(
        "Client._run_on_scheduler(function, *args)",
        lambda there: there.on_loop(lambda: there.client._run_on_scheduler(lambda x, dask_scheduler: x + 1, 2)) == 3,
        ("client._run_on_scheduler(",),
        "a run that the dashboard cannot show goes on. Client.run_on_scheduler has the same, without a deadline.",
    ),
    Part(
        "scheduler handler log_event(topic=, msg=)",
        lambda there: takes(Scheduler.log_event, "topic", "msg"),
        ("scheduler.log_event(",),
        "drivers do not wait for the dashboard. Client.log_event has the same, and waits.",
    ),
    Part(
        "Scheduler(dashboard=, preload=), .plugins, .http_application.applications and .http_server",
        lambda there: (
            takes(Scheduler, "dashboard", "preload")
            and there.cluster.scheduler.http_application.applications == []
            and there.cluster.scheduler.http_server.port > 0
            and isinstance(there.cluster.scheduler.plugins, dict)
        ),
        ("http_application.applications", '"dashboard": False'),
        "the page Training is added to the dashboard of a scheduler that runs, when somebody looks at it.",
    ),
    Part(
        "SchedulerPlugin.log_event(topic, msg) and remove_client(scheduler, client)",
        lambda there: (
            takes(distributed.SchedulerPlugin.log_event, "topic", "msg")
            and takes(distributed.SchedulerPlugin.remove_client, "scheduler", "client")
        ),
        ("(SchedulerPlugin)",),
        "the page Training shows what worker groups log for their drivers.",
    ),
    Part(
        "distributed.dashboard: connect, template_variables, BokehApplication and the templates",
        lambda there: (
            importlib.util.find_spec("bokeh") is None
            or (
                takes(pages().connect, "application", "http_server", "scheduler", "prefix")
                and "status" in pages().template_variables(there.cluster.scheduler)["pages"]
                and takes(pages().BokehApplication, "applications", "server", "prefix", "template_variables")
                and distributed.dashboard.components.scheduler.env.get_template("base.html")
            )
        ),
        ("distributed.dashboard",),
        "the page Training looks like Dask's own, and stands in their menu.",
    ),
    Part(
        "scheduler handler ncores(workers=)",
        lambda there: (
            set(there.on_loop(lambda: there.client.scheduler.ncores(workers=None))) == {there.worker.address}
        ),
        ("client.scheduler.ncores(",),
        "it is the cheapest question of who is alive. Client.scheduler_info has the same, and copies more.",
    ),
    Part(
        "scheduler handlers processing, has_what and retire_workers",
        lambda there: (
            there.on_loop(lambda: there.client.scheduler.processing(workers=[there.worker.address]))
            and there.on_loop(lambda: there.client.scheduler.has_what(workers=[there.worker.address]))
            and takes(Scheduler.retire_workers, "workers", "close_workers", "remove")
        ),
        ('"processing"', "scheduler.retire_workers("),
        "the tasks and data of others survive when a process is replaced. Client has the same, without deadlines.",
    ),
    Part(
        "scheduler handler events(topic=)",
        lambda there: (
            there.on_loop(lambda: there.client.scheduler.events(topic="worker-restart-memory")) == ()
            and '"worker-ttl-timed-out"' in inspect.getsource(Scheduler)
            and '"worker-restart-memory"' in inspect.getsource(distributed.worker_memory)
        ),
        ("client.scheduler.events",),
        "errors say that a worker was ended by Dask, and why. Client.get_events has the same, without a deadline.",
    ),
    Part(
        "last_seen in the scheduler's identity",
        lambda there: all(
            worker["last_seen"] > 0
            for worker in there.on_loop(lambda: there.client.scheduler.identity())["workers"].values()
        ),
        ('worker["last_seen"]',),
        "it tells which worker is mute. Client.scheduler_info(n_workers=-1) has it too.",
    ),
    Part(
        "worker handler actor_execute(actor=, function=, args=, kwargs=)",
        lambda there: there.ask_actor() == {"status": "OK", "result": 3},
        (".actor_execute(",),
        "Actor's own way needs a client and waits for lost actors for ever. Actor.call(...) with a deadline would do.",
    ),
    Part(
        "worker handler actor_execute: errors as {status, exception}",
        lambda there: isinstance(there.ask_actor(args=[])["exception"], TypeError),
        ('answer["exception"]',),
        "what the server raises is raised by the worker that asked.",
    ),
    Part(
        "Worker.rpc",
        lambda there: callable(there.worker.rpc),
        ("worker.rpc(",),
        "workers talk to each other over the connections that Dask has. distributed.core.rpc would do.",
    ),
    Part(
        "Worker.loop.asyncio_loop",
        lambda there: isinstance(there.worker.loop.asyncio_loop, asyncio.AbstractEventLoop),
        ("loop.asyncio_loop",),
        "threads hand coroutines to the worker's event loop.",
    ),
    Part(
        "Worker.state.actors",
        lambda there: there.actor.key in there.worker.state.actors,
        ("_worker.state.actors", "dask_worker.state.actors"),
        "a server ends when Dask lets it go, and a worker that holds one is not free.",
    ),
    Part(
        "Worker.state.tasks[key].state",
        state_of_a_task,
        ("_worker.state.tasks",),
        "a rank ends when Dask has given its task up.",
    ),
    Part(
        "Worker.status and distributed.core.Status",
        lambda there: (
            (there.worker.status, bool(Status.init and Status.paused and Status.closing_gracefully))
            == (Status.running, True)
        ),
        ("_worker.status",),
        "a rank ends with its Dask worker.",
    ),
    Part(
        "Worker.executors",
        lambda there: "default" in there.worker.executors,
        ("worker.executors",),
        "loading has a thread pool of its own, as training holds the other one.",
    ),
    Part(
        "WorkerProcess._death_message(pid, exitcode)",
        lambda there: takes(WorkerProcess._death_message, "pid", "exitcode"),
        ("WorkerProcess._death_message",),
        "errors say by which signal a worker was killed. Without it they only say that it died.",
    ),
    Part(
        "Worker.nanny",
        lambda there: there.worker.nanny is None,
        ("dask_worker.nanny",),
        "workers without a nanny are not restarted.",
    ),
    Part(
        "Nanny.pid",
        lambda there: isinstance(inspect.getattr_static(Nanny, "pid"), property),
        ("dask_worker.pid", "nanny.pid"),
        "a stuck worker is killed by its process id.",
    ),
    Part(
        "distributed.threadpoolexecutor.ThreadPoolExecutor",
        lambda there: issubclass(distributed.threadpoolexecutor.ThreadPoolExecutor, object),
        ("distributed.threadpoolexecutor",),
        "Dask's workers want executors of this class.",
    ),
    Part(
        "distributed.utils: get_ip, get_ipv6, get_ip_interface, get_mp_context",
        lambda there: (
            all(callable(getattr(distributed.utils, name)) for name in ("get_ip", "get_ipv6", "get_ip_interface"))
            and callable(distributed.utils.get_mp_context().set_forkserver_preload)
        ),
        ("get_ipv6", "get_ip_interface", "get_mp"),
        "addresses are those that Dask would choose, and workers are forked from a process that has imported all.",
    ),
    Part(
        "the settings that cluster/ writes",
        lambda there: all(
            dask.config.get(key, default=None) is not None
            for key in (
                *SETTINGS,
                "distributed.scheduler.worker-ttl",
                "distributed.deploy.lost-worker-timeout",
                "distributed.nanny.pre-spawn-environ",
                "distributed.worker.multiprocessing-method",
            )
        ),
        ("distributed.scheduler.allowed-failures", "worker-ttl"),
        "a setting that Dask does not know has no effect. Look for its new name.",
    ),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name.split("(")[0])
def test_distributed_still_has_it(there, part):
    part.check(there)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name.split("(")[0])
def test_the_package_still_uses_it(part):
    assert part.used, f"nothing in the package contains {' or '.join(part.words)}: take it out of PARTS"


def test_a_missing_part_is_named_with_its_place_and_what_to_do():
    gone = Part("Client._gone", lambda there: Client._gone, ("client._run(",), "Use another.")
    with pytest.raises(AssertionError) as caught:
        gone.check(None)
    message = str(caught.value)
    for words in (
        f"distributed {distributed.__version__} has no Client._gone",
        "singa_dask/cluster/remote.py",
        "bound",
    ):
        assert words in message


def test_distributed_has_an_upper_bound():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bounds,) = (text for text in project["dependencies"] if text.startswith("distributed"))
    assert ">=" in bounds and "<" in bounds
