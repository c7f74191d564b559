"""How chosen Dask workers become a group: reserved together, in one MPI world, one pinned task each."""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from distributed.utils import get_ip, get_ipv6

from singa_dask.cluster.bootstrap import this_node
from singa_dask.cluster.group import Group, GroupFailed
from singa_dask.cluster.held_for_others import take_tasks, without_a_thread, without_tasks_and_data
from singa_dask.cluster.join import RankPlan
from singa_dask.cluster.pmi_server import PmiServer
from singa_dask.cluster.rank import JoinFailed, rank_formed, rank_task, release_worker, reserve_worker
from singa_dask.cluster.remote import alive, kill_processes, run_each
from singa_dask.cluster.workers import WorkerInfo, describe
from singa_dask.errors import ClusterError, DriverUnreachable, MpiUnusable

logger = logging.getLogger(__name__)

_RESERVE_S = 10.0
_EXAMINE = "`singa-dask doctor` examines whether the workers can form a group."
# Enough to get from the reservation to the task; short, for a worker that wakes up after its driver gave up.
_LEASE_S = 5.0
# Between two looks at what workers hold that must be restarted.
_LOOK_S = 0.25
_ANSWER_S = 2.0
# A wait that is shorter than this is not worth a word.
_UNMENTIONED_S = 3.0
# What ranks have to meet, after the tasks of others were waited for.
_JOIN_S = 10.0
_REACH = (
    "Run it where the workers can: on a machine of the cluster, or in a Dask task, by client.submit(f), where f calls "
    "train(job, get_client())."
)


class WorkersInUse(ClusterError):
    """Workers that a group was to form on are in use by another one."""


class NoAnswer(ClusterError):
    """Workers that a group was to form on do not answer now; they may later."""


def form_group(
    client: Any,
    ranks: Sequence[str],
    fn: Callable[..., Any],
    *args: Any,
    timeout_s: float = 30.0,
    comm_timeout_s: float = 30.0,
    name: str = "group",
    run: str = "",
    replaced: dict[str, int] | None = None,
    in_use_s: float | None = None,
) -> Group:
    """Run fn(comm, *args) on the Dask workers `ranks` (addresses, in rank order), which become one group.

    Returns once every rank has met the others. Processes that cannot join a world any more, because a group failed in
    them or they belong to another one, are restarted by their nannies first, once they hold no tasks and no data of
    others; `Group.addresses` says where ranks are.
    comm_timeout_s: of the collectives of `comm`. name: how tasks begin on the dashboard. run: that the group is of,
    whose servers may be on the same workers (leases.server_key). replaced: receives the processes that nannies are
    asked to replace, pid by address.

    Raises WorkersInUse, naming the worker, when workers are still in use after `in_use_s` (default: `timeout_s`)
    seconds, NoAnswer when workers do not answer, ClusterError when the group has not formed after `timeout_s` again,
    which names the tasks and data of others that were in the way, or a rank cannot join it. What happens to ranks
    afterwards, and processes that are lost even before, Group.wait tells.
    """
    if not ranks or len(set(ranks)) < len(ranks):
        raise ClusterError(f"a group needs one Dask worker per rank. Received: {list(ranks)}.")
    group = f"{name}-{uuid.uuid4().hex[:8]}"
    forming = _Forming(client, group, fn, args, comm_timeout_s, run, {} if replaced is None else replaced)
    workers = forming.reserved(list(ranks), time.monotonic() + (timeout_s if in_use_s is None else in_use_s))
    deadline = time.monotonic() + timeout_s  # they may have been waited for
    try:
        workers, world_ranks = forming.in_one_world(workers, deadline)
        forming.wait_for_threads(workers, deadline)
        deadline = max(deadline, time.monotonic() + min(timeout_s, _JOIN_S))
        with nullcontext() if world_ranks else _pmi_server(workers) as server:
            return forming.started(workers, world_ranks, server, deadline)
    except BaseException:
        run_each(client, release_worker, {worker.address: (group,) for worker in workers}, 2.0)
        raise


