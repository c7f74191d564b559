"""Where the parameters of a job lie: how they are cut, who updates which part, and in whose memory they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.comm.shared_memory import share_flat
from singa_dask.exchange.buckets import bucket_bounds
from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import JobProto
from singa_dask.net.flat import Entry, FlatParams
from singa_dask.server import Partition, ServerPlan, Slice, partition


def parameter_partition(
    topology: ClusterTopology, entries: Sequence[Entry], size: int, *, whole: bool = False
) -> Partition:
    """How `size` elements of parameters are cut for the workers and servers of this topology.

    whole: into one bucket, as where nothing is sent: a worker on its own, or workers that share memory.
    """
    whole = whole or topology.nworkers_per_group == 1
    starts = () if whole else [entry.start for entry in entries]
    return partition(
        size,
        topology.nworkers_per_group,
        topology.nservers_per_group,
        beside=not topology.server_worker_separate,
        bounds=bucket_bounds(starts, size, topology.bucket_size),
    )


def server_plan(
    job: JobProto,
    entries: tuple[Entry, ...],
    slices: tuple[Slice, ...],
    key: str,
    groups: tuple[int, ...],
    **more: Any,
) -> ServerPlan:
    """What a server of this job must know that these worker groups will come to."""
    topology = ClusterTopology.from_proto(job.cluster)
    return ServerPlan(
        key=key,
        updater=job.updater.SerializeToString(),
        entries=entries,
        slices=slices,
        groups=groups,
        max_staleness=topology.max_staleness,
        sync_freq=topology.sync_freq,
        **more,
    )


def share_parameters(flat: FlatParams, comm: Communicator) -> list[np.ndarray] | None:
    """Let the parameters live in memory that all workers of the group see: values that are the same array for all, and
    gradients of each, which are returned, by rank. None, and nothing has changed, where they cannot.

    Every worker must call it.
    """
    shared = share_flat(comm, flat.size, flat.values.dtype)
    if shared is None:
        return None
    values, grads = shared
    flat.move(values, grads[comm.rank])
    return grads


def gpu_of(job: JobProto, group: int, rank: int) -> int | None:
    """The GPU of a worker, by its number on the worker's machine; None where the job asks for none.

    Workers take turns through the job's list, one worker group after the other.
    """
    if not job.gpu:
        return None
    return job.gpu[(group * job.cluster.nworkers_per_group + rank) % len(job.gpu)]


def suits_wire(job: JobProto, *, private: bool) -> bool:
    """Whether the buckets of this job may stay on GPUs: with servers beside the workers, if they go as they are, or
    nowhere."""
    topology = ClusterTopology.from_proto(job.cluster)
    return bool(job.gpu) and private and (topology.nworkers_per_group == 1 or topology.codec == "kFull")
