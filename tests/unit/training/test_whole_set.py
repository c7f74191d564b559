"""Evaluations of a whole set by any number of workers: every sample once, as one worker measures it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from singa_dask.comm.threads import run_threads
from singa_dask.data import write_shards
from singa_dask.job import Job
from singa_dask.job.job_pb2 import Phase
from singa_dask.ops import get_ops
from singa_dask.training.feed import Feed
from singa_dask.training.group_evaluation import evaluate_group
from singa_dask.training.prepare import prepare
from singa_dask.training.replica import Replica
from singa_dask.training.resume import put_parameters

JOB = """
name: "points" train_steps: 1 test_freq: 1 seed: 3 %(settings)s
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
cluster { nworkers_per_group: %(workers)d }
neuralnet {
  partition_dim: %(dim)d
  layer { name: "data" type: kRecordInput exclude: kTest store_conf { path: "%(folder)s/train" batchsize: 6 } }
  layer {
    name: "data" type: kRecordInput include: kTest
    store_conf { path: "%(folder)s/test" batchsize: 6 shuffle: true random_skip: 5 }
  }
  %(layers)s
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""
DENSE = """
  layer { name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 5 } }
  layer { name: "relu" type: kReLU srclayers: "hidden" }
  layer { name: "drop" type: kDropout srclayers: "relu" }
  layer { name: "scores" type: kInnerProduct srclayers: "drop" innerproduct_conf { num_output: 3 } }
"""
IMAGES = """
  layer { name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
  layer { name: "norm" type: kCudnnBM srclayers: "conv" }
  layer { name: "pool" type: kPooling srclayers: "norm" pooling_conf { pool: MAX kernel: 2 stride: 2 } }
  layer { name: "lrn" type: kLRN srclayers: "pool" lrn_conf { local_size: 3 } }
  layer { name: "scores" type: kInnerProduct srclayers: "lrn" innerproduct_conf { num_output: 3 } }
"""


def write(folder, total):
    draw = np.random.default_rng(1)
    for split, rows in (("train", 30), ("test", total)):
        images = draw.integers(0, 256, (rows, 6, 6, 1), np.uint8)
        write_shards(folder / split, images, draw.integers(0, 3, rows), window=4, classes=3, overwrite=True)


def job(folder, workers, *, dim=0, layers=DENSE, settings=""):
    text = JOB % {"folder": folder, "workers": workers, "dim": dim, "layers": layers, "settings": settings}
    return prepare(Job.from_text(text)).job


def measured(proto):
    """What every worker of the group gets."""

    def member(comm, submit):
        replica = Replica.form(proto, comm, get_ops("cpu"))
        try:
            put_parameters(replica, None, carry=True, servers_are_new=True)
            replica.group_state.fetch(0)
            with Feed.open(proto, replica.nets[Phase.kTest], submit, comm.rank, comm.size) as feed:
                return feed.count, evaluate_group(replica, Phase.kTest, feed, lambda: False).numbers
        finally:
            replica.close()

    with ThreadPoolExecutor(2) as pool:
        return run_threads(proto.cluster.nworkers_per_group, member, pool.submit, timeout_s=20)


@pytest.mark.parametrize("total", [1, 2, 5, 6, 13, 24])
@pytest.mark.parametrize(("dim", "layers"), [(0, DENSE), (0, IMAGES), (1, DENSE)], ids=["dense", "images", "split"])
def test_any_number_of_workers_measures_what_one_does(tmp_path, total, dim, layers):
    write(tmp_path, total)
    ((count, serial),) = measured(job(tmp_path, 1, layers=layers, settings='metric: "f1"'))
    assert count == -(-total // 6)
    assert serial["accuracy"] * total == pytest.approx(round(serial["accuracy"] * total)), "as if it had other samples"
    for workers in (2, 3):
        for _, found in measured(job(tmp_path, workers, dim=dim, layers=layers, settings='metric: "f1"')):
            assert (found["accuracy"], found["f1"]) == (serial["accuracy"], serial["f1"])
            assert found["loss"] == pytest.approx(serial["loss"], rel=1e-5)


def test_a_number_of_mini_batches_that_is_given_keeps_its_meaning(tmp_path):
    write(tmp_path, 13)
    proto = job(tmp_path, 2, settings="test_steps: 5")

    def steps(comm):
        with ThreadPoolExecutor(1) as pool:
            net = Replica.form(proto, comm, get_ops("cpu")).nets[Phase.kTest]
            with Feed.open(proto, net, pool.submit, comm.rank, comm.size, stop=5) as feed:
                return [sum(feed.next(number)[1].counts) for number in range(feed.count)]

    assert run_threads(2, steps) == [[6] * 5] * 2