def shared_world(workers: Sequence[WorkerInfo]) -> tuple[int, ...] | None:
    """The ranks of these workers in the MPI world that they all belong to already, None where they need a new one.

    A world that we made is not used again after a failure, as new processes are cheap; one that mpiexec made is.
    """
    if any(worker.retired for worker in workers):
        return None
    if len(workers) == 1:
        return (0,)
    reports = [worker.mpi for worker in workers]
    ranks = tuple(report.rank for report in reports)
    one_world = len({report.world for report in reports}) == 1 and reports[0].world and len(set(ranks)) == len(ranks)
    usable = not any(report.ours and report.spent for report in reports)
    return ranks if one_world and usable else None


class _Wait:
    """A wait until a deadline, of which the user is told once if it is not short."""

    def __init__(self, deadline: float) -> None:
        self._deadline, self._told_at = deadline, time.monotonic() + _UNMENTIONED_S

    def over(self, why: str) -> bool:
        """Whether the deadline has passed. Otherwise, time for another look."""
        now = time.monotonic()
        if now >= self._deadline:
            return True
        if now >= self._told_at:
            logger.warning("waiting up to %.0f s: %s", self._deadline - now, why)
            self._told_at = self._deadline
        time.sleep(_LOOK_S)
        return False


@dataclass(frozen=True)
class _Forming:
    """A group on its way, as form_group was asked for it. group: its unique name."""

    client: Any
    group: str
    fn: Callable[..., Any]
    args: tuple
    comm_timeout_s: float
    run: str
    replaced: dict[str, int]

    def reserved(self, addresses: list[str], deadline: float) -> list[WorkerInfo]:
        """Reserve every worker or none: two groups that each hold half of their workers would wait for ever.

        Reservations live in the workers and expire. Dask's MultiLock would stay locked for ever when its driver dies.
        """
        while True:
            there = alive(self.client)
            gone = [address for address in addresses if address not in there]
            if gone:
                known = ", ".join(sorted(there)) or "none"
                raise ClusterError(f"Dask workers are gone: {', '.join(gone)}. There are now: {known}. Start more.")
            left = max(0.1, deadline - time.monotonic())
            asked = dict.fromkeys(addresses, (self.group, self.run, _LEASE_S))
            answers = run_each(self.client, reserve_worker, asked, min(left, _RESERVE_S))
            silent = [address for address, answer in answers.items() if isinstance(answer, Exception)]
            busy = {address: answer for address, answer in answers.items() if isinstance(answer, str)}
            if not silent and not busy:
                return [answer for answer in answers.values() if isinstance(answer, WorkerInfo)]
            run_each(self.client, release_worker, dict.fromkeys(set(addresses) - set(silent), (self.group,)), 2.0)
            if silent:
                causes = "; ".join(f"{address}: {answers[address]!r}" for address in silent)
                why = f"Dask workers do not answer (stopped, or cut off): {causes}"
                raise NoAnswer(f"{self.group} cannot form: {why}")
            if time.monotonic() >= deadline:
                held = ", ".join(f"{address} by {other}" for address, other in busy.items())
                raise WorkersInUse(f"{self.group} cannot form: workers are still in use: {held}. Wait for it to end.")
            time.sleep(random.uniform(0.1, 0.3))

    def in_one_world(
        self, workers: list[WorkerInfo], deadline: float
    ) -> tuple[list[WorkerInfo], tuple[int, ...] | None]:
        """The workers, fresh where they had to be, and their ranks in the world that they share: None, a new one."""
        for attempt in range(2):
            world_ranks = shared_world(workers)
            stale = [worker for worker in workers if worker.mpi.world or worker.retired]
            if world_ranks or not stale:
                if world_ranks is None and len({(worker.node, worker.pid) for worker in workers}) < len(workers):
                    raise self.error("ranks need a process each; use LocalCluster(processes=True)")
                return workers, world_ranks
            if attempt == 0:
                fresh = self._restarted(stale, deadline)
                workers = self.reserved([fresh.get(worker.address, worker.address) for worker in workers], deadline)
        names = ", ".join(str(worker) for worker in stale)
        raise self.error(
            f"MPI is initialised in fresh processes of {names}. "
            "Import mpi4py.MPI inside functions, not where a module is imported."
        )

    def _restarted(self, stale: Sequence[WorkerInfo], deadline: float) -> dict[str, str]:
        """Restart these workers, each once it holds nothing for others: the old addresses -> the new ones."""
        _check_nannies(stale)
        waiting, fresh, wait = {worker.address: worker for worker in stale}, dict[str, str](), _Wait(deadline)
        while waiting:
            free, held = without_tasks_and_data(self.client, waiting)
            try:
                taken = self._taken(waiting)  # the data of one may have moved for longer than they were reserved
                take_tasks(self.client, free & taken.keys())
                if free - taken.keys():
                    batch = [waiting.pop(address) for address in sorted(free - taken.keys())]
                    self.replaced.update({worker.address: worker.pid for worker in batch})
                    fresh |= restart_workers(self.client, batch, max(5.0, deadline - time.monotonic()))
                    continue
            except BaseException:
                take_tasks(self.client, free)
                raise
            held = held or "; ".join(f"{address} is in use by {other}" for address, other in taken.items())
            why = f"these workers need a fresh process, since they were in another group: {held}"
            if wait.over(why):
                hint = "Wait for these tasks, delete the data, start more workers, or use those of the other group."
                raise self.error(f"{why}. {hint}")
        return fresh

    def wait_for_threads(self, workers: Sequence[WorkerInfo], deadline: float) -> None:
        """Wait until each worker has a thread for its rank."""
        addresses, wait = [worker.address for worker in workers], _Wait(deadline)
        while busy := without_a_thread(self.client, addresses):
            why = f"tasks of others occupy all threads of these workers: {busy}"
            if wait.over(why):
                raise self.error(f"{why}. Wait for these tasks, or start workers with more threads.")
            self._taken(addresses)

    def _taken(self, addresses: Iterable[str]) -> dict[str, str]:
        """Reserve these workers for longer. Returns who else has them, of those that others have."""
        asked = dict.fromkeys(addresses, (self.group, self.run, _LEASE_S))
        answers = run_each(self.client, reserve_worker, asked, _ANSWER_S)
        return {address: answer for address, answer in answers.items() if isinstance(answer, str)}

    def started(
        self,
        workers: Sequence[WorkerInfo],
        world_ranks: tuple[int, ...] | None,
        server: PmiServer | None,
        deadline: float,
    ) -> Group:
        """Submit the ranks and wait until all have met."""
        several = len({worker.node for worker in workers}) > 1
        plans = [
            RankPlan(
                group=self.group,
                rank=rank,
                size=len(workers),
                world_ranks=world_ranks or tuple(range(len(workers))),
                endpoint=server.endpoint if server else None,
                host=worker.host if several else "",
                forming_s=max(1.0, deadline - time.monotonic()),
                comm_timeout_s=self.comm_timeout_s,
            )
            for rank, worker in enumerate(workers)
        ]
        futures = [
            self.client.submit(
                rank_task,
                plan,
                self.fn,
                self.args,
                key=f"{self.group}-rank{plan.rank}",
                workers=[worker.address],
                pure=False,
                retries=0,
            )
            for plan, worker in zip(plans, workers, strict=True)
        ]
        group = Group(self.client, plans, workers, futures, server, self.replaced)
        try:
            while not group.poll() and not _all_formed(self.client, group):
                if time.monotonic() >= deadline or (server and server.state.failure):
                    _raise_unformed(self.client, group, server)
                time.sleep(0.01)
        except GroupFailed as error:
            if isinstance(error.failure.exception, DriverUnreachable):
                raise DriverUnreachable(f"{error.failure.exception}. {_REACH}") from None
            if isinstance(error.failure.exception, MpiUnusable):
                where = f"rank {error.failure.rank} on {error.failure.worker}"
                raise self.error(f"{where}: {error.failure.exception}") from None
            if isinstance(error.failure.exception, JoinFailed):
                raise
        except BaseException as error:
            group.abort(str(error))
            raise
        group.formed()
        return group

    def error(self, why: str) -> ClusterError:
        """Why the group cannot form."""
        return ClusterError(f"{self.group} cannot form: {why}")


