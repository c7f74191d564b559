"""The points: which jobs are trained how and on which clusters, drawn by a seed before anything is measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tools.network import bits_per_s

from singa_dask.errors import ConfigError
from singa_dask.job import ClusterTopology, Job
from singa_dask.job.job_pb2 import JobProto
from singa_dask.training.prepare import prepare

DIM_0, DIM_1, AUTO = "dim 0", "dim 1", "auto"
CODECS: dict[str, dict[str, Any]] = {
    "kFull": {},
    "kHalf": {"codec": "kHalf"},
    "kTopK": {"codec": "kTopK", "sparsity": 0.05},
}
BUCKET_SIZES = (1 << 16, 1 << 20)  # besides the usual one
PER_JOB = 8
LONGEST_S = 0.1


@dataclass(frozen=True)
class Condition:
    """A cluster that points are measured on. workers: Dask workers. rate: of the network of every host, which has one
    of them; "" where all are on this machine."""

    workers: int
    rate: str = ""

    @property
    def name(self) -> str:
        return f"{self.workers} hosts, {self.rate}" if self.rate else f"machine, {self.workers} workers"

    @property
    def cluster(self) -> tuple[int, bool]:
        """Dask workers, and whether they have a host each, of the cluster on which this condition is measured."""
        return (self.workers, True) if self.rate else (MOST, False)

    @property
    def profiled(self) -> str:
        """Names the profile on which predictions rest: of this machine, or of these hosts on this network."""
        return self.name if self.rate else "machine"


MOST = 4
# On a machine with two cores; drawn twice as often as those whose workers share cores, as few clusters' do.
A_CORE_EACH = (Condition(2), *(Condition(2, rate) for rate in ("1gbit", "300mbit", "100mbit")))
SHARED_CORES = (
    *(Condition(workers) for workers in range(3, MOST + 1)),
    *(Condition(workers, rate) for workers in (3, 4) for rate in ("1gbit", "100mbit")),
)
CONDITIONS = sorted(A_CORE_EACH + SHARED_CORES, key=lambda condition: bool(condition.rate))


@dataclass(frozen=True)
class Way:
    """One way to train a job."""

    topology: ClusterTopology
    partition: str = DIM_0

    @property
    def label(self) -> str:
        t = self.topology
        parts = [f"{t.strategy.value} {t.nworker_groups}x{t.nworkers_per_group}"]
        if not t.in_process_servers:
            where = "separate" if t.server_worker_separate else "beside"
            parts.append(f"{t.nserver_groups}x{t.nservers_per_group} servers {where}")
        parts += [self.partition] * (self.partition != DIM_0) + [t.codec] * (t.codec != "kFull")
        parts += ["one behind"] * t.one_behind + [f"every {t.sync_freq}"] * (t.sync_freq > 1)
        parts += [f"buckets of {t.bucket_size}"] * (t.bucket_size in BUCKET_SIZES)
        return ", ".join(parts)


@dataclass(frozen=True)
class Point:
    """A job, trained in some way on some cluster."""

    job: str
    condition: Condition
    way: Way

    @property
    def key(self) -> str:
        """Names the point in the file of results."""
        return f"{self.condition.name} | {self.job} | {self.way.label}"


def drawn_points(jobs: Mapping[str, JobProto], count: int, seed: int) -> list[Point]:
    """At least `count` points, or all there are: the conditions in turns, each with a job that has been drawn least so
    far, in PER_JOB ways. A network is given jobs whose gradients it carries in LONGEST_S."""
    draw = np.random.default_rng(seed)
    sizes = {name: prepare(Job.from_proto(job)).parameters for name, job in jobs.items()}
    used: Counter[str] = Counter()
    points: dict[tuple[int, str], list[Point]] = {}
    while sum(map(len, points.values())) < count:
        before = len(points)
        for condition in A_CORE_EACH * 2 + SHARED_CORES:
            place = CONDITIONS.index(condition)
            most = bits_per_s(condition.rate) / 32 * LONGEST_S if condition.rate else math.inf
            suitable = [name for name in jobs if sizes[name] <= most and (place, name) not in points]
            if suitable:
                name = min((str(name) for name in draw.permutation(suitable)), key=used.__getitem__)
                used[name] += 1
                points[place, name] = [Point(name, condition, way) for way in _drawn_ways(condition, draw)]
        if len(points) == before:
            break
    return [point for _, found in sorted(points.items()) for point in found]


def _drawn_ways(condition: Condition, draw: np.random.Generator) -> list[Way]:
    """As many workers as there are, in the usual way and partitioned by the plan, and others of every strategy."""
    ways = list(dict.fromkeys(_ways(condition)))
    drawn = [ways[0], next(way for way in ways if way.partition == AUTO)]
    while len(drawn) < PER_JOB:
        left = [way for way in ways if way not in drawn]
        strategy = draw.choice(sorted({way.topology.strategy.value for way in left}))
        suitable = [way for way in left if way.topology.strategy.value == strategy]
        drawn.append(suitable[int(draw.integers(len(suitable)))])
    return sorted(drawn, key=ways.index)


def _ways(condition: Condition) -> Iterator[Way]:
    """All that the points of a condition are drawn from. Hosts have a worker or a server each: they share cores."""
    n = condition.workers
    for settings in _settings(condition):
        try:
            way = Way(ClusterTopology(server_replicas=0, **{k: v for k, v in settings.items() if k != "partition"}))
        except ConfigError:  # such as a codec where nothing is sent
            continue
        if way.topology.nprocesses <= n:
            yield Way(way.topology, settings.get("partition", DIM_0))


def _settings(condition: Condition) -> Iterator[dict[str, Any]]:
    n, network = condition.workers, bool(condition.rate)
    alone = n == 2 or not network  # else the hosts share cores, and a job must use all hosts, as the profile does
    for workers in range(n, 0 if alone else n - 1, -1):
        group = {"nworkers_per_group": workers, "nservers_per_group": workers}
        yield group
        if workers == 1:
            continue
        for partition in (DIM_1, AUTO):
            yield {**group, "partition": partition}
        for codec in ("kHalf", "kTopK"):
            yield {**group, **CODECS[codec]}
        for size in BUCKET_SIZES if network else ():
            for codec in ("kFull", "kHalf"):
                yield {**group, "bucket_size": size, **CODECS[codec]}
        if network:
            yield {**group, "partition": DIM_1, **CODECS["kHalf"]}
    if n == 3 and network:  # one host has a core of its own: only the slowest decides then
        return
    yield from _with_servers(n, network)
    yield from _of_several_groups(n, network)


def _with_servers(n: int, network: bool) -> Iterator[dict[str, Any]]:
    for servers in (1, 2):
        workers = n - servers
        if workers > 0 and not (network and servers == 2):
            group = {"nworkers_per_group": workers, "nservers_per_group": servers, "server_worker_separate": True}
            for codec in CODECS.values():
                yield {**group, **codec}
            if workers > 1:
                yield {**group, "partition": DIM_1}


def _of_several_groups(n: int, network: bool) -> Iterator[dict[str, Any]]:
    for sync_freq in (1, 10):
        yield {"nworker_groups": n, "nserver_groups": n, "sync_freq": sync_freq}
        if n >= 4:
            sizes = {"nworker_groups": 2, "nworkers_per_group": 2, "nserver_groups": 2, "nservers_per_group": 2}
            yield {**sizes, "sync_freq": sync_freq}
    downpour = [{"nworker_groups": n}]
    if n > 2:
        downpour.append({"nworker_groups": n - 1, "server_worker_separate": True})
    for settings in downpour:
        for behind in (False, True):
            for codec in CODECS.values():
                yield {**settings, "one_behind": behind, **codec}
