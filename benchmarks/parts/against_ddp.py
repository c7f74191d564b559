"""What a second process costs per step: singa_dask and PyTorch's DistributedDataParallel (gloo) in turns, one machine.

overhead = time of a step in a group of 2 - time of a step alone, with the same mini-batch per process.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Any

from tools.groups import ddp_group, our_group

STEP = {"step": {}}


def measure(net: str, rounds: int) -> list[dict[str, Any]]:
    """A row per way of ours: shared memory, as workers of one machine have it, and TCP over loopback, as gloo has it.

    ratio: our overhead / DDP's, median of the rounds.
    """
    with ExitStack() as stack:
        turns = {
            "alone": (stack.enter_context(our_group(net, {}, size=1)), "compute"),
            "shared memory": (stack.enter_context(our_group(net, STEP)), "step"),
            "TCP": (stack.enter_context(our_group(net, STEP, tcp=True)), "step"),
            "ddp alone": (stack.enter_context(ddp_group(net, 1)), "step"),
            "ddp": (stack.enter_context(ddp_group(net, 2)), "step"),
        }
        found: dict[str, list[float]] = {name: [] for name in turns}
        for number in range(-1, rounds):
            for name, (group, run) in list(turns.items())[:: -1 if number % 2 else 1]:
                seconds = group.run(run)["seconds"]
                if number >= 0:
                    found[name].append(seconds)
    return [{"net": net, "by": by, "rounds": rounds, **_row(found, by)} for by in ("shared memory", "TCP")]


def _row(found: dict[str, list[float]], by: str) -> dict[str, Any]:
    ours = [many - one for many, one in zip(found[by], found["alone"], strict=True)]
    ddp = [many - one for many, one in zip(found["ddp"], found["ddp alone"], strict=True)]
    ratios = [own / peer for own, peer in zip(ours, ddp, strict=True)]
    row = {"alone_ms": _ms(found["alone"]), "ms": _ms(found[by]), "overhead_ms": _ms(ours)}
    row |= {"ddp_alone_ms": _ms(found["ddp alone"]), "ddp_ms": _ms(found["ddp"]), "ddp_overhead_ms": _ms(ddp)}
    quartiles = [round(cut, 2) for cut in statistics.quantiles(ratios, n=4)[::2]] if ratios[1:] else []
    return {**row, "ratio": round(statistics.median(ratios), 2), "ratio_quartiles": quartiles}


def _ms(seconds: list[float]) -> float:
    return round(1e3 * statistics.median(seconds), 2)
