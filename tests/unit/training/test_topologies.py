"""Small topologies are refused with a reason, or train."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from support.topologies import run_topology
from support.trained import assert_alike, saved_at, write_points

from singa_dask.errors import ConfigError
from singa_dask.job import Job
from singa_dask.training.prepare import prepare

JOB = """
name: "points" train_steps: 6 disp_freq: 6 checkpoint_freq: 0 test_freq: 6 test_steps: 2 seed: 5
train_one_batch { alg: kBP }
updater { type: kSGD momentum: 0.5 learning_rate { type: kFixed base_lr: 0.02 } }
cluster { %(cluster)s }
neuralnet {
  layer { name: "data" type: kRecordInput exclude: kTest store_conf { path: "%(folder)s/train" batchsize: 12 } }
  layer { name: "data" type: kRecordInput include: kTest store_conf { path: "%(folder)s/test" batchsize: 20 } }
  layer { name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 9 } }
  layer { name: "relu" type: kReLU srclayers: "hidden" }
  layer { name: "scores" type: kInnerProduct srclayers: "relu" innerproduct_conf { num_output: 2 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""
NUMBERS = ("nworker_groups", "nserver_groups", "nworkers_per_group", "nservers_per_group")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_points(folder, features=5, window=20, train=240, test=60)
    return folder


def job(folder, cluster, *overrides):
    return prepare(Job.from_text(JOB % {"folder": folder, "cluster": cluster}, overrides))


def small_topologies():
    """Every pair of values of two of the fields, and every number of groups with every value of another field.

    A Latin square selects the servers of a group; it is another one when servers have their own processes.
    """
    for worker_groups, server_groups, workers, separate in product((1, 2, 3), (1, 2, 3), (1, 2, 3), (False, True)):
        servers = 1 + (worker_groups + server_groups + workers + separate) % 3
        yield (worker_groups, server_groups, workers, servers), separate


@pytest.mark.parametrize(("numbers", "separate"), list(small_topologies()), ids=str)
def test_a_small_topology_is_refused_or_trains(folder, tmp_path, numbers, separate):
    cluster = " ".join(f"{name}: {n}" for name, n in zip(NUMBERS, numbers, strict=True))
    cluster += f" server_worker_separate: {str(separate).lower()}"
    worker_groups, server_groups = numbers[:2]
    if server_groups > worker_groups or worker_groups % server_groups:
        with pytest.raises(ConfigError, match=r"must not exceed nworker_groups|cannot be divided evenly") as caught:
            job(folder, cluster)
        assert caught.value.problems[0].hint
        return
    prepared = job(folder, cluster)
    ran = run_topology(prepared, tmp_path)
    assert sorted(ran.reports) == list(range(worker_groups))
    assert all(report["step"] == 6 for report in ran.reports.values())
    assert ran.reports[0]["metrics"]["test"]["loss"] < 1.0
    assert saved_at(tmp_path, 6).step == 6
    if ran.servers:
        states = {key: server.protocol for key, server in ran.servers.items()}
        versions = {s.slices[i].version for s in states.values() for i in s.slices}
        assert versions == {6 * worker_groups // server_groups}, "every update of every group was applied once"


@pytest.fixture(scope="module")
def serial(folder, tmp_path_factory):
    here = tmp_path_factory.mktemp("serial")
    run_topology(job(folder, ""), here)
    return saved_at(here, 6)


@pytest.mark.parametrize(("workers", "servers"), list(product((1, 2, 3), repeat=2)))
def test_sandblaster_equals_allreduce_and_serial(folder, tmp_path, serial, workers, servers):
    cluster = f"nworkers_per_group: {workers} nservers_per_group: {servers} server_worker_separate: true"
    run_topology(job(folder, cluster), tmp_path)
    assert_alike(saved_at(tmp_path, 6), serial, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("present", [1, 2])
@pytest.mark.parametrize("more", ["", "bucket_size: 16", "codec: kHalf"])
@pytest.mark.parametrize(("servers", "separate"), [(1, "true"), (2, "true"), (3, "true"), (1, "false"), (3, "false")])
def test_a_group_that_lacks_workers_equals_a_whole_one(folder, tmp_path, serial, present, servers, separate, more):
    cluster = f"nworkers_per_group: 3 nservers_per_group: {servers} server_worker_separate: {separate} {more}"
    ran = run_topology(job(folder, cluster), tmp_path, present=present)
    assert {s.version for server in ran.servers.values() for s in server.protocol.slices.values()} <= {6}
    rtol = 0.02 if "kHalf" in more else 1e-5
    reached, expected = (replace(checkpoint, updater={}) for checkpoint in (saved_at(tmp_path, 6), serial))
    assert_alike(reached, expected, rtol=rtol, atol=rtol / 100)


@pytest.mark.parametrize("codec", ["kTopK sparsity: 0.1", "kPartial sparsity: 0.5"])
@pytest.mark.parametrize("more", ["", "server_worker_separate: true", "nworker_groups: 2"])
def test_groups_that_lack_workers_train_with_codecs(folder, tmp_path, codec, more):
    cluster = f"nworkers_per_group: 2 nservers_per_group: 2 {more} codec: {codec}"
    ran = run_topology(job(folder, cluster), tmp_path, present=1)
    assert ran.reports[0]["metrics"]["test"]["loss"] < 1.0


def test_lock_step_is_reproducible(folder, tmp_path):
    """With max_staleness 0 no group computes on anything but what all have made of the same step. (With momentum the
    order of the updates within a step would count.)"""
    cluster = "nworker_groups: 3 server_worker_separate: true max_staleness: 0"
    for attempt in ("a", "b"):
        ran = run_topology(job(folder, cluster, "updater.momentum=0"), tmp_path / attempt)
        assert all(report["server"]["staleness_max"] <= 2 for report in ran.reports.values())
    assert_alike(saved_at(tmp_path / "a", 6), saved_at(tmp_path / "b", 6), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cluster", ["nworker_groups: 2 nserver_groups: 1", "nworker_groups: 2 nserver_groups: 2"])
def test_one_behind_trains(folder, tmp_path, cluster):
    ran = run_topology(
        job(folder, cluster + " one_behind: true nworkers_per_group: 2 nservers_per_group: 2"), tmp_path
    )
    assert ran.reports[0]["metrics"]["test"]["loss"] < 1.0


def test_after_the_end_all_server_groups_hold_the_same(folder, tmp_path):
    cluster = "nworker_groups: 3 nserver_groups: 3 nservers_per_group: 2 sync_freq: 4"
    ran = run_topology(job(folder, cluster), tmp_path)
    for (_, i), server in ran.servers.items():
        for index in server.protocol.slices:
            mine, first = server.protocol.slices[index].values, ran.servers[0, i].protocol.slices[index].values
            np.testing.assert_allclose(mine, first, rtol=1e-5, atol=1e-6)
