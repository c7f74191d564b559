"""What the Dask workers are, and which of them become which workers and servers of a job."""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from singa_dask.cluster import leases
from singa_dask.cluster.addresses import host_of, natural
from singa_dask.cluster.bootstrap import MpiReport, is_retired, mpi_report, this_node
from singa_dask.cluster.gpus import GpuReport, too_few
from singa_dask.cluster.remote import StillImporting, alive, run_each, threads_of
from singa_dask.data.dask_client import IMPORT_S
from singa_dask.data.dask_demand import demand
from singa_dask.errors import ClusterError
from singa_dask.job.topology import ClusterTopology
from singa_dask.ops.gpu import visible

logger = logging.getLogger(__name__)

_ANSWER_S = 2.0
# A wait for workers that is shorter than this is not worth a word.
_UNMENTIONED_S = 3.0


@dataclass(frozen=True)
class WorkerInfo:
    """One Dask worker, as it described itself.

    address: of its Dask comm; host: the IP address in it; node: equal for processes that can share memory;
    cores: how many the process may run on; cpus: which, empty for unknown; nanny: what respawns it, "" for none;
    group: that it belongs to, or a server that it has; "" while it is free. run: that either is of (leases.run_key).
    retired: whether the process must be replaced before a group uses it.
    gpus: that it could use; gpu: the one that it gets in a run (gpus.assigned).
    """

    address: str
    host: str = "127.0.0.1"
    node: str = ""
    pid: int = 0
    cores: int = 1
    nanny: str = ""
    mpi: MpiReport = field(default_factory=MpiReport)
    cpus: frozenset[int] = frozenset()
    group: str = ""
    run: str = ""
    retired: bool = False
    gpus: GpuReport = field(default_factory=GpuReport)
    gpu: visible.Gpu | None = None

    def __str__(self) -> str:
        return f"{self.address} (host {self.node.partition('/')[0] or self.host}, pid {self.pid})"


