"""Jobs that read text: what is checked before they start, and a run of one."""

from contextlib import nullcontext

import numpy as np
import pytest
from support.shards import write_shards
from support.trained import train_group

from singa_dask.data import shard_files
from singa_dask.errors import ConfigError
from singa_dask.inference import evaluate
from singa_dask.inference.blocks import own_blocks
from singa_dask.job import Job, job_to_text, load_job
from singa_dask.job.job_pb2 import Phase
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import _check_vocabularies, prepare

JOB = """
name: "text" train_steps: 6 disp_freq: 3 test_freq: 3 test_steps: 2 checkpoint_freq: 3 seed: 5
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.0001 } }
cluster { nworkers_per_group: 2 }
neuralnet {
  layer { name: "text" type: kCharRNN exclude: kTest
    char_rnn_conf { path: "%(folder)s/train" unroll_len: 8 batchsize: 6 %(more)s } }
  layer { name: "text" type: kCharRNN include: kTest
    char_rnn_conf { path: "%(folder)s/validation" unroll_len: 8 batchsize: 4 } }
  layer { name: "again" type: kInnerProduct srclayers: "text" innerproduct_conf { num_output: 9 } }
  layer { name: "loss" type: kEuclideanLoss srclayers: "again" srclayers: "text" }
}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "input.txt").write_text("to be or not to be, that is\n" * 30)
    shard_files("text", tmp_path / "shards", 2, source=tmp_path / "input.txt", window=64, validation=0.2)
    return tmp_path / "shards"


def job(folder, *overrides, more=""):
    return Job.from_text(JOB % {"folder": folder, "more": more}, overrides)


def test_paths_become_absolute_and_the_job_stays_one(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    prepared = prepare(job("shards"))
    conf = prepared.job.neuralnet.layer[0].char_rnn_conf
    assert conf.path == str(folder / "train")
    assert sorted(prepared.data) == ["test/text", "train/text", "train/text as read"]
    again = prepare(Job.from_text(job_to_text(prepared.job)))
    assert again.job == prepared.job
    assert again.data == prepared.data


def test_without_data_the_shape_is_known(tmp_path):
    prepared = prepare(job("nowhere"), with_data=False)
    assert prepared.shapes["again_weight"] == (9, 9)


@pytest.mark.parametrize("steps", [2, 0], ids=["some", "whole"])
def test_a_run_sees_the_text_go_on(folder, tmp_path, steps):
    prepared = prepare(job(folder, f"test_steps={steps}"))
    report, _ = train_group(prepared, tmp_path / "run")
    assert report["metrics"].keys() == {"train", "test"}
    path = checkpoints.path_of(tmp_path / "run", 6)
    assert evaluate.measure(prepared.job, path, Phase.kTest).numbers["loss"] == pytest.approx(
        report["metrics"]["test"]["loss"]
    )
    with pytest.raises(ConfigError, match=r"layer 'text': reads sequences.*sequences of 8.*singa-dask sample"):
        own_blocks(evaluate.model_of(prepared.job, None, path))


def test_a_vocabulary_may_be_named_to_be_compared(folder, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n ,abehinorst")
    (tmp_path / "other.txt").write_text("\n ,abehinorxt")
    prepared = prepare(job(folder, more=f'vocab_path: "{tmp_path}/vocab.txt"'))
    assert prepared.job.neuralnet.layer[0].char_rnn_conf.vocab_path == str(tmp_path / "vocab.txt")
    prepare(job(folder, more=f'vocab_path: "{folder}/validation"'))
    fault = (
        r"layer 'text'.char_rnn_conf.vocab_path: differs from the vocabulary.*: symbol 11 is 'x' here and 's' there"
    )
    with pytest.raises(ConfigError, match=fault):
        prepare(job(folder, more=f'vocab_path: "{tmp_path}/other.txt"'))


@pytest.mark.parametrize(
    ("override", "more", "says"),
    [
        (
            "path={text}",
            "",
            "'text'.char_rnn_conf.path: must be a folder of shards, not a text.*shard text --source {text} --out",
        ),
        ("path={text}", 'vocab_path: "vocab.txt"', "singa-dask shard text --source {text} --vocab vocab.txt --out"),
        ("path={folder}/numbers", "", "layer 'text'.*numbers: is not a text"),
        (
            "batchsize=600",
            "",
            "'text'.char_rnn_conf.batchsize: 600 rows of 9 records do not fit into the 672 records.*Use at most 74",
        ),
    ],
    ids=["text", "text and vocabulary", "no text", "batchsize"],
)
def test_what_is_no_text_of_this_job_says_what_to_do(folder, override, more, says):
    write_shards(folder / "numbers", np.ones((90, 1)), None)
    places = {"folder": folder, "text": folder.parent / "input.txt"}
    with pytest.raises(ConfigError, match=says.format(**places)) as caught:
        prepare(job(folder, "neuralnet.layer[0].char_rnn_conf." + override.format(**places), more=more))
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("kind", "conf"), [("kOneHot", "onehot_conf"), ("kEmbedding", "embedding_conf"), ("kReLU", "")]
)
@pytest.mark.parametrize("size", [12, 13])
def test_symbols_beyond_the_vocabulary_of_a_layer_are_refused(folder, kind, conf, size):
    """The text has 13 different characters."""
    proto = prepare(job(folder)).job
    settings = f"{conf} {{ vocab_size: {size} }}" if conf else ""
    text = f'neuralnet {{ layer {{ name: "symbols" type: {kind} srclayers: "text" {settings} }} }}'
    proto.neuralnet.layer.add().CopyFrom(load_job(text).neuralnet.layer[0])
    phases = [Phase.kTrain, Phase.kTest]
    says = rf"^layer 'symbols'.{conf}.vocab_size: the text of 'text' has 13 different symbols. Received: 12. Use 13.$"
    with pytest.raises(ConfigError, match=says) if size == 12 and conf else nullcontext():
        _check_vocabularies(proto, phases)


def test_sequences_of_records_are_prepared_too(tmp_path):
    write_shards(tmp_path, np.ones((90, 3)), np.arange(90) % 2, classes=["even", "odd"])
    head, _ = JOB.split("neuralnet {")
    text = (
        head
        + f"""neuralnet {{
      layer {{ name: "data" type: kRecordInput
        store_conf {{ path: "{tmp_path}" sequence: 4 lookahead: 1 batchsize: 6 }} }}
      layer {{ name: "again" type: kInnerProduct srclayers: "data" innerproduct_conf {{ num_output: 15 }} }}
      layer {{ name: "loss" type: kEuclideanLoss srclayers: "again" srclayers: "data" }}
    }}"""
    )
    prepared = prepare(Job.from_text(text))
    assert prepared.shapes["again_weight"] == (15, 15)
    assert list(prepared.job.neuralnet.layer[0].store_conf.shape) == [3]
    with pytest.raises(ConfigError, match=r"store_conf\.batchsize: 19 rows of 5 records.*Use at most 18"):
        prepare(Job.from_text(text.replace("batchsize: 6", "batchsize: 19")))
