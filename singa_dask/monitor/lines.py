"""Events of a run as lines of text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from singa_dask.training.memory import format_nbytes

Event = Mapping[str, Any]


def duration(seconds: float) -> str:
    """Seconds in readable form.

    >>> duration(7.2), duration(75), duration(3700)
    ('7 s', '1:15 min', '1:01 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Metrics in one line: "loss 0.0312  accuracy 0.9917"."""
    return "  ".join(_metrics(metrics))


def shares(parts: Sequence[float], ranges: bool = False) -> str:
    """Shares of time, one per rank; the minimum and maximum for many ranks or with `ranges`.

    >>> shares([0.03, 0.12, 0.08]), shares([0.03, 0.12, 0.08], ranges=True)
    ('3/12/8 %', '3-12 %')
    """
    shown = [f"{100 * part:.0f}" for part in parts]
    if ranges or len(shown) > 8:
        ordered = sorted(parts)
        shown = list(dict.fromkeys(f"{100 * part:.0f}" for part in (ordered[0], ordered[-1])))
        return "-".join(shown) + " %"
    return "/".join(shown) + " %"


class EventLines:
    """The lines of events, for a log of `width` columns.

    With several worker groups, lines start with the group. If a training line does not fit, it and all later ones are
    shortened alike; the rest goes on further lines.
    """

    def __init__(self) -> None:
        self.several = False
        self._steps: dict[int, int] = {}
        self._shortened = 0

    def lines(self, event: Event, width: int = 80) -> list[str]:
        """The lines of one event; none for events that logs omit."""
        kind, group = event["kind"], event.get("group", 0)
        self.several = self.several or group > 0 or event.get("groups", 1) > 1
        label = f"group {group}  " if self.several else ""
        if kind == "start":
            self._steps[group] = event["steps"]
            return [label + _started(event)]
        steps = self._steps.get(group, 0)
        where = f"step {event['step']:>{len(str(steps))}}/{steps}" if steps else f"step {event['step']}"
        if kind == "metrics":
            return self._measured(label, where, event, width)
        if kind == "checkpoint":
            head = f"{label}{where}  saved     "
            return [head + _path(event["path"], width - len(head))]
        if kind in ("decision", "unsaved"):
            return [f"{label}{where}  {event['text']}"]
        return [f"{label}{where}  ended"] if kind == "end" and self.several else []

    def _measured(self, label: str, where: str, event: Event, width: int) -> list[str]:
        head, metrics = f"{label}{where}  {event['phase']:<8}  ", _metrics(event["metrics"])
        while True:
            rest = list(_training_parts(event, self._shortened))
            line = head + "  ".join([*metrics, *rest])
            if len(line) <= width:
                return [line]
            if not rest or self._shortened == 2:
                break
            self._shortened += 1
        indent = " " * (len(label) + 2)
        below = list(_training_parts(event, 1))[1:]
        return [*_folded(head, [*metrics, *rest[:1]], indent, width), *_folded(indent, below, indent, width)]


def _metrics(metrics: Mapping[str, float]) -> list[str]:
    return [f"{name} {value:.4f}" for name, value in metrics.items()]


def _started(event: Event) -> str:
    past = f", from step {event['step']}" if event["step"] else ""
    workers = f"{event['ranks']} worker{'s' * (event['ranks'] > 1)}"
    joined = event.get("group", 0) >= event.get("groups", 1)
    way = f" ({event['exchange']}{_processes(event)})" if event["ranks"] > 1 else ""
    ready = f"joined with {workers}{way}" if joined else f"{workers} ready{way}"
    return f"{ready}: {event['steps']} steps of {event['batch']} samples{past}"


def _processes(event: Event) -> str:
    """The processes of a few workers on one machine."""
    pids = event.get("pids", ()) if event["exchange"] == "shared memory" else ()
    return f"; processes {', '.join(map(str, pids))}" if 0 < len(pids) <= 8 else ""


def _training_parts(event: Event, shortened: int) -> Iterator[str]:
    """The parts of a training line after its metrics. shortened: 0 not, 1 the words, 2 the shares too."""
    if "samples_per_s" not in event:
        return
    yield f"{event['samples_per_s']:,.0f}" + ("/s" if shortened else " samples/s")
    if memory := event.get("gpu_memory"):
        yield format_nbytes(memory) + ("" if shortened else " on each GPU")
    if server := event.get("server"):
        if server["staleness_max"]:  # 0 if the group has its own servers
            yield f"staleness {server['staleness']:.1f}"
        yield f"update {server['update_ms']:.1f} ms"
        yield f"stalls {shares([server['stall']])}"
    if len(event["wait"]) > 1:
        yield f"waits {shares(event['wait'], shortened > 1)}"
    if max(event["loading"]) >= 0.02:
        yield ("data " if shortened else "waits for data ") + shares(event["loading"], shortened > 1)


def _folded(start: str, parts: Sequence[str], indent: str, width: int) -> Iterator[str]:
    """Lines with as many whole parts as fit, at least one."""
    line = ""
    for part in parts:
        if line and len(line) + 2 + len(part) > width:
            yield line
            start, line = indent, ""
        line = f"{line}  {part}" if line else start + part
    if line:
        yield line


def _path(path: str, room: int) -> str:
    """The path relative to the working directory, or its end, if the whole does not fit."""
    here = os.path.relpath(path)
    below = [] if here.startswith("..") else [here]
    end = os.path.join("...", *path.split(os.sep)[-2:])
    return next((way for way in (path, *below) if len(way) <= room), end)
