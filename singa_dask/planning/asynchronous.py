"""How fast several worker groups go that train independently: their rates, staleness, and the load of servers.

A closed system: every group makes a step after another. A group on its own computes for c seconds of its step, waits
for w, for its other workers or the network, and for r, for its servers. Beside the others it takes

    step = s c + u w + t r,        s, t, u >= 1

where s is the smallest number for which the processors, of all groups or of each group's own hosts, give no more
seconds than they have cores, sum over groups (seconds of a core that a step takes, of workers, servers and neighbours
/ step) <= cores; t for which a server's updates fit into its time, sum over groups (seconds of the busiest server /
step) <= 1; and u for which w and the exchanges of servers fit into that of a network card. This is processor sharing,
within the asymptotic bounds of operational analysis (Denning & Buzen 1978).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

from singa_dask.job import ClusterTopology
from singa_dask.planning.clock import Clock
from singa_dask.planning.costs import Exchange
from singa_dask.planning.prediction import Machines
from singa_dask.planning.step import GroupStep
from singa_dask.planning.work import NBYTES

_HALVINGS = 40
_MOST = 1e6  # times slower than on its own


@dataclass(frozen=True)
class GroupRates:
    """Of every group. step_s: seconds of its steps. staleness: updates by others between reading the parameters and
    applying the gradient, on average. server_load: share of the time in which a server works. sent: bytes that the
    servers beside a worker send to neighbours in a step, on average."""

    step_s: float
    staleness: float
    server_load: float
    sent: float


def group_rates(step: GroupStep, clock: Clock, machines: Machines) -> GroupRates:
    """clock: after a step of one group, which has the cores to itself and its servers elsewhere."""
    topology = step.costs.topology
    groups = _Groups(step, clock)
    steps = groups.steps(machines)
    count = sum(groups.counts.values())
    step_s = count / sum(number / steps[group] for group, number in groups.counts.items())
    staleness = (topology.nworker_groups // topology.nserver_groups - 1.0) * (2 if step.behind else 1)
    return GroupRates(step_s, staleness, groups.server_load(steps), groups.sent(step_s))


class _Groups:
    """All groups of a job. counts: of each kind."""

    def __init__(self, step: GroupStep, clock: Clock) -> None:
        self._step, topology = step, step.costs.topology
        self._topology, self._neighbours = topology, _Neighbours.of(step)
        kinds = Counter(product(_local_shares(topology), _links(topology.nserver_groups)))
        self.counts = {_AsyncGroup.of(step, clock, *kind): number for kind, number in kinds.items()}

    def steps(self, machines: Machines) -> dict[_AsyncGroup, float]:
        """Seconds of the steps of each kind of groups."""
        carried = {group: _least(partial(self._card_fits, group)) for group in self.counts}

        def of_all(slower: float, slowed: float) -> dict[_AsyncGroup, float]:
            return {group: group.step(slowed, slower, carried[group]) for group in self.counts}

        slower = _least(lambda t: self.server_load(of_all(t, 1.0)) <= 1)
        hosts = machines.hosts_for(self._topology.nprocesses)
        if hosts == 1 or machines.cores < 1:  # they share cores
            cores = machines.cores * hosts
            return of_all(slower, _least(lambda s: self._cores_used(of_all(slower, s), s) <= cores))
        found = of_all(slower, 1.0)
        cores = machines.cores * hosts / self._topology.nprocesses * self._step.size
        for group in sorted(self.counts, key=lambda group: group.local):
            served = min(group.local * self._served(found), cores / 2)  # processes get equal shares of a core

            def fits(slowed: float, group: _AsyncGroup = group, left: float = cores - served) -> bool:
                return self._used(group, group.step(slowed, slower, carried[group]), slowed) <= left

            found[group] = group.step(_least(fits), slower, carried[group])
        return found

    def server_load(self, steps: Mapping[_AsyncGroup, float]) -> float:
        """Share of the time in which a server works."""
        return self._step.busy_seconds * self._asked(steps)

    def sent(self, step_s: float) -> float:
        """Bytes that the servers of a group send to neighbours in a step, per worker of a group."""
        links = sum(group.links * number for group, number in self.counts.items()) / sum(self.counts.values())
        return links * self._neighbours.sent(step_s) / self._step.size

    def _served(self, steps: Mapping[_AsyncGroup, float]) -> float:
        """Cores that the servers of a server group use."""
        return self._step.served_seconds * self._asked(steps)

    def _asked(self, steps: Mapping[_AsyncGroup, float]) -> float:
        """Updates in a second that a server group is sent from other processes."""
        asked = sum(number * (1 - group.local) / steps[group] for group, number in self.counts.items())
        return asked / self._topology.nserver_groups

    def _cores_used(self, steps: Mapping[_AsyncGroup, float], slowed: float) -> float:
        """By all groups and servers."""
        used = sum(number * self._used(group, steps[group], slowed) for group, number in self.counts.items())
        return used + self._topology.nserver_groups * self._served(steps)

    def _used(self, group: _AsyncGroup, step_s: float, slowed: float) -> float:
        """Cores that the workers of a group use, and their servers for neighbours."""
        return group.demand / step_s + group.links * self._neighbours.cores_used(step_s, slowed)

    def _card_fits(self, group: _AsyncGroup, carried: float) -> bool:
        step_s = group.step(1.0, 1.0, carried)
        return group.waits / step_s + group.links * self._neighbours.card_load(step_s) <= 1


def _least(fits: Callable[[float], bool]) -> float:
    """The least number from 1 on that fits, of those up to _MOST."""
    low, high = 1.0, 1.0
    while not fits(high) and high < _MOST:
        low, high = high, 2 * high
    for _ in range(_HALVINGS if high > low else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class _AsyncGroup:
    """local: the share of its messages that are for servers in its own processes. links: neighbours of each of its
    servers. Of its step on its own: computes: seconds of a core; waits: for the others of the group and the network;
    replies: for servers. hides: whether it computes while it waits for these (one_behind). demand: seconds of a core
    of its workers together."""

    local: float
    links: int
    computes: float
    waits: float
    replies: float
    hides: bool
    demand: float

    @classmethod
    def of(cls, step: GroupStep, clock: Clock, local: float, links: int) -> _AsyncGroup:
        remote = 1 - local
        update = local * step.costs.update(step.work.replicated / step.size)
        asking = sum(reply.cpu for reply in step.replies)
        cpu = clock.cpu - local * asking + update
        replies = remote * (step.reply_seconds if step.behind else clock.parts["servers"])
        rest = clock.now - clock.parts["servers"] + update
        computes = min(cpu, rest)
        return cls(local, links, computes, rest - computes, replies, step.behind, step.size * cpu)

    def step(self, slowed: float, slower: float, carried: float) -> float:
        """Seconds of its step where computing takes `slowed` times as long, replies `slower`, waiting `carried`."""
        alone, replies = self.computes * slowed + self.waits * carried, self.replies * slower
        return max(alone, replies) if self.hides else alone + replies


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


def _links(server_groups: int) -> list[int]:
    """Neighbours of each server group, which form a line."""
    return [(k > 0) + (k < server_groups - 1) for k in range(server_groups)]


@dataclass(frozen=True)
class _Neighbours:
    """The exchange of a server with its neighbour in the next group: due after so many updates, `every`, once the one
    before is answered. servers: of a group. nbytes, exchange: of one of them on idle machines."""

    servers: int
    nbytes: float
    every: int
    exchange: Exchange

    @classmethod
    def of(cls, step: GroupStep) -> _Neighbours:
        topology = step.costs.topology
        if topology.nserver_groups == 1:
            return cls(0, 0.0, 1, Exchange(0.0, 0.0, 0.0))
        servers = topology.nservers_per_group
        nbytes = NBYTES * (step.work.replicated + step.work.own * step.size) / servers
        return cls(servers, nbytes, topology.sync_freq, step.costs.neighbours(nbytes, topology.nprocesses))

    def sent(self, step_s: float) -> float:
        """Bytes that all servers of a group send to one neighbouring group in a step."""
        return self.servers * self.nbytes * step_s / max(self.every * step_s, self.exchange.seconds)

    def cores_used(self, step_s: float, slowed: float) -> float:
        """Cores of one side, of all servers of a group, while steps take so long and computing `slowed` times as long
        as on its own."""
        if not self.servers:
            return 0.0
        cpu = self.exchange.cpu
        return self.servers * cpu / 2 / max(self.every * step_s, self.exchange.seconds + cpu * (slowed - 1))

    def card_load(self, step_s: float) -> float:
        """Share of the time in which the network card of a server is busy."""
        return self.exchange.card / max(self.every * step_s, self.exchange.seconds) if self.servers else 0.0
