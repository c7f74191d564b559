"""Where the time of our training step goes: on the host by function, on the GPU by kernel.

PyTorch's profiler, which sees the kernels of any library, measures the GPU; without PyTorch only the host is measured.
"""

from __future__ import annotations

import cProfile
import io
import json
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import cupy
from steps import NETS, step_of_ours

STEPS, LINES = 20, 25


def on_host(step: Callable[[], float]) -> dict[str, Any]:
    """ms: of a step. functions: the profile of STEPS steps, which is slower than they are."""
    synchronize = cupy.cuda.Device().synchronize
    synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    synchronize()
    seconds = time.perf_counter() - began
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(STEPS):
        step()
    profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(LINES)
    return {"ms": round(1e3 * seconds / STEPS, 3), "functions": text.getvalue().splitlines()[6:]}


def on_device(step: Callable[[], float]) -> dict[str, Any]:
    """kernels: of each, calls and microseconds a step, the longest first; busy_ms: of all."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as measured:
        for _ in range(STEPS):
            step()
        cupy.cuda.Device().synchronize()
    rows = [(each.key, each.count / STEPS, each.self_device_time_total / STEPS) for each in measured.key_averages()]
    rows = sorted((row for row in rows if row[2] > 0), key=lambda row: -row[2])
    kernels = {name[:70]: {"calls": calls, "us": round(us, 1)} for name, calls, us in rows[:LINES]}
    return {
        "busy_ms": round(sum(us for *_, us in rows) / 1e3, 3),
        "calls": sum(row[1] for row in rows),
        "kernels": kernels,
    }


@click.command()
@click.option("--net", "nets", multiple=True, type=click.Choice(NETS), help="may be repeated (default: all)")
@click.option("--json", "out", type=click.Path(path_type=Path), required=True, help="Write the figures to this file.")
def main(nets: tuple[str, ...], out: Path) -> None:
    """Profile the training step of each net."""
    found: dict[str, Any] = {}
    for net in nets or NETS:
        step = step_of_ours(net)
        for _ in range(3):
            step()
        found[net] = on_host(step)
        try:
            found[net] |= on_device(step)
        except Exception as error:
            found[net]["error"] = f"{type(error).__name__}: {error}"
        print(f"{net}: {found[net]['ms']} ms, of which the GPU is busy {found[net].get('busy_ms')} ms", flush=True)
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
