"""Forecasts of time series: nets that read windows, the statistics of these, and the same training for all workers."""

import numpy as np
import pandas as pd
import pytest
from support.gradients import check_gradients, loss_of
from support.trained import assert_alike, saved_at, train_group

from singa_dask import load_model, shard
from singa_dask.data import shard_files
from singa_dask.errors import ConfigError, DataError
from singa_dask.inference.blocks import own_blocks, shard_blocks
from singa_dask.job import Job
from singa_dask.job.assemble import assemble
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import (
    GRU,
    LSTM,
    RNN,
    Attention,
    EuclideanLoss,
    InnerProduct,
    RecordInput,
    SoftmaxLoss,
    Tanh,
    bidirectional,
)
from singa_dask.layers.context import Step
from singa_dask.monitor.progress import Display
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops
from singa_dask.supervision.driver import train
from singa_dask.training.prepare import prepare
from singa_dask.updaters import Adam

HOURS = np.arange(24 * 80)
DAY = np.sin(2 * np.pi * HOURS / 24)
SERIES = (20 + 5 * DAY + 2 * DAY * np.cos(2 * np.pi * HOURS / 168)).astype(np.float32)
X = np.stack([SERIES, 100 * np.cos(2 * np.pi * HOURS / 24)], 1).astype(np.float32)

JOB = """
name: "forecast" train_steps: 6 checkpoint_freq: 6 test_freq: 6 seed: 5
train_one_batch { alg: kBP }
updater { type: kAdam learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer {
    name: "data" type: kRecordInput
    store_conf { path: "%s" column: "x" batchsize: 7 sequence: 12 horizon: 4 validation_share: 0.25 normalise: true
                 normalise_target: true }
  }
  layer { name: "in" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 5 } }
  layer { name: "lstm" type: kLSTM srclayers: "in" lstm_conf { dim_hidden: 6 } }
  layer { name: "out" type: kInnerProduct srclayers: "lstm" innerproduct_conf { num_output: 4 } }
  layer { name: "loss" type: kEuclideanLoss srclayers: "out" srclayers: "data" }
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shards in the order of time, with the number of a station that changes after 1,000 hours."""
    out = tmp_path_factory.mktemp("series") / "shards"
    shard({"x": X, "station": (HOURS >= 1000).astype(np.int32)}, SERIES, out, shuffle=False)
    return out


def forecaster(*layers, horizon=24, **options):
    data = RecordInput(
        "data", batchsize=64, sequence=48, horizon=horizon, normalise=True, normalise_target=True, **options
    )
    net = [data, *layers, EuclideanLoss("loss")]
    return Job(name="forecast", layers=net, updater=Adam(lr=0.005), train_steps=500, seed=1)


def r2(predicted, true):
    return 1 - ((predicted - true) ** 2).mean() / true.var()


def windows(x, sequence, horizon):
    """All windows of x, and what follows them of the series."""
    seen = np.lib.stride_tricks.sliding_window_view(x, sequence, axis=0)[: len(x) - sequence - horizon + 1]
    return np.moveaxis(seen, -1, 1), np.lib.stride_tricks.sliding_window_view(x[:, 0], horizon)[sequence:]


def test_a_forecast_of_a_day_learns_the_series_and_not_one_whose_hours_are_mixed(tmp_path):
    found = []
    for order in (HOURS, np.random.default_rng(0).permutation(HOURS)):
        job = forecaster(LSTM(dim_hidden=32), InnerProduct(num_output=24))
        options = {"processes": False, "workspace": tmp_path / str(len(found)), "display": Display(), "curves": False}
        result = train(job, data=(X[order], SERIES[order]), validation=0.2, **options)
        model = load_model(result.checkpoint)
        seen, true = windows(X[order], 48, 24)
        held_out = slice(-200, None)
        found.append(r2(model.predict(seen[held_out]), true[held_out]))
    assert model.state_dict()["lstm1_i_hx"].shape == (32, 2)
    assert found[0] > 0.95 and found[1] < 0.3


def run(folder, out, *overrides):
    prepared = prepare(Job.from_text(JOB % folder, overrides))
    _, events = train_group(prepared, out)
    return saved_at(out, 6), [event["metrics"] for event in events if event.get("phase") == "test"]


