"""Predictions for shards and files of other formats, and the files that they are written to."""

from __future__ import annotations

import csv
from types import SimpleNamespace

import h5py
import numpy as np
import pandas as pd
import pytest
from support.views import OtherMachine

from singa_dask import Job, Model, layers, shard, updaters
from singa_dask.data import write_shards
from singa_dask.errors import CheckpointError, ClusterError, ConfigError, DataError
from singa_dask.job import job_to_text
from singa_dask.job.job_pb2 import Phase
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.evaluate import model_of
from singa_dask.training.predictions import blocks as blocks_module
from singa_dask.training.predictions.blocks import own_blocks
from singa_dask.training.predictions.files import Output, Predicted, writing
from singa_dask.training.predictions.run import predict_blocks
from singa_dask.training.predictions.sources import blocks_of
from singa_dask.training.prepare import prepare

DRAW = np.random.default_rng(1)
X = DRAW.normal(size=(25, 4)).astype(np.float32)
KINDS = ("red", "green", "blue")
LABELS = DRAW.integers(0, 3, 25)
TARGETS = DRAW.normal(size=(25, 2)).astype(np.float32)


def trained(net, folder, phase=Phase.kTest):
    """The prepared job of a net, and a checkpoint with its initial parameters."""
    job = Job(name="points", layers=net, updater=updaters.SGD(lr=0.1), train_steps=8, seed=5)
    prepared = prepare(job, phases=[phase])
    state = Model(prepared.job.neuralnet, seed=5)
    saved = checkpoints.Checkpoint(
        8, 5, job_to_text(prepared.job), state.state_dict(), described=prepared.described, code=prepared.code
    )
    return prepared, checkpoints.save(saved, checkpoints.path_of(folder / "run" / "checkpoint", 8))


@pytest.fixture
def kinds(tmp_path):
    """A model of three classes, and its prepared job."""
    write_shards(tmp_path / "kinds", X, LABELS, 2, classes=KINDS, window=4)
    read = layers.RecordInput(path=str(tmp_path / "kinds"), batchsize=10)
    prepared, path = trained([read, layers.InnerProduct(num_output=3), layers.SoftmaxLoss()], tmp_path)
    return model_of(prepared.job, prepared.code, path), prepared.job


@pytest.fixture
def sizes(tmp_path):
    """A model of two numbers."""
    write_shards(tmp_path / "sizes", X, TARGETS, 2, window=4)
    read = layers.RecordInput(path=str(tmp_path / "sizes"), batchsize=10)
    prepared, path = trained([read, layers.InnerProduct(num_output=2), layers.EuclideanLoss()], tmp_path)
    return model_of(prepared.job, prepared.code, path), prepared.job


