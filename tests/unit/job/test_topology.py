from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from singa_dask.errors import ConfigError
from singa_dask.job import ClusterTopology, Strategy, load_job
from singa_dask.job.job_pb2 import ClusterProto

CLUSTERS = Path(__file__).parents[3] / "examples" / "clusters"


def expected(worker_groups: int, server_groups: int, workers: int, separate: bool) -> Strategy | None:
    """SINGA's table, written out: None for what is impossible."""
    if (worker_groups, server_groups) not in {(1, 1), (2, 1), (2, 2), (3, 1), (3, 3)}:
        return None
    if worker_groups == 1:
        return Strategy.SANDBLASTER if separate else Strategy.ALLREDUCE
    if server_groups == 1:
        return Strategy.DOWNPOUR
    return Strategy.HOGWILD if workers == 1 and not separate else Strategy.HYBRID


@pytest.mark.parametrize("separate", [False, True])
def test_all_small_topologies(separate: bool) -> None:
    kinds = set()
    for worker_groups, server_groups, workers, servers in product((1, 2, 3), repeat=4):
        numbers = {
            "nworker_groups": worker_groups,
            "nserver_groups": server_groups,
            "nworkers_per_group": workers,
            "nservers_per_group": servers,
            "server_worker_separate": separate,
        }
        strategy = expected(worker_groups, server_groups, workers, separate)
        if strategy is None:
            with pytest.raises(ConfigError, match=r"Received: [123]\.") as error:
                ClusterTopology(**numbers)
            assert error.value.problems[0].hint
            continue
        topology = ClusterTopology(**numbers)
        assert topology.strategy is strategy
        assert topology.describe().startswith(strategy.value)
        assert ClusterTopology.from_proto(topology.to_proto()) == topology
        assert topology.nworkers == worker_groups * workers
        assert topology.nservers == server_groups * servers
        both = topology.nworkers + topology.nservers
        assert topology.nprocesses == (both if separate else max(topology.nworkers, topology.nservers))
        for group in range(worker_groups):
            assert group in topology.worker_groups_of(topology.server_group_of(group))
        served = [g for s in range(server_groups) for g in topology.worker_groups_of(s)]
        assert served == list(range(worker_groups))
        kinds.add(strategy)
    assert len(kinds) == (3 if separate else 4)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"nworker_groups": 0}, "cluster.nworker_groups: must be at least 1. Received: 0."),
        ({"sync_freq": -1}, "cluster.sync_freq: must be at least 1. Received: -1."),
        ({"nworkers_per_group": 2.0}, "must be an integer. Received: 2.0."),
        ({"nworkers_per_group": True}, "must be an integer. Received: True."),
        ({"server_worker_separate": 1}, "must be true or false. Received: 1."),
        ({"nworker_groups": 3, "nserver_groups": 2}, "Use a multiple of nserver_groups: 2 or 4."),
        ({"nserver_groups": 3}, "must not exceed nworker_groups, which is 1. Received: 3."),
        (
            {"server_worker_separate": True, "server_replicas": 2},
            "cluster.server_replicas: must be 0 or 1. Received: 2. Leave it out for 1 on several hosts, and 0 on one.",
        ),
        ({"server_worker_separate": True, "server_replicas": -1}, "cluster.server_replicas: must be 0 or 1."),
        ({"server_replicas": 1}, "cluster.server_replicas: needs servers that several processes use"),
        ({"nservers_per_group": 3, "nservers_per_procs": 2}, "1 server group of 3 servers cannot be packed"),
        ({"nservers_per_group": 2, "nservers_per_procs": 4}, "1 server group of 2 servers cannot be packed"),
    ],
)
def test_impossible(numbers: dict, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        ClusterTopology(**numbers)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("numbers", "refused"),
    [
        ({}, True),  # a single worker
        ({"nworker_groups": 3, "nserver_groups": 3}, True),  # Hogwild
        ({"nworker_groups": 2, "nserver_groups": 2, "nservers_per_group": 2, "nservers_per_procs": 2}, True),
        ({"nworkers_per_group": 2}, False),
        ({"server_worker_separate": True}, False),
        ({"nworker_groups": 2}, False),  # Downpour: one server for both groups
        ({"nservers_per_group": 2}, False),  # the second server has a process of its own
        # every other server is elsewhere
        ({"nworker_groups": 4, "nserver_groups": 4, "nservers_per_procs": 2}, False),
    ],
)
def test_a_codec_with_nothing_to_code_is_refused(numbers: dict, refused: bool) -> None:
    ClusterTopology(**numbers)
    if refused:
        with pytest.raises(
            ConfigError, match=r"cluster.codec: has nothing to code.*Received: kHalf\. Leave codec out"
        ):
            ClusterTopology(**numbers, codec="kHalf")
    else:
        assert ClusterTopology(**numbers, codec="kHalf").codec == "kHalf"


