"""What the points say of the model: errors, the choices that rest on it, a table in Markdown and a picture."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from parts.plan_measured import Row

MEDIAN, LARGE, NEAR = 0.08, 0.25, 0.05  # what the model is to reach: errors, and how near to the best its choice is
WORST = 10


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Errors of all points, the choices among them, and the points that have no error because something failed.
    others_cores: what other processes used of the machine, the median over the points."""
    others = [row["others_cores"] for row in rows if "others_cores" in row]
    found = {"points": len(rows), **errors(rows), "others_cores": statistics.median(others) if others else None}
    for name, among in (("all", rows), ("synchronous", [row for row in rows if _exact(row)])):
        judged = choices(among)
        near = [choice for choice in judged if choice["lost"] <= NEAR]
        found[f"choices_{name}"] = {"jobs": len(judged), "near_best": _share(len(near), len(judged))}
    found["failed"] = [
        {"key": row["key"], "why": row.get("failed") or row.get("unpredicted")} for row in rows if "error" not in row
    ]
    return found


def errors(rows: Iterable[Row]) -> dict[str, Any]:
    """Of some points: how many were measured and predicted, the median and the 95th percentile of |error|, the share
    of small and of large ones, and the median of error, which tells whether steps are predicted too long."""
    signed = [row["error"] for row in rows if "error" in row]
    size = sorted(map(abs, signed))
    if not size:
        return {"compared": 0}
    return {
        "compared": len(size),
        "median": round(statistics.median(size), 4),
        "p95": round(size[min(len(size) - 1, int(0.95 * len(size)))], 4),
        "within_8": _share(sum(error <= MEDIAN for error in size), len(size)),
        "within_25": _share(sum(error <= LARGE for error in size), len(size)),
        "bias": round(statistics.median(signed), 4),
    }


def choices(rows: Iterable[Row]) -> list[Row]:
    """For each job and cluster the way that is predicted to be the fastest, and the one that was.

    lost: 1 - samples/s of the chosen one / samples/s of the best one.
    """
    pairs: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if "error" in row:
            pairs[row["job"], row["condition"]].append(row)
    found = []
    for (job, condition), ways in pairs.items():
        if len(ways) > 1:
            chosen = max(ways, key=lambda row: row["predicted_samples_per_s"])
            best = max(ways, key=lambda row: row["samples_per_s"])
            row = {"job": job, "condition": condition, "ways": len(ways), "chosen": chosen["way"], "best": best["way"]}
            found.append({**row, "lost": round(1 - chosen["samples_per_s"] / best["samples_per_s"], 3)})
    return found


def by(rows: Sequence[Row], column: str) -> list[dict[str, Any]]:
    """Errors by the values of a column, in the order in which they come."""
    values = dict.fromkeys(row[column] for row in rows)
    return [{column: value, **errors([row for row in rows if row[column] == value])} for value in values]


def worst(rows: Iterable[Row], count: int = WORST) -> list[dict[str, Any]]:
    """The points with the largest errors."""
    ordered = sorted((row for row in rows if "error" in row), key=lambda row: -abs(row["error"]))
    return [
        {
            "job": row["job"],
            "condition": row["condition"],
            "way": row["way"],
            "predicted_ms": row["predicted_ms"],
            "measured_ms": row["measured_ms"],
            "rounds": "{:.4g} to {:.4g}".format(min(row["rounds_ms"]), max(row["rounds_ms"])),
            "error": row["error"],
            "others_cores": row["others_cores"],
            "parts": ", ".join(f"{name} {ms:.3g}" for name, ms in row["parts_ms"].items()),
        }
        for row in ordered[:count]
    ]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Predicted against measured step times, by strategy, with the bands of 8 and 25 %."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    compared = [row for row in rows if "error" in row]
    times = [row[name] for row in compared for name in ("predicted_ms", "measured_ms")] or [1.0, 10.0]
    ends = [0.8 * min(times), 1.25 * max(times)]
    figure, axes = plt.subplots(figsize=(6.4, 6.0), layout="constrained")
    for band, shade in ((LARGE, 0.12), (MEDIAN, 0.25)):
        low, high = ([end * (1 + sign * band) for end in ends] for sign in (-1, 1))
        axes.fill_between(ends, low, high, color="grey", alpha=shade, linewidth=0, label=f"±{band:.0%}")
    axes.plot(ends, ends, color="black", linewidth=0.8)
    for strategy in dict.fromkeys(row["strategy"] for row in compared):
        some = [row for row in compared if row["strategy"] == strategy]
        x, y = ([row[name] for row in some] for name in ("measured_ms", "predicted_ms"))
        axes.scatter(x, y, s=16, alpha=0.8, label=f"{strategy} ({len(some)})")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.set(xlabel="measured step (ms)", ylabel="predicted step (ms)")
    total = errors(rows)
    if compared:
        axes.set_title(
            f"{total['compared']} points: median error {total['median']:.1%}, 95 % below {total['p95']:.0%}"
        )
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _exact(row: Row) -> bool:
    """Whether the way computes what one worker computes."""
    return bool(row["synchronous"]) and row["codec"] == "kFull"


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None
