"""Rules that look at more than an element give the same result for any workers, servers and partition."""

from dataclasses import replace

import numpy as np
import pytest
from support.one_machine import OneMachine
from support.topologies import run_topology
from support.trained import assert_alike, saved_at, write_points

from singa_dask.comm.threads import ThreadCommunicator
from singa_dask.inference.evaluate import measure
from singa_dask.job import Job
from singa_dask.job.job_pb2 import Phase
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

STEPS, LIMIT, CLOSE = 6, 0.05, {"rtol": 2e-5, "atol": 1e-6}
JOB = """
name: "points" train_steps: 6 seed: 5
train_one_batch { alg: kBP }
updater { %(updater)s learning_rate { type: kFixed base_lr: 0.02 } }
cluster { bucket_size: 32 %(cluster)s }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "%(folder)s" batchsize: 12 } }
  layer { name: "hidden" type: kInnerProduct srclayers: "data" partition_dim: %(dim)d
          innerproduct_conf { num_output: 9 bias_term: false } }
  layer { name: "norm" type: kBM srclayers: "hidden" }
  layer { name: "relu" type: kReLU srclayers: "norm" }
  layer { name: "scores" type: kInnerProduct srclayers: "relu" innerproduct_conf { num_output: 2 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""
CLIPPED = f"type: kSGD momentum: 0.5 clip_norm: {LIMIT}"
RULES = {
    "clip_norm": CLIPPED,
    "ema_decay": "type: kSGD momentum: 0.5 ema_decay: 0.7",
    "LAMB": "type: kLAMB weight_decay: 0.1",
    "LAMB with clip_norm": f'type: kLAMB clip_norm: {LIMIT} group {{ match: "*_bias" wd_scale: 0 }}',
}
ELSEWHERE = "server_worker_separate: true"
GROUPS = {
    "allreduce": ("nworkers_per_group: 3 nservers_per_group: 3", ThreadCommunicator),
    "shared memory": ("nworkers_per_group: 3 nservers_per_group: 3", OneMachine),
    "few servers": ("nworkers_per_group: 3 nservers_per_group: 2", ThreadCommunicator),
    "sandblaster": (f"nworkers_per_group: 2 nservers_per_group: 3 {ELSEWHERE}", ThreadCommunicator),
    "sandblaster on one machine": (f"nworkers_per_group: 3 nservers_per_group: 2 {ELSEWHERE}", OneMachine),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_points(folder, features=5, window=20, train=240)
    return folder / "train"


def trained(folder, where, updater, cluster="", kind=ThreadCommunicator, dim=0, more=()):
    text = JOB % {"folder": folder, "cluster": cluster, "updater": updater, "dim": dim}
    trained.ran = run_topology(prepare(Job.from_text(text, more)), where, kind=kind)
    return saved_at(where, STEPS)


@pytest.fixture(scope="module")
def serial(folder, tmp_path_factory):
    return {name: trained(folder, tmp_path_factory.mktemp("serial"), updater) for name, updater in RULES.items()}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("rule", RULES)
def test_any_group_equals_one_worker(folder, tmp_path, serial, rule, group):
    assert_alike(trained(folder, tmp_path, RULES[rule], *GROUPS[group]), serial[rule], **CLOSE)


@pytest.mark.parametrize("rule", ["clip_norm", "ema_decay"])
@pytest.mark.parametrize("group", ["allreduce", "sandblaster"])
def test_a_split_net_equals_one_worker(folder, tmp_path, serial, group, rule):
    assert_alike(trained(folder, tmp_path, RULES[rule], *GROUPS[group], dim=1), serial[rule], **CLOSE)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("group", [*GROUPS, "codec"])
def test_evaluations_measure_the_moving_averages_and_leave_the_parameters(folder, tmp_path, group, dim):
    groups = GROUPS | {"codec": ("nworkers_per_group: 2 nservers_per_group: 2 codec: kHalf", ThreadCommunicator)}
    plain = trained(folder, tmp_path / "plain", RULES["ema_decay"], *groups[group], dim=dim)
    reached = trained(folder, tmp_path / "tested", RULES["ema_decay"], *groups[group], dim=dim, more=("test_freq=2",))
    assert_alike(reached, plain)
    prepared = prepare(Job.from_text(reached.job))
    path = checkpoints.path_of(tmp_path / "tested", STEPS)
    alone = measure(prepared.job, path, Phase.kTest).numbers["loss"]
    assert trained.ran.reports[0]["metrics"]["test"]["loss"] == pytest.approx(alone, rel=1e-5)
    raw = replace(reached, updater={})
    assert measure(prepared.job, checkpoints.save(raw, tmp_path / "raw.h5"), Phase.kTest).numbers["loss"] != alone


def test_no_step_is_longer_than_the_limit_allows(folder, tmp_path):
    first, second = (
        trained(folder, tmp_path / str(limit), f"type: kSGD clip_norm: {limit}") for limit in (1e-9, LIMIT)
    )
    moved = [
        np.asarray(second.parameters[name], np.float64) - np.asarray(first.parameters[name])
        for name in first.parameters
        if name not in ("norm_mean", "norm_var")
    ]
    norm = np.sqrt(sum((change**2).sum() for change in moved))
    assert 0.3 * STEPS * 0.02 * LIMIT < norm <= STEPS * 0.02 * LIMIT * 1.001, "six steps of at most lr times the limit"


def test_running_statistics_are_not_clipped(folder, tmp_path):
    frozen, clipped = (
        trained(folder, tmp_path / name, f"type: kSGD {setting}", *GROUPS["few servers"])
        for name, setting in (("frozen", 'group { match: "*" lr_scale: 0 }'), ("clipped", "clip_norm: 1e-12"))
    )
    for name in ("norm_mean", "norm_var"):
        np.testing.assert_allclose(clipped.parameters[name], frozen.parameters[name], rtol=1e-5)


def test_a_norm_below_the_limit_changes_no_bit(folder, tmp_path):
    plain, clipped = (
        trained(folder, tmp_path / str(limit), f"type: kSGD clip_norm: {limit}", *GROUPS["allreduce"])
        for limit in (0, 1e6)
    )
    assert_alike(clipped, plain)


@pytest.mark.parametrize("more", ["codec: kHalf", "codec: kTopK sparsity: 0.3", "one_behind: true nworker_groups: 2"])
@pytest.mark.parametrize("rule", RULES)
def test_codecs_and_updates_one_behind_train(folder, tmp_path, rule, more):
    reached = trained(folder, tmp_path, RULES[rule], f"nworkers_per_group: 3 nservers_per_group: 3 {more}")
    assert all(np.isfinite(value).all() for value in map(np.asarray, reached.parameters.values()))


@pytest.mark.parametrize("rule", RULES)
def test_asynchronous_groups_train(folder, tmp_path, rule):
    cluster = "nworker_groups: 2 nserver_groups: 2 nworkers_per_group: 2 nservers_per_group: 2"
    reached = trained(folder, tmp_path, RULES[rule], cluster)
    assert all(np.isfinite(value).all() for value in map(np.asarray, reached.parameters.values()))