def lines(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def numbers(rows, columns):
    return np.array([row[columns] for row in rows], float)


def test_every_sample_of_the_test_data_has_a_line_with_names_and_all_probabilities(kinds, tmp_path, monkeypatch):
    model, _ = kinds
    monkeypatch.setattr(blocks_module, "BLOCK_NBYTES", 160)  # of two windows and a half
    blocks = own_blocks(model)
    assert [block.ranges for block in blocks] == [((0, 8),), ((8, 16),), ((16, 25),)]
    assert predict_blocks(model, blocks, tmp_path / "new" / "p.csv") == 25
    header, *rows = lines(tmp_path / "new" / "p.csv")
    likely = model.predict(X)
    names = [f"probability_{name}" for name in KINDS]
    assert header == ["sample", "label", "class", "probability", *names]
    assert [int(row[0]) for row in rows] == list(range(25))
    assert [row[1] for row in rows] == [KINDS[label] for label in LABELS]
    assert [row[2] for row in rows] == [KINDS[i] for i in likely.argmax(1)]
    np.testing.assert_allclose(numbers(rows, 3), likely.max(1), rtol=1e-5)
    np.testing.assert_allclose(numbers(rows, slice(4, 7)), likely, rtol=1e-5)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["p.csv"]


@pytest.mark.parametrize("data", ["kinds", "x.npz"])
def test_workers_that_do_not_see_the_data_are_named_before_any_are_predicted(kinds, tmp_path, data):
    np.savez(tmp_path / "x.npz", x=X)
    blocks = blocks_of(kinds[0], str(tmp_path / data))
    cluster = SimpleNamespace(wait_for_workers=lambda count, timeout: None, map=lambda *a, **o: [], cancel=None)
    with pytest.raises(ClusterError, match=rf"/{data}: the Dask workers on \S+ \(tcp://far:1\) do not see it"):
        predict_blocks(kinds[0], blocks, tmp_path / "p.csv", OtherMachine(cluster, tmp_path / data, "tcp://far:1"))
    assert not (tmp_path / "p.csv").exists()


def test_targets_stand_beside_what_is_predicted(sizes, tmp_path):
    model, _ = sizes
    assert predict_blocks(model, own_blocks(model), tmp_path / "p.csv") == 25
    header, *rows = lines(tmp_path / "p.csv")
    assert header == ["sample", "true_y_0", "true_y_1", "y_0", "y_1"]
    np.testing.assert_allclose(numbers(rows, slice(1, 3)), TARGETS, rtol=1e-5)
    np.testing.assert_allclose(numbers(rows, slice(3, 5)), model.predict(X), rtol=1e-4)


def test_parquet_has_the_lines_of_csv(kinds, tmp_path):
    model, _ = kinds
    for name in ("p.csv", "p.parquet"):
        predict_blocks(model, own_blocks(model), tmp_path / name)
    text, binary = pd.read_csv(tmp_path / "p.csv"), pd.read_parquet(tmp_path / "p.parquet")
    assert binary["probability"].dtype == np.float32
    pd.testing.assert_frame_equal(text, binary, check_dtype=False, rtol=1e-5)


def test_hdf5_has_an_array_of_each_output(kinds, sizes, tmp_path):
    predict_blocks(kinds[0], own_blocks(kinds[0]), tmp_path / "k.h5")
    with h5py.File(tmp_path / "k.h5") as file:
        likely = kinds[0].predict(X)
        np.testing.assert_allclose(file["softmaxloss1/probabilities"], likely, rtol=1e-5)
        np.testing.assert_array_equal(file["softmaxloss1/class"], likely.argmax(1))
        np.testing.assert_array_equal(file["softmaxloss1/label"], LABELS)
        np.testing.assert_array_equal(file["sample"], np.arange(25))
        assert list(file["softmaxloss1/probabilities"].attrs["classes"]) == list(KINDS)
    predict_blocks(sizes[0], own_blocks(sizes[0]), tmp_path / "s.hdf5")
    with h5py.File(tmp_path / "s.hdf5") as file:
        np.testing.assert_allclose(file["euclideanloss1/prediction"], sizes[0].predict(X), rtol=1e-5)
        np.testing.assert_array_equal(file["euclideanloss1/target"], TARGETS)


def test_every_output_of_several_has_columns_of_its_own(kinds, tmp_path):
    folder = str(tmp_path / "kinds")
    read = layers.RecordInput("data", path=folder, batchsize=10)
    hidden = layers.InnerProduct("hidden", num_output=5)(read)
    net = [
        layers.SoftmaxLoss("kind")(layers.InnerProduct("scores", num_output=3)(hidden), read),
        layers.EuclideanLoss("again")(layers.InnerProduct("code", num_output=4)(hidden), read),
    ]
    prepared, path = trained(net, tmp_path / "two")
    model = model_of(prepared.job, None, path)
    predict_blocks(model, own_blocks(model), tmp_path / "p.csv")
    header = lines(tmp_path / "p.csv")[0]
    probabilities = [f"kind.probability_{name}" for name in KINDS]
    assert header[1:7] == ["kind.label", "kind.class", "kind.probability", *probabilities]
    assert header[7:] == [f"again.output_{i}" for i in range(4)]


def test_files_of_other_formats_are_read(kinds, tmp_path):
    model, _ = kinds
    np.savez(tmp_path / "a.npz", x=X, y=LABELS)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/X"], file["data/kind"] = X, np.array(KINDS, "S")[LABELS]
    np.savez(tmp_path / "b.npz", x=X)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(y=[KINDS[i] for i in LABELS])
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.drop(columns="y").to_parquet(tmp_path / "b.parquet")
    likely = model.predict(X)
    for name, columns, labelled in (
        ("kinds", {}, True),
        ("a.npz", {}, True),
        ("a.h5", {"x": ["data/X"], "y": ["data/kind"]}, True),
        ("a.h5", {"x": ["data/X"]}, False),
        ("b.npz", {}, False),
        ("a.csv", {}, True),
        ("b.parquet", {}, False),
    ):
        assert predict_blocks(model, blocks_of(model, str(tmp_path / name), **columns), tmp_path / "p.csv") == 25
        found = pd.read_csv(tmp_path / "p.csv")
        assert list(found["sample"]) == list(range(25))
        np.testing.assert_allclose(found["probability"], likely.max(1), rtol=1e-4)
        assert ("label" in found) is labelled
        if labelled:
            assert list(found["label"]) == [KINDS[label] for label in LABELS], name


def test_what_cannot_be_predicted_says_the_way_out(kinds, tmp_path):
    model, _ = kinds
    with pytest.raises(ConfigError, match=r"--data: does not exist.*dataset:NAME/SPLIT"):
        blocks_of(model, str(tmp_path / "nothing.csv"))
    (tmp_path / "notes.doc").write_text("text")
    with pytest.raises(ConfigError, match=r"no known format.*Known: \.csv"):
        blocks_of(model, str(tmp_path / "notes.doc"))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/X"], file["data/Z"] = X, X
    with pytest.raises(DataError, match="say which datasets are the features"):
        blocks_of(model, str(tmp_path / "a.h5"))
    write_shards(tmp_path / "wide", np.zeros((20, 5), np.float32))
    with pytest.raises(ConfigError, match="does not match the samples"):
        blocks_of(model, str(tmp_path / "wide"))


def test_nothing_half_written_is_left(kinds, tmp_path):
    model, _ = kinds
    blocks = own_blocks(model)
    for path in (tmp_path / "kinds").glob("shard-*"):
        with open(path, "r+b") as file:
            file.seek(-8, 2)
            file.write(b"damaged!")
    for name in ("p.csv", "p.parquet", "p.h5"):
        (tmp_path / name).write_text("before")
        with pytest.raises(DataError, match="is damaged"):
            predict_blocks(model, blocks, tmp_path / name)
        assert (tmp_path / name).read_text() == "before"
    assert not list(tmp_path.glob(".p.*"))


def test_a_place_that_cannot_be_written_is_refused(kinds, tmp_path):
    model, _ = kinds
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--out: cannot be written .*Received: .*file/p\.csv"):
        predict_blocks(model, own_blocks(model), tmp_path / "file" / "p.csv")
    with pytest.raises(ConfigError, match=r"--out: must end in \.csv, \.parquet, \.h5, \.hdf5"):
        predict_blocks(model, own_blocks(model), tmp_path / "p.xls")


def test_only_samples_that_are_held_out_of_training_are_test_data(tmp_path):
    write_shards(tmp_path / "kinds", X, LABELS, 2, classes=KINDS, window=4)
    read = layers.RecordInput(path=str(tmp_path / "kinds"), batchsize=4, validation_share=0.3)
    prepared, path = trained([read, layers.InnerProduct(num_output=3), layers.SoftmaxLoss()], tmp_path)
    model = model_of(prepared.job, None, path)
    count = predict_blocks(model, own_blocks(model), tmp_path / "p.csv")
    found = pd.read_csv(tmp_path / "p.csv")
    assert 8 <= count == len(found) <= 12
    np.testing.assert_allclose(found["probability"], model.predict(X[found["sample"]]).max(1), rtol=1e-4)
    assert len(blocks_of(model, str(tmp_path / "kinds"))[0].ranges) == 1, "--data means all samples"


def test_a_checkpoint_without_description_takes_the_names_from_the_shards(kinds, tmp_path):
    _, job = kinds
    found = checkpoints.load(checkpoints.path_of(tmp_path / "run" / "checkpoint", 8))
    found.described = {}
    early = checkpoints.save(found, tmp_path / "early.h5")
    model = model_of(job, None, early)
    predict_blocks(model, own_blocks(model), tmp_path / "p.csv")
    assert set(pd.read_csv(tmp_path / "p.csv")["label"]) == set(KINDS)


def test_fields_with_channels_first_and_their_fields_as_targets(tmp_path):
    x = DRAW.normal(size=(12, 2, 5, 4)).astype(np.float32)
    y = DRAW.normal(size=(12, 3, 2)).astype(np.float32)
    write_shards(tmp_path / "fields", x, y, channels="first", window=4)
    read = layers.RecordInput(path=str(tmp_path / "fields"), batchsize=4)
    prepared, path = trained([read, layers.InnerProduct(num_output=6), layers.EuclideanLoss()], tmp_path)
    model = model_of(prepared.job, None, path)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = x
    expected = model.predict(np.moveaxis(x, 1, -1))
    for data in ("fields", "x.h5"):
        predict_blocks(model, blocks_of(model, str(tmp_path / data)), tmp_path / "p.h5")
        with h5py.File(tmp_path / "p.h5") as file:
            np.testing.assert_allclose(file["euclideanloss1/prediction"], expected, rtol=1e-4, atol=1e-6)
            assert ("euclideanloss1/target" in file) == (data == "fields")


def test_a_checkpoint_of_another_net_is_refused(kinds, sizes, tmp_path):
    _, job = kinds
    with pytest.raises(CheckpointError, match="does not fit this job"):
        model_of(job, None, checkpoints.path_of(tmp_path / "run" / "checkpoint", 8))


def test_too_many_columns_go_to_hdf5(tmp_path):
    wide = Output("loss", False, tuple(map(str, range(20_000))))
    with pytest.raises(ConfigError, match=r"20,001 columns.*predictions\.h5"), writing(tmp_path / "p.csv", [wide]):
        pass


def test_shards_of_a_table_with_other_categories_are_refused(tmp_path):
    for name, texts in (("trained", ["a", "b"]), ("new", ["b", "c"])):
        shard(pd.DataFrame({"kind": texts * 20}), np.arange(40) % 2, tmp_path / name, durable=False)
    read = layers.RecordInput(path=str(tmp_path / "trained"), batchsize=10)
    prepared, path = trained([read, layers.InnerProduct(num_output=2), layers.SoftmaxLoss()], tmp_path)
    model = model_of(prepared.job, prepared.code, path)
    with pytest.raises(DataError, match=r"new: encodes the columns of its table otherwise than the training data"):
        blocks_of(model, str(tmp_path / "new"))
    assert blocks_of(model, str(tmp_path / "trained"))


def test_every_time_step_has_a_line(tmp_path):
    outputs = [Output("tags", classifies=True, names=KINDS, classes=KINDS), Output("size", False, ("size",))]
    likely, sizes = DRAW.uniform(size=(2, 4, 3)).astype(np.float32), DRAW.normal(size=(2, 4, 1)).astype(np.float32)
    labels = DRAW.integers(0, 3, (2, 4))
    with writing(tmp_path / "tags.csv", outputs) as write:
        write(Predicted(np.array([5, 6]), {"tags": likely, "size": sizes}, {"tags": labels}))
    lines = pd.read_csv(tmp_path / "tags.csv")
    assert lines["sample"].tolist() == [5] * 4 + [6] * 4 and lines["step"].tolist() == [0, 1, 2, 3] * 2
    assert lines["tags.label"].tolist() == [KINDS[label] for label in labels.ravel()]
    assert lines["tags.class"].tolist() == [KINDS[best] for best in likely.argmax(2).ravel()]
    np.testing.assert_allclose(lines["tags.probability_green"], likely[..., 1].ravel(), rtol=1e-6)
    np.testing.assert_allclose(lines["size.size"], sizes.ravel(), rtol=1e-6)
    differing = Predicted(np.array([5, 6]), {"tags": likely, "size": sizes[:, 0]}, {})
    with pytest.raises(ConfigError, match="differ in their time steps"), writing(tmp_path / "x.csv", outputs) as write:
        write(differing)
    with writing(tmp_path / "tags.h5", outputs) as write:
        write(differing)
    with h5py.File(tmp_path / "tags.h5") as file:
        np.testing.assert_array_equal(file["tags/class"], likely.argmax(2))
