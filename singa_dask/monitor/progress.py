"""What a run shows while it runs: a live display on a terminal, plain lines elsewhere, nothing in a quiet run.

Every display takes the same events (dictionaries, see training/worker.py):
    start, progress, metrics (phase train, validate or test), checkpoint, end
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

Event = Mapping[str, Any]


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(7.2), duration(75), duration(3700)
    ('7 s', '1:15 min', '1:01 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def figures(metrics: Mapping[str, float]) -> str:
    """Metrics in a line: "loss 0.0312  accuracy 0.9917"."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


class Display:
    """Takes a run's events; this one shows nothing."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def note(self, text: str) -> None:
        """Say something that is not an event: what is being started, what was found."""

    def handle(self, event: Event) -> None:
        """Show one event."""


class LineDisplay(Display):
    """One line per event worth keeping: for log files, CI and notebooks."""

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stdout
        self._steps = 0

    def note(self, text: str) -> None:
        self._say(text)

    def handle(self, event: Event) -> None:
        line = event_line(event, self._steps)
        if event["kind"] == "start":
            self._steps = event["steps"]
        if line:
            self._say(line)

    def _say(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()


def event_line(event: Event, steps: int) -> str | None:
    """The line that an event leaves behind, or None."""
    width = len(str(steps))
    if event["kind"] == "metrics":
        where = f"step {event['step']:>{width}}/{steps}" if steps else f"step {event['step']}"
        line = f"{where}  {event['phase']:<8}  {figures(event['metrics'])}"
        if "samples_per_s" in event:
            line += f"  {event['samples_per_s']:,.0f} samples/s"
            if len(event["wait"]) > 1:
                line += f"  waits {shares(event['wait'])}"
            if max(event["loading"]) >= 0.02:
                line += f"  waits for data {shares(event['loading'])}"
        return line
    if event["kind"] == "checkpoint":
        return f"step {event['step']:>{width}}/{steps}  saved     {event['path']}"
    if event["kind"] == "start":
        past = f", from step {event['step']}" if event["step"] else ""
        return (
            f"{event['ranks']} worker{'s' * (event['ranks'] > 1)} ready: {event['steps']} steps of "
            f"{event['batch']} samples{past}"
        )
    return None


def shares(parts: Sequence[float]) -> str:
    """Shares of the time, one per rank: "3/12/8 %"."""
    return "/".join(f"{100 * part:.0f}" for part in parts) + " %"


class LiveDisplay(Display):
    """A live panel on a terminal; lines worth keeping scroll above it."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            expand=True,
        )
        self._task = self._bar.add_task("starting", total=None, left="")
        self._latest: Event | None = None
        self._status = "starting"
        self._started = False
        self._steps = 0
        self._batch = 0
        self._live = Live(console=self.console, refresh_per_second=8, transient=True, get_renderable=self._render)

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.__exit__(None, None, None)

    def note(self, text: str) -> None:
        self._status = text
        if self._started:  # the status line gave way to the figures
            self.console.print(Text(text, style="yellow"))

    def handle(self, event: Event) -> None:
        kind = event["kind"]
        line = event_line(event, self._steps)
        if kind == "start":
            self._steps = event["steps"]
            self._batch = event["batch"]
            self._started = True
            self._bar.update(self._task, description="training", total=event["steps"], completed=event["step"])
        if kind == "progress" or (kind == "metrics" and event["phase"] == "train"):
            self._latest = event
            self._bar.update(self._task, completed=event["step"], left=self._left(event))
        if line:
            self.console.print(Text(line), highlight=False)

    def _left(self, event: Event) -> str:
        samples = (self._steps - event["step"]) * self._batch
        return f"{duration(samples / event['samples_per_s'])} left" if event["samples_per_s"] else ""

    def _render(self) -> RenderableType:
        if self._latest is None:
            return Group(Text(self._status, style="dim"), self._bar)
        table = Table.grid(padding=(0, 2))
        row = [Text(figures(self._latest["metrics"]), style="bold")]
        row.append(Text(f"{self._latest['samples_per_s']:,.0f} samples/s"))
        if len(self._latest["wait"]) > 1:
            row.append(Text(f"workers wait {shares(self._latest['wait'])}", style="dim"))
        row.append(Text(f"for data {shares(self._latest['loading'])}", style="dim"))
        table.add_row(*row)
        return Group(self._bar, table)


def display_for(stream: TextIO | None = None) -> Display:
    """A live display where `stream` (standard output) is a terminal, lines elsewhere."""
    stream = stream or sys.stdout
    if stream.isatty():
        return LiveDisplay(Console(file=stream))
    return LineDisplay(stream)