def restart_workers(client: Any, workers: Sequence[WorkerInfo], timeout_s: float = 30.0) -> dict[str, str]:
    """Give each worker a fresh process: its old address -> its new one, which may be the same where ports are given.
    What the old process held is lost.

    Raises ClusterError for workers without a nanny, and when a worker does not come back in time.
    """
    _check_nannies(workers)
    deadline = time.monotonic() + timeout_s
    before = alive(client)
    kill_processes(client, {worker.address: worker.pid for worker in workers})
    old_of = {worker.nanny: worker for worker in workers}
    fresh: dict[str, str] = {}
    while len(fresh) < len(workers) and time.monotonic() < deadline:
        there = alive(client) - (before - {worker.address for worker in workers})
        for address, answer in run_each(client, describe, dict.fromkeys(there, ()), 2.0).items():
            if not isinstance(answer, WorkerInfo) or answer.nanny not in old_of:
                continue
            old = old_of[answer.nanny]
            if answer.pid != old.pid:
                fresh[old.address] = address
        time.sleep(0.02)
    absent = [str(worker) for worker in workers if worker.address not in fresh]
    if absent:
        raise ClusterError(
            f"workers did not come back within {timeout_s:.0f} s of their restart: {', '.join(absent)}. The logs of "
            "their nannies say why; or start other workers."
        )
    return fresh


