"""Restricted Boltzmann machines in jobs: under every kind of topology, one upon the other, from checkpoints."""

import numpy as np
import pytest
from support.shards import write_shards
from support.topologies import run_topology
from support.trained import assert_alike, saved_at

from singa_dask.errors import CheckpointError
from singa_dask.job import Job
from singa_dask.training.initial_parameters import fitting
from singa_dask.training.prepare import prepare

HEAD = """
name: "energy" train_steps: 30 disp_freq: 30 checkpoint_freq: 0 test_freq: 30 test_steps: 2 seed: 5
updater { type: kSGD momentum: 0.5 weight_decay: 0.01 learning_rate { type: kFixed base_lr: 0.1 } }
cluster { %(cluster)s }
"""
DATA = """
  layer { name: "data" type: kRecordInput store_conf { path: "%(folder)s" batchsize: 12 has_label: false } }
"""
FIRST = (
    "train_one_batch { alg: kCD cd_conf { cd_k: 2 } } neuralnet { "
    + DATA
    + """
  layer { name: "vis" type: kRBMVis srclayers: "data" srclayers: "hid" rbm_conf { hdim: 7 }
          param { name: "w1" init { type: kGaussian std: 0.1 } }
          param { name: "v1" wd_scale: 0 init { type: kConstant value: 0 } } }
  layer { name: "hid" type: kRBMHid srclayers: "vis" rbm_conf { hdim: 7 }
          param { name: "w1_" share_from: "w1" } param { name: "h1" init { type: kConstant value: 0 } } } }
"""
)
SECOND = (
    "train_one_batch { alg: kCD } neuralnet { "
    + DATA
    + """
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 7 }
          param { name: "w1" } param { name: "h1" } }
  layer { name: "sigmoid" type: kSigmoid srclayers: "ip" }
  layer { name: "vis" type: kRBMVis srclayers: "sigmoid" srclayers: "hid" rbm_conf { hdim: 3 }
          param { name: "w2" init { type: kGaussian std: 0.1 } }
          param { name: "v2" init { type: kConstant value: 0 } } }
  layer { name: "hid" type: kRBMHid srclayers: "vis" rbm_conf { hdim: 3 gaussian: true }
          param { name: "w2_" share_from: "w2" } param { name: "h2" init { type: kConstant value: 0 } } } }
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Noisy copies of three patterns."""
    folder = tmp_path_factory.mktemp("data") / "shards"
    draw = np.random.default_rng(0)
    patterns = draw.integers(0, 2, (3, 16))
    rows = patterns[draw.integers(0, 3, 240)] ^ (draw.random((240, 16)) < 0.05)
    write_shards(folder, rows.astype(np.float32), None, window=20)
    return folder


def run(text, folder, where, cluster="", *overrides):
    prepared = prepare(Job.from_text(HEAD % {"cluster": cluster} + text % {"folder": folder}, overrides))
    ran = run_topology(prepared, where)
    return ran.reports[0]["metrics"], saved_at(where, 30)


@pytest.fixture(scope="module")
def alone(folder, tmp_path_factory):
    """What one worker reaches."""
    return {text: run(text, folder, tmp_path_factory.mktemp("alone")) for text in (FIRST, SECOND)}


@pytest.mark.parametrize(
    ("text", "cluster", "split"),
    [
        (FIRST, "nworkers_per_group: 3 nservers_per_group: 3", []),
        (FIRST, "nworkers_per_group: 2 nservers_per_group: 3 server_worker_separate: true", []),
        *(
            (text, cluster, ["neuralnet.partition_dim=1"])
            for text in (FIRST, SECOND)
            for cluster in ("nworkers_per_group: 2", "nworkers_per_group: 3 nservers_per_group: 2")
        ),
    ],
    ids=["allreduce", "sandblaster", "first-2", "first-3", "second-2", "second-3"],
)
def test_any_number_of_workers_and_servers_reaches_the_same_parameters(folder, tmp_path, alone, text, cluster, split):
    measured, expected = alone[text]
    together, reached = run(text, folder, tmp_path, cluster, *split)
    assert together["test"] == pytest.approx(measured["test"], rel=1e-4 if split else 1e-3)
    assert_alike(reached, expected, rtol=1e-4 if split else 1e-3, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "cluster",
    [
        "nworker_groups: 2 nworkers_per_group: 2 nservers_per_group: 2 server_worker_separate: true",
        "nworker_groups: 3 nserver_groups: 3",
        "nworker_groups: 2 nserver_groups: 2 nworkers_per_group: 2 sync_freq: 5",
    ],
    ids=["downpour", "hogwild", "hybrid"],
)
def test_asynchronous_groups_train_it(folder, tmp_path, cluster, dim):
    measured, _ = run(FIRST, folder, tmp_path, cluster, f"neuralnet.partition_dim={dim}")
    assert measured["test"]["squared_error"] < 3.0  # 16 units, of which noise flips .8


def test_a_machine_upon_another_leaves_that_as_it_is(folder, tmp_path):
    _, first = run(FIRST, folder, tmp_path / "first")
    overrides = [f'checkpoint_path=["{tmp_path / "first"}"]']
    cluster = "nworkers_per_group: 2 nservers_per_group: 2"
    measured, second = run(SECOND, folder, tmp_path / "second", cluster, *overrides)
    assert measured["test"]["squared_error"] < 1.5
    assert second.parameters.keys() == {"w1", "h1", "w2", "v2", "h2"}
    for name in ("w1", "h1"):
        np.testing.assert_array_equal(second.parameters[name], first.parameters[name])


SHAPES = {"w": (4, 3), "b": (3,), "new": (2,)}


def test_parameters_are_matched_by_name():
    given = {"w": np.ones((4, 3)), "b": np.ones(3), "old": np.ones(9)}
    assert fitting(given, SHAPES, {"new"}).keys() == {"w", "b"}


def test_everything_that_does_not_fit_is_told_at_once():
    given = {"w": np.ones((3, 4)), "old": np.ones(9)}
    said = r"w has shape \(3, 4\), in this net \(4, 3\).*nor initialised by an init block: b;.*not in this net: old"
    with pytest.raises(CheckpointError, match=said):
        fitting(given, SHAPES, {"new"})


def test_a_checkpoint_of_another_net_altogether_is_refused():
    with pytest.raises(CheckpointError, match="none belongs to this net, which has w, b, new"):
        fitting({"other": np.ones(3)}, SHAPES, SHAPES.keys())
