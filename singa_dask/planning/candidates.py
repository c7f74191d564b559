"""The ways to train a job that are worth a prediction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from singa_dask.errors import ConfigError
from singa_dask.job import ClusterTopology, Framework
from singa_dask.job.job_pb2 import ClusterProto, JobProto, Phase
from singa_dask.net import Net
from singa_dask.ops import Ops
from singa_dask.planning.partition import is_open
from singa_dask.planning.prediction import Candidate, Machines
from singa_dask.planning.work import planned_nets
from singa_dask.training.nets import make_nets
from singa_dask.updaters import updater_class

DIMS = {"dim 0": 0, "dim 1": 1}
CODED: tuple[dict[str, Any], ...] = ({"codec": "kHalf"}, {"codec": "kTopK", "sparsity": 0.05})
LARGE_BUCKETS = 1 << 21  # elements
SEVERAL = 4  # workers from which on groups of several are worth a try

Forms = tuple[tuple[str, str, str], ...]
Choose = Callable[[JobProto], JobProto]


def candidates(
    job: JobProto,
    workers: Iterable[int],
    machines: Machines,
    choose: Choose | None = None,
    *,
    processes: int | None = None,
    frameworks: Collection[Framework] = tuple(Framework),
) -> list[Candidate]:
    """About 15 candidates for each number of workers, those of one worker first, and the job's own topology.

    job: prepared, but for a partition that it may leave to the cost model. A layer's own partition_dim stays as it is.
    choose: returns a job, whose cluster block is set, with the partition that the cost model chooses; None for no
    candidates with such a partition. processes: that there are for workers and separate servers; None for any number.
    """
    maker = _Maker(job, machines, choose)
    found: dict[tuple[ClusterTopology, Forms], Candidate] = {}
    for topology, partition in (*maker.own(), *maker.every(sorted({1, *workers}))):
        fits = processes is None or topology.nprocesses <= processes
        listed = topology.framework in frameworks or topology.nworkers == 1
        if fits and listed and (partition == "job" or maker.divides(topology, partition)):
            found.setdefault(maker.key(topology, partition), maker.candidate(topology, partition))
    return sorted(found.values(), key=lambda each: each.topology.nworkers)


def training_net(job: JobProto, size: int, rank: int = 0) -> Net:
    """The training net of a worker in a group of `size`, without memory."""
    return make_nets(job, Ops(), rank, size, phases=(), allocate=False)[Phase.kTrain]


@dataclass
class _Maker:
    job: JobProto
    machines: Machines
    choose: Choose | None
    _made: dict[tuple[ClusterTopology, str], Candidate] = field(default_factory=dict)
    _forms: dict[tuple[int, bytes], Forms] = field(default_factory=dict)

    def own(self) -> Iterator[tuple[ClusterTopology, str]]:
        """The job's own topology, with the job's partition where it has one."""
        if not self.job.HasField("cluster"):
            return
        topology = ClusterTopology.from_proto(self.job.cluster)
        if not is_open(self.job):
            yield topology, "job"
            return
        yield topology, "dim 0"
        if self.choose is not None:
            yield topology, "auto"

    def every(self, workers: Sequence[int]) -> Iterator[tuple[ClusterTopology, str]]:
        """Topologies with a partition, the simplest first."""
        for n in workers:
            for topology in dict.fromkeys(self._topologies(n)):
                yield topology, "dim 0"
                if topology == ClusterTopology.allreduce(n):
                    yield topology, "dim 1"
                if self.choose is not None and topology in worth_a_choice(n):
                    yield topology, "auto"

    def _topologies(self, n: int) -> Iterator[ClusterTopology]:
        yield ClusterTopology.allreduce(n)
        if n == 1:
            return
        network = self.machines.hosts_for(n) > 1
        for coded in CODED:
            yield replace(ClusterTopology.allreduce(n), **coded)
        if network:
            yield replace(ClusterTopology.allreduce(n), bucket_size=LARGE_BUCKETS)
        half = _half(n)
        for servers in dict.fromkeys((1, half)):
            yield ClusterTopology.sandblaster(n, servers)
        for servers in dict.fromkeys((1, half)):
            yield ClusterTopology.downpour(n, 1, servers)
        yield replace(ClusterTopology.downpour(n, 1, half), **CODED[0])
        if network:
            yield replace(ClusterTopology.downpour(n, 1, half), one_behind=True)
        yield ClusterTopology.hogwild(n)
        if n >= SEVERAL and n % 2 == 0:
            yield ClusterTopology.downpour(half, 2, max(1, half // 2))
            yield ClusterTopology.hybrid(2, half, 2, half)

    def divides(self, topology: ClusterTopology, partition: str) -> bool:
        """Whether the net can be partitioned so, with this updater, and every worker of a group gets something to
        compute."""
        size = topology.nworkers_per_group
        try:
            forms = self.forms(topology, partition)
            net = planned_nets(self.candidate(topology, partition).job, size).nets[Phase.kTrain]
        except ConfigError:
            return False
        if net.own.params and updater_class(self.job.updater).whole_parameters:
            return False
        divided = any((reads, makes) != ("rows", "rows") for _, reads, makes in forms)
        return divided or (partition == "dim 0" and size <= max(self._batches(), default=size))

    def _batches(self) -> Iterator[int]:
        for layer in self.job.neuralnet.layer:
            if not layer.srclayers and layer.HasField("store_conf") and Phase.kTrain not in layer.exclude:
                yield from layer.store_conf.batchsize

    def key(self, topology: ClusterTopology, partition: str) -> tuple[ClusterTopology, Forms]:
        """Equal for candidates that do the same."""
        return topology, self.forms(topology, partition)

    def forms(self, topology: ClusterTopology, partition: str) -> Forms:
        """What each layer reads and makes, for layers that a partition is a choice for."""
        size = topology.nworkers_per_group
        proto = self.candidate(topology, partition).job.neuralnet
        known = size, proto.SerializeToString(deterministic=True)
        if known not in self._forms:
            net = planned_nets(self.candidate(topology, partition).job, size).nets[Phase.kTrain]
            self._forms[known] = tuple(
                (name, str(layer.partition.reads), str(layer.partition.makes)) for name, layer in net.layers.items()
            )
        return self._forms[known]

    def candidate(self, topology: ClusterTopology, partition: str) -> Candidate:
        """The candidate with this topology and partition."""
        known = topology, partition
        if known not in self._made:
            job = with_cluster(self.job, topology.to_proto())
            job.neuralnet.ClearField("partition")
            if partition in DIMS:
                job.neuralnet.partition_dim = DIMS[partition]
            elif partition == "auto" and self.choose is not None:
                job = self.choose(job)
            self._made[known] = Candidate(job, partition)
        return self._made[known]


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