def _check_nannies(workers: Sequence[WorkerInfo]) -> None:
    single = [str(worker) for worker in workers if not worker.nanny]
    if single:
        raise ClusterError(
            f"these workers need a fresh process and have no nanny to start one: {', '.join(single)}. Restart them, "
            "or, where mpiexec started them, give a group only workers of one MPI job."
        )


def _pmi_server(workers: Sequence[WorkerInfo]) -> PmiServer:
    """The server, on loopback unless a worker is on another machine, then where that worker reaches this process."""
    nodes = [worker.node for worker in workers]
    elsewhere = [worker.host for worker in workers if worker.node != this_node()]
    if not elsewhere:
        return PmiServer(nodes)
    return PmiServer(nodes, get_ipv6(elsewhere[0]) if ":" in elsewhere[0] else get_ip(elsewhere[0]))


def _all_formed(client: Any, group: Group) -> bool:
    """Whether every rank has met the others, or has already returned."""
    pairs = zip(group.addresses, group.futures, strict=True)
    waiting = [address for address, future in pairs if future.status != "finished"]
    answers = run_each(client, rank_formed, dict.fromkeys(waiting, (group.id,)), 1.0)
    return all(answer is True for answer in answers.values())


def _raise_unformed(client: Any, group: Group, server: PmiServer | None) -> None:
    # A rank that died takes a moment to be noticed, and is a better cause than the connection that it lost.
    if server and server.state.failure:
        group.wait(1.0)
    missing = server.missing() if server else {}
    formed = run_each(client, rank_formed, dict.fromkeys(group.addresses, (group.id,)), 1.0)
    if not missing:
        missing = {r: "did not join" for r, address in enumerate(group.addresses) if formed[address] is not True}
    names = "; ".join(f"rank {rank} on {group.workers[rank]} {what}" for rank, what in missing.items())
    raise ClusterError(f"{group.id} could not form: {names or (server and server.state.failure)}. {_EXAMINE}")
