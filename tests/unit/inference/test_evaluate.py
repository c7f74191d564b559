"""What the commands do with a trained net, and evaluations of a whole set by any number of workers."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from socket import gethostname

import numpy as np
import pytest
from support.shards import write_shards

from singa_dask import load_model
from singa_dask.comm.threads import run_threads
from singa_dask.errors import CheckpointError
from singa_dask.inference.evaluate import measure, model_of, restore_net
from singa_dask.job import Job, job_to_text
from singa_dask.job.job_pb2 import Phase
from singa_dask.ops import get_ops
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.feed import Feed
from singa_dask.training.forms import SAVES
from singa_dask.training.group_evaluation import evaluate_group
from singa_dask.training.initial_parameters import load_parameters
from singa_dask.training.prepare import check_given, prepare, training_data
from singa_dask.training.replica import Replica
from singa_dask.training.workspace import Workspace

JOB = """
name: "points" train_steps: 8 test_freq: 4 test_steps: 2 validate_freq: 4 validate_steps: 1 seed: 5
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput exclude: kTest store_conf { path: "%(folder)s/train" batchsize: 10 } }
  layer { name: "data" type: kRecordInput include: kTest
    store_conf { path: "%(folder)s/test" batchsize: 10 shuffle: true random_skip: 7 %(more)s } }
  layer { name: "scores" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }
  %(loss)s
}
"""
SOFTMAX = 'layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }'
WEIGHT = np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)


@pytest.fixture
def made(tmp_path):
    """The test data and a function that gives a prepared job and a checkpoint of it."""
    draw = np.random.default_rng(1)
    for split, rows in (("train", 30), ("test", 25)):
        labels = draw.integers(0, 3, rows)
        features = draw.normal(size=(rows, 4)).astype(np.float32)
        write_shards(tmp_path / split, features, labels)

    def made(loss=SOFTMAX, more="", phases=None):
        job = Job.from_text(JOB % {"folder": tmp_path, "loss": loss, "more": more})
        prepared = prepare(job, phases=phases)
        values = {name: np.full(shape, 0.5, np.float32) for name, shape in prepared.shapes.items()}
        values[next(name for name in values if "weight" in name)] = WEIGHT
        saved = checkpoints.Checkpoint(8, 5, job_to_text(prepared.job), values)
        return prepared, checkpoints.save(saved, checkpoints.path_of(tmp_path / "run" / "checkpoint", 8))

    made.features, made.labels = features, labels
    return made


def softmax(features):
    scores = np.exp(features.astype(np.float64) @ WEIGHT + 0.5)
    return scores / scores.sum(1, keepdims=True)


@pytest.mark.parametrize("count", [20, 25], ids=["steps", "whole"])
def test_metrics_are_means_over_the_steps_of_the_phase_or_over_the_whole_set(made, count):
    prepared, path = made()
    if count == 25:
        prepared.job.ClearField("test_steps")
    for layer in prepared.job.neuralnet.layer if count == 20 else ():
        layer.store_conf.shuffle, layer.store_conf.random_skip = False, 0
    labels, likely = made.labels[:count], softmax(made.features[:count])
    metrics = measure(prepared.job, path, Phase.kTest).numbers
    assert metrics["accuracy"] == pytest.approx(float((likely.argmax(1) == labels).mean()))
    assert metrics["loss"] == pytest.approx(-np.log(likely[np.arange(count), labels]).mean(), rel=1e-4)


def test_a_model_is_that_of_the_checkpoint_or_of_the_run(made, tmp_path):
    _, path = made()
    for where in (path, str(tmp_path / "run")):
        model = load_model(where)
        np.testing.assert_allclose(model.predict(made.features), softmax(made.features), rtol=1e-4)
    with pytest.raises(CheckpointError, match="no checkpoint found"):
        load_model(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("host", "says"),
    [("nodeb", "The last one was saved on host nodeb, and is not"), (gethostname(), "Give the folder of a run")],
)
def test_a_run_whose_checkpoints_are_on_another_host_names_it(tmp_path, host, says):
    run = Workspace(tmp_path / "run")
    run.open("name: 'x'")
    run.tell(SAVES, host=host)
    with pytest.raises(CheckpointError, match=rf"no checkpoint found\. {says}"):
        load_model(run.folder)


def test_given_parameters_are_checked_and_training_data_told_from_others(made, tmp_path):
    prepared, path = made()
    assert sorted(prepared.data) == ["test/data", "train/data", "train/data as read", "validate/data"]
    assert training_data(prepared.data).keys() == {"train/data", "train/data as read"}
    for given in ([], [str(path)]):
        prepared.job.checkpoint_path[:] = given
        check_given(prepared)
    other = checkpoints.save(replace(checkpoints.load(path), parameters={"else": WEIGHT}), tmp_path / "other.h5")
    prepared.job.checkpoint_path[:] = [str(other)]
    with pytest.raises(CheckpointError, match=r"its parameters do not fit\. .*not in this net: else"):
        check_given(prepared)
    with pytest.raises(CheckpointError, match=r"does not fit this job: parameter 'else'.* none in this job"):
        restore_net(prepared.job, Phase.kTest, other)


def test_a_model_has_the_moving_averages_unless_the_parameters_are_wanted(made, tmp_path):
    prepared, path = made()
    found = checkpoints.load(path)
    raw = {name: np.asarray(value) for name, value in found.parameters.items()}
    averages = {name: value + 1 for name, value in raw.items()}
    checkpoints.save(replace(found, updater={"ema": averages}), path)
    nets = restore_net(prepared.job, Phase.kTest, path), model_of(prepared.job, None, path).net
    averaged = [net.flat.named(net.flat.values) for net in nets]
    averaged += [load_model(tmp_path / "run").state_dict(), load_parameters([str(path)], nets[0])]
    for each in averaged:
        np.testing.assert_equal({name: np.asarray(value) for name, value in each.items()}, averages)
    np.testing.assert_equal(load_model(tmp_path / "run", ema=False).state_dict(), raw)


GROUP_JOB = """
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
    text = GROUP_JOB % {"folder": folder, "workers": workers, "dim": dim, "layers": layers, "settings": settings}
    return prepare(Job.from_text(text)).job


def measured(proto):
    """What every worker of the group gets."""

    def member(comm, submit):
        replica = Replica.form(proto, comm, get_ops("cpu"))
        try:
            replica.group_state.initialise()
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
