"""Sampling: the text that a net writes, from the job that trained it and from one like SINGA's sample.conf."""

import numpy as np
import pytest

from singa_dask.data import shard_files
from singa_dask.errors import CheckpointError, ConfigError
from singa_dask.job import Job
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare
from singa_dask.training.sample import Sampler

SYMBOLS = "\n abcde"

LAYERS = """
  layer { name: "onehot" type: kOneHot srclayers: "data" onehot_conf { vocab_size: 7 } }
  layer { name: "gru" type: kGRU srclayers: "onehot" gru_conf { dim_hidden: 6 } }
  layer { name: "lstm" type: kLSTM srclayers: "gru" lstm_conf { dim_hidden: 5 } }
  layer { name: "ip" type: kInnerProduct srclayers: "lstm" innerproduct_conf { num_output: 7 } }
"""

TRAIN = """
name: "text" train_steps: 8 seed: 5
train_one_batch { alg: kBPTT }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  unroll_len: 6
  layer { name: "data" type: kCharRNN char_rnn_conf { path: "%(folder)s" unroll_len: 6 batchsize: 3 } }
  layer { name: "label" type: kRNNLabel srclayers: "data" }
  %(layers)s
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "label" }
}
"""

SAMPLE = """
name: "text" test_steps: 100
checkpoint_path: "%(checkpoint)s"
train_one_batch { alg: kBPTT }
neuralnet {
  layer {
    name: "data" type: kRNNDummy
    rnn_dummy_conf { shape: 1 integer: true low: 0 high: 7 dynamic_srclayer: "argsort" }
  }
  %(layers)s
  layer { name: "softmax" type: kSoftmax srclayers: "ip" }
  layer { name: "argsort" type: kArgSort srclayers: "softmax" }
  layer {
    name: "sampling" type: kCharRNNOutput srclayers: "argsort" char_rnn_conf { vocab_path: "%(vocab)s" }
  }
}
"""


def saved_net(job, folder):
    """A net with parameters that are large enough for it to have opinions, and its checkpoint."""
    draw = np.random.default_rng(0)
    net = Net(prepare(job).job.neuralnet, Phase.kTrain, get_ops("cpu"))
    parameters = {param.name: draw.normal(0, 1.5, param.shape).astype(np.float32) for param in net.params}
    net.flat.values[...] = net.flat.flattened(parameters)
    checkpoint = checkpoints.Checkpoint(8, 5, job.to_text(), parameters)
    return net, checkpoints.save(checkpoint, checkpoints.path_of(folder / "checkpoint", 8))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Shards and a vocabulary file; a job, its net, its checkpoint, and what fills the texts of jobs."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "vocab.txt").write_text(SYMBOLS)
    (folder / "input.txt").write_text("".join(np.random.default_rng(0).choice(list(SYMBOLS), 500)))
    shard_files("text", folder / "shards", source=folder / "input.txt", vocab=str(folder / "vocab.txt"))
    job = Job.from_text(TRAIN % {"folder": folder / "shards", "layers": LAYERS})
    net, saved = saved_net(job, folder / "run")
    return (
        job,
        net,
        saved,
        {"layers": LAYERS, "checkpoint": saved, "vocab": folder / "vocab.txt", "folder": folder / "shards"},
    )


def test_probabilities_are_those_of_the_trained_net_over_a_whole_sequence(made):
    job, net, saved, _ = made
    symbols = np.random.default_rng(1).integers(0, 7, (3, 7))
    net.forward({"data": Batch(symbols.astype(np.float32))}, Step())
    expected = net.output("loss").reshape(6, 3, 7)  # step, row, symbol
    sampler = Sampler(job, [saved])
    for t in range(6):
        np.testing.assert_allclose(sampler(int(symbols[0, t])), expected[t, 0], rtol=1e-5, atol=1e-7)


def test_a_job_like_singas_sample_conf_writes_the_same(made):
    job, _, saved, texts = made
    sample = Job.from_text(SAMPLE % texts)
    options = {"temperature": 0.7, "primer": "abc", "seed": 3}
    trained = "".join(Sampler(job, [saved.parent.parent]).write(60, **options))
    assert "".join(Sampler(sample).write(60, **options)) == trained
    assert set(trained) <= set(SYMBOLS)
    assert len(set(trained)) > 2


def test_symbols_of_a_dummy_need_no_vocab_size(made):
    job, _, saved, texts = made
    layers = LAYERS.replace("onehot_conf { vocab_size: 7 }", "")
    assert layers != LAYERS
    sampler = Sampler(Job.from_text(SAMPLE % {**texts, "layers": layers}))
    assert "".join(sampler.write(30, primer="ab")) == "".join(Sampler(job, [saved]).write(30, primer="ab"))


def test_seeds_and_temperatures(made):
    job, _, saved, _ = made
    sampler = Sampler(job, [saved])

    def text(**options):
        return "".join(sampler.write(80, primer="a", **options))

    assert text(seed=1) == text(seed=1)
    assert text(seed=1) != text(seed=2)
    assert text(temperature=0, seed=1) == text(temperature=0, seed=2)
    likely = [sum(map(len, {text(temperature=t, seed=s) for s in range(5)})) for t in (0, 1)]
    assert likely == [80, 400]


