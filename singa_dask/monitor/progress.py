"""The display of a run: a live panel on a terminal, lines elsewhere, nothing for a quiet run.

All displays take the same events (dictionaries, see training/worker.py):
    start, progress, metrics (phase train, validate or test), checkpoint, end
Worker groups send events independently; "group" is the sender.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from singa_dask.monitor.lines import Event, EventLines, duration, format_metrics, shares
from singa_dask.output.console import Console
from singa_dask.output.streams import Escaped, Output
from singa_dask.training.memory import format_nbytes


class Display:
    """Takes a run's events and shows nothing.

    lost: whether something that a display should have shown could not be written.
    """

    lost = False

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def note(self, text: str) -> None:
        """Show a message that is not an event."""

    def say(self, text: str) -> None:
        """Show a line that stays, also before the run begins."""

    def handle(self, event: Event) -> None:
        """Show one event."""


class _Written(Display):
    """Writes to a stream. A run goes on without it: the first time that something is lost, standard error says so."""

    def __init__(self, stream: TextIO | Output | None) -> None:
        self.output, self.errors = Output.of(stream), Output.of(sys.stderr)

    @property
    def lost(self) -> bool:  # type: ignore[override]
        return self.output.fault is not None or self.errors.fault is not None

    def _tell_of_loss(self) -> None:
        if self.output.fault is not None and not self.output.told:
            self.output.told = True
            message = f"the output of the run cannot be written ({self.output.cause}): training goes on"
            Escaped(self.errors).say(f"{message}, and its workspace has the metrics")


class LineDisplay(_Written):
    """Lines for log files, CI and notebooks."""

    def __init__(self, stream: TextIO | Output | None = None):
        super().__init__(stream or sys.stdout)
        self._lines = EventLines()

    def note(self, text: str) -> None:
        self.say(text)

    def handle(self, event: Event) -> None:
        for line in self._lines.lines(event):
            self.say(line)

    def say(self, text: str) -> None:
        Escaped(self.output).say(text)
        self._tell_of_loss()


class LiveDisplay(_Written):
    """A live panel on a terminal with a progress bar per worker group. Log lines scroll above it."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        super().__init__(self.console.output)
        self._bars = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            expand=True,
        )
        self._starting: TaskID | None = self._bars.add_task("starting", total=None, left="")
        self._tasks: dict[int, TaskID] = {}
        self._started: dict[int, Event] = {}
        # Replaced, never modified: another thread draws it.
        self._latest: Mapping[int, Event] = {}
        self._status = "starting"
        self._lines = EventLines()
        self._live = Live(console=self.console, refresh_per_second=8, transient=True, get_renderable=self._render)

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.__exit__(None, None, None)
        self._tell_of_loss()

    def note(self, text: str) -> None:
        self._status = text
        if self._started:  # the panel has replaced the status line
            self.console.print(text, style="yellow", highlight=False)
            self._tell_of_loss()

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)
        self._tell_of_loss()

    def handle(self, event: Event) -> None:
        kind, group = event["kind"], event.get("group", 0)
        lines = self._lines.lines(event, self.console.width)
        if kind == "start":
            self._start(group, event)
        elif kind == "progress" or (kind == "metrics" and event["phase"] == "train"):
            self._latest = {**self._latest, group: event}
            self._bars.update(self._tasks[group], completed=event["step"], left=self._left(group, event))
        elif kind == "end":
            done = event["step"] >= self._started[group]["steps"]
            self._bars.update(self._tasks[group], completed=event["step"], left="done" if done else "stopped")
        for line in lines:
            self.say(line)

    def _start(self, group: int, event: Event) -> None:
        """The group's bar. The first start creates the bars of all groups, in order."""
        if self._starting is not None:
            self._bars.remove_task(self._starting)
            self._starting = None
            for number in range(event.get("groups", 1)):
                self._tasks[number] = self._bars.add_task(f"group {number}", total=None, left="starting")
        if group not in self._tasks:
            self._tasks[group] = self._bars.add_task(f"group {group}", left="")
        self._started[group] = event
        self._bars.update(self._tasks[group], total=event["steps"], completed=event["step"], left="")
        if not self._lines.several:
            self._bars.update(self._tasks[group], description="training")
        elif len(self._tasks) > 1:
            self._bars.update(self._tasks[0], description="group 0")

    def _left(self, group: int, event: Event) -> str:
        started = self._started[group]
        samples = (started["steps"] - event["step"]) * started["batch"]
        return f"{duration(samples / event['samples_per_s'])} left" if event["samples_per_s"] else ""

    def _render(self) -> RenderableType:
        latest = self._latest
        if not latest:
            return Group(self.console.render_str(self._status, style="dim", highlight=False), self._bars)
        tables = _tables_of_several(latest) if self._lines.several else _tables_of_one(*latest.values())
        unlimited = self.console.options.update(max_width=10_000)
        for table in tables:  # the first that fits, or the last
            if Measurement.get(self.console, unlimited, table).maximum <= self.console.width:
                break
        return Group(self._bars, table)


