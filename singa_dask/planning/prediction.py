"""What the cost model says of one way to train a job."""

from __future__ import annotations

from dataclasses import dataclass, field

from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import JobProto


@dataclass(frozen=True)
class Machines:
    """The cluster that a prediction is for.

    cores: of every host; below 1 where simulated hosts share one. workers_per_host: processes of the job that share a
    host, at most; None: all of them on as many hosts as `hosts` says. hosts: at most; None for as many as are needed.
    bandwidth: bits per second of a host's network in each direction, latency: seconds of a message; None: as measured.
    imagined: whether this cluster is not the one that was profiled, so that nothing was measured on it.
    """

    cores: float = 1
    hosts: int | None = 1
    workers_per_host: int | None = None
    bandwidth: float | None = None
    latency: float | None = None
    imagined: bool = False

    def hosts_for(self, processes: int) -> int:
        """The hosts on which so many processes lie."""
        if self.workers_per_host is None:
            return min(processes, self.hosts or 1)
        needed = -(-processes // self.workers_per_host)
        return needed if self.hosts is None else min(needed, self.hosts)

    def concurrency(self, processes: int) -> int:
        """Processes on the host that has most."""
        return -(-processes // self.hosts_for(processes))

    def computing(self, processes: int) -> float:
        """The cores that so many processes compute on, servers included."""
        threads = max(1, int(self.cores) // self.concurrency(processes))
        return min(processes * threads, self.hosts_for(processes) * self.cores)

    def packed(self, topology: ClusterTopology) -> int:
        """Workers on the host that has most: groups lie on one host where they fit (cluster/workers.py)."""
        groups, size, room = topology.nworker_groups, topology.nworkers_per_group, self.workers_per_host
        if room is None:
            return self.concurrency(topology.nworkers)
        return min(groups, room // size) * size if size <= room else room

    def beside(self, topology: ClusterTopology) -> int:
        """Processes of the job on that host, servers included."""
        if self.hosts_for(topology.nprocesses) == 1:
            return topology.nprocesses
        return max(
            self.packed(topology), self.concurrency(topology.nprocesses) if self.workers_per_host is None else 0
        )


@dataclass(frozen=True)
class Candidate:
    """One way to train a job. job: prepared, with the cluster block and the partition of every layer. partition: a
    name of it for display: "dim 0", "dim 1", "auto" or "job"."""

    job: JobProto
    partition: str = "dim 0"

    @property
    def topology(self) -> ClusterTopology:
        return ClusterTopology.from_proto(self.job.cluster)


@dataclass(frozen=True)
class Prediction:
    """What a candidate costs.

    step_s: seconds from one update of a worker group to its next. samples_per_s: of all groups together.
    parts: seconds of the step by what they are spent on, which sum to step_s: "layers" (computing), "transitions"
    (activations sent between split layers), "exchange" (gradients and values, as far as nothing hides it), "codec",
    "update", "servers" (waiting for them), "loading", "loop" (the rest). hidden_s: of exchange beside computing.
    sent: bytes that a worker sends in a step; activations: of these, between split layers. shares: whether the workers
    of a group share memory, so that only activations are sent. memory: bytes that a worker needs; server_memory: that
    a server needs which serves several groups or has a process of its own. layers: seconds by layer, forward and
    backward, transitions included. overlaps: whether the exchange runs beside the backward pass.
    Asynchronous: staleness: updates by others between reading the parameters and applying the gradient, on average.
    server_load: share of the time in which the busiest server works. extrapolated: share of step_s that rests on
    layers which were not measured.
    """

    candidate: Candidate
    step_s: float
    samples_per_s: float
    parts: dict[str, float]
    sent: float
    memory: int
    server_memory: int = 0
    activations: float = 0.0
    shares: bool = False
    layers: dict[str, tuple[float, float]] = field(default_factory=dict)
    hidden_s: float = 0.0
    overlaps: bool = False
    staleness: float = 0.0
    server_load: float = 0.0
    extrapolated: float = 0.0


def duration(seconds: float) -> str:
    """
    >>> duration(0.00724), duration(1.0799)
    ('7.24 ms', '1.08 s')
    """
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:,.3g} s"
