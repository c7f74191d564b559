"""Pictures of what a net predicts: confusion matrix, parity plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.algorithms.metrics import r2
from singa_dask.errors import DataError
from singa_dask.monitor.figures import new_figure, panels, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE = "#4c78a8", "#f58518"
DENSITY = ("#bcd3ee", "#4c78a8", "#0d2a4a")  # from few points to many
PANELS_PER_ROW, PANELS = 3, 9
WRITTEN_CLASSES = 20  # up to so many, the cells of a confusion matrix have numbers
TICKS = 40
DENSE = 800  # points from which on their density is drawn
NAME_LENGTH = 24


def plot_confusion(
    matrix: Any, path: str | Path, *, names: Sequence[str] | None = None, title: str = "Confusion matrix"
) -> None:
    """Draw a confusion matrix as PNG: cell (i, j) has the rows of class i that are predicted as class j.

    matrix: (N, N), as the metric "confusion" and scikit-learn's `confusion_matrix` give it. Colours are shares of the
    rows of a class. names: of the classes, else their numbers. Raises DataError if the sizes do not fit.
    """
    counts = np.asarray(matrix, np.float64)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.size:
        raise DataError(f"a confusion matrix must be square. Received: shape {counts.shape}.")
    size = len(counts)
    labels = [_short(name) for name in names] if names else [str(i) for i in range(size)]
    if len(labels) != size:
        raise DataError(f"names must have one entry per class, {size}. Received: {len(labels)}.")
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    longest = max(map(len, labels))
    cell = 0.55 if size <= WRITTEN_CLASSES else max(0.12, 9.0 / size)
    side, upright = max(3.4, cell * size), longest > 3
    figure = new_figure(1.08 * side + 0.1 * longest + 1.9, side + 0.07 * longest * upright + 1.1, layout="constrained")
    from matplotlib.colors import PowerNorm

    axes = figure.subplots()
    # The root shows errors, which are small shares.
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    ticks = np.arange(0, size, -(-size // TICKS))
    axes.set_xticks(
        ticks, [labels[i] for i in ticks], rotation=45 if upright else 0, ha="right" if upright else "center"
    )
    axes.set_yticks(ticks, [labels[i] for i in ticks])
    if upright:
        for text in axes.get_xticklabels():
            text.set_rotation_mode("anchor")
    axes.tick_params(length=0, labelsize=9 if size <= WRITTEN_CLASSES else 7)
    axes.set(xlabel="predicted class", ylabel="actual class")
    samples = float(counts.sum())
    correct = 100 * counts.trace() / samples if samples else float("nan")
    what = f"% of {samples:,.0f} samples are correct" if samples.is_integer() else "% are correct, by weight"
    axes.set_title(f"{title}\n{correct:.2f} {what}", fontsize=11)
    if size <= WRITTEN_CLASSES:
        _write_counts(axes, counts, shares)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1])
    bar.ax.set_yticklabels(["0", "1 %", "5 %", "20 %", "50 %", "100 %"], fontsize=8)
    bar.set_label("share of the actual class", fontsize=9)
    bar.outline.set_visible(False)
    save(figure, Path(path))


def plot_parity(
    prediction: Any, target: Any, path: str | Path, *, names: Sequence[str] | None = None, title: str = ""
) -> None:
    """Draw predictions against targets as PNG, one panel per target, with the line on which they are equal.

    prediction, target: (R,) or (R, K); the first PANELS targets are drawn, and of many points the density. Rows that
    are not finite are left out. names: of the targets. Raises DataError if the shapes differ.
    """
    given = [np.asarray(array, np.float64) for array in (prediction, target)]
    if given[0].size != given[1].size or not given[0].size or len(given[0]) != len(given[1]):
        raise DataError(f"prediction and target must have one shape. Received: {given[0].shape}, {given[1].shape}.")
    pairs = np.stack([array.reshape(len(array), -1) for array in given], axis=2)[:, :PANELS]
    count = pairs.shape[1]
    if names is not None and len(names) < count:
        raise DataError(f"names must have one entry per target, {count}. Received: {len(names)}.")
    ncolumns = 2 if count == 4 else min(count, PANELS_PER_ROW)
    height = 4.2 * -(-count // ncolumns) + (0.5 if title else 0.1)
    figure = new_figure(3.9 * ncolumns + 0.4, height, layout="constrained")
    if title:
        figure.suptitle(title)
    for i, panel in enumerate(panels(figure, count, ncolumns)):
        default = "" if count == 1 else f"target {i}"
        _draw_parity(panel, pairs[:, i], _short(names[i]) if names is not None else default)
    save(figure, Path(path))


def _draw_parity(panel: Axes, pairs: np.ndarray, name: str) -> None:
    finite = pairs[np.isfinite(pairs).all(axis=1)]
    panel.set(xlabel="target", ylabel="prediction")
    panel.set_title(name, fontsize=11)
    if not len(finite):
        panel.text(0.5, 0.5, "no finite values", ha="center", transform=panel.transAxes)
        return
    prediction, target = finite.T
    low, high = float(finite.min()), float(finite.max())
    margin = 0.04 * (high - low) or max(abs(high), 1.0) * 0.04
    limits = low - margin, high + margin
    panel.plot(limits, limits, color=ORANGE, linewidth=1.2, zorder=3)
    if len(finite) < DENSE:
        panel.scatter(target, prediction, s=14, color=BLUE, alpha=0.55, linewidths=0, zorder=2)
    else:
        from matplotlib.colors import LinearSegmentedColormap

        shades = LinearSegmentedColormap.from_list("density", DENSITY)
        panel.hexbin(target, prediction, gridsize=48, extent=(*limits, *limits), bins="log", mincnt=1, cmap=shades)
    panel.set(xlim=limits, ylim=limits, aspect="equal")
    panel.grid(alpha=0.3)
    panel.locator_params(nbins=6)
    error = prediction - target
    lines = [f"R² {r2(prediction, target, ()):.4f}"] if len(target) > 1 else []
    lines += [f"MAE {abs(error).mean():.4g}", f"{len(finite):,} points"]
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 2}
    panel.text(0.03, 0.97, "\n".join(lines), va="top", fontsize=9, transform=panel.transAxes, bbox=box, zorder=4)


def _write_counts(axes: Axes, counts: np.ndarray, shares: np.ndarray) -> None:
    for i, j in np.ndindex(counts.shape):
        if counts[i, j]:
            colour = "white" if shares[i, j] > 0.3 else "#222222"
            text = _count(float(counts[i, j]))
            size = 9 if len(text) <= 4 else 7 if len(text) <= 6 else 5.5
            axes.text(j, i, text, ha="center", va="center", color=colour, fontsize=size)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"


def _short(name: str) -> str:
    name = str(name)
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"
