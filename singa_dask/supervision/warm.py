"""Compiling what a job needs before its first run, on all machines of a Dask cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from singa_dask.job import ClusterTopology, Job, JobProto
from singa_dask.monitor.progress import Display
from singa_dask.profiling.cluster import free_workers
from singa_dask.supervision.driver import train
from singa_dask.supervision.plan import with_message

if TYPE_CHECKING:
    from distributed import Client

_STEPS = 2  # the second one takes what the first one has left for it
_LEFT_OUT = ("checkpoint_freq", "checkpoint_every", "early_stopping", "keep_best", "warmup_steps", "resume")


def warm(job: Job, client: Client | None, runs: Path) -> tuple[int, int]:
    """Train and evaluate a few steps of a job on all free workers of a client's cluster, and discard the result: then
    each machine has compiled what a run needs. Without a client, on a local cluster.

    runs: a folder that all workers see. Returns how many Dask workers took part, and how many were free. Raises what
    `train` raises.
    """
    topology = job.topology
    free = topology.nprocesses
    if client is not None:
        free = len(free_workers(client))
        topology = widened(topology, free, smallest_batch(job.proto))
    runs.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="warm-", dir=runs) as folder:
        short, run = with_message(job, few_steps(job.proto)), Path(folder) / "run"
        train(short, client, cluster=topology, workspace=run, display=Display(), curves=False)
    return topology.nprocesses, free


def widened(topology: ClusterTopology, processes: int, batch: int) -> ClusterTopology:
    """The topology with as many workers as so many processes can hold; with more groups if they are asynchronous.

    batch: samples of the smallest mini-batch, of which each worker of a group takes at least one.
    """
    servers = topology.nprocesses - topology.nworkers
    if topology.nworker_groups == 1:
        workers = min(processes - servers, batch)
        return replace(topology, nworkers_per_group=max(topology.nworkers_per_group, workers))
    each = topology.nworker_groups == topology.nserver_groups and not topology.server_worker_separate
    step = 1 if each else topology.nserver_groups
    groups = max(topology.nworker_groups, (processes - servers) // topology.nworkers_per_group // step * step)
    return replace(topology, nworker_groups=groups, nserver_groups=groups if each else topology.nserver_groups)


def smallest_batch(job: JobProto) -> int:
    """The fewest samples of a mini-batch of the job."""
    return min((size for layer in job.neuralnet.layer for size in layer.store_conf.batchsize), default=1)


def few_steps(job: JobProto) -> JobProto:
    """The job with few steps and evaluations, which saves and stops nothing."""
    short = JobProto()
    short.CopyFrom(job)
    for name in _LEFT_OUT:
        short.ClearField(name)
    short.train_steps = _STEPS
    for phase in ("test", "validate"):
        if getattr(job, f"{phase}_freq") or getattr(job, f"{phase}_steps"):
            setattr(short, f"{phase}_freq", 1)
            setattr(short, f"{phase}_steps", 1)
        short.ClearField(f"{phase}_after")
    return short
