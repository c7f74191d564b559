"""Time per training step of one worker against PyTorch and jax on the CPU, interleaved in one run.

make bench BENCH=step                    # or: python benchmarks/step.py --threads 1 --json step.json
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from tools.contest import Absent, Program, contest, ratio, ratios
from tools.report import begun, end
from tools.workloads import WORKLOADS, Workload

EAGER, HALF, JAX = "eager", "bfloat16", "jax"


def peers_of(workload: Workload) -> tuple[str, ...]:
    """PyTorch's variants (programs/step_torch.py) that may be its fastest on this net, and jax."""
    variants = (EAGER, "fused", "foreach", "compiled", HALF)
    return (*variants, "channels_last", "channels_last+fused", JAX) if workload.images else (*variants, JAX)


def measure(workload: Workload, threads: int, rounds: int, peers: Sequence[str]) -> dict[str, Any]:
    """One row. ratio_eager, ratio_best: PyTorch's time / ours, median of the rounds; best: its fastest variant of
    float32, whose ratios have these quartiles; ratio_bfloat16, ratio_jax: to PyTorch's products of 16 bits, and to
    jax, where they take part.

    loss_difference: largest relative one to PyTorch eager and to jax in the first steps. absent: who cannot take part,
    and why.
    """
    arguments = [workload.name, str(threads)]
    ours = Program.start("step_ours", arguments, threads)
    theirs: dict[str, Program] = {}
    missing = {}
    for peer in peers:
        program, *variant = ("step_jax",) if peer == JAX else ("step_torch", peer)
        try:
            theirs[peer] = Program.start(program, [*arguments, *variant], threads)
        except Absent as why:
            missing[peer] = str(why)
    contest([ours, *theirs.values()], rounds)
    eager, jax = theirs[EAGER], theirs.pop(JAX, None)
    best = min(theirs.keys() - {HALF}, key=lambda peer: theirs[peer].median_ms)
    quartiles = statistics.quantiles(ratios(theirs[best], ours), n=4)[::2] if rounds > 1 else []
    others = {name: peer for name, peer in ((HALF, theirs.get(HALF)), (JAX, jax)) if peer}
    return {
        "workload": workload.name,
        "threads": threads,
        "ms": round(ours.median_ms, 3),
        "peak_mb": round(ours.peak_mb, 1),
        "torch_ms": round(eager.median_ms, 3),
        "torch_peak_mb": round(eager.peak_mb, 1),
        "ratio_eager": round(ratio(eager, ours), 3),
        "best": best,
        "best_ms": round(theirs[best].median_ms, 3),
        "ratio_best": round(ratio(theirs[best], ours), 3),
        "quartiles": [round(cut, 3) for cut in quartiles],
        **{f"{name}_ms": round(peer.median_ms, 3) for name, peer in others.items()},
        **{f"ratio_{name}": round(ratio(peer, ours), 3) for name, peer in others.items()},
        "loss_difference": max(_loss_difference(ours, peer) for peer in (eager, jax) if peer),
        "variants_ms": {peer: round(entry.median_ms, 3) for peer, entry in theirs.items()},
        "absent": missing,
    }


def _loss_difference(ours: Program, peer: Program) -> float:
    return float(f"{max(abs(a - b) / abs(b) for a, b in zip(ours.first_losses, peer.first_losses, strict=True)):.2g}")


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows as a table."""
    missing = {peer: why for row in rows for peer, why in row["absent"].items()}
    caption = "; ".join(f"without {peer}: {why}" for peer, why in missing.items())
    title = "one training step, same initial parameters; ratio = PyTorch's or jax's time / singa_dask's"
    table = Table(title=title, caption=caption or None, box=None)
    for name in (key for key, value in rows[0].items() if not isinstance(value, dict | list)):
        shown = name.replace("torch", "PyTorch").replace("mb", "MB").replace("_", " ")
        table.add_column(shown, justify="left" if name in ("workload", "best") else "right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values() if not isinstance(value, dict | list)))
    Console(width=170).print(table)


@click.command()
@click.option("--workload", "workloads", multiple=True, type=click.Choice(list(WORKLOADS)), help="Default: all.")
@click.option("--threads", multiple=True, type=int, default=[1, 2], show_default=True)
@click.option("--rounds", default=9, show_default=True, help="Rounds in which the programs take turns.")
@click.option("--peer", "peers", multiple=True, help="Variants of PyTorch beside eager, or jax. Default: all.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the rows to this file.")
def main(
    workloads: tuple[str, ...], threads: tuple[int, ...], rounds: int, peers: tuple[str, ...], out: Path | None
) -> None:
    """Time a training step against PyTorch and jax; ratio = a peer's time / ours (above 1: we are faster)."""
    figures: dict[str, Any] = begun(rounds) | {"step": []}
    for count in threads:
        if count > len(os.sched_getaffinity(0)):
            raise click.UsageError(f"{count} threads need {count} cores; there are {len(os.sched_getaffinity(0))}")
        for name in workloads or WORKLOADS:
            entrants = tuple(dict.fromkeys((EAGER, *peers))) if peers else peers_of(WORKLOADS[name])
            figures["step"].append(measure(WORKLOADS[name], count, rounds, entrants))
    show(figures["step"])
    end(Console(), figures, out)


if __name__ == "__main__":
    main()
