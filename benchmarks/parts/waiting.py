"""How long Downpour's worker groups wait for their servers, with and without `cluster.one_behind`, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tools.workloads import EXAMPLES

from singa_dask import shard, train
from singa_dask.job import load_job
from singa_dask.job.job_pb2 import JobProto
from singa_dask.monitor.progress import Display

NETS = ("mnist", "mnist-mlp")
DOWNPOUR = EXAMPLES / "clusters" / "downpour.conf"
# Groups x workers + servers, each in a process of its own, and what that overrides in the cluster block.
LAYOUTS = {
    "2 x 2 + 2": (),
    "2 x 1 + 1": ("cluster.nworkers_per_group=1", "cluster.nservers_per_group=1"),
}
SAMPLES = 4096
FIGURES = ("ms", "stall", "stall_ms", "update_ms", "staleness")


def measure(net: str, layout: str, steps: int, repeats: int) -> list[dict[str, Any]]:
    """Two rows: without and with one_behind. Medians over the runs; `ms_ratio`, `stall_ratio`: medians of the paired
    ratios to the row without."""
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    with TemporaryDirectory() as folder:
        data = random_pictures(Path(folder))
        for number in range(repeats):
            for behind in (False, True)[:: -1 if number % 2 else 1]:
                overrides = (*LAYOUTS[layout], f"cluster.one_behind={str(behind).lower()}")
                job = downpour(net, overrides, data, steps)
                runs[behind].append(timed(job, Path(folder) / f"run-{number}-{behind}"))
    rows = []
    for behind, found in runs.items():
        row: dict[str, Any] = {"net": net, "layout": layout, "one_behind": behind, "steps": steps, "runs": repeats}
        row |= {name: round(statistics.median(run[name] for run in found), 3) for name in FIGURES}
        row["ms_of_runs"] = [round(run["ms"], 1) for run in found]
        for name in ("ms", "stall"):
            ratios = [run[name] / base[name] for run, base in zip(found, runs[False], strict=True)]
            row[f"{name}_ratio"] = round(statistics.median(ratios), 3)
        rows.append(row)
    return rows


def random_pictures(folder: Path) -> Path:
    """Shards of the shape of MNIST."""
    draw = np.random.default_rng(0)
    pictures = draw.integers(0, 256, (SAMPLES, 28, 28, 1), np.uint8)
    shard(pictures, draw.integers(0, 10, SAMPLES), folder / "data", nshards=4, outputs=10, shuffle=False)
    return folder / "data"


def downpour(net: str, overrides: Sequence[str], data: Path, steps: int) -> JobProto:
    """The example under Downpour, on `data`, without tests."""
    job = load_job(EXAMPLES / net / "job.conf", overrides, DOWNPOUR)
    job.train_steps = job.disp_freq = steps
    job.test_freq = job.test_steps = job.checkpoint_freq = 0
    for layer in job.neuralnet.layer:
        if layer.HasField("store_conf"):
            layer.store_conf.path = str(data)
    return job


def timed(job: JobProto, workspace: Path, client: Any = None) -> dict[str, float]:
    """Means over the worker groups. ms, stall_ms: per step; stall: share of a step; staleness: updates."""
    summary = train(job, client, workspace=workspace, display=Display()).summary
    batch = next(layer.store_conf.batchsize for layer in job.neuralnet.layer if layer.HasField("store_conf"))
    groups = []
    for group in summary["groups"].values():
        ms = 1e3 * batch[0] / group["samples_per_s"]
        groups.append({**group["server"], "ms": ms, "stall_ms": ms * group["server"]["stall"]})
    return {name: statistics.mean(group[name] for group in groups) for name in FIGURES}
