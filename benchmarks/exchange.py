"""What the exchange inside a worker group costs: codecs and overlap on limited networks, and against PyTorch's DDP.

make bench BENCH=exchange                # or: python benchmarks/exchange.py --part ddp --json exchange.json

Limited networks are namespaces of Linux with a token bucket filter, for which it must run as root.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from parts import against_ddp, limited
from rich.console import Console
from tools.network import NotHere, bits_per_s, congestion, joined_hosts
from tools.report import begun, end, show

PARTS = ("networks", "ddp")


def _rates(context: click.Context, parameter: click.Parameter, rates: tuple[str, ...]) -> tuple[str, ...]:
    for rate in rates:
        try:
            bits_per_s(rate)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
    return rates


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Default: both.")
@click.option("--net", "nets", multiple=True, type=click.Choice(limited.NETS), help="Default: all.")
@click.option(
    "--rate", "rates", multiple=True, default=limited.RATES, show_default=True, callback=_rates, help="In bits."
)
@click.option("--codec", "codecs", multiple=True, type=click.Choice(list(limited.CODECS)), help="Default: all.")
@click.option("--rounds", default=9, show_default=True, help="Rounds in which the programs take turns.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the rows to this file.")
def main(
    parts: tuple[str, ...],
    nets: tuple[str, ...],
    rates: tuple[str, ...],
    codecs: tuple[str, ...],
    rounds: int,
    out: Path | None,
) -> None:
    """Time the steps of a group of 2 workers, one thread each, with each codec, with overlap and without."""
    console = Console(width=150)
    figures = begun()
    nets, missing = nets or limited.NETS, ""
    if not parts or "networks" in parts:
        try:
            figures |= _on_networks(console, nets, rates, codecs or tuple(limited.CODECS), rounds)
        except NotHere as error:
            missing = f"The part on limited networks was left out: {error}."
    if not parts or "ddp" in parts:
        rows = figures["ddp"] = [row for net in nets for row in against_ddp.measure(net, rounds)]
        show(console, "2 processes, 1 thread each; ratio = our overhead / that of PyTorch DDP (gloo)", rows)
    end(console, figures, out)
    if missing:
        raise click.ClickException(missing)


def _on_networks(
    console: Console, nets: Sequence[str], rates: Sequence[str], codecs: Sequence[str], rounds: int
) -> dict[str, Any]:
    rows = []
    with joined_hosts(2) as hosts:
        for net in nets:
            for row in limited.measure(net, rates, codecs, rounds, hosts):
                rows.append(row)
                console.print(f"{row['net']} at {row['rate']}, {row['codec']}: {row['ms']} ms", style="dim")
    show(console, "a step of 2 workers; faster = than kFull", rows)
    return {"congestion_control": congestion(), "networks": rows}


if __name__ == "__main__":
    main()
