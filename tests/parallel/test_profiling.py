"""Profiles of running clusters, which measure and then go on with what they were doing."""

import os

import numpy as np
import pytest
from support.shards import write_shards

from singa_dask import layers, train
from singa_dask.job import ClusterTopology, Job
from singa_dask.planning.profile import Profile
from singa_dask.profiling.cluster import profile_cluster
from singa_dask.profiling.jobs import measure_own
from singa_dask.supervision.doctor import Level, checks, examine
from singa_dask.updaters import SGD


def digits(folder):
    write_shards(folder / "data", np.zeros((64, 4), np.float32), np.arange(64) % 2)
    net = [
        layers.RecordInput(path=str(folder / "data"), batchsize=8, shape=[4]),
        layers.InnerProduct(num_output=2),
        layers.SoftmaxLoss(),
    ]
    return Job(name="small", train_steps=4, layers=net, updater=SGD(lr=0.1))


def test_the_doctor_examines_a_cluster(cluster3, workers3, tmp_path):
    found = examine(cluster3, tmp_path / "runs")
    assert found.healths.keys() == found.offsets.keys() == {info.address for info in workers3}
    assert not (found.silent or found.fault or found.unseen) and not (tmp_path / "runs").exists()
    ranks, hosts, seconds = found.summed
    assert (ranks, hosts) == (3, 1) and seconds > 0
    assert all(abs(ahead) <= half + 1e-6 for ahead, half in found.offsets.values())  # the machine has one clock
    faults = [check for check in checks(found) if check.level is not Level.OK]
    assert {check.subject for check in faults} <= {"cores", "all-reduce"}, faults  # the machine may be small and busy


def test_a_job_s_own_sparsity_and_rule_are_measured(cluster3, workers3, tmp_path):
    job = digits(tmp_path).proto
    job.cluster.nworkers_per_group = job.cluster.nservers_per_group = 2
    job.cluster.codec, job.cluster.sparsity = job.cluster.kTopK, 0.2
    found = measure_own(cluster3, job, Profile(), concurrency=2, threads=1, budget_s=0.1, code=None)
    names = {"update kSGD 2", "encode kTopK 0.2 2", "decode kTopK 0.2 2"}
    assert found.curves.keys() == names and not found.layers
    known = Profile(curves={"update kSGD 2": found.curves["update kSGD 2"]})
    assert measure_own(cluster3, job, known, concurrency=2, threads=1, budget_s=0.1, code=None).curves.keys() == {
        "encode kTopK 0.2 2",
        "decode kTopK 0.2 2",
    }


@pytest.mark.long
@pytest.mark.timeout(200)
def test_measuring_replaces_no_process_and_neither_does_training_then(cluster3, workers3, tmp_path):
    kept = cluster3.submit(bytes, 8, workers=[workers3[1].address], pure=False)
    assert kept.result() == bytes(8)
    pids = cluster3.run(os.getpid)
    profile = profile_cluster(cluster3, budget_s=3.0)
    assert profile.numbers("all_reduce machine") == [2, 3]
    assert profile.numbers("round_trip machine") == [1, 2]
    assert cluster3.run(os.getpid) == pids
    job = digits(tmp_path)
    for workers in (2, 3):
        result = train(
            job, cluster3, cluster=ClusterTopology(nworkers_per_group=workers), workspace=tmp_path / str(workers)
        )
        assert result.train
    assert cluster3.run(os.getpid) == pids and kept.status == "finished" and kept.result() == bytes(8)