def test_all_wrong_numbers_are_reported() -> None:
    with pytest.raises(ConfigError) as error:
        ClusterTopology.from_proto(ClusterProto(nworker_groups=0, sync_freq=0, nservers_per_procs=-2))
    keys = [p.key for p in error.value.problems]
    assert keys == ["cluster.nworker_groups", "cluster.nservers_per_procs", "cluster.sync_freq"]


def test_packed_processes() -> None:
    numbers = {"nworkers_per_group": 2, "nservers_per_group": 4, "nservers_per_procs": 2}
    topology = ClusterTopology(nworker_groups=4, nserver_groups=2, **numbers)
    assert (topology.nserver_processes, topology.nprocesses) == (4, 8)
    assert [topology.server_group_of(g) for g in range(4)] == [0, 0, 1, 1]


def test_a_worker_is_a_process_however_many_singa_has_per_process() -> None:
    topology = ClusterTopology.from_proto(ClusterProto(nworkers_per_group=2, nworkers_per_procs=2))
    assert topology == ClusterTopology(nworkers_per_group=2) and topology.nprocesses == 2


@pytest.mark.parametrize("group", [-1, 2])
def test_groups_that_do_not_exist(group: int) -> None:
    with pytest.raises(IndexError, match=f"worker group {group} does not exist: there are 2"):
        ClusterTopology.hybrid().server_group_of(group)


NAMED = [
    ("sandblaster", ClusterTopology.sandblaster(3, 2), Strategy.SANDBLASTER, (1, 1, 3, 2, True), True),
    ("allreduce", ClusterTopology.allreduce(3), Strategy.ALLREDUCE, (1, 1, 3, 3, False), True),
    ("downpour", ClusterTopology.downpour(2, 2, 2), Strategy.DOWNPOUR, (2, 1, 2, 2, True), False),
    ("hogwild", ClusterTopology.hogwild(3), Strategy.HOGWILD, (3, 3, 1, 1, False), False),
    ("hybrid", ClusterTopology.hybrid(2, 2, 2, 2, sync_freq=10), Strategy.HYBRID, (2, 2, 2, 2, False), False),
]


@pytest.mark.parametrize(("name", "topology", "strategy", "numbers", "synchronous"), NAMED, ids=[n[0] for n in NAMED])
def test_named_topologies_and_their_files(
    name: str, topology: ClusterTopology, strategy: Strategy, numbers: tuple, synchronous: bool
) -> None:
    assert topology.strategy is strategy
    assert strategy.synchronous is synchronous
    t = topology
    assert (
        t.nworker_groups, t.nserver_groups, t.nworkers_per_group, t.nservers_per_group, t.server_worker_separate
    ) == numbers  # fmt: skip
    job = load_job("", cluster=CLUSTERS / f"{name}.conf")
    assert ClusterTopology.from_proto(job.cluster) == topology


def test_every_cluster_file_is_tested_and_explained() -> None:
    assert sorted(p.stem for p in CLUSTERS.glob("*.conf")) == sorted(n[0] for n in NAMED)
    for path in CLUSTERS.glob("*.conf"):
        assert 2 <= sum(line.startswith("#") for line in path.read_text().splitlines()) <= 4


@pytest.mark.parametrize(
    ("make", "groups", "says"),
    [
        (ClusterTopology.downpour, (1,), "describe Sandblaster, not Downpour"),
        (ClusterTopology.hogwild, (1,), "describe AllReduce, not Distributed Hogwild"),
        (ClusterTopology.hybrid, (2, 2, 1), "describe Downpour, not Hybrid"),
    ],
)
def test_named_constructors_keep_their_word(make, groups: tuple, says: str) -> None:
    with pytest.raises(ConfigError, match=f"these numbers {says}"):
        make(*groups)


def test_description() -> None:
    assert ClusterTopology.allreduce(1).describe() == (
        "AllReduce (synchronous): 1 worker group of 1 worker; 1 server group of 1 server beside the workers; 1 process"
    )
    assert ClusterTopology.hogwild(3, sync_freq=5).describe() == (
        "Distributed Hogwild (asynchronous): 3 worker groups of 1 worker; 3 server groups of 1 server"
        " beside the workers, exchanging every 5 updates; 3 processes"
    )


@pytest.mark.parametrize("replicas", [None, 0, 1])
def test_replicas_of_servers_are_in_the_cluster_block(replicas: int | None) -> None:
    topology = ClusterTopology(server_worker_separate=True, server_replicas=replicas)
    assert ClusterTopology.from_proto(topology.to_proto()).server_replicas == replicas
    assert ClusterTopology(server_replicas=0).server_replicas == 0
