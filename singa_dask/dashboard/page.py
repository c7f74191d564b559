"""The page Training: plots of a run, which follow what the scheduler hears of it, and a table of runs.

The scheduler tells a page what is new in one message of JSON; page.js draws it.
"""

from __future__ import annotations

import colorsys
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from bokeh.layouts import column
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJS,
    DataRange1d,
    DataTable,
    Div,
    FactorRange,
    HoverTool,
    LinearColorMapper,
    NumeralTickFormatter,
    Range1d,
    Select,
    TableColumn,
)
from bokeh.plotting import figure
from distributed.dashboard import scheduler as dask_pages
from distributed.dashboard.components import DashboardComponent, add_periodic_callback
from distributed.dashboard.components.scheduler import BOKEH_THEME, env
from distributed.dashboard.core import BokehApplication
from tornado.ioloop import IOLoop

from singa_dask.dashboard.history import LatestRuns, Row, RunHistory
from singa_dask.dashboard.plugin import PAGE, list_page

EVERY_MS = 450
SHARE = 0.01  # of the scheduler's time, at most
KEPT = 16  # messages that a busy browser may be late with
GROUPS_NAMED = 16
HEIGHT = 240
# By name: title, and format of its axis. The first two are named by what the run measures.
QUANTITIES = {
    "loss": ("", "0.[000]"),
    "metric": ("", "0.[000]"),
    "samples_per_s": ("samples/s of a worker group", "0.[0]a"),
    "staleness": ("staleness: updates that a gradient lacks", "0.[0]"),
    "nbytes": ("bytes that a worker group sends in a step", "0.[0]a"),
}
TIMES = {"computing": "#4c9f70", "waiting": "#d1813b", "loading": "#7a7fd0"}
MARKS = {
    "restart": "#d64550",
    "back": "#3a9d5d",
    "join": "#3a86c8",
    "end": "#8a8a8a",
    "checkpoint": "#b08d57",
    "note": "#9467bd",
}
COLUMNS = {
    "job": 130, "strategy": 95, "state": 85, "step": 110, "samples/s": 80, "restarts": 65, "began": 130, "result": 250,
    "folder": 330,
}  # fmt: skip
TABLE_STYLE = """
.slick-header-column, .slick-row, .slick-cell, .slick-viewport { color: inherit; background: transparent; }
.slick-cell.selected { background: rgba(234, 170, 109, 0.35); }
"""
HERE = Path(__file__).parent


def connect(scheduler: Any, runs: LatestRuns, whole: bool, prefix: str) -> None:
    """Add the page to a scheduler's dashboard. whole: Dask's own pages too."""
    if whole:
        dask_pages.connect(scheduler.http_application, scheduler.http_server, scheduler, prefix=prefix)
    pages = {f"/{PAGE}": partial(document, runs)}
    application = BokehApplication(pages, scheduler, prefix=prefix, template_variables=list_page(scheduler))
    scheduler.http_application.add_application(application)
    application.initialize(IOLoop.current())
    application.start()


def document(runs: LatestRuns, scheduler: Any, extra: Mapping[str, Any], doc: Any) -> None:
    """Fill a document of Bokeh for somebody who looks."""
    page = Page(runs)
    with doc.models.freeze():  # else it looks for the parts of all roots again with each of them
        for root in page.roots:
            doc.add_root(root)
    doc.title, doc.theme = "Dask: Training", BOKEH_THEME
    doc.template = env.from_string((HERE / "page.html").read_text(encoding="utf-8"))
    doc.template_variables.update(extra)
    doc.js_on_event("document_ready", page.draws)
    add_periodic_callback(doc, page, EVERY_MS)


def colour(group: int) -> str:
    """Of a worker group: hues far from each other, legible on light and on dark."""
    red, green, blue = colorsys.hls_to_rgb((0.58 + 0.618 * group) % 1.0, 0.48, 0.62)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


COLOURS = [colour(group) for group in range(256)]


