from itertools import pairwise

import numpy as np
import pytest

from singa_dask.job import ClusterTopology, Job
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import (
    Convolution,
    EuclideanLoss,
    InnerProduct,
    Pooling,
    RBMHid,
    RBMVis,
    RecordInput,
    ReLU,
    SoftmaxLoss,
)
from singa_dask.net import Net
from singa_dask.ops import Ops
from singa_dask.planning.rates import passes_work, spread_work, update_work
from singa_dask.planning.work import worker_step
from singa_dask.profiling import layers as profiling
from singa_dask.profiling.layers import IdleGroup, measure_layers, random_batch
from singa_dask.updaters import SGD

TEXT = """
name: "text" train_steps: 1
train_one_batch { alg: kBPTT }
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet { unroll_len: 3 partition_dim: 1
  layer { name: "data" type: kCharRNN unroll_len: 1
    char_rnn_conf { path: "none" unroll_len: 3 batchsize: 4 } }
  layer { name: "onehot" type: kOneHot srclayers: "data" unroll_conn_type: kUnrollOneToAll
    onehot_conf { vocab_size: 5 } }
  layer { name: "label" type: kRNNLabel srclayers: "data" unroll_conn_type: kUnrollOneToAll }
  layer { name: "gru" type: kGRU srclayers: "onehot" gru_conf { dim_hidden: 6 } }
  layer { name: "ip" type: kInnerProduct srclayers: "gru" innerproduct_conf { num_output: 5 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "label" } }
"""


def job_of(layers, n=1, **fields):
    cluster = ClusterTopology.allreduce(n)
    return Job(name="j", train_steps=1, layers=layers, updater=SGD(lr=0.1), cluster=cluster, **fields).proto


def images(n=1, batch=8, **fields):
    chain = [
        RecordInput("data", batchsize=batch, shape=[1, 6, 6]),
        Convolution(num_filters=4, kernel=3, pad=1),
        ReLU(),
        Pooling(pool="MAX", kernel=2, stride=2),
        InnerProduct(num_output=8),
        InnerProduct(num_output=6),
        SoftmaxLoss(),
    ]
    return job_of(chain, n, **fields)


def symbols(n):
    job = Job.from_text(TEXT).proto
    job.cluster.CopyFrom(ClusterTopology.allreduce(n).to_proto())
    return job


def machine():
    chain = [
        RecordInput("data", batchsize=6, shape=[9]),
        RBMVis("vis", ["data", "hid"], hdim=4),
        RBMHid("hid", "vis", hdim=4),
    ]
    return job_of(chain, alg="kCD")


@pytest.mark.parametrize(
    "job",
    [images(2, partition_dim=0), images(2, partition_dim=1), symbols(1), symbols(2), machine()],
    ids=["dim 0", "dim 1", "time", "time dim 1", "CD"],
)
def test_every_work_of_a_step_is_measured(job, monkeypatch):
    monkeypatch.setattr(profiling.Trial, "_tried", lambda self, batch: 1e-9)  # whatever the machine does besides
    samples = measure_layers(job, seconds=0.02, concurrency=2)
    step = worker_step(job)
    by_work = {sample.work: sample for sample in samples}
    besides = {passes_work(job, step), update_work(job, step), spread_work(job, step)}
    assert by_work.keys() == {call.work for call in step.calls} | besides
    assert len(by_work) == len(samples)
    assert {(sample.concurrency, sample.threads) for sample in samples} == {(2, 1)}
    assert all(by_work[call.work].forward > 0 for call in step.forward)
    assert all(by_work[call.work].backward > 0 for call in step.backward)


def test_a_mini_batch_too_large_for_the_time_is_measured_at_two_smaller_ones(monkeypatch):
    job = images(2, batch=512, partition_dim=1)
    monkeypatch.setattr(profiling.Trial, "_tried", lambda self, batch: 1e-3 * batch)
    samples = measure_layers(job, seconds=0.2)  # 50 rows fit
    products = sorted(s.work.rows for s in samples if s.work.kind == "InnerProduct" and s.work.outputs == 3)
    assert products == [8, 32]  # layers that are split by features have all rows
    assert sorted(s.work.rows for s in samples if s.work.kind == "Passes kBP") == [len(worker_step(job).calls)] * 2


def test_what_an_idle_group_receives_is_finite_and_stays_so():
    job = images(3, batch=9, partition_dim=1)
    trial = profiling.Trial(job, threads=1)
    feed, step = trial._feed(9)
    for _ in range(20):
        trial._run(feed, step)
    for name in trial.net.layers:
        assert np.isfinite(trial.net.output(name)).all()
    for flat in (trial.net.flat, trial.net.own):
        assert np.isfinite(flat.values).all()
        assert not ((flat.grads != 0) & (np.abs(flat.grads) < np.finfo(np.float32).tiny)).any()
    assert 1e-6 < np.abs(trial.net.own.grads).max() < 1e3


def test_an_idle_group_sends_itself_its_own_rows():
    group, buffer = IdleGroup(2, 3), np.array([0, 0, 0, 0, 5.0, 6.0])
    group.all_gather(buffer, (2, 2, 2))
    assert buffer.tolist() == [5, 6, 5, 6, 5, 6]
    received = np.empty(2)
    group.start_reduce_scatter(np.arange(6.0), received, (2, 2, 2))()
    assert received.tolist() == [4, 5]
    received = np.empty(4)
    group.all_to_all(np.arange(3.0), (1, 1, 1), received, (2, 1, 1))
    assert received.tolist() == [0, 1, 2, 0]
    assert group.seconds > 0


def drawn(job, rows=64):
    return random_batch(Net(job.neuralnet, Phase.kTrain, Ops()), "data", rows)


def test_what_is_drawn_suits_the_net():
    """Classes of the loss, targets in their shape, symbols that the layers know."""
    data, ip = RecordInput("data", batchsize=64, shape=[5]), InnerProduct(num_output=3)
    classified = drawn(job_of([data, ip, SoftmaxLoss()]))
    assert (classified.features.shape, classified.features.dtype) == ((64, 5), np.float32)
    assert set(classified.labels) == {0, 1, 2}
    assert drawn(job_of([data, ip])).labels is None
    targets = RecordInput("data", batchsize=4, shape=[5], target_shape=[3])
    assert drawn(job_of([targets, ip, EuclideanLoss()]), 4).labels.shape == (4, 3)
    assert set(np.unique(drawn(symbols(1)).features)) == {0, 1, 2, 3, 4}


def test_large_parameters_repeat_a_block(monkeypatch):
    monkeypatch.setattr(profiling, "DRAWN", 50)
    net = profiling.Trial(images(), threads=1).net
    weight = next(param for param in net.params if param.shape == (36, 8)).value.reshape(-1)
    assert all((weight[a:b] == weight[: b - a]).all() for a, b in pairwise([*range(0, 288, 50), 288]))
    assert 0.5 < np.abs(weight).max() * np.sqrt(36 / 3) <= 1
