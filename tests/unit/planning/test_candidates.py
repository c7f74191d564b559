"""Which ways to train a job are predicted."""

from collections import Counter

import pytest
from support.planned import mlp

from singa_dask.job import ClusterTopology, JobProto, Strategy
from singa_dask.planning.candidates import candidates
from singa_dask.planning.prediction import Machines

HOST, NETWORK = Machines(cores=4), Machines(cores=4, hosts=None, workers_per_host=1)


def split_fc1(job):
    chosen = JobProto()
    chosen.CopyFrom(job)
    chosen.neuralnet.layer[1].partition_dim = 1
    return chosen


def strategies(found):
    return {each.topology.strategy for each in found}


def test_one_worker_comes_first_and_every_strategy_is_there():
    job = mlp()
    job.neuralnet.partition = job.neuralnet.auto
    found = candidates(job, [4, 2], HOST)
    counts = [each.topology.nworkers for each in found]
    assert counts == sorted(counts) and counts[0] == 1 and set(counts) == {1, 2, 4}
    assert strategies(each for each in found if each.topology.nworkers == 4) == set(Strategy)
    assert {each.topology.codec for each in found} == {"kFull", "kHalf", "kTopK"}
    assert max(Counter(counts).values()) <= 16
    assert not any(each.job.neuralnet.HasField("partition") for each in found)


def test_only_networks_make_buckets_and_late_replies_worth_a_try():
    def varied(machines):
        found = candidates(mlp(), [4], machines)
        return {each.topology.one_behind for each in found}, {each.topology.bucket_size for each in found}

    assert varied(HOST) == ({False}, {1 << 18})
    assert varied(NETWORK) == ({False, True}, {1 << 18, 1 << 21})


def test_partitions_that_do_the_same_are_tried_once():
    def partitions(job, choose=None):
        found = candidates(job, [2], HOST, choose, strategies=[Strategy.ALLREDUCE])
        return [each.partition for each in found if each.topology == ClusterTopology.allreduce(2)]

    assert partitions(mlp()) == ["dim 0", "dim 1"]
    assert partitions(mlp(), split_fc1) == ["dim 0", "dim 1", "auto"]
    assert partitions(mlp(), lambda job: job) == ["dim 0", "dim 1"], "chosen like dim 0"
    assert partitions(mlp(hidden=1, partition_dim=0)) == ["dim 0"], "one feature cannot be split over two workers"


def test_a_layers_own_partition_stays():
    (split,) = candidates(mlp(partition_dim=1), [2], HOST, strategies=[Strategy.SANDBLASTER])[1:]
    assert split.partition == "dim 0" and split.job.neuralnet.layer[3].partition_dim == 1


def test_processes_and_rows_must_suffice():
    found = candidates(mlp(), [2, 4], HOST, processes=4)
    assert {each.topology.nworkers for each in found if each.topology.server_worker_separate} == {2}
    rows = candidates(mlp(batch=2), [4], HOST, strategies=[Strategy.ALLREDUCE, Strategy.HOGWILD])
    labels = [(each.topology.strategy, each.partition) for each in rows[1:]]
    assert labels == [(Strategy.ALLREDUCE, "dim 1"), (Strategy.HOGWILD, "dim 0")]


def test_the_jobs_own_topology_is_a_candidate():
    job = mlp()
    job.cluster.nworkers_per_group = job.cluster.nservers_per_group = 3
    job.cluster.workspace = "here"
    own = [each for each in candidates(job, [2], HOST) if each.partition == "job"]
    assert [each.topology.nworkers for each in own] == [3]
    assert {each.job.cluster.workspace for each in candidates(job, [2], HOST)} == {"here"}
    job.cluster.nworkers_per_group = job.cluster.nservers_per_group = 2
    same = [each for each in candidates(job, [2], HOST) if each.topology == ClusterTopology.allreduce(2)]
    assert [each.partition for each in same] == ["job", "dim 1"]


def test_a_job_that_leaves_its_partition_open_has_none_of_its_own():
    job = mlp()
    job.neuralnet.partition = job.neuralnet.auto
    job.cluster.CopyFrom(ClusterTopology.allreduce(3).to_proto())
    found = candidates(job, [1], HOST, split_fc1)
    assert [(each.topology.nworkers, each.partition) for each in found[1:]] == [(3, "dim 0"), (3, "auto")]


def test_the_jobs_own_topology_must_be_listed_and_find_processes():
    job = mlp()
    job.cluster.CopyFrom(ClusterTopology.allreduce(4).to_proto())
    assert {each.topology.nworkers for each in candidates(job, [1], HOST, processes=1)} == {1}
    assert {each.topology.nworkers for each in candidates(job, [1], HOST, strategies=[Strategy.HOGWILD])} == {1}


@pytest.mark.parametrize("count", [3, 6])
def test_any_number_of_workers_makes_legal_topologies(count):
    assert all(each.topology.nworkers in (1, count) for each in candidates(mlp(), [count], NETWORK))


def test_parameters_are_not_split_for_a_rule_that_needs_them_whole():
    def splits(updater):
        job = mlp()
        job.updater.type = job.updater.UpdaterType.Value(updater)
        return any(each.partition == "dim 1" for each in candidates(job, [2], HOST))

    assert splits("kAdamW") and not splits("kLAMB")
