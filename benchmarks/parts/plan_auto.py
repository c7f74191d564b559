"""The partition that the cost model chooses, in turns with dim 0 and dim 1 of the same nets.

auto is chosen from a profile of the same hosts, which is made before. dim 1 is what `neuralnet.partition_dim: 1` makes
of the net.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tools.clusters import Driver, dask_cluster
from tools.jobs import job_of
from tools.network import Host, joined_hosts
from tools.workloads import PARTITIONED

from parts.partitioned import BATCH, NETS, on_network, on_one_machine, partitions
from parts.plan_measured import (
    LAYERS_WITHIN_S,
    PROFILE_S,
    PROFILE_WITHIN_S,
    Unprofiled,
    layers_line,
    machines_of,
)
from parts.plan_points import AUTO, DIM_1, Condition
from singa_dask.job import Job
from singa_dask.job.job_pb2 import JobProto
from singa_dask.planning.partition import choose_partition
from singa_dask.planning.prediction import Machines
from singa_dask.planning.profile import Profile
from singa_dask.training.prepare import prepare

HOSTS, RATE, WORKERS = 4, "1gbit", 2


def on_hosts(rounds: int) -> list[dict[str, Any]]:
    """Four hosts at 1 Gbit/s: a row for each net and partition. Raises NotHere."""
    with joined_hosts(HOSTS) as hosts:
        for host in hosts:
            host.limit(RATE, even=True)
        ways = _ways(HOSTS, machines_of(Condition(HOSTS, RATE)), hosts)
        return [_named(row, ways) for net in NETS for row in on_network(net, rounds, hosts, ways[net])]


def on_machine(rounds: int) -> list[dict[str, Any]]:
    """Two workers on this machine."""
    ways = _ways(WORKERS, machines_of(Condition(WORKERS)))
    return [_named(row, ways) for net in NETS for row in on_one_machine(net, rounds, WORKERS, ways[net])]


def verdicts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each net: auto against the faster of the other partitions, and against dim 0; above 1 auto is faster."""
    found = []
    for net in dict.fromkeys(row["net"] for row in rows):
        ms = {row["partition"]: row["ms"] for row in rows if row["net"] == net}
        other = min(ms[BATCH], ms[DIM_1])
        found.append({"net": net, "of_others": round(other / ms[AUTO], 3), "of_dim_0": round(ms[BATCH] / ms[AUTO], 3)})
    return found


def _ways(workers: int, machines: Machines, hosts: Sequence[Host] = ()) -> dict[str, dict[str, list[str]]]:
    """The overrides of each net's partitions. Raises Unprofiled."""
    with dask_cluster(workers, hosts) as driver:
        profile = _asked(driver, {"do": "profile", "budget_s": PROFILE_S}, PROFILE_WITHIN_S)
        return {net: _of_net(net, workers, machines, driver, profile) for net in NETS}


def _of_net(net: str, workers: int, machines: Machines, driver: Driver, profile: Profile) -> dict[str, list[str]]:
    ways = {BATCH: [], DIM_1: partitions(net)["mixed"]}
    jobs = [_prepared(net, workers, overrides == ways[DIM_1]) for overrides in ways.values()]
    profile.merge(_asked(driver, layers_line(jobs, machines), LAYERS_WITHIN_S))
    chosen = choose_partition(jobs[0], profile, machines).job()
    return ways | {AUTO: list(_overrides(chosen))}


def _prepared(net: str, workers: int, split: bool) -> JobProto:
    job = job_of(PARTITIONED[net])
    job.cluster.nworkers_per_group = job.cluster.nservers_per_group = workers
    job.neuralnet.partition_dim = int(split)
    return prepare(Job.from_proto(job), with_data=False).job


def _asked(driver: Driver, line: Mapping[str, Any], within_s: float) -> Profile:
    answer = driver.ask(line, within_s)
    if "error" in answer:
        raise Unprofiled(answer["error"])
    return Profile.from_json(answer["profile"])


def _overrides(job: JobProto) -> list[str]:
    """What gives another job with the same layers the partition of this one."""
    found = []
    for layer in job.neuralnet.layer:
        where = f"neuralnet.layer[{layer.name}]"
        if layer.HasField("partition_dim"):
            found.append(f"{where}.partition_dim={layer.partition_dim}")
        for place, param in enumerate(layer.param):
            if param.HasField("partition_dim"):
                found.append(f"{where}.param[{place}].partition_dim={param.partition_dim}")
    return found


def _named(row: dict[str, Any], ways: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, Any]:
    """The row with the overrides of its partition."""
    return row | {"overrides": list(ways[row["net"]][row["partition"]])}
