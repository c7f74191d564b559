"""Data that are given to `train`."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from support.shards import write_shards

from singa_dask.data import Manifest
from singa_dask.data.ingest.collections import shard
from singa_dask.data.load import load as load_data
from singa_dask.errors import CheckpointError, ConfigError, DataError
from singa_dask.job import Job
from singa_dask.job.job_pb2 import Phase, StoreProto
from singa_dask.layers import GRU, EuclideanLoss, InnerProduct, RecordInput, ReLU, SoftmaxLoss
from singa_dask.monitor.progress import Display
from singa_dask.supervision.driver import train
from singa_dask.supervision.given import Arrays, _share_of, with_data
from singa_dask.training.checkpoint import load
from singa_dask.updaters import SGD

DRAW = np.random.default_rng(0)
Y = DRAW.integers(0, 2, 120)
X = (DRAW.normal(size=(120, 3)) + 2 * Y[:, None]).astype(np.float32)


def job(inputs=None, loss=None, **fields):
    layers = inputs or [RecordInput("data", batchsize=30)]
    layers = [*layers, *(loss or [InnerProduct("scores", num_output=2), SoftmaxLoss("loss")])]
    return Job(name="points", layers=layers, updater=SGD(lr=0.1), **{"train_steps": 8, **fields})


def given(folder, data, validation=None, **fields):
    folder.mkdir(exist_ok=True)
    return with_data(job(**fields), data, validation, lambda: folder, None).proto


def inputs(proto, phase):
    return {
        layer.name: layer.store_conf
        for layer in proto.neuralnet.layer
        if not layer.srclayers and phase not in layer.exclude and (not layer.include or phase in layer.include)
    }


@pytest.fixture
def run(tmp_path):
    def here(job, data, validation=None, **options):
        options = {"workspace": tmp_path / "run", "display": Display(), "curves": False, **options}
        return train(job, data=data, validation=validation, processes=False, **options)

    return here


def weights_of(result):
    return np.asarray(load(result.checkpoint).parameters["scores_weight"])


def test_arrays_become_shards_in_the_workspace_from_which_the_run_resumes(run, tmp_path):
    result = run(job(test_freq=4, test_steps=2), (X, Y))
    assert result.test["accuracy"] > 0.7
    (folder,) = (tmp_path / "run/data").iterdir()
    assert Manifest.load(folder).total == 120
    with pytest.raises(CheckpointError):
        run(job(train_steps=12), (X + 1, Y), resume=True)
    whole = weights_of(run(job(train_steps=12), (X, Y), workspace=tmp_path / "whole"))
    np.testing.assert_array_equal(weights_of(run(job(train_steps=12), (X, Y), resume=True)), whole)
    assert folder.exists() and not list((tmp_path / "run/data").glob(".*"))


def test_an_earlier_run_keeps_its_data(run, tmp_path):
    first, second = run(job(), (X, Y)), run(job(), (X + 1, Y))
    folders = [next((result.workspace / "data").iterdir()) for result in (first, second)]
    assert folders[0].name != folders[1].name and first.workspace == tmp_path / "run-1"
    assert "run-1" not in json.dumps(second.summary)
    shutil.rmtree(folders[1])
    with pytest.raises((ConfigError, DataError), match="run/data"):
        train(tmp_path / "run/job.conf", processes=False, workspace=tmp_path / "again", display=Display())


@pytest.mark.parametrize(
    ("data", "fields"), [((X, Y), {"keep_best": "validate.cover"}), ((X, Y[:-1]), {})], ids=["job", "data"]
)
def test_a_run_that_is_refused_leaves_the_earlier_one_in_its_folder(run, tmp_path, data, fields):
    kept = run(job(), (X, Y)).checkpoint
    with pytest.raises((ConfigError, DataError)):
        run(job(**fields), data)
    assert kept.exists() and kept.is_relative_to(tmp_path / "run") and not (tmp_path / "run-1").exists()
    assert run(job(train_steps=12), (X, Y), resume=True).summary["step"] == 12


def test_records_of_sequences_keep_their_order(run, tmp_path):
    inputs = [RecordInput("data", batchsize=4, sequence=10)]
    net = [GRU("cell", dim_hidden=4), InnerProduct("scores", num_output=2), SoftmaxLoss("loss")]
    run(job(inputs, net, unroll_len=10, alg="kBP"), (X, Y), validation=(X, Y))
    folders = [manifest.parent for manifest in (tmp_path / "run").rglob("manifest.json")]
    assert len(folders) == 2
    for folder in folders:
        np.testing.assert_array_equal(load_data(folder)[0], X)


def test_a_folder_that_is_not_of_a_run_is_left_alone(run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.tex").touch()
    with pytest.raises(ConfigError, match="not from a run"):
        run(job(), (X, Y))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_a_folder_of_shards_is_read_where_it_lies(tmp_path):
    write_shards(tmp_path / "shards", X, Y)
    assert inputs(given(tmp_path, tmp_path / "shards"), Phase.kTrain)["data"].path == str(tmp_path / "shards")


def test_a_validation_share_is_held_out_and_measured_as_a_whole_after_each_epoch(tmp_path, run):
    proto = given(tmp_path / "given", (X, Y), 0.25)
    shares = [inputs(proto, phase)["data"].validation_share for phase in (Phase.kVal, Phase.kTrain)]
    assert shares == [0.25, 0.25] and (proto.validate_freq, proto.validate_steps) == (3, 0)
    rows = run(job(), (X, Y), 0.25).history
    assert set(rows["step"][rows["phase"] == "validate"]) == {0, 3, 6, 8}


TWO = [RecordInput("data", batchsize=30, exclude=["kVal"]), RecordInput("data", batchsize=7, include=["kVal"])]


@pytest.mark.parametrize(("layers", "freq", "batch"), [(None, 2, 30), (None, 0, 30), (TWO, 0, 7)])
def test_a_validation_set_is_read_as_a_whole_by_a_layer_of_its_own(tmp_path, layers, freq, batch):
    proto = given(tmp_path, (X, Y), (X[:70], Y[:70]), inputs=layers, validate_freq=freq)
    held_out, training = (inputs(proto, phase)["data"] for phase in (Phase.kVal, Phase.kTrain))
    assert (Manifest.load(held_out.path).total, Manifest.load(training.path).total) == (70, 120)
    assert held_out.batchsize[0] == batch and (proto.validate_freq, proto.validate_steps) == (freq or 4, 0)


def test_samples_with_weight_0_are_as_good_as_absent(run, tmp_path):
    wrong = np.concatenate([X, 9 - X]), np.concatenate([Y, Y]), np.repeat([2.0, 0.0], 120)
    jobs = [job([RecordInput("data", batchsize=size)], train_steps=6) for size in (240, 120)]
    weighted = weights_of(run(jobs[0], wrong, workspace=tmp_path / "weighted"))
    plain = weights_of(run(jobs[1], (X, Y), workspace=tmp_path / "plain"))
    np.testing.assert_allclose(weighted, plain, rtol=1e-4, atol=1e-6)


def test_the_validation_of_weighted_data_weighs_too(run):
    result = run(job(), (X, Y, np.ones(120)), (X[:50], Y[:50]))
    assert result.summary["validate"]["accuracy"] > 0.7


def test_arrays_may_come_with_the_options_of_the_writer(tmp_path):
    proto = given(tmp_path, Arrays(X, Y, options={"classes": ["no", "yes"]}))
    assert Manifest.load(inputs(proto, Phase.kTrain)["data"].path).targets.classes == ("no", "yes")


TESTED = [RecordInput("data", batchsize=8, exclude=["kTest"]), RecordInput("data", batchsize=8, include=["kTest"])]


@pytest.mark.parametrize(
    ("shares", "validation", "expected", "told"),
    [
        ([0.3], None, 0.3, ""),
        ([0.3], 0.3, 0.3, ""),
        ([0.25, 0.25], None, 0.25, ""),
        ([0.25, 0], None, 0.25, ""),
        ([0], 0.3, 0.3, ""),
        ([0], None, 0, ""),
        ([0.3], 0.1, 0.1, "validation_share: 0.3 is ignored, because the argument validation is given"),
        ([0.3], (X, Y), 0, "validation_share: 0.3 is ignored, because the argument validation is given"),
        ([0.3, 0.1], None, 0.3, "validation_share: 0.1 is ignored, because another layer has 0.3. Leave"),
    ],
)
def test_the_share_of_an_input_layer_is_held_out_of_given_data(shares, validation, expected, told, caplog):
    found = _share_of(validation, [StoreProto(validation_share=share) for share in shares])
    assert found == pytest.approx(expected) and told in caplog.text and bool(told) == bool(caplog.records)


@pytest.mark.parametrize("data", ["arrays", "folder"])
def test_the_share_of_an_input_layer_validates(tmp_path, data):
    layers = [RecordInput("data", batchsize=16, validation_share=0.25)]
    each = (X, Y) if data == "arrays" else str(shard(X, Y, tmp_path / "own")[""].folder)
    proto = given(tmp_path, each, inputs=layers)
    assert [inputs(proto, phase)["data"].validation_share for phase in (Phase.kVal, Phase.kTrain)] == [0.25, 0.25]
    assert proto.validate_freq


@pytest.mark.parametrize(
    ("layers", "data", "validation", "message"),
    [
        (None, X, None, r"data: is not a data set\. Received: ndarray\. Give a folder of shards, \(X, y\)"),
        (None, (X, Y), X, "validation: is not a data set"),
        (None, (X, Y), 1.5, r"validation: a share must lie between 0 and 1\. Received: 1\.5"),
        (None, (X, Y), 0, "validation: "),
        ([RecordInput("data", path="shards", batchsize=30)], (X, Y), None, "data: no input layer takes them"),
        (TESTED, (X, Y), None, r"'data': does not run in training.*Give validation too"),
    ],
)
def test_what_is_no_data_set_for_the_job_is_refused(tmp_path, layers, data, validation, message):
    with pytest.raises(ConfigError, match=message):
        given(tmp_path, data, validation, inputs=layers)


def test_a_validation_without_data_is_refused(run):
    with pytest.raises(ConfigError, match=r"validation: is for data that are given.*store_conf\.validation_share"):
        run(job(), None, 0.1)


def test_a_validation_set_is_encoded_as_the_training_data(tmp_path):
    """It has one category less, in another order: alone it would become other numbers."""
    train_x = pd.DataFrame({"kind": ["b", "a", "c", "a"], "size": [1.0, 2.0, 3.0, 4.0]})
    validation_x = pd.DataFrame({"kind": ["c", "b"], "size": [5.0, 6.0]})
    proto = given(
        tmp_path,
        (train_x, ["x", "y", "y", "x"]),
        (validation_x, ["y", "y"]),
        inputs=[RecordInput("data", batchsize=2)],
    )
    training, validation = (Manifest.load(inputs(proto, phase)["data"].path) for phase in (Phase.kTrain, Phase.kVal))
    assert training.encoders == validation.encoders and training.features.names == validation.features.names
    assert training.targets.classes == validation.targets.classes == ("x", "y")


def test_a_mask_is_read(tmp_path):
    y = np.where(DRAW.random(120) > 0.5, 100.0, np.nan).astype(np.float32)
    write_shards(tmp_path / "masked", X, np.nan_to_num(y), mask=np.isfinite(y))
    regression = [InnerProduct(num_output=1), EuclideanLoss()]
    proto = given(tmp_path, tmp_path / "masked", loss=regression)
    assert {store.column for store in inputs(proto, Phase.kTrain).values()} == {"", "mask"}


@pytest.mark.parametrize(
    ("labels", "outputs", "stored", "classes"),
    [
        ((2, 7), 10, (2, 7), 10),
        ((0, 1, 2), 10, (0, 1, 2), 3),
        ((2, 7), 2, (0, 1), ("2", "7")),
        ((2, 70), 10, (0, 1), ("2", "70")),
        ((-1, 1), 10, (0, 1), ("-1", "1")),
    ],
)
def test_labels_keep_their_numbers_if_they_are_outputs_of_the_net(tmp_path, caplog, labels, outputs, stored, classes):
    y = np.resize(labels, 120)
    loss = [InnerProduct("scores", num_output=outputs), ReLU("relu"), SoftmaxLoss("loss")]
    proto = given(tmp_path / "data", (X, y), loss=loss)
    manifest = Manifest.load(inputs(proto, Phase.kTrain)["data"].path)
    assert manifest.targets is not None and manifest.targets.classes == classes
    assert sorted({*load_data(manifest.folder)[1].tolist()}) == list(stored)
    assert ("the labels 2, 7 keep their numbers" in caplog.text) == (classes == 10)


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (np.asarray, "Give a table with the columns a, b, c"),
        (list, "Give a table with the columns a, b, c"),
        (lambda x: pd.DataFrame(x, columns=["a", "b", "d"]), "Valid: a, b, d"),
    ],
)
def test_a_validation_set_without_the_columns_of_training_is_named(tmp_path, make, hint):
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    with pytest.raises(DataError, match=rf"validation: column '[ac]': is not there, but .* {hint}"):
        given(tmp_path, (table, Y), (make(X), Y))