@pytest.mark.parametrize(
    "overrides",
    [["cluster.nworkers_per_group=3"], ["cluster.nworkers_per_group=2", "neuralnet.partition_dim=1"]],
)
def test_several_workers_train_as_one(folder, tmp_path, overrides):
    alone, tested = run(folder, tmp_path / "alone")
    together, tested_together = run(folder, tmp_path / "together", *overrides)
    assert_alike(together, alone, rtol=2e-4, atol=2e-5)
    for one, other in zip(tested, tested_together, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_statistics_are_of_the_records_that_train(folder):
    conf = prepare(Job.from_text(JOB % folder)).job.neuralnet.layer[0].store_conf
    cut = len(X) * 3 // 4
    np.testing.assert_allclose(conf.mean, X[:cut].mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(conf.std, X[:cut].std(0), rtol=1e-5)
    np.testing.assert_allclose(
        [*conf.target_mean, *conf.target_std], [SERIES[:cut].mean(), SERIES[:cut].std()], rtol=1e-5
    )
    assert abs(conf.mean[0] - X[:, 0].mean()) > 1e-4


def test_series_are_told_apart_by_a_column(folder):
    prepared = prepare(Job.from_text(JOB % folder, ['neuralnet.layer[0].store_conf.series="station"']))
    assert list(prepared.job.neuralnet.layer[0].store_conf.series_start) == [1000]
    plain = prepare(Job.from_text(JOB % folder))
    assert plain.data["train/data"] != prepared.data["train/data"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("horizon: 4", "horizon: 4 lookahead: 1"), r"store_conf\.lookahead: is not for windows"),
        (("sequence: 12", ""), r"store_conf\.horizon: needs sequence. Received: 4"),
        (("horizon: 4", 'series: "station"'), r"store_conf\.series: needs windows"),
        (("horizon: 4", 'horizon: 4 series: "x"'), r"store_conf\.series: .* has no such column of one number"),
        (("horizon: 4", "horizon: 4 time_steps: 3"), r"store_conf\.time_steps: excludes sequence"),
        (("num_output: 4", "num_output: 5"), r"prediction and target differ in size. Received: \(5,\) and \(4,\)"),
        (("neuralnet {", "neuralnet { unroll_len: 12"), "a row has .* of its own.*Leave out unroll_len"),
        (("alg: kBP", "alg: kBPTT"), r"horizon: is not for kBPTT.*alg: kBP"),
        (('column: "x"', 'column: "x" label: "station"'), r"horizon: must be 1 for labels that are classes"),
        (("sequence: 12", "sequence: 1500"), r"no window of 1500 records .* at most 1,440 follow each other"),
        (("sequence: 12", "sequence: 480"), r"held out of .*at most 480 follow each other"),
    ],
)  # fmt: skip
def test_faults_are_errors_before_the_first_step(tmp_path, change, fault):
    out = tmp_path / "shards"
    answers = {"y": SERIES, "station": (HOURS >= 1000).astype(np.int32)}
    if "label" in change[1] or "series" in change[1]:
        shard({"x": X}, answers, out, shuffle=False, labels=["station"], targets=["y"])
    else:
        shard({"x": X}, SERIES, out, shuffle=False)
    with pytest.raises(ConfigError, match=fault):
        prepare(Job.from_text((JOB % out).replace(*change)))


