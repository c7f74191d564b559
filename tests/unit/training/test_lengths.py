"""Sequences of different lengths: what only fills them up counts nowhere."""

import numpy as np
import pytest
from support.gradients import check_gradients, loss_of
from support.trained import assert_alike, saved_at, train_group

from singa_dask import load_model, shard
from singa_dask.errors import ConfigError, DataError
from singa_dask.job import Job
from singa_dask.job.assemble import assemble
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import (
    GRU,
    LSTM,
    Attention,
    EuclideanLoss,
    InnerProduct,
    RecordInput,
    Tanh,
    bidirectional,
)
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops
from singa_dask.training.prepare import prepare

STEPS = 6
RNG = np.random.default_rng(0)
LENGTHS = np.array([3, 6, 2, 4, 6, 2, 5])
FULL = RNG.normal(size=(7, STEPS, 2))
REAL = np.arange(STEPS) < LENGTHS[:, None]
TARGETS = RNG.normal(size=(7, 2))

JOB = """
name: "lengths" train_steps: 6 checkpoint_freq: 6 seed: 5
train_one_batch { alg: kBP }
updater { type: kAdam learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer {
    name: "data" type: kRecordInput
    store_conf { path: "%(folder)s" column: "x" batchsize: 7 time_steps: 6 lengths: "length" normalise: true }
  }
  layer {
    name: "length" type: kRecordInput store_conf { path: "%(folder)s" column: "length" batchsize: 7 has_label: false }
  }
  layer { name: "gru" type: kGRU srclayers: "data" gru_conf { dim_hidden: 5 } }
  layer { name: "out" type: kInnerProduct srclayers: "gru" innerproduct_conf { num_output: 2 } }
  layer { name: "loss" type: kEuclideanLoss srclayers: "out" srclayers: "data" }
}
"""

OF_DATA = 'srclayers: "data"'
GRU_OF_DATA = f"kGRU {OF_DATA} gru_conf {{ dim_hidden: 5 }}"


class Onwards(Tanh):
    """Reads later steps than its own."""

    across_steps = True
    rowwise = True


NETS = {
    "lstm": lambda: [LSTM("a", dim_hidden=3)],
    "stacked": lambda: [InnerProduct("in", num_output=3), GRU("a", dim_hidden=3), Tanh("t"), LSTM("b", dim_hidden=2)],
    "attention": lambda: [InnerProduct("in", num_output=4), Attention("a", num_heads=2, causal=True)],
    "attention to all steps": lambda: [InnerProduct("in", num_output=4), Attention("a", num_heads=2)],
    "decoder": lambda: decoder(),
    "both directions": lambda: both(),
}


def decoder():
    """Starts from what was read, and attends to it."""
    read = InnerProduct("in", num_output=4)("data")
    encoded, turned = LSTM("encoder", dim_hidden=4)(read), Tanh("turned")(read)
    start = LSTM("decoder", [turned, encoded], dim_hidden=4)
    return [read, encoded, turned, start, Attention("memory", [start, encoded], num_heads=2)]


def both():
    read = Tanh("in")("data")
    return [read, bidirectional(read, GRU("there", dim_hidden=3), LSTM("back", dim_hidden=2))]


def build(*between, lengths="length", steps=STEPS):
    data = RecordInput("data", time_steps=steps, shape=[2], target_shape=[2], lengths=lengths)
    length = [RecordInput("n", column="length", shape=[1], has_label=False)] if lengths else []
    layers = [*length, data, *between, InnerProduct("out", num_output=2), EuclideanLoss("loss", ["out", "data"])]
    net = Net(NetProto(layer=assemble(layers)), Phase.kTrain, get_ops("cpu", np.float64))
    net.initialise(3)
    return net


def fed(x, lengths, targets):
    return {"data": Batch(x, targets), "n": Batch(lengths[:, None].astype(float))}


