"""A net as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singa_dask.monitor.columns import Box, Size, draw
from singa_dask.monitor.figures import IMPORT_S, check_format, load_drawing, new_figure, save_out
from singa_dask.monitor.net_tables import format_output
from singa_dask.monitor.traffic import Traffic
from singa_dask.net import LayerRow
from singa_dask.training.memory import format_nbytes
from singa_dask.training.prepare import Prepared

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"batch": "#dbe9f6", "features": "#fde2c4", "input features": "#f9c9d4", "none": "#dcefd8"}
LEGEND = {
    "batch": "rows of the mini-batch are divided",
    "features": "features are divided",
    "input features": "input features are divided; the sums are partial",
    "none": "every worker computes everything",
}
OTHER, TRANSITION, ALONE, INK, GREY = "#eeeeee", "#fff6bf", "#eef1f5", "#222222", "#666666"
TALLEST = 750.0  # points (1/72 inch) of one column
MARGIN, PADDING = 16.0, 9.0
NAME, TEXT, HEADING = 9.0, 7.5, 12.0  # font sizes in points
LINE, KEY = 12.0, 22.0
DASHED = (0, (3, 2))
# Real text in SVG. Viewers without the font that the boxes are measured with have narrower ones.
STYLE: Any = {"svg.fonttype": "none", "font.family": "DejaVu Sans", "svg.hashsalt": "net"}


def draw_net(prepared: Prepared, phase: str, path: Path) -> str:
    """Draw the net of a phase ("train", "validate", "test") as SVG or PNG, and return the totals in words.

    Raises ConfigError if the file cannot be written or has another suffix.
    """
    check_format(path)
    load_drawing().join(IMPORT_S)
    from matplotlib import rc_context

    rows, traffic = prepared.layers[phase], Traffic.of(prepared, phase)
    alone = prepared.topology.nworkers_per_group == 1
    texts = {row.layer: _lines(row, traffic) for row in rows}
    totals = [f"{prepared.parameters:,} parameters", *traffic.summary(rows, prepared.topology.codec)]
    workers, *_ = prepared.topology.describe().partition(";")
    heading = [f"{workers}; mini-batch of {traffic.batch}", *totals]
    legend = _legend(rows, alone)
    edges = [(source, row) for row in rows for source in dict.fromkeys(row.sources)]
    with rc_context(STYLE):
        measure = _measure()
        drawing = draw(_sizes(rows, texts, measure), [(source, row.layer) for source, row in edges], TALLEST)
        top = HEADING + LINE * (len(heading) + len(legend)) + 3 * PADDING
        widths = [measure(text, TEXT) for text in heading] + [KEY + measure(text, TEXT) for _, text in legend]
        width = max(drawing.width, *widths, measure(f"{prepared.job.name}: {phase} net", HEADING)) + 2 * MARGIN
        height = drawing.height + top + 2 * MARGIN
        figure = new_figure(width / 72, height / 72, facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-MARGIN, width - MARGIN), ylim=(height - top - MARGIN, -top - MARGIN))
        axes.set_axis_off()
        _write_heading(axes, f"{prepared.job.name}: {phase} net", heading, legend, -top)
        for line, (source, row) in zip(drawing.lines, edges, strict=True):
            _draw_line(axes, line, source in row.labels)
        for row in rows:
            _draw_box(axes, drawing.boxes[row.layer], texts[row.layer], _colour(row, alone), row)
        # Without a date the same net is the same file.
        save_out(figure, path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    return "; ".join(totals)


def _sizes(
    rows: Sequence[LayerRow], texts: Mapping[str, Sequence[str]], measure: Callable[[str, float], float]
) -> dict[str, Size]:
    """Width and height of every box. All layers are as wide as the widest one."""
    widths = {
        row.layer: max(
            measure(text, NAME if i == 0 and not _is_transition(row) else TEXT)
            for i, text in enumerate(texts[row.layer])
        )
        for row in rows
    }
    widest = max(widths[row.layer] for row in rows if not _is_transition(row))
    return {
        row.layer: (
            (widths[row.layer] if _is_transition(row) else widest) + 2 * PADDING,
            LINE * len(texts[row.layer]) + (4.0 if _is_transition(row) else 8.0),
        )
        for row in rows
    }


def _lines(row: LayerRow, traffic: Traffic) -> list[str]:
    nbytes = traffic.of_layer(row)
    if _is_transition(row):
        return [row.partition, f"{format_nbytes(nbytes)} sent" if nbytes else "nothing sent"]
    lines = [f"{row.layer}  {row.type}", format_output(row)]
    if row.parameters:
        lines.append(f"{row.parameters:,} parameters")
    return [*lines, f"{format_nbytes(nbytes)} sent"] if nbytes else lines


def _is_transition(row: LayerRow) -> bool:
    return row.type in ("Transition", "LabelTransition")


def _measure() -> Callable[[str, float], float]:
    """A function that returns the width of a text in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    def measure(text: str, size: float) -> float:
        font = FontProperties(size=size, weight="bold" if size in (NAME, HEADING) else "normal")
        return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])

    return measure