NETS = {
    "lstm": [LSTM("a", dim_hidden=3)],
    "two": [InnerProduct("in", num_output=3), GRU("a", dim_hidden=3), RNN("b", dim_hidden=4), Tanh()],
    "attention": [InnerProduct("in", num_output=4), Attention("a", num_heads=2), Tanh()],
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("fold", [True, False])
def test_the_last_step_is_read_with_the_right_gradients(name, fold):
    if name == "attention" and not fold:
        return
    data = RecordInput("data", sequence=5, horizon=2, shape=[2], target_shape=[1])
    layers = assemble([data, *NETS[name], InnerProduct("out", num_output=2), EuclideanLoss("loss")])
    net = Net(NetProto(layer=layers), Phase.kTrain, get_ops("cpu", np.float64), fold=fold)
    net.initialise(3)
    rng = np.random.default_rng(0)
    feed = {"data": Batch(rng.normal(size=(4, 5, 2)), rng.normal(size=(4, 2)))}
    check_gradients(net, lambda: loss_of(net, feed, Step(total_rows=4)), per_entry=4)


def test_folded_and_unrolled_nets_give_the_same():
    found = []
    for fold in (True, False):
        data = RecordInput("data", time_steps=5, shape=[2])
        layers = assemble([data, *NETS["two"], InnerProduct("out", num_output=3), SoftmaxLoss("loss")])
        net = Net(NetProto(layer=layers), Phase.kTrain, get_ops("cpu", np.float64), fold=fold)
        net.initialise(3)
        feed = {"data": Batch(np.random.default_rng(0).normal(size=(4, 5, 2)), np.array([0, 2, 1, 1]))}
        found.append(loss_of(net, feed, Step(total_rows=4)))
        net.backward()
        found.append(net.flat.grads.copy())
    assert found[0] == pytest.approx(found[2], rel=1e-12)
    np.testing.assert_allclose(found[1], found[3], rtol=1e-9, atol=1e-12)


def test_both_directions_are_read_at_the_last_step():
    data = RecordInput("data", time_steps=5, shape=[2], batchsize=4)
    both = bidirectional(data, GRU("onwards", dim_hidden=3), GRU("back", dim_hidden=3), name="both")
    loss = SoftmaxLoss("loss")(InnerProduct("out", num_output=2)(both), data)
    net = Net(NetProto(layer=assemble([loss])), Phase.kTrain, get_ops("cpu", np.float64))
    net.initialise(3)
    net.forward({"data": Batch(np.ones((4, 5, 2)), np.zeros(4, int))}, Step(total_rows=4))
    assert net.whole_shapes["out"] == (2,)


def test_rows_of_another_split_are_no_part_of_a_window(tmp_path):
    table = pd.DataFrame({"now": SERIES, "hour": HOURS, "load": SERIES})
    for name, split in {"random": {"test": 0.2}, "from": {"test_from": 1500, "split_by": "hour"}}.items():
        shard(table[["now", "hour"]], table["load"], tmp_path / name, shuffle=False, **split)
    job = JOB.replace('column: "x"', "")
    with pytest.raises(ConfigError, match=r"at most .* follow each other.*--test-from"):
        prepare(Job.from_text((job % (tmp_path / "random/train")).replace("sequence: 12", "sequence: 60")))
    with pytest.raises(ConfigError, match=r"rows of the source are missing before .* records of .*--test-from"):
        prepare(Job.from_text((job % (tmp_path / "random/train")).replace("horizon: 4", "")))
    prepared = prepare(Job.from_text(job % (tmp_path / "from/train")))
    assert not prepared.job.neuralnet.layer[0].store_conf.series_start


def test_every_file_is_a_series(tmp_path):
    for name, rows in (("a", slice(0, 300)), ("b", slice(500, 900))):
        pd.DataFrame({"x": SERIES[rows], "load": SERIES[rows]}).to_csv(tmp_path / f"{name}.csv", index=False)
    shard_files("csv", tmp_path / "out", source=f"{tmp_path}/*.csv", target="load", shuffle=False)
    prepared = prepare(Job.from_text(JOB.replace('column: "x"', "") % (tmp_path / "out")))
    assert list(prepared.job.neuralnet.layer[0].store_conf.series_start) == [300]


def model_of(folder, out, overrides=()):
    options = {"processes": False, "workspace": out / "run", "display": Display(), "curves": False}
    return load_model(train(Job.from_text(JOB % folder, overrides), **options).checkpoint)


def test_windows_of_shards_are_predicted(folder, tmp_path):
    model = model_of(folder, tmp_path)
    for held_out, begin, stop in ((True, 1440, 1920), (False, 0, 1920)):
        blocks = own_blocks(model) if held_out else shard_blocks(model, {"data": folder}, held_out=False)
        found = [block.read(model) for block in blocks]
        ends = np.concatenate([samples.numbers for samples in found])
        np.testing.assert_array_equal(ends, np.arange(begin + 11, stop - 4))
        for samples in found:
            rows = samples.numbers[:, None]
            np.testing.assert_array_equal(samples.values["data"][..., 0], SERIES[rows + np.arange(-11, 1)])
            np.testing.assert_array_equal(samples.answers["data"], SERIES[rows + np.arange(1, 5)])
    assert model.known.names("loss") == ["y_1", "y_2", "y_3", "y_4"]
    assert model.predict(windows(X, 12, 4)[0][:3]).shape == (3, 4)
    with pytest.raises(DataError, match="give whole windows, or shards in the order of time"):
        model.predict(X[:5])


def test_labels_of_a_later_layer_follow_their_windows(tmp_path):
    shard(X[:40], SERIES[:40], tmp_path / "out", shuffle=False)
    both = """name: "plain" type: kRecordInput
    store_conf { path: "%s" column: "x" batchsize: 7 sequence: 12 horizon: 4 has_label: false validation_share: 0.5 }
  }
  layer { name: "both" type: kConcate srclayers: "plain" srclayers: "data" concate_conf { concate_dim: 1 } }
  layer {
    name: "data" """
    text = JOB.replace('name: "data" ', both % (tmp_path / "out"), 1).replace("0.25", "0.5")
    text = text.replace('kInnerProduct srclayers: "data"', 'kInnerProduct srclayers: "both"')
    options = {"processes": False, "workspace": tmp_path / "run", "display": Display(), "curves": False}
    model = load_model(train(Job.from_text(text % (tmp_path / "out")), **options).checkpoint)
    blocks = shard_blocks(model, dict.fromkeys(("plain", "data"), tmp_path / "out"), held_out=False)
    for samples in (block.read(model) for block in blocks):
        np.testing.assert_array_equal(samples.numbers, np.arange(11, 36))
        np.testing.assert_array_equal(samples.answers["data"], SERIES[samples.numbers[:, None] + np.arange(1, 5)])


def test_windows_at_a_stride_and_of_several_series_are_predicted(folder, tmp_path):
    overrides = ["neuralnet.layer[0].store_conf.stride=5", 'neuralnet.layer[0].store_conf.series="station"']
    model = model_of(folder, tmp_path, overrides)
    ends = [block.read(model).numbers for block in own_blocks(model)]
    np.testing.assert_array_equal(np.concatenate(ends), [*range(761, 996, 5), *range(1701, 1916, 5)])


@pytest.mark.parametrize("horizon", ["horizon: 4", ""])
def test_shuffled_records_are_named_as_such(tmp_path, horizon):
    shard(X, SERIES, tmp_path / "out")
    text = (JOB % (tmp_path / "out")).replace("horizon: 4", horizon)
    with pytest.raises(ConfigError, match=r"were written in random order.*--no-shuffle"):
        prepare(Job.from_text(text))
