"""Training steps of the nets of benchmarks/, on any device, and what they cost on emulated GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from support.programs import imported

from singa_dask.comm import SoloCommunicator
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica

ADAMW = "+adamw"  # behind a net's name: its updater is AdamW with clip_norm


def _adamw(job: JobProto) -> None:
    job.updater.Clear()
    job.updater.type, job.updater.clip_norm, job.updater.weight_decay = job.updater.kAdamW, 1.0, 0.1
    job.updater.delta = 1e-3  # a gradient of rounding errors alone moves nothing
    job.updater.learning_rate.type, job.updater.learning_rate.base_lr = job.updater.learning_rate.kFixed, 1e-3


def replica_of(name: str, device: str, rows: int | None = None) -> tuple[Replica, tuple[Any, Any]]:
    """A worker on its own, and rows of its mini-batch: features and labels."""
    with imported("tools.workloads", "benchmarks") as workloads, imported("tools.jobs", "benchmarks") as jobs:
        workload = workloads.WORKLOADS[name.removesuffix(ADAMW)]
        features, labels = (array[:rows] for array in workloads.data_of(workload))
        job = jobs.job_of(workload)
    if name.endswith(ADAMW):
        _adamw(job)
    comm = SoloCommunicator() if device == "gpu" else None
    replica = Replica.form(job, SoloCommunicator(), get_ops(device), device_comm=comm)
    replica.group_state.initialise()
    return replica, (features, None if workload.symbols else labels)


def steps_of(replica: Replica, data: tuple[Any, Any], numbers: range) -> Iterator[float]:
    """The losses of the steps of these numbers; what each reads is brought to the device in that step."""
    ops, (features, labels) = replica.net.ops, data
    for number in numbers:
        batch = Batch(ops.asarray(features), None if labels is None else ops.asarray(labels))
        step = Step(Phase.kTrain, number, total_rows=len(features))
        yield replica.train_step({replica.net.input_layers[0]: batch}, step)["loss"].mean


def parameters_of(replica: Replica) -> np.ndarray:
    return replica.net.ops.to_host(replica.net.flat.values)


def spent(counts: dict[str, int]) -> dict[str, int]:
    """Of the calls of one step. launches: products are among them."""
    launches = sum(times for what, times in counts.items() if what.startswith("launch "))
    kinds = {"products": "product", "waits": "wait", "uploads": "upload", "downloads": "download"}
    found = {kind: counts.get(what, 0) for kind, what in {**kinds, "allocations": "allocation"}.items()}
    return {"launches": launches + found["products"], **found}
