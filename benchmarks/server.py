"""What the parameter servers cost: an update's round trip, how long worker groups wait for their servers, and replicas
(on two namespaces, which needs root).

make bench BENCH=server                  # or: python benchmarks/server.py --part round-trips --json server.json
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from parts import replicas, round_trips, waiting
from rich.console import Console
from tools.contest import UNSET
from tools.report import begun, end, show

SIZES = tuple(round_trips.PAIRS)
PARTS = ("round-trips", "waiting", "replicas")


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Default: the first two.")
@click.option("--mb", "sizes", multiple=True, type=float, default=SIZES, show_default=True, help="Of gradients.")
@click.option("--rounds", default=5, show_default=True, help="Of the round trips, each with a server of its own.")
@click.option("--net", "nets", multiple=True, type=click.Choice(waiting.NETS), help="Default: all.")
@click.option("--steps", default=50, show_default=True, help="Of each training run.")
@click.option("--repeats", default=3, show_default=True, help="Pairs of training runs.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(
    parts: tuple[str, ...],
    sizes: tuple[float, ...],
    rounds: int,
    nets: tuple[str, ...],
    steps: int,
    repeats: int,
    out: Path | None,
) -> None:
    """Time updates against raw Dask actors, and measure how long Downpour waits for its servers."""
    for name in UNSET:
        os.environ.pop(name, None)
    console = Console(width=120)
    figures = begun()
    if not parts or "round-trips" in parts:
        rows = figures["round_trips"] = round_trips.measure(sizes, rounds)
        show(console, "one update and back / a raw Dask actor", rows)
    if not parts or "waiting" in parts:
        rows = figures["waiting"] = [
            row
            for net in nets or waiting.NETS
            for layout in waiting.LAYOUTS
            for row in waiting.measure(net, layout, steps, repeats)
        ]
        show(
            console,
            "Downpour, layout = groups x workers + servers; stall = share of a step; ratios to no one_behind",
            rows,
        )
    if "replicas" in parts:
        rows = figures["replicas"] = [
            row for net in nets or replicas.NETS for row in replicas.measure(net, steps, repeats)
        ]
        show(console, "Downpour, 2 groups x 1 worker + 2 servers on 2 hosts, without and with replicas", rows)
    end(console, figures, out)


if __name__ == "__main__":
    main()
