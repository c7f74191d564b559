"""How well the cost model predicts: the step times of at least 200 runs, each predicted before it is measured.

make bench BENCH=plan          # or: python benchmarks/plan.py --points 200 --json plan.json --plot plan.png

A point is a job, a strategy, a topology, a partition, a codec, and a cluster: Dask workers that share this machine,
or hosts with a worker each on a limited network. These are namespaces of Linux, for which it must run as root. A seed
draws the points. Each point is a run of `train()` on the cluster, in each of several rounds. measured: the median step
over intervals of metrics.jsonl, once the run has chosen whether its exchange overlaps; of the rounds, the median.

What the model knows is a profile, measured on the cluster's own workers, and nothing of the points. A shared machine
is sometimes a third slower for minutes, and sometimes for seconds. So a cluster is profiled again before the points of
every job, the layers of the job are measured again in every round, and the model is given the medians.

    error = predicted step / measured step - 1

The profiles lie beside the file of --json. --again predicts its points once more from them, and measures nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from parts import plan_auto, plan_measured, plan_report
from parts.plan_jobs import drawn_jobs
from parts.plan_points import CONDITIONS, drawn_points
from rich.console import Console
from tools.network import NotHere
from tools.report import begun, end, show

from singa_dask.planning.profile import Profile

PARTS = ("points", "auto")


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), default=PARTS, help="Default: both.")
@click.option("--points", "count", default=200, show_default=True, help="Points at least.")
@click.option("--seed", default=23, show_default=True, help="Of the points.")
@click.option(
    "--only", multiple=True, type=click.Choice([c.name for c in CONDITIONS]), help="Points of these clusters."
)
@click.option("--rounds", default=7, show_default=True, help="Rounds in which partitions take turns (part auto).")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here, each when it is there.")
@click.option("--resume", is_flag=True, help="Keep what the file of --json has, and measure the rest.")
@click.option("--again", is_flag=True, help="Predict what the file of --json has measured, and measure nothing.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw predicted against measured times here.")
def main(
    parts: tuple[str, ...],
    count: int,
    seed: int,
    only: tuple[str, ...],
    rounds: int,
    out: Path | None,
    resume: bool,
    again: bool,
    plot: Path | None,
) -> None:
    """Predict and measure points, and compare partitions that the model chooses with others."""
    if (resume or again) and out is None:
        raise click.UsageError("--resume and --again need --json, the file to read.")
    console = Console(width=180)
    figures: dict[str, Any] = begun() | {"seed": seed, "points": []}
    if out and (resume or again):
        figures |= json.loads(out.read_text())
    missing = ""
    if "points" in parts:
        _points(console, figures, count, only, out, again=again)
        _conclude(console, figures)
    if "auto" in parts and not again:
        try:
            for part, measure in (("auto_machine", plan_auto.on_machine), ("auto_network", plan_auto.on_hosts)):
                rows = figures[part] = measure(rounds)
                show(console, f"{part}: partitions in turns; faster = than dim 0", rows)
                show(console, "auto is so many times as fast", plan_auto.verdicts(rows))
        except (NotHere, plan_auto.Unprofiled) as error:
            missing = f"The part auto was left out: {error}."
    if plot:
        plan_report.draw(figures["points"], plot)
    end(console, figures, out)
    if missing:
        raise click.ClickException(missing)


def _points(
    console: Console, figures: dict[str, Any], count: int, only: tuple[str, ...], out: Path | None, *, again: bool
) -> None:
    jobs = drawn_jobs(figures["seed"])
    points = [p for p in drawn_points(jobs, count, figures["seed"]) if not only or p.condition.name in only]
    profiles = _profiles(out)
    if again:
        figures["points"] = plan_measured.again(figures["points"], points, jobs, profiles)
        return
    if not figures["points"]:
        profiles = {}
    figures["points"] = [row for row in figures["points"] if "measured_ms" in row]  # what failed is tried again
    done = {row["key"] for row in figures["points"]}

    def keep(row: plan_measured.Row) -> None:
        figures["points"].append(row)
        if out:
            _replace(out, json.dumps(figures, indent=1))
            texts = {name: [profile.to_json() for profile in found] for name, found in profiles.items()}
            _replace(_beside(out), json.dumps(texts))
        said = row.get("failed") or row.get("unpredicted") or f"error {100 * row['error']:+.1f} %"
        times = f"{row.get('predicted_ms', '-')} ms predicted, {row.get('measured_ms', '-')} measured"
        console.print(f"{len(figures['points'])}. {row['key']}: {times}, {said}", style="dim", highlight=False)

    left = [point for point in points if point.key not in done]
    plan_measured.measure(left, jobs, profiles, keep, console.print)
    figures["points"] = plan_measured.again(figures["points"], points, jobs, profiles)


def _beside(out: Path) -> Path:
    """The file of the profiles."""
    return out.with_suffix(".profiles.json")


def _profiles(out: Path | None) -> plan_measured.Profiles:
    if out is None or not _beside(out).exists():
        return {}
    kept = json.loads(_beside(out).read_text())
    return {name: [Profile.from_json(text) for text in texts] for name, texts in kept.items()}


def _replace(path: Path, text: str) -> None:
    """Replace a file at once: a run that is cut off leaves a whole one."""
    new = path.with_suffix(".new")
    new.write_text(text + "\n")
    new.replace(path)


def _conclude(console: Console, figures: dict[str, Any]) -> None:
    rows = figures["points"]
    total = figures["summary"] = plan_report.summary(rows)
    figures["by"] = {
        column: plan_report.by(rows, column) for column in ("strategy", "partition", "codec", "condition")
    }
    figures["largest"] = plan_report.worst(rows)
    figures["missed"] = [choice for choice in plan_report.choices(rows) if choice["lost"] > plan_report.NEAR]
    for column, found in figures["by"].items():
        show(console, f"errors by {column}", found)
    show(console, "the largest errors", figures["largest"])
    show(console, "choices that are not near the best", figures["missed"])
    console.print({name: value for name, value in total.items() if name != "failed"})
    show(console, "points without a comparison", total["failed"])


if __name__ == "__main__":
    main()
