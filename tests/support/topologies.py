"""Any topology in one process: every worker is a thread, every server a protocol behind its lock. No Dask, no MPI.

What a supervisor does by actors and events is done here by hand: servers find each other, neighbours exchange, the
group that leads waits for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from singa_dask.comm.threads import ThreadCommunicator
from singa_dask.errors import ClusterError
from singa_dask.job.job_pb2 import JobProto
from singa_dask.server import LocalLink, Server
from singa_dask.training.placement import server_plan
from singa_dask.training.prepare import Prepared
from singa_dask.training.rank_plan import GroupPlan, RankServices, WorkerPlan
from singa_dask.training.worker import train_rank


@dataclass
class Ran:
    """What a topology did: reports and events of every group, and the servers as they ended."""

    reports: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    servers: dict[tuple[int, int], Server] = field(default_factory=dict)


def run_topology(
    prepared: Prepared,
    folder: Path,
    *,
    timeout_s: float = 30.0,
    kind: type[ThreadCommunicator] = ThreadCommunicator,
    present: int | None = None,
) -> Ran:
    """Train the job with all its worker and server groups. kind: of the communicators of worker groups. present: how
    many workers each group has, if it lacks some.

    Raises what the first failing worker raised.
    """
    topology, ran = prepared.topology, Ran()
    if not topology.in_process_servers:
        ran.servers = _servers(prepared)
    ended, comms = set[int](), []
    with ThreadPoolExecutor(2) as loading, ThreadPoolExecutor(topology.nworkers) as pool:
        futures = {}
        for group in range(topology.nworker_groups):
            served = topology.worker_groups_of(topology.server_group_of(group))
            plan = WorkerPlan(
                JobProto.SerializeToString(prepared.job),
                folder,
                data=prepared.data,
                code=prepared.code,
                group=GroupPlan(group, puts=group == served[0], gpus=tuple(prepared.job.gpu)),
            )
            mine = kind.create(present or topology.nworkers_per_group, timeout_s)
            comms += mine
            surroundings = RankServices(
                loading.submit,
                partial(_record, ran, ended),
                partial(_ends_early, ran, group),
                links=partial(_links, prepared, ran, group) if ran.servers else None,
                others_ended=partial(_others_ended, prepared, ran, ended),
            )
            for comm in mine:
                futures[group, comm.rank] = pool.submit(_member, partial(train_rank, comm, plan, surroundings), comms)
    raised = [f.exception() for f in futures.values() if f.exception()]
    if raised:
        raise next((e for e in raised if not isinstance(e, ClusterError)), raised[0])
    ran.reports = {group: future.result() for (group, rank), future in futures.items() if rank == 0}
    return ran


def server_links(prepared: Prepared) -> dict[int, LocalLink]:
    """Links to new servers of the first server group, by number."""
    return {i: LocalLink(server) for (group, i), server in _servers(prepared).items() if group == 0}


def _servers(prepared: Prepared) -> dict[tuple[int, int], Server]:
    topology, cut = prepared.topology, prepared.partition
    servers = {}
    for group in range(topology.nserver_groups):
        sides = {"left": group > 0, "right": group + 1 < topology.nserver_groups}
        for i in range(topology.nservers_per_group):
            plan = server_plan(
                prepared.job,
                prepared.layout.entries,
                cut.of_server(i),
                key=f"{group}/{i}",
                groups=tuple(topology.worker_groups_of(group)),
                accounts={side: (0, 0) for side, there in sides.items() if there},
                code=prepared.code,
            )
            servers[group, i] = Server(plan.protocol())
    for (group, i), server in servers.items():
        right = servers.get((group + 1, i))
        if right is not None:
            server.on_update = partial(_exchange, server, right, threading.Lock())
    return servers


def _exchange(left: Server, right: Server, busy: threading.Lock, force: bool = False) -> None:
    if not busy.acquire(blocking=False):
        return
    try:
        for index in left.protocol.slices:
            sync = left.begin_sync(index, force=force)
            if sync is not None:
                left.finish_sync(sync, right.call(sync).result(timeout=10))
    finally:
        busy.release()


def flush(prepared: Prepared, servers: dict[tuple[int, int], Server]) -> None:
    """Exchange everything between all neighbours."""
    last = prepared.topology.nserver_groups - 1
    for group in [*range(last), *reversed(range(last - 1))]:
        for i in range(prepared.topology.nservers_per_group):
            _exchange(servers[group, i], servers[group + 1, i], threading.Lock(), force=True)


def _links(prepared: Prepared, ran: Ran, group: int) -> dict[int, LocalLink]:
    server_group = prepared.topology.server_group_of(group)
    return {i: LocalLink(ran.servers[server_group, i]) for i in range(prepared.topology.nservers_per_group)}


def _record(ran: Ran, ended: set[int], event: dict[str, Any]) -> None:
    ran.events.append(event)


def _ends_early(ran: Ran, group: int) -> bool:
    """Whether the group that leads has decided that all others end."""
    return group > 0 and any(event.get("ends") for event in ran.events)


def _others_ended(prepared: Prepared, ran: Ran, ended: set[int]) -> bool:
    others = {e["group"] for e in ran.events if e["kind"] == "end"}
    done = others >= set(range(1, prepared.topology.nworker_groups))
    if done and ran.servers:
        flush(prepared, ran.servers)
    return done


def _member(run: Callable[[], dict[str, Any]], comms: list[ThreadCommunicator]) -> dict[str, Any]:
    try:
        return run()
    except BaseException as error:
        for comm in comms:
            comm.abort(f"another worker failed: {error}")
        raise