@pytest.mark.parametrize("name", NETS)
def test_a_padded_batch_gives_what_its_sequences_give_alone(name):
    net = build(*NETS[name]())
    values = []
    for filled in (0.0, 7.5):
        feed = fed(np.where(REAL[..., None], FULL, filled), LENGTHS, TARGETS)
        values.append(loss_of(net, feed, Step(total_rows=7)))
        net.backward()
        values.append(net.flat.grads.copy())
    assert values[0] == pytest.approx(values[2], rel=1e-12)
    np.testing.assert_allclose(values[1], values[3], rtol=1e-9, atol=1e-12)
    loss, grads = 0.0, 0.0
    for row, length in enumerate(LENGTHS):
        whole = build(*NETS[name](), lengths="", steps=int(length))
        feed = {"data": Batch(FULL[row : row + 1, :length], TARGETS[row : row + 1])}
        loss += loss_of(whole, feed, Step(total_rows=1))
        whole.backward()
        grads = grads + whole.flat.grads
    assert values[0] == pytest.approx(loss / 7, rel=1e-10)
    np.testing.assert_allclose(values[1], grads / 7, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_the_numeric_ones(name):
    net = build(*NETS[name]())
    feed = fed(FULL, LENGTHS, TARGETS)
    check_gradients(net, lambda: loss_of(net, feed, Step(total_rows=7)), per_entry=3)


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, STEPS + 1, 60)
    x = rng.normal(size=(60, STEPS, 2)).astype(np.float32) * [1, 50] + [3, 0]
    return np.where((np.arange(STEPS) < lengths[:, None])[..., None], x, 0).astype(np.float32), lengths


@pytest.fixture(scope="module")
def folder(arrays, tmp_path_factory):
    x, lengths = arrays
    out = tmp_path_factory.mktemp("lengths") / "shards"
    shard({"x": x, "length": lengths.astype(np.int32)}, np.stack([x.sum((1, 2)), lengths], 1) + 0.5, out)
    return out


def prepared(folder, *overrides):
    return prepare(Job.from_text(JOB % {"folder": folder}, overrides))


def test_several_workers_train_as_one_and_the_steps_that_fill_up_have_no_statistics(folder, arrays, tmp_path):
    x, lengths = arrays
    job = prepared(folder)
    real = x[np.arange(STEPS) < lengths[:, None]]
    store = job.job.neuralnet.layer[0].store_conf
    np.testing.assert_allclose(store.mean, real.mean(0, dtype=float), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(store.std, real.std(0, dtype=float), rtol=1e-4)
    train_group(job, tmp_path / "one")
    for number, overrides in enumerate(([], ["neuralnet.partition_dim=1"])):
        train_group(prepared(folder, "cluster.nworkers_per_group=3", *overrides), tmp_path / str(number))
        assert_alike(saved_at(tmp_path / str(number), 6), saved_at(tmp_path / "one", 6), rtol=2e-4, atol=2e-5)


def test_a_model_takes_the_lengths_beside_the_sequences(folder, arrays, tmp_path):
    x, lengths = arrays
    train_group(prepared(folder), tmp_path)
    model = load_model(tmp_path)
    found = model.predict({"data": x, "length": lengths[:, None]})
    other = np.where((np.arange(STEPS) < lengths[:, None])[..., None], x, 99)
    np.testing.assert_allclose(model.predict({"data": other, "length": lengths[:, None]}), found, rtol=1e-6)
    with pytest.raises(DataError, match=r"lengths must be integers from 1 to 6.*Received: 2 to 7"):
        model.predict({"data": x[:2], "length": np.array([[2], [7]])})
    with pytest.raises(ConfigError, match="different lengths, which is not exported"):
        model.to_onnx(tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("time_steps: 6 ", ""), r"store_conf\.lengths: needs time_steps"),
        (('column: "length"', 'column: "row"'), "lengths: no layer reads this column. Received: length"),
        (('lengths: "length"', 'lengths: "x"'), r"lengths: .* has no such column of one number"),
        (('column: "length"', 'column: "length" normalise: true'), "lengths must be integers"),
        ((GRU_OF_DATA, f'kUserLayer {OF_DATA} user_type: "{__name__}:Onwards" unroll_len: 6'), "reads later steps"),
        ((GRU_OF_DATA, f"kReLU {OF_DATA}"), "reads whole sequences, of which the last steps"),
    ],
)  # fmt: skip
def test_what_would_count_other_steps_is_an_error(folder, tmp_path, change, fault):
    text = (JOB % {"folder": folder}).replace(*change)
    with pytest.raises((ConfigError, DataError), match=fault):
        train_group(prepare(Job.from_text(text)), tmp_path)


def test_lengths_that_are_impossible_are_found_before_training(arrays, tmp_path):
    shard({"x": arrays[0], "length": arrays[1] - 1}, np.ones((60, 2)) / 2, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"lengths: column 'length' .* from 1 to 6, the time_steps. Received: 0"):
        prepared(tmp_path / "out")
