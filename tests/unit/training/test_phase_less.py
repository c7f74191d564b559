"""A job with inputs for training, or training and validation, only: it is loaded, predicts and is exported."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.shards import write_shards

from singa_dask import load_model
from singa_dask.errors import ConfigError
from singa_dask.inference.blocks import own_blocks
from singa_dask.inference.evaluate import measure, model_of, restore_net
from singa_dask.job import Job, job_to_text
from singa_dask.job.job_pb2 import LayerProto, Phase
from singa_dask.job.phases import graph_phase
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

JOB = """
name: "points" train_steps: 8 seed: 5
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput %(phases)s store_conf { path: "%(folder)s/train" batchsize: 10 } }
  %(valid)s
  layer { name: "norm" type: kCudnnBM srclayers: "data" }
  layer { name: "drop" type: kDropout srclayers: "norm" dropout_conf { dropout_ratio: 0.9 } }
  layer { name: "scores" type: kInnerProduct srclayers: "drop" innerproduct_conf { num_output: 3 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""
VALID = 'layer { name: "data" type: kRecordInput include: kVal store_conf { path: "%s/valid" batchsize: 10 } }'


def read(*include):
    return LayerProto(include=include)


@pytest.mark.parametrize(
    ("inputs", "phase"),
    [
        ([read(Phase.kTrain)], Phase.kTrain),
        ([read(Phase.kTrain), read(Phase.kVal)], Phase.kVal),
        ([read(Phase.kTrain), read(Phase.kVal), read(Phase.kTest)], Phase.kTest),
        ([read()], Phase.kTest),
        ([LayerProto(exclude=[Phase.kTest])], Phase.kVal),
    ],
)
def test_a_test_net_without_inputs_is_that_of_the_validation_or_else_of_training(inputs, phase):
    layers = [*inputs, LayerProto(srclayers=["data"])]
    assert graph_phase(layers, Phase.kTest) == phase
    assert [graph_phase(layers, other) for other in (Phase.kTrain, Phase.kVal)] == [Phase.kTrain, Phase.kVal]


@pytest.fixture(params=["training", "validation"])
def trained(request, tmp_path):
    """The job, its test data's features and what it has for predictions, and a checkpoint of random values."""
    draw = np.random.default_rng(1)
    for split, rows in (("train", 30), ("valid", 25)):
        write_shards(tmp_path / split, draw.normal(size=(rows, 4)).astype(np.float32), draw.integers(0, 3, rows))
    valid = VALID % tmp_path if request.param == "validation" else ""
    job = Job.from_text(JOB % {"folder": tmp_path, "phases": "include: kTrain", "valid": valid})
    prepared = prepare(job)
    values = {name: draw.normal(size=shape).astype(np.float32) ** 2 for name, shape in prepared.shapes.items()}
    saved = checkpoints.Checkpoint(8, 5, job_to_text(prepared.job), values)
    return job, checkpoints.save(saved, tmp_path / "saved.h5"), 30 if request.param == "training" else 25


def test_a_model_of_it_predicts_without_dropout(trained):
    job, path, _ = trained
    x = np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32)
    first, second = load_model(path).predict(x), load_model(path).predict(x)
    np.testing.assert_array_equal(first, second)
    net = restore_net(prepare(job, phases=[Phase.kTest]).job, Phase.kTest, path)
    assert list(net.layers) == ["data", "norm", "drop", "scores", "loss"] and net.phase == Phase.kTest
    assert (first > 0).all() and np.abs(first.sum(1) - 1).max() < 1e-5


def test_a_model_needs_no_data_of_phases_that_were_not_entered(trained, tmp_path):
    """Its kTest layer has neither been read nor evaluated."""
    test = VALID.replace("kVal", "kTest").replace("store_conf {", "store_conf { normalise: true") % tmp_path
    text = JOB % {"folder": tmp_path, "phases": "exclude: kTest", "valid": test.replace("/valid", "/nowhere")}
    normalised = text.replace("batchsize: 10 } }", "batchsize: 10 normalise: true } }", 1)
    prepared = prepare(Job.from_text(normalised))
    read, unread = (layer.store_conf for layer in prepared.job.neuralnet.layer[:2])
    assert list(unread.shape) == [4] and len(unread.mean) == 4 and not unread.normalise
    assert (list(unread.mean), list(unread.std)) == (list(read.mean), list(read.std))
    values = {name: np.ones(shape, np.float32) for name, shape in prepared.shapes.items()}
    path = checkpoints.save(checkpoints.Checkpoint(8, 5, job_to_text(prepared.job), values), tmp_path / "other.h5")
    assert load_model(path).predict(np.ones((2, 4), np.float32)).shape == (2, 3)


def test_it_has_no_test_data_to_predict_or_measure(trained):
    job, path, rows = trained
    prepared = prepare(job, phases=[Phase.kTest]).job
    with pytest.raises(ConfigError, match=r"--data: is missing, and the job has no test data.*Name a folder"):
        own_blocks(model_of(prepared, None, path))
    with pytest.raises(ConfigError, match=r"neuralnet: has no test data.*include: kTest.*--validation"):
        measure(prepared, path, Phase.kTest)
    if rows == 25:
        assert measure(prepare(job, phases=[Phase.kVal]).job, path, Phase.kVal).numbers.keys() == {"loss", "accuracy"}


def test_a_test_that_is_due_needs_an_input(tmp_path, trained):
    job, _, _ = trained
    with pytest.raises(ConfigError, match="no layer reads data in phase kTest"):
        prepare(Job.from_text(job_to_text(job.proto), ["test_freq=4"]))


@pytest.mark.parametrize("evaluated", [False, True])
def test_validation_data_that_nothing_evaluates_are_told(trained, caplog, evaluated):
    job, _, rows = trained
    overrides = ["validate_freq=4"] if evaluated and rows == 25 else []
    caplog.clear()
    prepare(Job.from_text(job_to_text(job.proto), overrides))
    told = [record.getMessage() for record in caplog.records if "nothing evaluates" in record.getMessage()]
    assert len(told) == (rows == 25 and not overrides)
    assert all("'data'" in text and "validate_freq: 100" in text for text in told)


@pytest.mark.parametrize(
    ("phases", "valid", "told"), [("", "", 1), ("include: kTrain", VALID.replace("kVal", "kTest"), 0)]
)
def test_an_evaluation_on_the_training_data_is_told(tmp_path, trained, caplog, phases, valid, told):
    caplog.clear()
    text = JOB % {"folder": tmp_path, "phases": phases, "valid": valid and valid % tmp_path}
    prepare(Job.from_text(text, ["test_freq=4"]))
    assert caplog.text.count("the test metrics are of the training data") == told


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([], 1),
        (["neuralnet.layer[data].store_conf.path=%s/valid"], 0),
        (["neuralnet.layer[data].store_conf.path=%s/copy"], 1),
        (["neuralnet.layer[data].store_conf.batchsize=5"], 1),
        (["neuralnet.layer[data].store_conf={ path: '%s/valid' batchsize: 5 }"], 0),
    ],
)
def test_a_checkpoint_is_evaluated_on_its_training_data_if_the_shards_are_the_same(
    tmp_path, trained, caplog, overrides, told
):
    shutil.copytree(tmp_path / "train", tmp_path / "copy")
    text = JOB % {"folder": tmp_path, "phases": "", "valid": ""}
    ready = prepare(Job.from_text(text), phases=[])
    before = replace(checkpoints.load(trained[1]), job=job_to_text(ready.job), data=ready.data)
    caplog.clear()
    job = Job.from_text(before.job, [override.replace("%s", str(tmp_path)) for override in overrides])
    prepare(job, phases=[Phase.kTest], before=before)
    assert caplog.text.count("the test metrics are of the training data") == told
