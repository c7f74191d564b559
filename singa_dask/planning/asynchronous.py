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
    """outcome: of a step of one group, which has the cores and servers to itself."""
    machines, topology = step.costs.machines, step.costs.topology
    groups, size = topology.nworker_groups, topology.nworkers_per_group
    hosts = machines.hosts_for(topology.nprocesses)
    alone = outcome.seconds
    served = step.server_seconds / topology.nservers_per_group
    work = size * outcome.cpu + step.server_seconds + exchanged(step)
    if step.behind:
        alone = max(outcome.seconds - outcome.parts["servers"], step.reply_seconds)
    sharing = groups // topology.nserver_groups
    step_s = max(alone, groups * work / (machines.cores * hosts), sharing * served)
    staleness = (sharing - 1.0) * (2 if step.behind else 1)
    return GroupRates(step_s, staleness, sharing * served / step_s)


def exchanged(step: GroupStep) -> float:
    """Seconds of cores per step of a group in the exchange of server groups, which form a line, with neighbours."""
    topology = step.costs.topology
    groups = topology.nserver_groups
    if groups == 1:
        return 0.0
    nbytes = NBYTES * (step.work.replicated + step.work.own * step.size)
    return (groups - 1) / groups * step.costs.neighbours(nbytes, topology.nprocesses) / topology.sync_freq
