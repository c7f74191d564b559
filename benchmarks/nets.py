"""Nets as their users write them: a step of a Model against PyTorch, of a loop over tensors against the Model, and of
a loss as a formula against the built-in one. One thread each, interleaved in one run.

make bench BENCH=nets                    # or: python benchmarks/nets.py --net vit-tiny --json nets.json
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from tools.contest import Absent, Program, contest, ratio
from tools.nets import CASES
from tools.report import begun, end, show

PARTS = ("peers", "loops", "formulas")
LOOPS = ("mlp", "cnn", "resnet18")
FORMULAS = ("mlp", "mlp-values", "cnn")
LOOP_TARGET, FORMULA_TARGET = 1.1, 1.3


def peers_of(name: str) -> tuple[str, ...]:
    """PyTorch's variants (`programs/step_torch.py`) that may be its fastest on this net."""
    plain = ("eager", "fused", "compiled")
    return (*plain, "channels_last", "channels_last+fused", "channels_last+compiled") if CASES[name].images else plain


def against_peers(name: str, rounds: int, peers: Sequence[str]) -> dict[str, Any]:
    """ratio: PyTorch's time / ours, with its fastest variant; loss_difference: the largest relative one in the first
    steps."""
    ours = Program.start("nets_ours", [name, "model"], 1)
    theirs, absent = {}, {}
    for peer in peers:
        try:
            theirs[peer] = Program.start("nets_torch", [name, peer], 1)
        except Absent as why:
            absent[peer] = str(why)
    contest([ours, *theirs.values()], rounds)
    best = min(theirs, key=lambda peer: theirs[peer].median_ms)
    differences = (abs(a - b) / abs(b) for a, b in zip(ours.first_losses, theirs[best].first_losses, strict=True))
    row = {
        "net": name,
        "target": CASES[name].target,
        "ms": round(ours.median_ms, 2),
        "best": best,
        "best_ms": round(theirs[best].median_ms, 2),
        "ratio": round(ratio(theirs[best], ours), 3),
        "eager_ratio": round(ratio(theirs["eager"], ours), 3),
        "peak_mb": round(ours.peak_mb),
        "best_peak_mb": round(theirs[best].peak_mb),
        "loss_difference": float(f"{max(differences):.2g}"),
        "variants_ms": {peer: round(entry.median_ms, 2) for peer, entry in theirs.items()},
        "absent": absent,
    }
    print(row, flush=True)
    return row


def in_pairs(name: str, first: Sequence[str], second: Sequence[str], target: float, rounds: int) -> dict[str, Any]:
    """ratio: the second one's time / the first one's; target: at most."""
    one, other = (Program.start("nets_ours", arguments, 1) for arguments in (first, second))
    contest([one, other], rounds)
    return {
        "net": name,
        "target": target,
        "ms": round(one.median_ms, 3),
        "second_ms": round(other.median_ms, 3),
        "ratio": round(ratio(other, one), 3),
    }


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Default: all.")
@click.option("--net", "nets", multiple=True, type=click.Choice(list(CASES)), help="Default: all of each part.")
@click.option("--rounds", default=15, show_default=True, help="Rounds in which the programs take turns.")
@click.option("--peer", "peers", multiple=True, help="Variants of PyTorch beside eager. Default: all.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the rows to this file.")
def main(parts: tuple[str, ...], nets: tuple[str, ...], rounds: int, peers: tuple[str, ...], out: Path | None) -> None:
    """Time training steps of nets as their users write them."""
    console, figures = Console(width=170), begun(rounds)

    def chosen(part: str, names: Iterable[str]) -> list[str]:
        return [name for name in names if part in (parts or PARTS) and name in (nets or CASES)]

    figures["peers"] = [
        against_peers(name, rounds, [peer for peer in peers_of(name) if not peers or peer in ("eager", *peers)])
        for name in chosen("peers", [name for name, case in CASES.items() if case.target])
    ]
    figures["loops"] = [
        in_pairs(name, (name, "model"), (name, "loop"), LOOP_TARGET, rounds) for name in chosen("loops", LOOPS)
    ]
    figures["formulas"] = [
        in_pairs(name, (name, "model"), (f"{name}-formula", "model"), FORMULA_TARGET, rounds)
        for name in chosen("formulas", FORMULAS)
    ]
    show(console, "a Model's step; ratio = PyTorch's time / ours, at least the target", figures["peers"])
    show(console, "a loop's step (second); ratio = its time / the Model's, at most the target", figures["loops"])
    show(console, "a loss as a formula (second); ratio = time / with the built-in one", figures["formulas"])
    end(console, figures, out)


if __name__ == "__main__":
    main()
