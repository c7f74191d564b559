"""How fast several worker groups go that train independently: their rates, staleness, and the load of servers.

A closed system: every group makes a step after another. A step takes at least as long as it does for a group on its
own, the processors of a host give no more seconds than they have cores, and a server answers one update after another
(the asymptotic bounds of operational analysis, Denning & Buzen 1978):

    step >= seconds of a group on its own
    step >= groups x (seconds of a core that a step takes, of workers and servers) / cores
    step >= groups x seconds of the busiest server
"""

from __future__ import annotations

from dataclasses import dataclass

from singa_dask.job import ClusterTopology
from singa_dask.planning.step import GroupStep
from singa_dask.planning.timeline import Outcome
from singa_dask.planning.work import NBYTES


@dataclass(frozen=True)
class GroupRates:
    """Of every group. step_s: seconds of its steps. staleness: updates by others between reading the parameters and
    applying the gradient, on average. server_load: share of the time in which a server works."""

    step_s: float
    staleness: float
    server_load: float


def group_rates(step: GroupStep, outcome: Outcome) -> GroupRates:
    """outcome: of a step of one group, which has the cores to itself and its servers elsewhere."""
    machines, topology = step.costs.machines, step.costs.topology
    size, sharing = topology.nworkers_per_group, topology.nworker_groups // topology.nserver_groups
    hosts = machines.hosts_for(topology.nprocesses)
    groups = [_Group.of(step, outcome, share) for share in _local_shares(topology)]
    served = step.server_seconds / topology.nservers_per_group
    remote = [1 - group.local for group in groups]
    work = (
        sum(size * group.cpu for group in groups) + step.server_seconds * sum(remote) + len(groups) * exchanged(step)
    )
    bound = max(work / len(groups) * topology.nworker_groups / (machines.cores * hosts), served * sum(remote))
    steps = [max(group.alone, bound) for group in groups]
    step_s = len(steps) / sum(1 / each for each in steps)
    staleness = (sharing - 1.0) * (2 if step.behind else 1)
    return GroupRates(step_s, staleness, sum(served * share / each for share, each in zip(remote, steps, strict=True)))


@dataclass(frozen=True)
class _Group:
    """local: the share of its messages that are for servers in its own processes. alone: seconds of its step with the
    cores and servers to itself. cpu: of them of a core."""

    local: float
    alone: float
    cpu: float

    @classmethod
    def of(cls, step: GroupStep, outcome: Outcome, local: float) -> _Group:
        update = local * step.costs.update(step.work.replicated / step.size)
        waits = (1 - local) * outcome.parts["servers"]
        computes = outcome.seconds - outcome.parts["servers"] + update
        alone = max(computes, (1 - local) * step.reply_seconds) if step.behind else computes + waits
        asking = sum(reply.cpu for reply in step.replies)
        return cls(local, alone, outcome.cpu - local * asking + update)


def _local_shares(topology: ClusterTopology) -> list[float]:
    """Of the worker groups around one server group: the share of its servers in a group's processes. Servers beside
    the workers fill the processes of one group after the other (cluster/workers.py)."""
    groups = topology.nworker_groups // topology.nserver_groups
    if topology.server_worker_separate or groups == 1:
        return [0.0] * groups
    left, shares = topology.nservers_per_group / topology.nservers_per_procs, []
    for _ in range(groups):
        here = min(left, topology.nworkers_per_group)
        shares.append(here * topology.nservers_per_procs / topology.nservers_per_group)
        left -= here
    return shares


def exchanged(step: GroupStep) -> float:
    """Seconds of cores per step of a group in the exchange of server groups, which form a line, with neighbours."""
    topology = step.costs.topology
    groups = topology.nserver_groups
    if groups == 1:
        return 0.0
    nbytes = NBYTES * (step.work.replicated + step.work.own * step.size)
    return (groups - 1) / groups * step.costs.neighbours(nbytes, topology.nprocesses) / topology.sync_freq
