"""What `cluster.server_replicas` costs Downpour on two hosts, which are namespaces of this machine, in turns."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.network import joined_hosts
from tools.victims import Workers, connected

from parts.waiting import NETS, downpour, random_pictures, timed

__all__ = ["NETS", "measure"]
PROCESSES = 4  # 2 groups of 1 worker, and 2 servers
LAYOUT = ("cluster.nworkers_per_group=1", "cluster.nservers_per_group=2")
FIGURES = ("ms", "update_ms", "stall")


def measure(net: str, steps: int, repeats: int) -> list[dict[str, Any]]:
    """Two rows: without and with replicas. Medians over the runs; `ms_ratio`: median of the paired ratios to the row
    without. Needs root."""
    runs: dict[int, list[dict[str, float]]] = {0: [], 1: []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        workers = Workers(PROCESSES, folder, stack.enter_context(joined_hosts(2, home=True)))
        stack.callback(workers.end)
        client, data = stack.enter_context(connected(workers, PROCESSES)), random_pictures(folder)
        for number in range(-1, repeats):
            for replicas in (0, 1)[:: -1 if number % 2 else 1]:
                job = downpour(net, (*LAYOUT, f"cluster.server_replicas={replicas}"), data, steps)
                found = timed(job, folder / f"run-{number}-{replicas}", client)
                if number >= 0:  # the first compiles
                    runs[replicas].append(found)
    rows = []
    for replicas, found in runs.items():
        row: dict[str, Any] = {"net": net, "server_replicas": replicas, "steps": steps, "runs": repeats}
        row |= {name: round(statistics.median(run[name] for run in found), 3) for name in FIGURES}
        row["ms_of_runs"] = [round(run["ms"], 1) for run in found]
        ratios = [run["ms"] / base["ms"] for run, base in zip(found, runs[0], strict=True)]
        rows.append(row | {"ms_ratio": round(statistics.median(ratios), 3)})
    return rows
