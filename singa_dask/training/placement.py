"""Where the parameters of a job lie: how they are cut, which server updates them, and in which memory they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.comm.shared_memory import form_shared_flat
from singa_dask.exchange.buckets import bucket_bounds
from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import AlgProto, JobProto, UpdaterProto
from singa_dask.net.flat import Entry, FlatParams, GroupLayout
from singa_dask.ops import Ops
from singa_dask.server import ParameterSlice, Partition, ServerPlan, partition
from singa_dask.updaters import updater_class


def parameter_partition(
    topology: ClusterTopology,
    layout: GroupLayout,
    updater: UpdaterProto,
    *,
    whole: bool = False,
    workers: int | None = None,
) -> Partition:
    """How the parameters of a group are cut for the workers and servers of this topology: for a rule that needs whole
    parameters, only between them.

    whole: the replicated ones into one bucket, because nothing is sent: workers share memory. So it is for a worker on
    its own. workers: how many the group has at present, if it lacks some; the slices are those of a whole group.
    """
    whole = whole or topology.nworkers_per_group == 1
    starts = () if whole else [entry.start for entry in layout.replicated]
    cut = partition(
        layout.size,
        topology.nworkers_per_group,
        topology.nservers_per_group,
        beside=not topology.server_worker_separate,
        bounds=bucket_bounds(starts, layout.size, topology.bucket_size),
        own=layout.own_sizes,
        cuts=[entry.start for entry in layout.replicated] if updater_class(updater).whole_parameters else None,
    )
    return cut if workers is None else cut.dealt_to(workers)


def server_plan(
    job: JobProto, entries: tuple[Entry, ...], slices: tuple[ParameterSlice, ...], **more: Any
) -> ServerPlan:
    """The plan of a server of this job. more: further fields of ServerPlan."""
    cluster = job.cluster
    return ServerPlan(
        updater=job.updater.SerializeToString(),
        entries=entries,
        slices=slices,
        dealt_to=cluster.nworker_groups,
        max_staleness=cluster.max_staleness if cluster.HasField("max_staleness") else None,
        sync_freq=cluster.sync_freq,
        **more,
    )


def suits_sharing(job: JobProto, ops: Ops) -> bool:
    """Whether workers on one machine can have the parameters of this job in the same memory."""
    own_algorithm = job.train_one_batch.alg == AlgProto.kUserAlg  # may write to the parameters while it computes
    return ops.device == "cpu" and job.cluster.codec == job.cluster.kFull and not own_algorithm


def form_shared_parameters(flat: FlatParams, comm: Communicator) -> list[np.ndarray] | None:
    """Move the parameters to memory that all workers of the group share: one array of values for all, and gradients of
    each, which are returned, by rank. None, and nothing has changed, where they cannot share memory. Collective.
    """
    shared = form_shared_flat(comm, flat.size, flat.values.dtype)
    if shared is None:
        return None
    values, grads = shared
    flat.move(values, grads[comm.rank])
    return grads


def compute_of(job: JobProto) -> str:
    """The name of the type to which GPUs round the operands of products."""
    return JobProto.Compute.Name(job.compute)


def products_on_gpus(job: JobProto) -> str:
    """Of which type the operands of products on GPUs are, and what computes convolutions, in words."""
    operands = {"kFloat32": "float32", "kTF32": "TF32", "kBFloat16": "bfloat16"}[compute_of(job)]
    convolves = any(layer.HasField("convolution_conf") for layer in job.neuralnet.layer)
    of_them = "; convolutions by im2col and cuBLAS" if convolves else ""
    return f"products of {operands} by cuBLAS, added up in float32{of_them}"
