"""A plan as a picture: samples/s against the number of workers, by strategy."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from singa_dask.job import Strategy
from singa_dask.monitor.figures import new_figure
from singa_dask.monitor.plan_table import describe
from singa_dask.planning.advise import EXTRAPOLATED, NAMES, Advice, name
from singa_dask.planning.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    Strategy.ALLREDUCE: "#4c78a8",
    Strategy.SANDBLASTER: "#f58518",
    Strategy.DOWNPOUR: "#54a24b",
    Strategy.HOGWILD: "#b279a2",
    Strategy.HYBRID: "#e45756",
}
MARKERS = {
    Strategy.ALLREDUCE: "o",
    Strategy.SANDBLASTER: "s",
    Strategy.DOWNPOUR: "^",
    Strategy.HOGWILD: "D",
    Strategy.HYBRID: "v",
}
WIDE = 8  # ratio of the numbers of workers from which on the axes are logarithmic
INK, GREY = "#222222", "#888888"


def plan_figure(advice: Advice, job: str) -> Figure:
    """The best candidate without a codec of each strategy and number of workers, and the recommended one.

    Markers are filled where all layers were measured on these machines.
    """
    figure = new_figure(7.2, 5.2, layout="constrained")
    from matplotlib.ticker import LogLocator

    axes = figure.subplots()
    lines = best_by_strategy(advice)
    for strategy, points in lines.items():
        _draw(axes, advice, strategy, points)
    _draw_ideal(axes, advice)
    _mark(axes, advice)
    counts = sorted({each.candidate.topology.nworkers for each in advice.predictions})
    if counts[-1] >= WIDE * counts[0]:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:,.10g}")
    else:
        axes.set_ylim(0, 1.08 * max(each.samples_per_s for each in advice.predictions))
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set(xlabel="workers", ylabel="samples/s")
    axes.set_title(
        f"{job}: {describe(advice.machines, advice.memory.host).partition(';')[0]}", fontsize=10, loc="left"
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8.5)
    return figure


def best_by_strategy(advice: Advice) -> dict[Strategy, list[Prediction]]:
    """By strategy, the best prediction without a codec of each number of workers. All begin with one worker."""
    best: dict[Strategy, dict[int, Prediction]] = defaultdict(dict)
    for each in advice.predictions:
        topology = each.candidate.topology
        if topology.codec != "kFull" or not advice.fits(each) or topology.nworkers == 1:
            continue
        known = best[topology.strategy].get(topology.nworkers)
        if known is None or each.samples_per_s > known.samples_per_s:
            best[topology.strategy][topology.nworkers] = each
    lines = {strategy: best[strategy] for strategy in COLOURS if strategy in best}
    return {strategy: [advice.base, *(line[n] for n in sorted(line))] for strategy, line in lines.items()}


def _draw(axes: Axes, advice: Advice, strategy: Strategy, points: list[Prediction]) -> None:
    xs, ys = [each.candidate.topology.nworkers for each in points], [each.samples_per_s for each in points]
    colour, marker = COLOURS[strategy], MARKERS[strategy]
    label = NAMES.get(strategy, strategy.value)
    axes.plot(xs, ys, color=colour, linewidth=1.5, marker=marker, markersize=5, label=label, zorder=3)
    rough = [(x, y) for x, y, each in zip(xs, ys, points, strict=True) if is_rough(advice, each)]
    if rough:
        axes.plot(*zip(*rough, strict=True), color=colour, marker=marker, markersize=5, ls="", mfc="white", zorder=4)


def is_rough(advice: Advice, prediction: Prediction) -> bool:
    """Whether a prediction rests on what was not measured on these machines."""
    return advice.machines.imagined or prediction.extrapolated > EXTRAPOLATED


def _draw_ideal(axes: Axes, advice: Advice) -> None:
    """One worker, times the cores that more workers have."""
    cores = {each.candidate.topology.nworkers: advice.cores(each.candidate) for each in advice.predictions}
    xs = sorted(cores)
    ys = [advice.base.samples_per_s * cores[x] for x in xs]
    axes.plot(
        xs, ys, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label="ideal: one worker's rate per core", zorder=6
    )


def _mark(axes: Axes, advice: Advice) -> None:
    chosen = advice.recommended
    at = chosen.candidate.topology.nworkers, chosen.samples_per_s
    label = f"recommended: {name(chosen.candidate)}"
    axes.plot(*at, marker="o", markersize=13, mfc="none", mec=INK, ls="", label=label, zorder=5)
    if any(is_rough(advice, each) for each in advice.predictions):
        axes.plot([], [], marker="o", mfc="white", mec=GREY, ls="", label="not measured on these machines")
