"""What it brings to split a net over workers: seconds, bytes and memory of a step, for fully connected nets.

make bench BENCH=partition               # or: python benchmarks/partition.py --part memory --json partition.json

Four hosts are namespaces of Linux with a token bucket filter, for which it must run as root.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from parts import partitioned
from rich.console import Console
from tools.network import NotHere, congestion, joined_hosts
from tools.report import begun, end, show

PARTS = ("network", "machine", "memory")
WORKERS = 4
RATE = "1gbit"


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), default=PARTS, help="Default: all.")
@click.option("--net", "nets", multiple=True, type=click.Choice(partitioned.NETS), default=partitioned.NETS)
@click.option("--rounds", default=9, show_default=True, help="Rounds in which the partitions take turns.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the rows to this file.")
def main(parts: tuple[str, ...], nets: tuple[str, ...], rounds: int, out: Path | None) -> None:
    """Time the steps of a group of workers, one thread each, by partition of the net."""
    console = Console(width=150)
    figures: dict[str, Any] = begun()
    missing = ""
    if "network" in parts:
        try:
            with joined_hosts(WORKERS) as hosts:
                for host in hosts:
                    host.limit(RATE)
                rows = [row for net in nets for row in partitioned.on_network(net, rounds, hosts)]
            show(console, f"{WORKERS} workers on {WORKERS} hosts, {RATE} each; faster = than dim 0", rows)
            figures |= {"congestion_control": congestion(), "rate": RATE, "network": rows}
        except NotHere as error:
            missing = f"The part on a limited network was left out: {error}."
    if "machine" in parts:
        rows = figures["machine_shared"] = partitioned.on_one_machine("mlp-64", rounds, 2)
        show(console, "2 workers on one machine, in shared memory; faster = than dim 0", rows)
    if "memory" in parts:
        rows = figures["memory"] = [row for net in nets for row in partitioned.memory(net, (1, 2, 4), 2)]
        show(console, "peak of a worker's memory, above what it had before", rows)
    end(console, figures, out)
    if missing:
        raise click.ClickException(missing)


if __name__ == "__main__":
    main()
