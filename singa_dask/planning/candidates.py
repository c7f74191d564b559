"""The ways to train a job that are worth a prediction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from singa_dask.errors import ConfigError
from singa_dask.job import ClusterTopology, Strategy
from singa_dask.job.job_pb2 import ClusterProto, JobProto
from singa_dask.layers.partition import Sharding
from singa_dask.planning.partition import is_open
from singa_dask.planning.prediction import Candidate, Machines
from singa_dask.planning.work import planned_nets
from singa_dask.updaters import updater_class

DIMS = {"dim 0": 0, "dim 1": 1}
CODED: tuple[dict[str, Any], ...] = ({"codec": "kHalf"}, {"codec": "kTopK", "sparsity": 0.05})
LARGE_BUCKETS = 1 << 21  # elements
SEVERAL = 4  # workers from which on groups of several are worth a try

Shardings = tuple[tuple[str, tuple[Sharding, Sharding]], ...]
Choose = Callable[[JobProto], JobProto]


def candidates(
    job: JobProto,
    workers: Iterable[int],
    machines: Machines,
    choose: Choose | None = None,
    *,
    processes: int | None = None,
    strategies: Collection[Strategy] = tuple(Strategy),
) -> list[Candidate]:
    """About 15 candidates for each number of workers, those of one worker first, and the job's own topology.

    job: prepared, but for a partition that it may leave to the cost model. A layer's own partition_dim stays as it is.
    choose: returns a job, whose cluster block is set, with the partition that the cost model chooses; None for no
    candidates with such a partition. processes: that there are for workers and separate servers; None for any number.
    """
    found: dict[tuple[ClusterTopology, Shardings], Candidate] = {}
    for topology, partition in dict.fromkeys(_tried(job, sorted({1, *workers}), machines)):
        fits = processes is None or topology.nprocesses <= processes
        listed = topology.strategy in strategies or topology.nworkers == 1
        if not (fits and listed) or (partition == "auto" and choose is None):
            continue
        try:
            candidate = _candidate(job, topology, partition, choose)
            shardings = _shardings(candidate)
        except ConfigError:
            if partition == "job":
                raise
            continue
        if partition == "job" or _divides(candidate, shardings):
            found.setdefault((topology, shardings), candidate)
    return sorted(found.values(), key=lambda each: each.topology.nworkers)


def _tried(job: JobProto, workers: Iterable[int], machines: Machines) -> Iterator[tuple[ClusterTopology, str]]:
    """Topologies with a partition: the job's own, with its partition where it has one, then the simplest first."""
    if job.HasField("cluster"):
        own = ClusterTopology.from_proto(job.cluster)
        yield from ((own, partition) for partition in (["dim 0", "auto"] if is_open(job) else ["job"]))
    for n in workers:
        for topology in _topologies(n, machines):
            yield topology, "dim 0"
            if topology == ClusterTopology.allreduce(n):
                yield topology, "dim 1"
            if topology in worth_a_choice(n):
                yield topology, "auto"


def _topologies(n: int, machines: Machines) -> list[ClusterTopology]:
    together, half = ClusterTopology.allreduce(n), _half(n)
    if n == 1:
        return [together]
    network, downpour = machines.hosts_for(n) > 1, ClusterTopology.downpour(n, 1, half)
    groups = []
    if n >= SEVERAL and n % 2 == 0:
        groups = [ClusterTopology.downpour(half, 2, half // 2), ClusterTopology.hybrid(2, half, 2, half)]
    return [
        together,
        *(replace(together, **coded) for coded in CODED),
        *([replace(together, bucket_size=LARGE_BUCKETS)] if network else []),
        *(ClusterTopology.sandblaster(n, servers) for servers in (1, half)),
        *(ClusterTopology.downpour(n, 1, servers) for servers in (1, half)),
        replace(downpour, **CODED[0]),
        *([replace(downpour, one_behind=True)] if network else []),
        ClusterTopology.hogwild(n),
        *groups,
    ]


def _candidate(job: JobProto, topology: ClusterTopology, partition: str, choose: Choose | None) -> Candidate:
    job = with_cluster(job, topology.to_proto())
    job.neuralnet.ClearField("partition")
    if partition in DIMS:
        job.neuralnet.partition_dim = DIMS[partition]
    return Candidate(choose(job) if choose is not None and partition == "auto" else job, partition)


def _shardings(candidate: Candidate) -> Shardings:
    """What each layer reads and makes: equal for partitions that do the same."""
    return tuple(planned_nets(candidate.job, candidate.topology.nworkers_per_group).shardings.items())


def _divides(candidate: Candidate, shardings: Shardings) -> bool:
    """Whether the updater suits the partition, and every worker of a group gets something to compute."""
    size = candidate.topology.nworkers_per_group
    planned = planned_nets(candidate.job, size)
    if planned.net.own.params and updater_class(candidate.job.updater).whole_parameters:
        return False
    divided = any(each != (Sharding.BATCH, Sharding.BATCH) for _, each in shardings)
    return divided or (candidate.partition == "dim 0" and size <= planned.batch)


def _half(n: int) -> int:
    return max(1, n // 2)


def worth_a_choice(n: int) -> Iterator[ClusterTopology]:
    """Of n workers, the topologies for which a partition is chosen: that takes longer than a prediction."""
    if n > 1:
        yield ClusterTopology.allreduce(n)
        yield ClusterTopology.sandblaster(n, _half(n))
    if n >= SEVERAL and n % 2 == 0:
        yield ClusterTopology.hybrid(2, n // 2, 2, n // 2)


def with_cluster(job: JobProto, cluster: ClusterProto) -> JobProto:
    """A copy of the job with another cluster block, in the same workspace if the block names none."""
    copy = JobProto()
    copy.CopyFrom(job)
    copy.cluster.CopyFrom(cluster)
    if job.cluster.HasField("workspace") and not cluster.HasField("workspace"):
        copy.cluster.workspace = job.cluster.workspace
    return copy
