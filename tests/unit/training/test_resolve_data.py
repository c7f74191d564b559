"""What a job takes from its data, and inputs that must have the same samples in the same places."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
from support.shards import write_shards

from singa_dask import layers, shard, updaters
from singa_dask.data import StreamConf
from singa_dask.data.plan import own_windows
from singa_dask.errors import ConfigError
from singa_dask.job import Job
from singa_dask.job.job_pb2 import JobProto, NetProto, Phase
from singa_dask.training.prepare import prepare
from singa_dask.training.resolve_data import resolve_data

X = np.random.default_rng(0).normal(3, 2, (400, 4)).astype(np.float32)
Y = (X @ np.arange(8.0).reshape(4, 2)).astype(np.float32)


def pair(x_store: dict, y_store: dict) -> Job:
    x = layers.RecordInput("x", batchsize=8, has_label=False, **x_store)
    y = layers.RecordInput("y", batchsize=8, has_label=False, **y_store)
    loss = layers.EuclideanLoss()(layers.InnerProduct(num_output=2)(x), y)
    return Job(name="pair", layers=[loss], updater=updaters.SGD(lr=0.1), train_steps=2)


@pytest.mark.parametrize(
    ("x_options", "y_options", "fault"),
    [
        ({"window": 16}, {"window": 8}, "their windows differ.*windows of 16 samples and .* windows of 8 samples"),
        ({}, {"rows": 300}, "their numbers of samples differ.*400 and 300"),
        ({"shuffle_seed": 0}, {}, "their orders differ"),
        ({"nshards": 2}, {"nshards": 3}, "their windows differ"),
    ],
)
def test_inputs_of_different_folders_must_pair(tmp_path, x_options, y_options, fault):
    for name, array, options in (("x", X, x_options), ("y", Y, y_options)):
        options = dict(options)
        write_shards(tmp_path / name, array[: options.pop("rows", 400)], **{"window": 16, **options})
    with pytest.raises(ConfigError, match=rf"y.*: pairs its samples with those of 'x', but {fault}.*two columns"):
        prepare(pair({"path": str(tmp_path / "x")}, {"path": str(tmp_path / "y")}))


def test_equal_windows_and_columns_of_one_folder_pair(tmp_path):
    write_shards(tmp_path / "x", X, window=16, nshards=2)
    write_shards(tmp_path / "y", Y, window=16, nshards=2)
    write_shards(tmp_path / "both", X, Y)
    prepare(pair({"path": str(tmp_path / "x")}, {"path": str(tmp_path / "y")}))
    both = str(tmp_path / "both")
    prepare(pair({"path": both}, {"path": both, "column": "y"}))
    with pytest.raises(ConfigError, match="their shuffle differ"):
        prepare(pair({"path": both}, {"path": both, "column": "y", "shuffle": False}))


def normalising(tmp_path, test: dict) -> Job:
    train = layers.RecordInput(
        "data", path=str(tmp_path / "train"), batchsize=8, normalise=True, normalise_target=True, exclude=["kTest"]
    )
    tested = layers.RecordInput("data", path=str(tmp_path / "test"), batchsize=8, include=["kTest"], **test)
    net = [train, tested, layers.InnerProduct(num_output=3), layers.SoftmaxLoss()]
    return Job(name="n", layers=net, updater=updaters.SGD(lr=0.1), train_steps=2, test_freq=1, test_steps=1)


def test_test_data_are_normalised_as_the_training_data(tmp_path, caplog):
    write_shards(tmp_path / "train", X, np.arange(400) % 3, classes=["a", "b", "c"])
    write_shards(tmp_path / "test", X + 5, np.arange(400) % 3, classes=["a", "b", "c"])
    prepared = prepare(normalising(tmp_path, {"normalise": True}))
    train, test = (layer.store_conf for layer in prepared.job.neuralnet.layer[:2])
    np.testing.assert_allclose(train.mean, X.mean(0), rtol=1e-5)
    assert list(train.mean) == list(test.mean) and list(train.std) == list(test.std)
    assert not caplog.records
    description = json.loads(prepared.described["data"])
    assert [column["classes"] for column in description["columns"]] == [None, ["a", "b", "c"]]
    prepare(normalising(tmp_path, {}))
    assert "normalises the samples of phase test otherwise" in caplog.text


def test_constant_columns_are_named_once_before_training(tmp_path, caplog):
    constant = X.copy()
    constant[:, 2] = 1
    for split in ("train", "test"):
        write_shards(tmp_path / split, constant, np.arange(400) % 3)
    prepare(normalising(tmp_path, {"normalise": True}))
    assert "is constant in the training samples" in caplog.text and "of no use" not in caplog.text


@pytest.mark.parametrize(("y", "shape"), [(Y, [2]), (np.arange(400) % 3, [])], ids=["targets", "labels"])
def test_targets_give_their_shape_and_labels_do_not(tmp_path, y, shape):
    write_shards(tmp_path, X, y)
    data = layers.RecordInput("data", path=str(tmp_path), batchsize=8)
    job = JobProto(neuralnet=NetProto(layer=[data.proto]), cluster={"nworker_groups": 1})
    resolve_data(job, [Phase.kTrain])
    assert list(job.neuralnet.layer[0].store_conf.target_shape) == shape


def test_statistics_of_training_fit_samples_that_are_stored_otherwise(tmp_path):
    images = np.random.default_rng(0).normal([30, 60, 120], 1, (40, 6, 5, 3)).astype(np.float32)
    write_shards(tmp_path / "train", np.moveaxis(images, -1, 1), np.arange(40) % 2, channels="first")
    write_shards(tmp_path / "test", images, np.arange(40) % 2, channels="last")
    prepared = prepare(normalising(tmp_path, {"normalise": True}))
    train, test = (layer.store_conf for layer in prepared.job.neuralnet.layer[:2])
    assert len(train.mean) == 3 and list(train.mean) == list(test.mean) and list(train.std) == list(test.std)


def test_classes_and_encoders_are_those_of_training(tmp_path):
    for name, classes, kinds in (("train", ["cat", "dog"], ["a", "b"]), ("test", ["dog", "eel"], ["b", "c"])):
        write_shards(tmp_path / "labels" / name, X, np.arange(400) % 2, classes=classes)
        table = pd.DataFrame({"kind": kinds * 40})
        shard(table, np.arange(80) % 2, tmp_path / "tables" / name, durable=False)
    for folder, says in (
        ("labels", r"has other classes.*train.*Received: dog, eel.*like="),
        ("tables", "encodes the col"),
    ):
        with pytest.raises(ConfigError, match=f"path: {says}"):
            prepare(normalising(tmp_path / folder, {"normalise": True}))


def test_the_same_samples_are_held_out_in_all_phases(tmp_path):
    write_shards(tmp_path / "train", X, np.arange(400) % 3)
    job = normalising(tmp_path, {"normalise": True})
    for layer, share in zip(job.proto.neuralnet.layer, (0.2, 0), strict=False):
        layer.store_conf.path, layer.store_conf.validation_share = str(tmp_path / "train"), share
    with pytest.raises(ConfigError, match=r"validation_share: must be equal.*0\.2 in training, 0 here"):
        prepare(job)


@pytest.mark.parametrize(
    ("extra", "store", "refused", "told"),
    [
        ("mask", {}, r"has the mask 'mask', but no layer reads it.*third source", ""),
        ("weight", {}, "", "has the weight 'weight', but no layer reads it"),
    ],
)
def test_masks_must_be_read_and_weights_should(tmp_path, caplog, extra, store, refused, told):
    write_shards(tmp_path, X, Y, **{extra: np.ones_like(Y) if extra == "mask" else np.ones(400)})
    data = layers.RecordInput("data", path=str(tmp_path), batchsize=8, **store)
    net = [data, layers.InnerProduct(num_output=2), layers.EuclideanLoss()]
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        prepare(Job(name="m", layers=net, updater=updaters.SGD(lr=0.1), train_steps=2))
    assert told in caplog.text


@pytest.mark.parametrize("weighted", [False, True])
def test_what_is_held_out_is_not_in_the_statistics(tmp_path, weighted):
    weight = np.where(np.arange(400) % 2, 1.0, 3.0) if weighted else None
    manifest = write_shards(tmp_path / "data", X, Y, window=16, weight=weight)
    read = layers.RecordInput(path=str(tmp_path / "data"), batchsize=8, normalise=True, validation_share=0.3)
    net = [read, layers.InnerProduct(num_output=2), layers.EuclideanLoss()]
    job = Job(name="m", layers=net, updater=updaters.SGD(lr=0.1), train_steps=2)
    store = prepare(job).job.neuralnet.layer[0].store_conf
    windows = own_windows(manifest, StreamConf(8, validation_share=0.3))
    rows = np.concatenate([np.arange(of.start, of.start + of.samples) for of in windows])
    own = np.ones(len(rows)) if weight is None else weight[rows]
    mean = np.average(X[rows], axis=0, weights=own)
    np.testing.assert_allclose(store.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(store.std, np.sqrt(np.average((X[rows] - mean) ** 2, axis=0, weights=own)), rtol=1e-4)
