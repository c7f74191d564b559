"""Recurrent nets through the training loop: state carried, checkpointed, shared out; every strategy."""

import numpy as np
import pytest
from support.topologies import run_topology, server_links
from support.trained import assert_alike, saved_at, train_group

from singa_dask.comm import SoloCommunicator
from singa_dask.comm.threads import run_threads
from singa_dask.data import shard_files
from singa_dask.data.plan import share_rows
from singa_dask.errors import ConfigError
from singa_dask.inference import evaluate
from singa_dask.job import Job
from singa_dask.job.job_pb2 import Phase
from singa_dask.ops import get_ops
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare
from singa_dask.training.replica import Replica

JOB = """
name: "text" train_steps: 8 disp_freq: 4 test_freq: 4 test_steps: 3 checkpoint_freq: 4 seed: 5
train_one_batch { alg: kBPTT }
updater {
  type: kRMSProp rmsprop_conf { rho: 0.9 } clip_low: -5 clip_high: 5
  learning_rate { type: kFixed base_lr: 0.01 }
}
cluster { nworkers_per_group: 3 nservers_per_group: 2 }
neuralnet {
  unroll_len: 6
  layer {
    name: "data" type: kCharRNN exclude: kTest
    char_rnn_conf { path: "%(folder)s/train" unroll_len: 6 batchsize: 7 }
  }
  layer {
    name: "data" type: kCharRNN include: kTest
    char_rnn_conf { path: "%(folder)s/validation" unroll_len: 6 batchsize: 7 }
  }
  layer { name: "onehot" type: kOneHot srclayers: "data" onehot_conf { vocab_size: 9 } }
  layer { name: "label" type: kRNNLabel srclayers: "data" }
  layer { name: "gru" type: kGRU srclayers: "onehot" gru_conf { dim_hidden: 5 } }
  layer { name: "lstm" type: kLSTM srclayers: "gru" lstm_conf { dim_hidden: 4 } }
  layer { name: "ip" type: kInnerProduct srclayers: "lstm" innerproduct_conf { num_output: 9 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "label" }
}
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    draw = np.random.default_rng(0)
    (folder / "input.txt").write_text("".join(draw.choice(["abc", "abd", "ef g", "h"], 2000)))
    shard_files("text", folder / "shards", source=folder / "input.txt", validation=0.2)
    return folder / "shards"


@pytest.fixture
def prepared(text):
    return lambda *overrides: prepare(Job.from_text(JOB % {"folder": text}, overrides))


def run(prepared, folder, **group):
    _, events = train_group(prepared, folder, **group)
    return {e["step"]: e["metrics"] for e in events if e.get("phase") == "test"}


def test_a_resumed_run_reaches_what_a_whole_one_does(prepared, tmp_path):
    whole = run(prepared(), tmp_path / "whole")
    rest = run(prepared(), tmp_path / "rest", resume=checkpoints.path_of(tmp_path / "whole", 4))
    assert rest == {4: whole[4], 8: whole[8]}
    ended = saved_at(tmp_path / "whole", 8)
    shapes = {name: [array.shape for array in arrays] for name, arrays in ended.carried.items()}
    assert shapes == {"gru": [(7, 5)], "lstm": [(7, 4), (7, 4)]}
    assert_alike(saved_at(tmp_path / "rest", 8), ended)


PLANS = {
    "one": ("cluster.nworkers_per_group=1", "cluster.nservers_per_group=1"),
    "rows": ("cluster.nworkers_per_group=3",),
    "units": ("cluster.nworkers_per_group=2", "neuralnet.partition_dim=1"),
}


@pytest.fixture(scope="module")
def alone(text, tmp_path_factory):
    """What one worker reaches."""
    folder = tmp_path_factory.mktemp("alone")
    run(prepare(Job.from_text(JOB % {"folder": text}, PLANS["one"])), folder)
    return saved_at(folder, 8)


@pytest.mark.parametrize(("first", "second"), [("one", "units"), ("units", "rows"), ("units", "units"), ("", "rows")])
def test_a_run_and_its_state_go_on_under_another_partition(prepared, tmp_path, alone, first, second):
    if first:
        run(prepared(*PLANS[first], "train_steps=4"), tmp_path / "half")
    resume = checkpoints.path_of(tmp_path / "half", 4) if first else None
    run(prepared(*PLANS[second]), tmp_path / "rest", resume=resume)
    assert_alike(saved_at(tmp_path / "rest", 8), alone, rtol=2e-4, atol=2e-5)


def test_only_the_group_that_saved_it_goes_on_with_the_state(prepared, tmp_path):
    job = prepared().job
    run(prepared(), tmp_path)
    saved = saved_at(tmp_path, 8)

    def restored(comm, carry):
        replica = Replica.form(job, comm, get_ops("cpu"))
        replica.group_state.restore(saved if comm.rank == 0 else None, carry=carry)
        return {name: [array.shape for array in arrays] for name, arrays in replica.net.state.items()}

    assert run_threads(3, restored, False) == [{}, {}, {}]
    rows = [share_rows(7, rank, 3) for rank in range(3)]
    for (first, last), shapes in zip(rows, run_threads(3, restored, True), strict=True):
        assert shapes == {"gru": [(last - first, 5)], "lstm": [(last - first, 4)] * 2}


def test_a_state_is_forgotten_where_the_servers_have_gone_on_since(prepared, tmp_path):
    alone = prepared(*PLANS["one"])
    run(alone, tmp_path)
    links, found = server_links(alone), []
    for generation, step in enumerate((8, 4)):
        replica = Replica.form(alone.job, SoloCommunicator(), get_ops("cpu"), links, generation=generation)
        replica.group_state.restore(saved_at(tmp_path, step))
        assert set(replica.net.state) == {"gru", "lstm"}
        found.append((replica.group_state.fetch(), set(replica.net.state)))
    assert found == [(8, {"gru", "lstm"}), (8, set())]


def test_rows_of_all_time_steps_are_written(prepared, text, tmp_path):
    output = (
        f'layer {{ name: "w" type: kCSVOutput srclayers: "ip" include: kTest store_conf {{ path: "{tmp_path}/o" }} }}'
    )
    job = Job.from_text((JOB % {"folder": text}).replace("  layer {", f"  {output}\n  layer {{", 1))
    job.proto.cluster.ClearField("nworkers_per_group")
    job.proto.cluster.ClearField("nservers_per_group")
    run(prepare(job), tmp_path / "run")
    assert len((tmp_path / "o").read_text().splitlines()) == 3 * 6 * 7  # of the last test


def test_it_learns(prepared, tmp_path):
    found = run(prepared("train_steps=70", "test_freq=70"), tmp_path)
    assert found[70]["loss"] < 0.65 * found[0]["loss"] and found[70]["accuracy"] > 0.5


@pytest.mark.parametrize(
    "cluster",
    [
        "nworkers_per_group: 2 nservers_per_group: 2 server_worker_separate: true",
        "nworker_groups: 2 nworkers_per_group: 2 nservers_per_group: 2 server_worker_separate: true",
        "nworker_groups: 3 nserver_groups: 3 sync_freq: 2",
    ],
)
def test_every_strategy_trains_recurrent_nets(text, tmp_path, cluster):
    job = Job.from_text((JOB % {"folder": text}).replace("nworkers_per_group: 3 nservers_per_group: 2", cluster))
    ran = run_topology(prepare(job), tmp_path)
    losses = {e["step"]: e["metrics"]["loss"] for e in ran.events if e.get("phase") == "test" and e["group"] == 0}
    assert losses[8] < losses[0]


def test_a_checkpoint_measures_as_training_did(prepared, tmp_path):
    found = run(prepared(), tmp_path)
    measured = evaluate.measure(prepared().job, checkpoints.path_of(tmp_path, 8), Phase.kTest).numbers
    assert measured == pytest.approx(found[8], rel=1e-6)


def test_texts_of_two_vocabularies_are_refused(text, tmp_path):
    (tmp_path / "other.txt").write_text("abcdefg hx" * 40)
    shard_files("text", tmp_path / "other", source=tmp_path / "other.txt")
    job = (JOB % {"folder": text}).replace(f"{text}/validation", str(tmp_path / "other"))
    with pytest.raises(
        ConfigError, match=r"its vocabulary differs from.*symbol 9 is 'x' here and missing there.*--vocab"
    ):
        prepare(Job.from_text(job))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("onehot].onehot_conf.vocab_size=6", "9 different symbols"),
        ("ip].innerproduct_conf.num_output=8", "'data' have 9 classes.*8 outputs"),
    ],
)
def test_a_vocabulary_larger_than_the_net_is_refused(prepared, override, says):
    with pytest.raises(ConfigError, match=says):
        prepared(f"neuralnet.layer[{override}")