class Page(DashboardComponent):
    """What one looker sees. It takes at most SHARE of the scheduler's time, and nothing where nothing is new."""

    def __init__(self, runs: LatestRuns) -> None:
        self.runs, self.chosen, self._metric = runs, "", ""
        self._version, self._due, self._number, self._following = -1, 0.0, 0, True
        self._shown: tuple[Any, ...] = ()  # run, cuts and metrics of the rows that the page has
        self._sent: dict[str, int] = {}  # how many rows, evaluations and marks it has
        self._wire = _source("number", "told")
        self.select = Select(options=[], height=32, visible=False)
        self._make()
        self.show()

    def _make(self) -> None:
        ends = [f"{name}{end}" for end in "01" for name in ("at", *QUANTITIES)]
        self._lines, self._points = _source("group", "step", *ends), _source("group", "what", "at", "loss", "metric")
        self._marks, self._times = _source("at", "kind", "text", "colour"), _source("place", "rank", *TIMES)
        table = _source(*COLUMNS)
        # The tag makes the wire a part of the document.
        head, seconds = (
            Div(name="wide", sizing_mode="stretch_width", tags=[self._wire]),
            DataRange1d(range_padding=0.02),
        )
        cells = [TableColumn(field=name, title=name, width=width) for name, width in COLUMNS.items()]
        runs = DataTable(
            source=table, columns=cells,
            index_position=None, sortable=False, autosize_mode="none", width=sum(COLUMNS.values()) + 20, height=110,
            stylesheets=[TABLE_STYLE], name="wide",
        )  # fmt: skip
        table.selected.on_change("indices", self._choose)
        self.select.on_change("value", self._pick)
        plots = {name: self._plot(seconds, name) for name in QUANTITIES}
        kinds = figure(
            y_range=FactorRange(*reversed(MARKS)), title="what happened", **_over_time(seconds, "wide", 180)
        )
        for plot in (*plots.values(), kinds):
            plot.xaxis.formatter = NumeralTickFormatter(format="00:00:00")
            plot.vspan(x="at", source=self._marks, line_color="colour", line_dash="dotted", level="underlay")
        dots = kinds.scatter("at", "kind", source=self._marks, color="colour", marker="diamond", size=11)
        kinds.add_tools(HoverTool(renderers=[dots], tooltips=[("@kind", "@text")]))
        metric = column(self.select, plots["metric"], sizing_mode="stretch_width", name="plot")
        times, others = self._plot_times(), [plots[name] for name in (*QUANTITIES,)[2:]]
        self.roots = [head, runs, plots["loss"], metric, *others, times, kinds]
        models = {
            "wire": self._wire, "lines": self._lines, "points": self._points, "marks": self._marks,
            "times": self._times, "times_axis": times.xaxis[0], "table": table, "view": runs.view, "head": head,
            "plots": plots, "figures": [*plots.values(), times, kinds],
        }  # fmt: skip
        self.draws = CustomJS(args=models, code=(HERE / "page.js").read_text(encoding="utf-8"))
        self._wire.js_on_change("streaming", self.draws)

    def _plot(self, seconds: Any, name: str) -> Any:
        title, numbers = QUANTITIES[name]
        values = DataRange1d(start=0) if title else DataRange1d()
        plot = figure(title=title or name, y_range=values, **_over_time(seconds, "plot", HEIGHT))
        plot.yaxis.formatter = NumeralTickFormatter(format=numbers)
        mapper = LinearColorMapper(palette=COLOURS, low=0, high=len(COLOURS))
        colours = {"field": "group", "transform": mapper}
        shown = plot.segment("at0", f"{name}0", "at1", f"{name}1", source=self._lines, color=colours, line_width=1.6)
        rows = [("worker group", "@group"), ("step", "@step"), (name, f"@{name}1{{0.[0000]}}")]
        plot.add_tools(HoverTool(renderers=[shown], tooltips=rows))
        if name in ("loss", "metric"):
            dots = plot.scatter("at", name, source=self._points, color=colours, size=8)
            plot.add_tools(HoverTool(renderers=[dots], tooltips=[("", "@what"), (name, f"@{name}{{0.[0000]}}")]))
        return plot

    def _plot_times(self) -> Any:
        plot = figure(title="where the time of each rank goes", y_range=Range1d(0, 1), **_look("plot", HEIGHT))
        bars = {"color": [*TIMES.values()], "legend_label": [*TIMES], "source": self._times}
        plot.vbar_stack([*TIMES], x="place", width=0.8, **bars)
        rows = [("rank", "@rank"), *((name, f"@{name}{{0 %}}") for name in TIMES)]
        plot.add_tools(HoverTool(tooltips=rows))
        plot.xaxis.ticker, plot.xaxis.axis_label = BasicTicker(min_interval=1, num_minor_ticks=0), "group.rank"
        plot.yaxis.formatter = NumeralTickFormatter(format="0 %")
        plot.add_layout(plot.legend[0], "above")
        plot.legend[0].update(orientation="horizontal", background_fill_alpha=0, border_line_alpha=0, padding=0)
        return plot

    def _choose(self, name: str, old: Sequence[int], new: Sequence[int]) -> None:
        """Show the run whose row was clicked, and follow newer ones only if it is the newest."""
        keys = [key for key, _ in self.runs.newest_first()]
        if new and new[0] < len(keys) and keys[new[0]] != self.chosen:
            self.chosen, self._following = keys[new[0]], new[0] == 0
            self.show()

    def _pick(self, name: str, old: str, new: str) -> None:
        """Show another metric beside the loss."""
        if new != self._metric:
            self._metric = new
            self.show()

    def update(self, messages: Any = None) -> None:
        """Show what is new, if it is time to."""
        if self.runs.version != self._version and time.monotonic() >= self._due:
            began = time.thread_time()
            self.show()
            self._due = time.monotonic() + (time.thread_time() - began) / SHARE

    def show(self) -> None:
        """Tell the page what is new."""
        self._version, runs = self.runs.version, self.runs.newest_first()
        keys = [key for key, _ in runs]
        if runs and (self._following or self.chosen not in keys):
            self.chosen = keys[0]
        told: dict[str, Any] = {"runs": [_cells(run) for _, run in runs], "chosen": []}
        if runs:
            told |= {"chosen": [keys.index(self.chosen)], **self._news(self.runs[self.chosen])}
        self._number += 1
        self._wire.stream({"number": [self._number], "told": [json.dumps(told)]}, KEPT)

    def _news(self, run: RunHistory) -> dict[str, Any]:
        """What is new of a run."""
        others = run.metrics[1:]
        if others != self.select.options:
            self._metric = self._metric if self._metric in others else [*others, ""][0]
            self.select.update(options=others, visible=len(others) > 1, value=self._metric)
        names = [*run.metrics[:1], *filter(None, [self._metric])]
        shown = (self.chosen, run.cuts, *names)
        if fresh := shown != self._shown:
            self._shown, self._sent = shown, {}
        latest = [*run.latest.values()]
        titles = {"loss": names[0] if names else "loss", "metric": names[1] if names[1:] else None}
        for name in ("staleness", "nbytes"):
            titles[name] = QUANTITIES[name][0] if any(getattr(row, name) is not None for row in latest) else None
        rows = run.rows[self._sent.get("rows", 0) :]
        self._sent["rows"] = len(run.rows)
        news = {"head": _head(run), "fresh": fresh, "titles": titles, "times": _times(run)}
        news["rows"] = [_line(row, names) for row in rows]
        if self._sent.get("points") != run.evaluated:
            self._sent["points"] = run.evaluated
            news["points"] = [_point(row, names) for row in run.evaluations]
        if self._sent.get("marks") != run.marked:
            self._sent["marks"] = run.marked
            news["marks"] = [(mark.at, mark.kind, mark.text, MARKS[mark.kind]) for mark in run.marks]
        return news


