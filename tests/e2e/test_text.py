"""From a text file to text of the net's own, by the commands that users type."""

import re

import numpy as np
import onnx
import onnxruntime
import pytest
from support.commands import ROOT, cluster, metrics, sets

JOB = (ROOT / "examples" / "char-rnn" / "job.conf").read_text()
WORDS = ["the cat ", "the dog ", "sat on ", "ran to ", "a mat. ", "a log.\n"]

SAMPLE = """
name: "sample" test_steps: 20 checkpoint_path: "run"
train_one_batch { alg: kBPTT }
neuralnet {
  layer {
    name: "data" type: kRNNDummy
    rnn_dummy_conf { shape: 1 integer: true low: 0 high: %(size)d dynamic_srclayer: "argsort" }
  }
  layer { name: "onehot" type: kOneHot srclayers: "data" onehot_conf { vocab_size: %(size)d } }
  layer {
    name: "gru1" type: kGRU srclayers: "onehot" gru_conf { dim_hidden: 32 }
    param { name: "z_hx" } param { name: "r_hx" } param { name: "c_hx" }
    param { name: "z_hh" } param { name: "r_hh" } param { name: "c_hh" }
    param { name: "z_b" } param { name: "r_b" } param { name: "c_b" }
  }
  layer {
    name: "ip1" type: kInnerProduct srclayers: "gru1" innerproduct_conf { num_output: %(size)d }
    param { name: "w" } param { name: "b" }
  }
  layer { name: "softmax" type: kSoftmax srclayers: "ip1" }
  layer { name: "argsort" type: kArgSort srclayers: "softmax" }
  layer { name: "text" type: kCharRNNOutput srclayers: "argsort" char_rnn_conf { vocab_path: "shards/train" } }
}
"""


@pytest.mark.long
@pytest.mark.timeout(180)
def test_char_rnn(singa_dask, here, tmp_path, no_leaks):
    """The example's job on a text of our own: shards, training by two workers, test, sampling, ONNX."""
    draw = np.random.default_rng(0)
    text = "".join(draw.choice(WORDS, 4000))
    (tmp_path / "input.txt").write_text(text)
    here("shard", "text", "--source", "input.txt", "--out", "shards", "--validation", 0.1)
    size = len(set(text))
    job = JOB.replace("dataset:tinyshakespeare", "shards").replace("dim_hidden: 512", "dim_hidden: 32")
    job = re.sub(r"(unroll_len|batchsize): 50", r"\1: 10", job)
    (tmp_path / "job.conf").write_text(re.sub(r"(vocab_size|num_output): 65", rf"\1: {size}", job))

    options = sets(train_steps=300, validate_freq=150, validate_steps=30, checkpoint_freq=0)
    workers = sets(cluster__nworkers_per_group=2, cluster__nservers_per_group=2, updater__learning_rate__base_lr=0.01)
    singa_dask("train", "job.conf", "--workspace", "run", *options, *workers, timeout=120)
    losses = {row["step"]: row["loss"] for row in metrics(tmp_path / "run") if row["phase"] == "validate"}
    # One of six words comes next; 7.2 characters a word make .25 nats a character the best that can be.
    assert losses[0] > 2.5
    assert losses[300] < 0.6

    tested = here("test", "job.conf", "--checkpoint", "run", "--validation", *options)
    assert f"loss {losses[300]:.4f}" in tested.out

    draw_text = ("--primer", "the c", "--length", 200)
    one, other = (here("sample", "job.conf", "--checkpoint", "run", *draw_text, "--seed", seed).out for seed in (1, 2))
    assert one.startswith("the c") and len(one) == 5 + 200 + 1 and one != other
    assert sum(one.count(word) for word in WORDS) > 15
    (tmp_path / "sample.conf").write_text(SAMPLE % {"size": size})
    like_singa = here("sample", "sample.conf", *draw_text, "--seed", 1)
    assert like_singa.out == one  # the same net and seed draw the same text
    wrong = here("sample", "job.conf", "--checkpoint", "run", "--primer", "#", code=2)
    assert "primer: holds a symbol that is not in the vocabulary. Received: '#'" in wrong.err

    here("export", "job.conf", "--checkpoint", "run", "--onnx", "net.onnx")
    session = onnxruntime.InferenceSession(onnx.load(tmp_path / "net.onnx").SerializeToString())
    (scores,) = session.run(["loss"], {"data": np.zeros((3, 8), np.int64)})
    assert scores.shape == (3, 8, size)


def test_a_text_that_is_not_in_shards_says_how_it_gets_there(here, tmp_path):
    (tmp_path / "input.txt").write_text("hello")
    (tmp_path / "job.conf").write_text(JOB.replace("dataset:tinyshakespeare/train", "input.txt"))
    ran = here("check", "job.conf", "--cluster", cluster(), *sets(validate_freq=0), code=2)
    assert "singa-dask shard text --source input.txt" in ran.err