_SERVER_METRICS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "staleness": lambda server: f"{server['staleness']:.1f}",
    "stalls": lambda server: shares([server["stall"]]),
    "update": lambda server: f"{server['update_ms']:.1f} ms",
}


def _tables_of_one(event: Event) -> Iterator[Table]:
    """The latest metrics of a single group in one row, then in narrower variants."""
    for short in (False, True):
        row = [Text(format_metrics(event["metrics"]), style="bold")]
        row.append(Text(f"{event['samples_per_s']:,.0f}" + ("/s" if short else " samples/s")))
        if event.get("gpu_memory"):
            row.append(Text(format_nbytes(event["gpu_memory"]) + ("" if short else " on each GPU")))
        if event.get("server"):
            row.extend(Text(f"{name} {show(event['server'])}") for name, show in _SERVER_METRICS.items())
        if len(event["wait"]) > 1:
            row.append(Text(("waits " if short else "workers wait ") + shares(event["wait"], short), style="dim"))
        row.append(Text(("data " if short else "for data ") + shares(event["loading"], short), style="dim"))
        table = Table.grid(padding=(0, 2))
        table.add_row(*row)
        yield table
    yield from _tables_of_several({0: event}, labelled=False)


def _tables_of_several(latest: Mapping[int, Event], labelled: bool = True) -> Iterator[Table]:
    """The latest metrics, one row per group, then with fewer and fewer columns."""
    columns: dict[str, Callable[[Event], str]] = {}
    for metric in dict.fromkeys(name for event in latest.values() for name in event["metrics"]):
        columns[metric] = partial(_metric, metric)
    columns["samples/s"] = lambda event: f"{event['samples_per_s']:,.0f}"
    columns["memory"] = lambda event: format_nbytes(event["gpu_memory"]) if event.get("gpu_memory") else ""
    for name, show in _SERVER_METRICS.items():
        columns[name] = partial(_of_server, show)
    columns["waits"] = lambda event: shares(event["wait"], ranges=True) if len(event["wait"]) > 1 else ""
    columns["data"] = lambda event: shares(event["loading"], ranges=True)
    rows = sorted(latest.items())
    shown = {name: [show(event) for _, event in rows] for name, show in columns.items()}
    names = [name for name, cells in shown.items() if any(cells)]
    for count in range(len(names), 0, -1):
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
        if labelled:
            table.add_column("", no_wrap=True)
        for name in names[:count]:
            table.add_column(name, justify="right", no_wrap=True)
        for row, (group, _) in enumerate(rows):
            label = [f"group {group}"] if labelled else []
            table.add_row(*label, *(shown[name][row] for name in names[:count]))
        yield table


def _metric(name: str, event: Event) -> str:
    return f"{event['metrics'][name]:.4f}" if name in event["metrics"] else ""


def _of_server(show: Callable[[Mapping[str, Any]], str], event: Event) -> str:
    return show(event["server"]) if event.get("server") else ""


def display_for(stream: TextIO | None = None) -> Display:
    """A live display if `stream` (standard output) is a terminal, else lines."""
    output = Output.of(stream or sys.stdout)
    return LiveDisplay(Console(file=output)) if output.isatty() else LineDisplay(output)