def test_the_dummy_reads_what_the_layer_gave_before(made):
    *_, texts = made
    written = []
    net = Net(prepared_sample(texts), Phase.kTest, get_ops("cpu"))
    net.initialise(0)
    net.layers["sampling"].write = written.append
    read, given = [], []
    for number in range(5):
        net.forward({}, Step(Phase.kTest, number))
        read.append(int(net.output("data")[0, 0]))
        given.append(int(net.output("argsort")[0, 0]))
    assert read[0] in range(7)
    assert read[1:] == given[:-1]
    assert "".join(written) == "".join(SYMBOLS[symbol] for symbol in given)


def prepared_sample(texts):
    proto = Job.from_text(SAMPLE % texts).proto.neuralnet
    proto.layer[-1].char_rnn_conf.vocabulary[:] = SYMBOLS
    return proto


@pytest.mark.parametrize("phases", ["include: kTrain", "include: [kTrain, kVal]"])
def test_a_text_that_some_phases_read_will_do(made, phases):
    job, _, saved, texts = made
    text = TRAIN % texts
    other = Job.from_text(text.replace("type: kCharRNN", f"type: kCharRNN {phases}"))
    options = {"primer": "abc", "seed": 3}
    assert "".join(Sampler(other, [saved]).write(30, **options)) == "".join(Sampler(job, [saved]).write(30, **options))


TRAIN_DIGITS = """
name: "digits" train_steps: 8
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "dataset:digits/train" batchsize: 8 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 10 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""

WIRING = 'srclayers: "gru" srclayers: "onehot" unroll_conn_type: [kUnrollOneToOne, kUnrollFirstToLast]'


@pytest.mark.parametrize(
    ("text", "changes", "raised", "says"),
    [
        (SAMPLE, {'srclayer: "argsort"': 'srclayer: "argsrot"'}, ConfigError, r"no layer has this name.*argsort"),
        (
            SAMPLE,
            {"type: kCharRNNOutput": "type: kDummy", "char_rnn_conf": "#"},
            ConfigError,
            "needs a kCharRNNOutput",
        ),
        (
            SAMPLE,
            {"dim_hidden: 6": "dim_hidden: 4"},
            CheckpointError,
            r"gru_z_hx has shape \(6, 7\), in this net \(4, 7\)",
        ),
        (SAMPLE, {"shape: 1": "shape: 2"}, ConfigError, r"generates one text.*Received: 2"),
        (
            TRAIN,
            {'type: kLSTM srclayers: "gru"': f"type: kLSTM {WIRING}", "hidden: 5": "hidden: 7"},
            ConfigError,
            r"'lstm' reads other time steps of 'onehot'.*kUnrollFirstToLast",
        ),
        (TRAIN_DIGITS, {}, ConfigError, "one layer that reads a text"),
    ],
)
def test_a_job_that_cannot_be_sampled_says_why(made, text, changes, raised, says):
    _, _, saved, texts = made
    text = text % texts
    for old, new in changes.items():
        text = text.replace(old, new)
    with pytest.raises(raised, match=says):
        Sampler(Job.from_text(text), [] if "checkpoint_path" in text else [saved])


def test_without_a_checkpoint_there_is_no_text(made):
    with pytest.raises(ConfigError, match="checkpoint_path"):
        Sampler(made[0])


@pytest.mark.parametrize(
    ("options", "says"), [({"primer": "az"}, r"primer.*'z'.*It has"), ({"temperature": -1}, "temperature")]
)
def test_what_cannot_be_written_says_why(made, options, says):
    job, _, saved, _ = made
    with pytest.raises(ConfigError, match=says):
        list(Sampler(job, [saved]).write(1, **options))


ATTENTION = """
  layer { name: "symbols" type: kEmbedding srclayers: "data" embedding_conf { vocab_size: 7 feature_dim: 4 } }
  layer { name: "in" type: kPositionalEmbedding srclayers: "symbols" }
  layer { name: "attention" type: kAttention srclayers: "in" attention_conf { num_heads: 2 causal: true } }
  layer { name: "ip" type: kInnerProduct srclayers: "attention" innerproduct_conf { num_output: 7 } }
"""


@pytest.fixture(scope="module")
def attending(made, tmp_path_factory):
    """A net with attention: its job, the net and a checkpoint."""
    job = Job.from_text(TRAIN % {**made[3], "layers": ATTENTION})
    return job, *saved_net(job, tmp_path_factory.mktemp("attention"))


def test_a_net_with_attention_reads_the_last_symbols_again(attending):
    job, net, saved = attending
    symbols = np.random.default_rng(1).integers(0, 7, 9)
    rows = np.stack([symbols[:7], symbols[1:8], symbols[2:9]])
    net.forward({"data": Batch(rows.astype(np.float32))}, Step())
    expected = net.output("loss").reshape(6, 3, 7)  # step, row, symbol
    sampler = Sampler(job, [saved])
    for t in range(8):  # six symbols, then those of the next rows
        step, row = (t, 0) if t < 6 else (5, t - 5)
        np.testing.assert_allclose(sampler(int(symbols[t])), expected[step, row], rtol=1e-4, atol=1e-6)
    assert "".join(sampler.write(20, seed=2)) == "".join(Sampler(job, [saved]).write(20, seed=2))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TRAIN, r"'attention' reads later symbols.*kAttention.*causal: true"),
        (SAMPLE, r"'attention' reads several symbols at once.*job that trained"),
    ],
    ids=["later", "without-memory"],
)
def test_attention_to_later_symbols_and_without_memory_is_refused(attending, made, text, says):
    attention = ATTENTION if text is SAMPLE else ATTENTION.replace("causal: true", "causal: false")
    with pytest.raises(ConfigError, match=says):
        Sampler(Job.from_text(text % {**made[3], "layers": attention}), attending[2:])
