"""The page Training of Dask's dashboard, in a headless Chromium: what it shows, how often, and what it costs.

make bench BENCH=dashboard               # or: python benchmarks/dashboard.py --part run --pictures docs

    run     a Downpour run of which a worker is killed. Every plot must have data, the restart must be marked, and the
            console of the browser must be empty, at 1280 and 400 pixels, light and dark.
    ranks   the events of 64 worker groups, which are made up, four times a second each: updates a second, and the
            processor time of the scheduler with a looker and without
    cost    the processor time of what the page adds to a run on two workers, in per cent of that of driver, scheduler
            and workers: without a looker, and with one
    trace   the same of what `--trace` adds, with 20 steps traced and with all
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import click
import psutil
from distributed import Client, LocalCluster
from rich.console import Console
from tools.browser import Browser
from tools.jobs import training_data
from tools.report import begun, end, show
from tools.workloads import EXAMPLES
from tornado.websocket import WebSocketHandler

from singa_dask import ClusterTopology, Job, train
from singa_dask.cluster import local_cluster
from singa_dask.comm import SoloCommunicator
from singa_dask.dashboard import plugin
from singa_dask.monitor.progress import Display
from singa_dask.supervision import trace, watched
from singa_dask.tracing import Recorder, span
from singa_dask.tracing.perfetto import Process

PARTS = ("run", "ranks", "cost", "trace")
RANKS, WATCHED_S = 64, 20.0
TRACED = 20  # steps, the number in the docs
READY = "Bokeh.documents.length > 0 && Bokeh.documents[0].is_idle"
# In the page: its sources by their columns, and the figures.
MODELS = "[...Bokeh.documents[0]._all_models.values()]"
SOURCE = f"({MODELS}.find((each) => each.type === 'ColumnDataSource' && '%s' in each.data))"
# Titles of the figures whose glyphs have no data.
EMPTY = f"""{MODELS}.filter((each) => each.type === "Figure" && each.visible).filter((each) =>
  !each.renderers.some(({{glyph, data_source}}) => {{
    const place = {{Segment: glyph.y1, Scatter: glyph.y, VBar: glyph.top}}[glyph.type]
    const values = data_source.data[place?.field ?? place?.expr?.fields?.[0]] ?? []
    return [...values].some((value) => typeof value === "string" || Number.isFinite(value))
  }})
).map((each) => each.title.text)"""


# A run in which a worker is killed


def look_at_a_run(pictures: Path | None) -> dict[str, Any]:
    """What the page shows of a run under Downpour, while and after it loses a worker."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "singa_dask", "train", str(EXAMPLES / "digits" / "job.conf")]
        command += ["--cluster", str(EXAMPLES / "clusters" / "downpour.conf"), "--workspace", f"{folder}/run"]
        command += ["--set", "train_steps=100000", "--set", "checkpoint_freq=400"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                return _look(process, pictures)
            finally:
                process.kill()


def _look(process: subprocess.Popen, pictures: Path | None) -> dict[str, Any]:
    found: dict[str, str] = {}
    for line in process.stdout or ():
        for name, pattern in {"address": r"watch the run: (\S+)", "pid": r"group 1 .* processes (\d+)"}.items():
            if match := re.search(pattern, line):
                found[name] = match[1]
        if re.search(r"group 1 +step +[1-9]", line):
            break
    threading.Thread(target=lambda: [*(process.stdout or ())], daemon=True).start()  # else its pipe fills
    with Browser() as browser:
        browser.look(1280)
        row: dict[str, Any] = {"opened_s": round(browser.open(found["address"], READY), 1)}
        _wait(browser, f"{SOURCE % 'kind'}.data.kind.includes('checkpoint')")
        os.kill(int(found["pid"]), signal.SIGKILL)
        _wait(browser, f"{SOURCE % 'kind'}.data.kind.includes('back')")
        time.sleep(3)
        row["marks"] = sorted(set(browser.value(f"{SOURCE % 'kind'}.data.kind")))
        for width in (1280, 400):
            for dark in (False, True):
                browser.look(width, dark=dark)
                time.sleep(1)
                row[f"empty_{width}"] = browser.value(EMPTY)
                row[f"wide_{width}"] = browser.value("document.documentElement.scrollWidth")
                if pictures:
                    browser.picture(pictures / f"dashboard-{width}{'-dark' if dark else ''}.png")
        row["faults"] = browser.faults
    wrong = [*row["empty_1280"], *row["empty_400"], *row["faults"]]
    if wrong or "restart" not in row["marks"] or row["wide_400"] > 400:
        raise click.ClickException(f"the page is not as it should be: {row}")
    return row


def _wait(browser: Browser, expression: str, timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not browser.value(expression):
        if time.monotonic() > deadline:
            raise click.ClickException(f"{expression} is not true after {timeout_s:g} s: {browser.faults}")
        time.sleep(0.25)


# Many ranks


def look_at_ranks(ranks: int) -> dict[str, Any]:
    """Updates a second, and the scheduler's time, with the events of so many groups."""
    options = {"n_workers": 0, "dashboard_address": "127.0.0.1:0", "scheduler_kwargs": plugin.put_off()}
    with LocalCluster(**options) as cluster, Client(cluster) as client, _events(cluster, client, ranks) as address:  # type: ignore[no-untyped-call]
        before = _busy(WATCHED_S)
        with Browser() as browser:
            browser.look(1280)
            browser.open(address, READY)
            browser.value(f"window.updates = 0; {SOURCE % 'told'}.streaming.connect(() => window.updates++)")
            time.sleep(5)  # what came while it opened
            first, began = browser.value("window.updates"), time.monotonic()
            looked = _busy(WATCHED_S)
            updates = (browser.value("window.updates") - first) / (time.monotonic() - began)
            faults = browser.faults[:]
    return {
        "ranks": ranks,
        "updates_per_s": round(updates, 2),
        "process_percent": round(before, 2),
        "with_looker_percent": round(looked, 2),
        "page_percent": round(looked - before, 2),
        "faults": faults,
    }


@contextmanager
def _events(cluster: LocalCluster, client: Client, ranks: int) -> Iterator[str]:
    """The events of a run that is played; yields the address of its page."""
    about = {"job": "played", "strategy": "downpour", "steps": 1_000_000, "workspace": "none"}
    port = client.run_on_scheduler(plugin.follow, {"topic": "played", "client": client.id, **about})
    over = threading.Event()

    def play() -> None:
        step, scheduler = 0, cluster.scheduler
        shares = {"wait": [0.25], "loading": [0.05], "server": {"staleness": 1.5, "bytes": 3e5}}
        for group in range(ranks):
            start = {"kind": "start", "group": group, "step": 0, "groups": ranks}
            scheduler.loop.add_callback(scheduler.log_event, "played", start)
        while not over.wait(0.25):
            step += 10
            for group in range(ranks):
                measured = {"metrics": {"loss": 1 / step + group / 1e3, "accuracy": 0.5}, "samples_per_s": 100.0}
                event = {"kind": "progress", "group": group, "step": step, "sent": 0.0, **measured, **shares}
                scheduler.loop.add_callback(scheduler.log_event, "played", event)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/training"
    finally:
        over.set()
        thread.join()


def _busy(seconds: float) -> float:
    """Per cent of one core that this process uses."""
    began, used = time.monotonic(), time.process_time()
    time.sleep(seconds)
    return 100 * (time.process_time() - used) / (time.monotonic() - began)


# What it costs


class Costs:
    """Processor time of functions, by the thread that calls them, and how often they are called."""

    def __init__(self) -> None:
        self.seconds, self.calls = defaultdict[str, float](float), Counter[str]()

    @contextmanager
    def counting(self, *places: tuple[Any, str]) -> Iterator[None]:
        """Inside, these functions of classes or modules are counted."""
        before = [(owner, name, getattr(owner, name)) for owner, name in places]
        for owner, name, function in before:
            setattr(owner, name, self._counted(name, function))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                self.seconds[name] += time.thread_time() - began
                self.calls[name] += 1

        return counted


def measure_cost(job: str, steps: int) -> list[dict[str, Any]]:
    """Two rows: the processor time that the page adds to a run on two workers, without a looker and with one."""
    training_data(job)
    with local_cluster(2) as client, Browser() as browser:
        browser.look(1280)
        port = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.http_server.port)
        _train(client, job, 20)  # kernels are compiled
        rows = [_cost(client, job, steps, "nobody")]
        browser.open(f"http://127.0.0.1:{port}/training", READY)
        return [*rows, _cost(client, job, steps, "a browser")]


def _cost(client: Client, job: str, steps: int, looks: str) -> dict[str, Any]:
    costs, page = Costs(), sys.modules.get("singa_dask.dashboard.page")
    places: list[tuple[Any, str]] = [
        (plugin, "follow"),
        (plugin.Training, "log_event"),
        (WebSocketHandler, "write_message"),
    ]
    places += [(watched.Watched, name) for name in ("__init__", "tell", "over")]
    places += [(page.Page, "update")] if page else []
    workers = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
    before = time.process_time() + _cpu_s(workers)
    began = time.monotonic()
    with costs.counting(*places):
        watched.follow = plugin.follow
        try:
            _train(client, job, steps)
        finally:
            watched.follow = plugin.follow.__wrapped__  # type: ignore[attr-defined]
    seconds, used = time.monotonic() - began, time.process_time() + _cpu_s(workers) - before
    # Each event of a rank has the bytes that it has sent.
    added = sum(costs.seconds.values()) + costs.calls["log_event"] * _bytes_counted_s()
    return {
        "job": job,
        "looks": looks,
        "steps": steps,
        "wall_s": round(seconds, 1),
        "all_s_per_1000_steps": round(1000 * used / steps, 2),
        "page_ms_per_1000_steps": round(1e6 * added / steps, 1),
        "page_percent": round(100 * added / used, 3),
        "updates_per_s": round(costs.calls["update"] / seconds, 1),
        "ms": {name: round(1e3 * value, 2) for name, value in sorted(costs.seconds.items())},
    }


def measure_trace(job: str, steps: int) -> list[dict[str, Any]]:
    """Two rows: the processor time that a trace of some steps, and of all, adds to a run on two workers."""
    training_data(job)
    with local_cluster(2) as client:
        _train(client, job, 20)
        return [_traced(client, job, steps, traced) for traced in (TRACED, steps - trace.WARM_UP)]


def _traced(client: Client, job: str, steps: int, traced: int) -> dict[str, Any]:
    costs, spans, write = Costs(), Counter[str](), trace.trace_of

    def counted(processes: Iterable[Process]) -> bytes:
        every = [*processes]
        spans.update({process.name: len(process.records) for process in every})
        return write(every)

    workers = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
    before = time.process_time() + _cpu_s(workers)
    with costs.counting((trace.Trace, "take"), (trace.Trace, "_write")), patch.object(trace, "trace_of", counted):
        _train(client, job, steps, trace=traced)
    used = time.process_time() + _cpu_s(workers) - before
    recorded, passed = (_recording_s(spans.total(), on=on) for on in (True, False))
    added = sum(costs.seconds.values()) + recorded + passed * (steps - traced) / traced
    return {
        "job": job,
        "steps": steps,
        "traced": traced,
        "spans": spans.total(),
        "all_s_per_1000_steps": round(1000 * used / steps, 2),
        "trace_ms_per_1000_steps": round(1e6 * added / steps, 1),
        "trace_percent": round(100 * added / used, 3),
        "ms": {"ranks": round(1e3 * (added - sum(costs.seconds.values())), 2)}
        | {name: round(1e3 * value, 2) for name, value in sorted(costs.seconds.items())},
    }


def _recording_s(spans: int, *, on: bool) -> float:
    """What it takes ranks to record and send so many spans; or, in steps that are not traced, not to."""
    recorder, began = Recorder((0, 1), lambda event: None, ("worker", 0, 0, 0)), time.thread_time()
    with recorder.here("computing"):
        recorder.reach(0 if on else 1)
        for _ in range(spans):
            with span("update", bucket=0):
                pass
    recorder.send()
    return time.thread_time() - began


def _train(client: Client, job: str, steps: int, **options: Any) -> None:
    made = Job.from_file(EXAMPLES / job / "job.conf")
    made.proto.train_steps, made.proto.checkpoint_freq = steps, 0
    with TemporaryDirectory() as folder:
        train(
            made,
            client,
            cluster=ClusterTopology.allreduce(2),
            workspace=folder,
            display=Display(),
            curves=False,
            **options,
        )


def _bytes_counted_s(times: int = 1000) -> float:
    """What it takes a rank to add up the bytes that it has sent, twice, as for an event after which it displays."""
    comm = SoloCommunicator()
    comm.nbytes.update(reduce_scatter=1, all_gather=1, all_reduce=1)
    began = time.thread_time()
    for _ in range(2 * times):
        sum(int(done["bytes"]) for done in comm.operations.values())
    return (time.thread_time() - began) / times


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), default=PARTS, show_default=True)
@click.option("--job", "jobs", multiple=True, type=click.Choice(["digits", "mnist"]), default=["digits", "mnist"])
@click.option("--steps", default=1000, show_default=True, help="Of each run of the parts cost and trace.")
@click.option(
    "--pictures", type=click.Path(path_type=Path, file_okay=False), help="Save pictures of the part run here."
)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(parts: Sequence[str], jobs: Sequence[str], steps: int, pictures: Path | None, out: Path | None) -> None:
    """Look at the page Training, and measure what it costs."""
    console, figures = Console(width=200), begun()
    measured: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "run": lambda: [look_at_a_run(pictures)],
        "ranks": lambda: [look_at_ranks(RANKS)],
        "cost": lambda: [row for job in jobs for row in measure_cost(job, steps)],
        "trace": lambda: [row for job in jobs for row in measure_trace(job, steps)],
    }
    for part in parts:
        figures[part] = measured[part]()
        show(console, part, figures[part])
    end(console, figures, out)


if __name__ == "__main__":
    main()