def _colour(row: LayerRow, alone: bool) -> str:
    if _is_transition(row):
        return TRANSITION
    return ALONE if alone else COLOURS.get(row.partition, OTHER)


def _legend(rows: Sequence[LayerRow], alone: bool) -> list[tuple[str, str]]:
    """(colour, text) of each entry; the colour of a line is empty."""
    entries = []
    if not alone:
        present = dict.fromkeys(row.partition for row in rows if not _is_transition(row))
        entries = [(COLOURS.get(name, OTHER), LEGEND.get(name, name)) for name in present]
    if any(map(_is_transition, rows)):
        entries.append((TRANSITION, "transition between partitions: bytes that each worker sends per step"))
    return [*entries, *([("", "labels")] if any(row.labels for row in rows) else [])]


def _write_heading(axes: Axes, title: str, lines: Sequence[str], legend: Sequence[tuple[str, str]], y: float) -> None:
    from matplotlib.patches import Rectangle

    axes.text(0, y, title, fontsize=HEADING, weight="bold", color=INK, va="top", parse_math=False)
    y += HEADING + PADDING
    for line in lines:
        axes.text(0, y + LINE / 2, line, fontsize=TEXT, color=INK, va="center", parse_math=False)
        y += LINE
    y += PADDING / 2
    for colour, text in legend:
        if colour:
            axes.add_patch(Rectangle((0, y + 2), 16, LINE - 4, facecolor=colour, edgecolor=GREY, linewidth=0.6))
        else:
            axes.plot((0, 16), (y + LINE / 2,) * 2, color=GREY, linewidth=0.8, linestyle=DASHED)
        axes.text(KEY, y + LINE / 2, text, fontsize=TEXT, color=INK, va="center", parse_math=False)
        y += LINE


def _draw_line(axes: Axes, points: Sequence[tuple[float, float]], is_label: bool) -> None:
    """An edge with an arrow at its end."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Line

    style: dict[str, Any] = {"linestyle": DASHED, "color": GREY} if is_label else {"color": "#444444"}
    arrow = "-|>,head_length=3.2,head_width=1.6"
    axes.add_patch(FancyArrowPatch(path=Line(points), arrowstyle=arrow, linewidth=0.8, **style))


def _draw_box(axes: Axes, box: Box, lines: Sequence[str], colour: str, row: LayerRow) -> None:
    from matplotlib.patches import FancyBboxPatch

    rounding = 6.0 if _is_transition(row) else 2.0
    patch = FancyBboxPatch(
        (box.left, box.top),
        box.width,
        box.height,
        boxstyle=f"round,pad=0,rounding_size={rounding}",
        facecolor=colour,
        edgecolor="#998a2e" if _is_transition(row) else "#555555",
        linewidth=0.8,
    )
    patch.set_gid(f"layer {row.layer}")
    axes.add_patch(patch)
    y = box.top + box.height / 2 - LINE * (len(lines) - 1) / 2
    for i, line in enumerate(lines):
        first = i == 0 and not _is_transition(row)
        font: dict[str, Any] = {"fontsize": NAME, "weight": "bold"} if first else {"fontsize": TEXT}
        axes.text(
            box.x,
            y,
            line,
            ha="center",
            va="center_baseline",
            color=INK if i == 0 else "#444444",
            parse_math=False,
            **font,
        )
        y += LINE