def _source(*columns: str) -> ColumnDataSource:
    return ColumnDataSource({name: [] for name in columns})


def _look(name: str, height: int) -> dict[str, Any]:
    """name: the class of its place in page.html."""
    sizes = {"height": height, "min_width": 200, "sizing_mode": "stretch_width"}
    return {"tools": "pan,xwheel_zoom,box_zoom,reset", "toolbar_location": "right", "name": name, **sizes}


def _over_time(seconds: Any, name: str, height: int) -> dict[str, Any]:
    return {"x_range": seconds, **_look(name, height)}


def _line(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    two = [*map(row.metrics.get, names), None, None][:2]
    return row.group, row.step, row.starts, row.at, *two, row.samples_per_s, row.staleness, row.nbytes


def _point(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    return row.group, f"{row.phase}, step {row.step}", row.at, *map(row.metrics.get, names)


def _times(run: RunHistory) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for group, row in sorted(run.latest.items()):
        for rank, (wait, loading) in enumerate(zip(row.wait, row.loading, strict=False)):
            loading = min(loading, 1.0 - wait)  # they overlap
            rows.append((len(rows), f"{group}.{rank}", 1.0 - wait - loading, wait, loading))
    return rows


def _head(run: RunHistory) -> str:
    groups = sorted(run.latest)
    named = [f'<span style="color:{colour(group)}">&#9632;</span> group {group}' for group in groups[:GROUPS_NAMED]]
    named += [f"and {len(groups) - GROUPS_NAMED} more"] * (len(groups) > GROUPS_NAMED)
    legend = " ".join(named) if groups[1:] else ""
    return f"<b>{escape(run.job)}</b> ({escape(run.strategy)}, {run.state}) {legend}"


def _cells(run: RunHistory) -> tuple[str, ...]:
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began))
    rate = sum(row.samples_per_s for row in run.latest.values())
    return (
        run.job, run.strategy, run.state, f"{run.step:,}/{run.steps:,}", f"{rate:,.0f}", str(run.restarts), began,
        run.result, run.workspace,
    )  # fmt: skip
