"""How training is distributed, as pure data: worker groups, server groups, and the strategy that they form.

    sandblaster  1 worker group,  servers in separate processes   synchronous    (Google Brain)
    allreduce    1 worker group,  servers in worker processes     synchronous    (Baidu DeepImage)
    downpour     n worker groups, 1 server group                  asynchronous   (Google Brain)
    hogwild      n single workers, each with its own server group asynchronous   (Caffe)
    hybrid       n worker groups, m server groups                 asynchronous

The numbers alone decide the strategy. The training loop is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.job.job_pb2 import ClusterProto


class Strategy(Enum):
    """SINGA's training strategies; the value is the display name."""

    SANDBLASTER = "Sandblaster"
    ALLREDUCE = "AllReduce"
    DOWNPOUR = "Downpour"
    HOGWILD = "Distributed Hogwild"
    HYBRID = "Hybrid"

    @property
    def synchronous(self) -> bool:
        """Whether all workers train one model replica in lock-step."""
        return self in (Strategy.SANDBLASTER, Strategy.ALLREDUCE)


@dataclass(frozen=True)
class ClusterTopology:
    """The numbers of ClusterProto that define how training is distributed. The constructor checks them.

    nworker_groups: groups that train independently; nworkers_per_group: workers that share a group's mini-batches.
    nserver_groups: copies of the parameters; nservers_per_group: servers that share one copy.
    nservers_per_procs: servers in one process. A worker has a process of its own.
    server_worker_separate: whether servers have separate processes.
    sync_freq: updates of a server group between two exchanges with its neighbours.
    max_staleness: how many updates a worker group may be ahead of the slowest one; None for no bound.
    one_behind: whether a group computes its next gradient while its last update is under way.
    bucket_size: gradient elements that are sent together, once the backward pass has completed them.
    codec: how gradients are compressed on their way; sparsity: the share of elements that kPartial and kTopK send.
    min_workers: the fewest workers with which a worker group goes on while replacements are missing.
    server_replicas: replicas of each server in the memory of other processes, 0 or 1. None: 1 if there are several
    hosts. Servers in the processes of a synchronous group have none.

    Raises ConfigError with a problem for every impossible number.
    """

    nworker_groups: int = 1
    nserver_groups: int = 1
    nworkers_per_group: int = 1
    nservers_per_group: int = 1
    nservers_per_procs: int = 1
    server_worker_separate: bool = False
    sync_freq: int = 1
    max_staleness: int | None = None
    one_behind: bool = False
    bucket_size: int = 1 << 18
    codec: str = "kFull"
    sparsity: float | None = None
    min_workers: int = 1
    server_replicas: int | None = None

    def __post_init__(self) -> None:
        problems = list(self._wrong_values()) or list(self._wrong_divisions()) or list(self._useless_codec())
        if problems:
            raise ConfigError(problems)

    def _wrong_values(self) -> Iterator[Problem]:
        for field in fields(self):
            name, value, default = f"cluster.{field.name}", getattr(self, field.name), field.default
            if field.name in ("codec", "sparsity") or (value is None and default is None):
                continue
            if isinstance(default, bool):
                if not isinstance(value, bool):
                    yield Problem(name, "must be true or false", repr(value))
            elif not isinstance(value, int) or isinstance(value, bool):
                yield Problem(name, "must be an integer", repr(value))
            elif field.name == "server_replicas" and value not in (0, 1):
                yield Problem(name, "must be 0 or 1", str(value), "Leave it out for 1 on several hosts, and 0 on one.")
            elif value < (0 if default is None else 1):
                least, without = (0, "no bound") if default is None else (1, default)
                yield Problem(name, f"must be at least {least}", str(value), f"Leave it out for {without}.")
        valid = sorted({*ClusterProto.Codec.keys()} - {"kThreshold"})
        if self.codec == "kThreshold":
            yield Problem("cluster.codec", "only DistOpt has this codec, jobs do not", self.codec, "Use kTopK.")
        elif self.codec not in valid:
            yield Problem("cluster.codec", "unknown codec", repr(self.codec), nearest(str(self.codec), valid))

    def _wrong_divisions(self) -> Iterator[Problem]:
        groups, copies = self.nworker_groups, self.nserver_groups
        if copies > groups:
            message = f"must not exceed nworker_groups, which is {groups}"
            hint = f"Use at most {groups}, or more worker groups."
            yield Problem("cluster.nserver_groups", message, str(copies), hint)
        elif groups % copies:
            below = copies * (groups // copies)
            message = f"{groups} worker groups cannot be divided evenly among {copies} server groups"
            hint = f"Use a multiple of nserver_groups: {below} or {below + copies}."
            yield Problem("cluster.nworker_groups", message, str(groups), hint)
        if copies > 1 and self.max_staleness is not None:
            message = "bounds the worker groups of one server group, and there are several server groups"
            hint = "Use nserver_groups: 1, or leave it out."
            yield Problem("cluster.max_staleness", message, str(self.max_staleness), hint)
        if groups == 1 and (self.one_behind or self.max_staleness is not None):
            name, received = ("one_behind", "true") if self.one_behind else ("max_staleness", str(self.max_staleness))
            message = "needs several worker groups: a single one is synchronous"
            hint = "Use nworker_groups: 2, or leave it out."
            yield Problem(f"cluster.{name}", message, received, hint)
        if self.server_replicas and self.in_process_servers:
            message = "needs servers that several processes use: here each is in the process of its only worker"
            hint = "Leave it out, or use server_worker_separate: true."
            yield Problem("cluster.server_replicas", message, str(self.server_replicas), hint)
        if self.min_workers > self.nworkers_per_group:
            message = f"must not exceed nworkers_per_group, which is {self.nworkers_per_group}"
            yield Problem("cluster.min_workers", message, str(self.min_workers), "Leave it out for 1.")
        yield from self._wrong_packing()

    def _wrong_packing(self) -> Iterator[Problem]:
        """A process holds whole groups, or a group fills whole processes, so that no loss takes half a group."""
        per_process, ngroups, size = self.nservers_per_procs, self.nserver_groups, self.nservers_per_group
        whole_processes = size % per_process == 0
        whole_groups = per_process % size == 0 and ngroups % (per_process // size) == 0
        if not (whole_processes or whole_groups):
            message = f"{_groups(ngroups, size, 'server')} cannot be packed into processes of {per_process} servers"
            hint = "Use a divisor of nservers_per_group, or whole groups; leave it out for 1."
            yield Problem("cluster.nservers_per_procs", message, str(per_process), hint)

    def _useless_codec(self) -> Iterator[Problem]:
        if self.codec != "kFull" and self.stays_in_process:
            message = "has nothing to code: each worker is its whole group, and all its servers are in its process"
            hint = "Leave codec out, or use nworkers_per_group: 2 or server_worker_separate: true."
            yield Problem("cluster.codec", message, self.codec, hint)

    @classmethod
    def from_proto(cls, proto: ClusterProto) -> ClusterTopology:
        """The topology that a job's `cluster { }` describes. Raises ConfigError if it is impossible."""
        given = {
            f.name: getattr(proto, f.name) for f in fields(cls) if f.default is not None or proto.HasField(f.name)
        }
        return cls(**{**given, "codec": ClusterProto.Codec.Name(proto.codec)})

    def to_proto(self) -> ClusterProto:
        """The `cluster { }` of this topology. Default values are left out."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return ClusterProto(**given)

    @classmethod
    def sandblaster(cls, nworkers: int = 3, nservers: int = 2) -> ClusterTopology:
        """One worker group, and servers in separate processes."""
        return cls(nworkers_per_group=nworkers, nservers_per_group=nservers, server_worker_separate=True)

    @classmethod
    def allreduce(cls, nworkers: int = 3) -> ClusterTopology:
        """One worker group. Each worker has the server of one slice of the parameters in its process."""
        return cls(nworkers_per_group=nworkers, nservers_per_group=nworkers)

    @classmethod
    def downpour(cls, nworker_groups: int = 2, nworkers_per_group: int = 2, nservers: int = 2) -> ClusterTopology:
        """Several worker groups around one server group in separate processes."""
        return cls(
            nworker_groups=nworker_groups,
            nworkers_per_group=nworkers_per_group,
            nservers_per_group=nservers,
            server_worker_separate=True,
        )._called(Strategy.DOWNPOUR)

    @classmethod
    def hogwild(cls, nworkers: int = 3, sync_freq: int = 1) -> ClusterTopology:
        """Single workers, each with all parameters in its process. The copies exchange every `sync_freq` updates."""
        return cls(nworker_groups=nworkers, nserver_groups=nworkers, sync_freq=sync_freq)._called(Strategy.HOGWILD)

    @classmethod
    def hybrid(
        cls,
        nworker_groups: int = 2,
        nworkers_per_group: int = 2,
        nserver_groups: int = 2,
        nservers_per_group: int = 2,
        *,
        server_worker_separate: bool = False,
        sync_freq: int = 1,
    ) -> ClusterTopology:
        """Several worker groups and several server groups."""
        return cls(
            nworker_groups=nworker_groups,
            nserver_groups=nserver_groups,
            nworkers_per_group=nworkers_per_group,
            nservers_per_group=nservers_per_group,
            server_worker_separate=server_worker_separate,
            sync_freq=sync_freq,
        )._called(Strategy.HYBRID)

    def _called(self, strategy: Strategy) -> ClusterTopology:
        if self.strategy is not strategy:
            message = f"these numbers describe {self.strategy.value}, not {strategy.value}"
            raise ConfigError(Problem("cluster", message, self.describe()))
        return self

    @property
    def strategy(self) -> Strategy:
        """The strategy of these numbers."""
        if self.nworker_groups == 1:
            return Strategy.SANDBLASTER if self.server_worker_separate else Strategy.ALLREDUCE
        if self.nserver_groups == 1:
            return Strategy.DOWNPOUR
        own_servers = self.nserver_groups == self.nworker_groups and not self.server_worker_separate
        if own_servers and self.nworkers_per_group == 1:
            return Strategy.HOGWILD
        return Strategy.HYBRID

    @property
    def nworkers(self) -> int:
        """The number of workers in all groups."""
        return self.nworker_groups * self.nworkers_per_group

    @property
    def nservers(self) -> int:
        """The number of servers in all groups."""
        return self.nserver_groups * self.nservers_per_group

    @property
    def nserver_processes(self) -> int:
        """The number of processes that hold servers."""
        return self.nservers // self.nservers_per_procs

    @property
    def nprocesses(self) -> int:
        """The number of all processes. Servers share the workers' processes unless they are separate."""
        if self.server_worker_separate:
            return self.nworkers + self.nserver_processes
        return max(self.nworkers, self.nserver_processes)

    @property
    def in_process_servers(self) -> bool:
        """Whether every server is in the process of the only worker that uses it."""
        one_group = self.nworker_groups == 1 and not self.server_worker_separate
        return one_group and self.nservers_per_group <= self.nworkers_per_group and self.nservers_per_procs == 1

    @property
    def stays_in_process(self) -> bool:
        """Whether no gradient leaves its process: one worker per group, each in the process of all its servers."""
        return (
            self.nworkers_per_group == 1
            and not self.server_worker_separate
            and self.nserver_groups == self.nworker_groups
            and self.nservers_per_procs == self.nservers_per_group
        )

    def server_group_of(self, worker_group: int) -> int:
        """The server group that holds this worker group's parameters."""
        _must_exist("worker group", worker_group, self.nworker_groups)
        return worker_group // (self.nworker_groups // self.nserver_groups)

    def worker_groups_of(self, server_group: int) -> range:
        """The worker groups that this server group serves. The first one initialises the parameters."""
        _must_exist("server group", server_group, self.nserver_groups)
        share = self.nworker_groups // self.nserver_groups
        return range(server_group * share, (server_group + 1) * share)

    def describe(self) -> str:
        """One line for display."""
        workers = _groups(self.nworker_groups, self.nworkers_per_group, "worker")
        servers = _groups(self.nserver_groups, self.nservers_per_group, "server")
        where = "in separate processes" if self.server_worker_separate else "beside the workers"
        exchange = f", exchanging every {counted(self.sync_freq, 'update')}" if self.nserver_groups > 1 else ""
        if self.max_staleness is not None and self.nworker_groups > 1:
            exchange += f", at most {counted(self.max_staleness, 'update')} ahead of the slowest group"
        mode = "synchronous" if self.strategy.synchronous else "asynchronous"
        total = counted(self.nprocesses, "process", "processes")
        return f"{self.strategy.value} ({mode}): {workers}; {servers} {where}{exchange}; {total}"


def _must_exist(what: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise IndexError(f"{what} {index} does not exist: there are {count}, from 0")


def counted(n: int, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 worker", "2 workers"."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def _groups(ngroups: int, size: int, kind: str) -> str:
    return f"{counted(ngroups, kind + ' group')} of {counted(size, kind)}"


def cluster_message(cluster: Any) -> ClusterProto:
    """The message of a ClusterTopology or ClusterProto. Raises ConfigError for anything else."""
    if isinstance(cluster, ClusterTopology):
        return cluster.to_proto()
    if isinstance(cluster, ClusterProto):
        return cluster
    hint = "For example ClusterTopology.allreduce(3)."
    raise ConfigError(Problem("cluster", "expected a ClusterTopology or ClusterProto", repr(cluster), hint))
