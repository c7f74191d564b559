"""The Dask task of one worker: it trains with what its Dask worker offers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from singa_dask.comm.communicator import Communicator
from singa_dask.job.job_pb2 import JobProto
from singa_dask.job.schedule import memory_checkpoint_seconds, orphan_seconds
from singa_dask.memory.owner import CHECKPOINT, WORKERS, Owner, Version
from singa_dask.ops.gpu.visible import identity_of
from singa_dask.server import ActorLink, Link
from singa_dask.training.group_checkpoints import AT_LEAST_EVERY_S
from singa_dask.training.memory import has_room_here
from singa_dask.training.rank_plan import RankServices, WorkerPlan
from singa_dask.training.worker import train_rank

# Servers are made once all worker groups that are formed with them have formed.
SERVERS_S = 120.0
# A server that is lost comes back within so many times the driver's patience: until a process is there for it, and
# until it is made. Its links wait for that.
BACK = 3


def train_on_dask_worker(comm: Communicator, plan: WorkerPlan, topic: str) -> dict[str, Any]:
    """Train this rank to its end; returns its report. topic: of the Dask events that it sends."""
    from distributed import get_client, get_worker

    from singa_dask.cluster import current_task, leases
    from singa_dask.cluster.group import REGROUP
    from singa_dask.cluster.nanny_store import NannyStore
    from singa_dask.cluster.successors import prepare_successor
    from singa_dask.data import dask_submit

    worker, task = get_worker(), current_task()
    prepare_successor(worker)

    def links() -> Mapping[int, Link]:
        count = len(task.wait_told("servers", SERVERS_S))
        wheres = [lambda i=i: task.told["servers"][i] for i in range(count)]
        return {i: ActorLink(where, worker, BACK * comm.timeout_s) for i, where in enumerate(wheres)}

    def elsewhere() -> bool:
        machines = {urlsplit(each.worker).hostname for each in task.told.get("servers", ())}
        return bool(machines - {urlsplit(worker.address).hostname})

    number, generation = plan.group.number, plan.group.generation
    if plan.group.gpus:
        leases.use_gpu(worker.address, identity_of(plan.group.gpus[comm.rank]))
    job = JobProto.FromString(plan.job)
    orphan_s = orphan_seconds(job)
    every_s = max(AT_LEAST_EVERY_S, memory_checkpoint_seconds(job))  # until the next one takes its place
    own, version = Owner(WORKERS, number, comm.rank, comm.size), Version(topic, generation)
    services = RankServices(
        submit=dask_submit(get_client(), worker),
        emit=partial(worker.log_event, topic),
        address=worker.address,
        stop_requested=lambda: task.stop_requested,
        regroup_requested=lambda: bool(task.told.get(REGROUP)),
        links=None if plan.group.in_process_servers else links,
        servers_elsewhere=elsewhere,
        others_ended=lambda: bool(task.told.get("others ended")),
        cores=plan.group.cores[comm.rank],
        memory_limit=memory_limit(worker.memory_manager),
        holder=NannyStore(worker, own, version, orphan_s, room=has_room_here) if worker.nanny else None,
        deposits=NannyStore(
            worker,
            Owner(CHECKPOINT),
            version,
            orphan_s + 3 * every_s,
            room=has_room_here,
            leaves=lambda: task.abort_event.is_set() or task.stop_told,
        ),
    )
    return train_rank(comm, plan, services)


def memory_limit(manager: Any) -> int | None:
    """Bytes from which on the Dask worker pauses: it would load no more data."""
    limit = manager.memory_limit
    return None if limit is None else int(limit * (manager.memory_pause_fraction or 1))
