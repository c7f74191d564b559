"""Training curves as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

COLOURS = {"train": "#4c78a8", "validate": "#f58518", "test": "#e45756"}


def draw_curves(rows: Iterable[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw every metric over the steps, one panel per metric, one line per phase.

    rows: {"phase": "train"|"validate"|"test", "step": int, <metric>: float, ...}, as in metrics.jsonl.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    series: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in rows:
        for metric, value in row["metrics"].items():
            series.setdefault(metric, {}).setdefault(row["phase"], []).append((row["step"], value))
    if not series:
        return
    figure = Figure(figsize=(5.2 * len(series), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    panels = figure.subplots(1, len(series), squeeze=False)[0]
    for panel, (metric, phases) in zip(panels, series.items(), strict=True):
        for phase, points in phases.items():
            steps, values = zip(*sorted(points), strict=True)
            marker = "o" if phase != "train" or len(steps) < 3 else None
            panel.plot(
                steps, values, label=phase, color=COLOURS.get(phase), marker=marker, markersize=4, linewidth=1.5
            )
        if metric == "loss" and min(v for points in phases.values() for _, v in points) > 0:
            panel.set_yscale("log")
        panel.set_xlabel("step")
        panel.set_title(metric)
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
    figure.savefig(path, dpi=120)