@dataclass(frozen=True)
class Placement:
    """Which Dask worker, by address, holds which worker and which server of a job, and how many cores a worker has.

    workers[g][i], servers[g][i]: worker or server i of group g. cores: of every address that holds a worker.
    """

    workers: tuple[tuple[str, ...], ...]
    servers: tuple[tuple[str, ...], ...]
    cores: dict[str, int]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every Dask worker that takes part, once."""
        groups = (*self.workers, *self.servers)
        return tuple(dict.fromkeys(address for group in groups for address in group))


def describe(dask_worker: Any = None) -> WorkerInfo:
    """The worker that this runs on; for Client.run, so it reads and never waits."""
    address = dask_worker.address
    server = next(iter(leases.servers(dask_worker.state.actors)), "")
    return WorkerInfo(
        address=address,
        host=host_of(address),
        node=this_node(),
        pid=os.getpid(),
        cores=len(os.sched_getaffinity(0)),
        cpus=frozenset(os.sched_getaffinity(0)),
        nanny=dask_worker.nanny or "",
        mpi=mpi_report(),
        group=leases.holder(address) or server,
        run=leases.run_of(address) or server.partition("@")[2],
        retired=is_retired(),
        gpus=GpuReport(
            visible.visible_gpus(),
            visible.has_cupy(),
            dask_worker.state.total_resources.get("GPU"),
            leases.gpu_of(address),
        ),
    )


def wait_workers(client: Any, count: int, timeout_s: float = 30.0) -> list[WorkerInfo]:
    """The Dask workers, once at least `count` of them answer; warns when that takes more than a few seconds.

    Raises ClusterError when they don't in time, which is longer if they are importing this package.
    """
    began = time.monotonic()
    deadline, silence_ends = began + timeout_s, began + min(_UNMENTIONED_S, timeout_s / 2)
    said = importing = False
    with demand(client) as ask:
        while True:
            # Asked again soon: a worker that is just being replaced is listed, and will never answer.
            answers = _answers(client, _ANSWER_S)
            workers, silent = _answering(answers)
            if len(workers) >= count:
                return workers
            if not importing and any(isinstance(answer, StillImporting) for answer in answers.values()):
                importing, deadline = True, max(deadline, began + IMPORT_S)
                logger.warning("Dask workers are importing singa_dask; waiting up to %g s", IMPORT_S)
            if time.monotonic() >= deadline:
                mute = f" Not counted: {silent}." if silent else ""
                ways = f"`dask worker`, client.cluster.scale({count}) or client.cluster.adapt(minimum={count})"
                came = f"only {len(workers)} of {count} Dask workers came within {deadline - began:g} s"
                raise ClusterError(f"{came}.{mute} Start more: {ways}.")
            if time.monotonic() >= silence_ends:
                if not said:
                    there = len(workers), count, deadline - began
                    logger.warning("%d of %d Dask workers are there; waiting for more, %g s in all", *there)
                said = True
                ask(count, threads_of(client))
            time.sleep(0.05)


def answering(client: Any, timeout_s: float = _ANSWER_S) -> tuple[list[WorkerInfo], str]:
    """The workers that answer, in order of address, and why others do not count: the scheduler lists lost ones too,
    until it has missed them for long enough. Nor does that of a driver in a Dask task, which would wait for itself."""
    return _answering(_answers(client, timeout_s))


def _answers(client: Any, timeout_s: float) -> dict[str, Any]:
    return run_each(client, describe, dict.fromkeys(sorted(alive(client)), ()), timeout_s)


def _answering(answers: Mapping[str, Any]) -> tuple[list[WorkerInfo], str]:
    workers, others = [], []
    for address, answer in answers.items():
        if not isinstance(answer, WorkerInfo):
            others.append(f"{address}: {answer!r}")
        elif _is_ours(answer):
            others.append(f"{address}: this driver is one of its tasks")
        else:
            workers.append(answer)
    return workers, "; ".join(others)


def _is_ours(info: WorkerInfo) -> bool:
    """Whether the driver is a task of this worker. Those of LocalCluster(processes=False) are in its process too."""
    return (info.node, info.pid) == (this_node(), os.getpid()) and not info.address.startswith("inproc://")


def place(topology: ClusterTopology, workers: Iterable[WorkerInfo], *, on_gpus: bool = False) -> Placement:
    """Choose the Dask workers of a job: groups on one host where they fit, the same answer for the same workers.

    on_gpus: its workers are on Dask workers with a GPU, and its servers, if they are apart, on others first.

    Workers that other groups have are left alone where the free ones are enough.
    A worker's cores are those it may run on // the job's processes on its host that may run on any of them, at
    least 1: launchers often bind each process to cores of its own.
    Raises ClusterError when there are too few, or too few of them have a GPU.
    """
    workers = list(workers)
    free = [info for info in workers if not info.group]
    usable = free if len(free) >= topology.nprocesses else workers
    if len(usable) < topology.nprocesses:
        lack = topology.nprocesses - len(usable)
        raise ClusterError(
            f"{topology.describe()}: {lack} Dask workers are missing, {len(usable)} of {topology.nprocesses} are "
            "there. Start more, or train with fewer workers or servers."
        )
    pool = _Pool([info for info in usable if info.gpu is not None or not on_gpus])
    if len(pool) < topology.nworkers:
        raise ClusterError(f"{topology.describe()}: {too_few(topology.nworkers, usable)}")
    others = _Pool([info for info in usable if info.gpu is None and on_gpus])
    groups = [pool.take(topology.nworkers_per_group) for _ in range(topology.nworker_groups)]
    workers = [info for group in groups for info in group]
    if topology.server_worker_separate:
        server_processes = _taken(topology.nserver_processes, others, pool)
    else:
        spare = max(0, topology.nserver_processes - topology.nworkers)
        server_processes = _beside(topology, groups, _taken(spare, others, pool))
    chosen = {info.address: info for info in (*workers, *server_processes)}
    cores = {info.address: max(1, info.cores // _sharing(info, chosen.values())) for info in workers}
    return Placement(
        tuple(tuple(info.address for info in group) for group in groups),
        _server_places(topology, server_processes),
        cores,
    )


def _sharing(info: WorkerInfo, chosen: Iterable[WorkerInfo]) -> int:
    """How many of the chosen processes, itself included, run on cores of this one."""
    here = [other for other in chosen if other.host == info.host]
    return sum(not info.cpus or not other.cpus or bool(info.cpus & other.cpus) for other in here)


class _Pool:
    """Workers that are still free, by host."""

    def __init__(self, workers: Iterable[WorkerInfo]) -> None:
        self._hosts: dict[str, list[WorkerInfo]] = defaultdict(list)
        for info in sorted(workers, key=lambda info: (info.gpu.number if info.gpu else -1, natural(info.address))):
            self._hosts[info.host].append(info)

    def __len__(self) -> int:
        return sum(map(len, self._hosts.values()))

    def take(self, count: int) -> list[WorkerInfo]:
        """`count` workers of the one host that they fill best; from the fullest host on where none holds them all."""
        taken: list[WorkerInfo] = []
        while len(taken) < count:
            lack = count - len(taken)
            free = {host: len(infos) for host, infos in self._hosts.items() if infos}
            fitting = {host: n for host, n in free.items() if n >= lack}
            best = min(fitting or free, key=lambda host: (free[host] if fitting else -free[host], natural(host)))
            taken += self._hosts[best][:lack]
            del self._hosts[best][:lack]
        return taken


def _taken(count: int, first: _Pool, then: _Pool) -> list[WorkerInfo]:
    """So many workers, of the first pool as far as it has them."""
    of_first = min(count, len(first))
    return first.take(of_first) + then.take(count - of_first)


def _beside(
    topology: ClusterTopology, groups: Sequence[Sequence[WorkerInfo]], spare: Sequence[WorkerInfo]
) -> list[WorkerInfo]:
    """The processes of the servers: those of the worker groups that they serve, then spare ones, then others."""
    chosen: list[WorkerInfo] = []
    for group in range(topology.nserver_groups):
        served = [groups[g] for g in topology.worker_groups_of(group)]
        wanted = topology.nserver_processes * (group + 1) // topology.nserver_groups - len(chosen)
        free = [info for info in chain(*served, spare, *groups) if info not in chosen]
        chosen += list(dict.fromkeys(free))[:wanted]
    return chosen


def _server_places(topology: ClusterTopology, processes: Sequence[WorkerInfo]) -> tuple[tuple[str, ...], ...]:
    """Server i of group g is in process (g * nservers_per_group + i) // nservers_per_procs."""
    size, per_process = topology.nservers_per_group, topology.nservers_per_procs
    servers = [processes[i // per_process].address for i in range(topology.nservers)]
    return tuple(tuple(servers[first : first + size]) for first in range(0, len(servers), size))
