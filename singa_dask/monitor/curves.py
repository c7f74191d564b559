"""Plots of the training curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from singa_dask.monitor.figures import new_figure, panels, save, save_out
from singa_dask.training.history import metrics_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"train": "#4c78a8", "validate": "#f58518", "test": "#e45756"}
_MARKERS = {"validate": "s", "test": "o"}
PANELS_PER_ROW = 3
LABELLED_GROUPS = 8

Points = dict[int, float]  # step: value
Panel = dict[tuple[str, int], Points]  # by phase and worker group


def draw_curves(rows: Iterable[Mapping[str, Any]], path: Path, title: str) -> None:
    """Plot every metric over the steps: one panel per metric, one line per phase, for training one per worker group.

    rows: {"phase": "train"|"validate"|"test", "group": int, "step": int, <metric>: float, ...}, as in metrics.jsonl.
    If rows have server metrics, the last panel is the staleness.
    """
    drawn = _panels(rows)
    if not drawn:
        return
    ncolumns = min(len(drawn), PANELS_PER_ROW)
    figure = new_figure(5.2 * ncolumns, 3.5 * -(-len(drawn) // ncolumns) + 0.3, layout="constrained")
    figure.suptitle(title)
    for panel, (name, curves) in zip(panels(figure, len(drawn), ncolumns), drawn.items(), strict=True):
        _draw(panel, name, curves)
    save(figure, path)


def draw_comparison(runs: Mapping[str, Iterable[Mapping[str, Any]]], path: Path) -> bool:
    """Plot every metric of several runs over the steps: one panel per metric, one colour per run. Lines with markers
    are evaluations; of training, the line is that of worker group 0. Returns whether there was anything to draw.

    runs: the rows of each run by its name, as for `draw_curves`. The suffix of `path` selects PNG or SVG.
    """
    by_run = {name: _panels(row for row in rows if row.get("group", 0) == 0) for name, rows in runs.items()}
    metrics = list(dict.fromkeys(metric for drawn in by_run.values() for metric in drawn))
    if not metrics:
        return False
    ncolumns = min(len(metrics), PANELS_PER_ROW)
    figure = new_figure(5.2 * ncolumns, 3.5 * -(-len(metrics) // ncolumns) + 0.3, layout="constrained")
    for panel, metric in zip(panels(figure, len(metrics), ncolumns), metrics, strict=True):
        shown = {name: drawn[metric] for name, drawn in by_run.items() if metric in drawn}
        for number, name in enumerate(by_run):
            for (phase, _), points in sorted(shown.get(name, {}).items()):
                steps, values = zip(*sorted(points.items()), strict=True)
                alone = "o" if len(steps) < 3 else None
                style = {"marker": _MARKERS[phase]} if phase != "train" else {"alpha": 0.55, "marker": alone}
                panel.plot(steps, values, label=f"{name}, {phase}", color=f"C{number}", markersize=4, **style)
        _finish(panel, metric, [points for curves in shown.values() for points in curves.values()])
        panel.legend(frameon=False, fontsize="small")
    save_out(figure, path)
    return True


def _panels(rows: Iterable[Mapping[str, Any]]) -> dict[str, Panel]:
    panels: dict[str, Panel] = {}
    staleness: Panel = {}
    for row in rows:
        # Evaluations use shared parameters, so their group does not matter.
        key = row["phase"], row.get("group", 0) if row["phase"] == "train" else 0
        for metric, value in metrics_of(row).items():
            panels.setdefault(metric, {}).setdefault(key, {})[row["step"]] = value
        if "server_staleness" in row:
            staleness.setdefault(key, {})[row["step"]] = row["server_staleness"]
    return panels | ({"staleness": staleness} if any(any(line.values()) for line in staleness.values()) else {})


def _draw(panel: Axes, name: str, curves: Panel) -> None:
    groups = sorted(group for phase, group in curves if phase == "train")
    for phase, group, colour, label in _styles(curves, groups):
        one_of_many = phase == "train" and len(groups) > 1
        points = sorted(curves[phase, group].items())
        steps, values = zip(*(_with_gaps(points) if one_of_many else points), strict=True)
        panel.plot(
            steps,
            values,
            label=label,
            color=colour,
            marker="o" if phase != "train" or len(steps) < 3 else None,
            markersize=3 if one_of_many else 4,
            linewidth=0.9 if one_of_many else 1.5,
        )
    _finish(panel, name, curves.values())
    if name != "staleness":  # the other panels have the legend
        panel.legend(frameon=False, fontsize="small" if len(groups) > 3 else None)


def _finish(panel: Axes, name: str, curves: Iterable[Points]) -> None:
    """Scale, labels and title of a panel."""
    if name == "loss" and min(value for points in curves for value in points.values()) > 0:
        panel.set_yscale("log")
    if name == "staleness":
        panel.set_ylim(bottom=0)
        panel.set_ylabel("updates by others")
    panel.set_xlabel("step")
    panel.set_title(name)
    panel.grid(alpha=0.3)


def _with_gaps(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The points, with a missing value in each gap that is much wider than usual: the group was absent.

    >>> list(_with_gaps([(0, 3.0), (10, 2.0), (20, 1.5), (90, 1.0)]))
    [(0, 3.0), (10, 2.0), (20, 1.5), (55.0, nan), (90, 1.0)]
    """
    usual = median(after[0] - before[0] for before, after in pairwise(points)) if len(points) > 1 else 0
    for before, after in pairwise(points):
        yield before
        if after[0] - before[0] > 4 * usual:
            yield (before[0] + after[0]) / 2, math.nan
    yield points[-1]


def _styles(curves: Panel, groups: list[int]) -> Iterator[tuple[str, int, Any, str | None]]:
    """Phase, group, colour and label of every curve. Evaluations come last, to be drawn on top."""
    last = len(groups) - 1
    labelled = min(len(groups), LABELLED_GROUPS)
    named = {groups[round(i * last / (labelled - 1))] for i in range(labelled)} if last > 0 else set()
    for place, group in enumerate(groups):
        if last == 0:
            yield "train", group, COLOURS["train"], "train"
        else:
            label = f"train, group {group}" if group in named else None
            yield "train", group, _shade(COLOURS["train"], place / last), label
    for phase, group in curves:
        if phase != "train":
            yield phase, group, COLOURS.get(phase), phase


def _shade(colour: str, lightness: float) -> tuple[float, ...]:
    """A shade of the colour, from darker (0) to lighter (1)."""
    from matplotlib.colors import to_rgb

    end, share = (0.0, 0.45 - 0.9 * lightness) if lightness < 0.5 else (1.0, 1.1 * lightness - 0.55)
    return tuple(part + (end - part) * share for part in to_rgb(colour))
