"""Predictions for shards and files of other formats, and the files that they are written to."""

import csv
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import h5py
import numpy as np
import pandas as pd
import PIL.Image
import pytest
import xarray
from support.shards import write_shards
from support.views import OtherMachine

from singa_dask import Job, Model, Regressor, layers, shard, updaters
from singa_dask.data import shard_files
from singa_dask.data.columns import Column, Role
from singa_dask.data.load import load
from singa_dask.data.schema import Coordinates
from singa_dask.errors import CheckpointError, ClusterError, ConfigError, DataError, NotFinite
from singa_dask.inference import blocks as blocks_module
from singa_dask.inference import run as run_module
from singa_dask.inference.blocks import Samples, own_blocks
from singa_dask.inference.described import KnownData
from singa_dask.inference.evaluate import model_of
from singa_dask.inference.files import LayerOutput, table, writing
from singa_dask.inference.run import predict_blocks
from singa_dask.inference.sources import blocks_of
from singa_dask.job import job_to_text
from singa_dask.job.job_pb2 import Phase
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

DRAW = np.random.default_rng(1)
X = DRAW.normal(size=(25, 4)).astype(np.float32)
KINDS = ("red", "green", "blue")
LABELS = DRAW.integers(0, 3, 25)
TARGETS = DRAW.normal(size=(25, 2)).astype(np.float32)


def trained(folder, *net):
    """The prepared job of a net, and a checkpoint with its initial parameters."""
    job = Job(name="points", layers=net, updater=updaters.SGD(lr=0.1), train_steps=8, seed=5)
    prepared = prepare(job, phases=[Phase.kTest])
    state = Model(prepared.job.neuralnet, seed=5)
    saved = checkpoints.Checkpoint(
        8, 5, job_to_text(prepared.job), state.state_dict(), described=prepared.described, code=prepared.code
    )
    return prepared, checkpoints.save(saved, checkpoints.path_of(folder / "run" / "checkpoint", 8))


def model_for(folder, *net):
    prepared, path = trained(folder, *net)
    return model_of(prepared.job, prepared.code, path)


def read(folder, batchsize=10, name="", **conf):
    return layers.RecordInput(*name.split(), path=str(folder), batchsize=batchsize, **conf)


def classes(outputs=3):
    return layers.InnerProduct(num_output=outputs), layers.SoftmaxLoss()


def numbers_of(outputs):
    return layers.InnerProduct(num_output=outputs), layers.EuclideanLoss()


@pytest.fixture
def kinds_run(tmp_path):
    """The prepared job of three classes, and its checkpoint."""
    write_shards(tmp_path / "kinds", X, LABELS, 2, classes=KINDS, window=4)
    return trained(tmp_path, read(tmp_path / "kinds"), *classes())


@pytest.fixture
def kinds(kinds_run):
    """A model of three classes."""
    prepared, path = kinds_run
    return model_of(prepared.job, prepared.code, path)


@pytest.fixture
def sizes(tmp_path):
    """A model of two numbers."""
    write_shards(tmp_path / "sizes", X, TARGETS, 2, window=4)
    return model_for(tmp_path, read(tmp_path / "sizes"), *numbers_of(2))


@pytest.fixture
def predict(tmp_path):
    """Write predictions of the test data, or of other data; their path."""

    def predict(model, name="p.csv", data=None, **columns):
        blocks = own_blocks(model) if data is None else blocks_of(model, str(tmp_path / data), **columns)
        predict_blocks(model, blocks, tmp_path / name)
        return tmp_path / name

    return predict


def lines(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def numbers(rows, columns):
    return np.array([row[columns] for row in rows], float)


def test_every_sample_of_the_test_data_has_a_line_with_names_and_all_probabilities(kinds, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks_module, "BLOCK_NBYTES", 160)  # of two windows and a half
    blocks = own_blocks(kinds)
    assert [block.ranges for block in blocks] == [((0, 8),), ((8, 16),), ((16, 25),)]
    assert predict_blocks(kinds, blocks, tmp_path / "new" / "p.csv") == 25
    header, *rows = lines(tmp_path / "new" / "p.csv")
    likely = kinds.predict(X)
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
    blocks = blocks_of(kinds, str(tmp_path / data))
    cluster = SimpleNamespace(wait_for_workers=lambda count, timeout: None, map=lambda *a, **o: [], cancel=None)
    with pytest.raises(ClusterError, match=rf"/{data}: the Dask workers on \S+ \(tcp://far:1\) do not see it"):
        predict_blocks(kinds, blocks, tmp_path / "p.csv", OtherMachine(cluster, tmp_path / data, "tcp://far:1"))
    assert not (tmp_path / "p.csv").exists()


def test_targets_stand_beside_what_is_predicted(sizes, predict):
    header, *rows = lines(predict(sizes))
    assert header == ["sample", "true_y_0", "true_y_1", "y_0", "y_1"] and len(rows) == 25
    np.testing.assert_allclose(numbers(rows, slice(1, 3)), TARGETS, rtol=1e-5)
    np.testing.assert_allclose(numbers(rows, slice(3, 5)), sizes.predict(X), rtol=1e-4)


def test_parquet_has_the_lines_of_csv(kinds, predict):
    text, binary = pd.read_csv(predict(kinds)), pd.read_parquet(predict(kinds, "p.parquet"))
    assert binary["probability"].dtype == np.float32
    pd.testing.assert_frame_equal(text, binary, check_dtype=False, rtol=1e-5)


def test_hdf5_has_an_array_of_each_output(kinds, sizes, predict):
    with h5py.File(predict(kinds, "k.h5")) as file:
        likely = kinds.predict(X)
        np.testing.assert_allclose(file["softmaxloss1/probabilities"], likely, rtol=1e-5)
        assert file["softmaxloss1/class"].asstr()[:].tolist() == [KINDS[i] for i in likely.argmax(1)]
        assert file["softmaxloss1/label"].asstr()[:].tolist() == [KINDS[i] for i in LABELS]
        np.testing.assert_array_equal(file["sample"], np.arange(25))
        assert list(file["softmaxloss1/probabilities"].attrs["classes"]) == list(KINDS)
    with h5py.File(predict(sizes, "s.hdf5")) as file:
        np.testing.assert_allclose(file["euclideanloss1/prediction"], sizes.predict(X), rtol=1e-5)
        np.testing.assert_array_equal(file["euclideanloss1/target"], TARGETS)


def test_every_output_of_several_has_columns_of_its_own(kinds_run, tmp_path, predict):
    data = read(tmp_path / "kinds", name="data")
    hidden = layers.InnerProduct("hidden", num_output=5)(data)
    kind = layers.SoftmaxLoss("kind")(layers.InnerProduct("scores", num_output=3)(hidden), data)
    again = layers.EuclideanLoss("again")(layers.InnerProduct("code", num_output=4)(hidden), data)
    header = lines(predict(model_for(tmp_path / "two", kind, again)))[0]
    probabilities = [f"kind.probability_{name}" for name in KINDS]
    assert header[1:7] == ["kind.label", "kind.class", "kind.probability", *probabilities]
    assert header[7:] == [f"again.output_{i}" for i in range(4)]


@pytest.mark.parametrize(
    ("name", "columns", "labelled"),
    [
        ("kinds", {}, True),
        ("a.npz", {}, True),
        ("a.h5", {"x": ["data/X"], "y": ["data/kind"]}, True),
        ("a.h5", {"x": ["data/X"]}, False),
        ("b.npz", {}, False),
        ("a.csv", {}, True),
        ("b.parquet", {}, False),
    ],
)
def test_files_of_other_formats_are_read(kinds, tmp_path, predict, name, columns, labelled):
    np.savez(tmp_path / "a.npz", x=X, y=LABELS)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/X"], file["data/kind"] = X, np.array(KINDS, "S")[LABELS]
    np.savez(tmp_path / "b.npz", x=X)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(y=[KINDS[i] for i in LABELS])
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.drop(columns="y").to_parquet(tmp_path / "b.parquet")
    found = pd.read_csv(predict(kinds, data=name, **columns))
    assert list(found["sample"]) == list(range(25))
    np.testing.assert_allclose(found["probability"], kinds.predict(X).max(1), rtol=1e-4)
    assert list(found.get("label", [])) == [KINDS[label] for label in LABELS] * labelled


def test_a_missing_value_is_named_by_its_sample_in_the_file(kinds, tmp_path, predict, monkeypatch):
    monkeypatch.setattr("singa_dask.data.sources.files.BLOCK_NBYTES", 64)
    x = X.copy()
    x[[17, 20], 3] = np.nan
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"] = x
    with pytest.raises(NotFinite, match=r"column 'x\[3\]': 1 value\(s\) are NaN, the first in sample 17\."):
        predict(kinds, data="a.h5", x=["X"])


@pytest.mark.parametrize("table", [True, False], ids=["csv", "h5"])
def test_replaced_values_are_counted(tmp_path, predict, caplog, monkeypatch, table):
    monkeypatch.setattr("singa_dask.data.sources.files.BLOCK_NBYTES", 64)
    x = X.copy()
    x[[17, 20], 3] = np.nan
    frame = pd.DataFrame(x, columns=list("abcd"))
    model = Regressor(epochs=1, missing="mean").fit(frame.assign(t="text") if table else x, X.sum(1)).model_
    if table:
        frame.assign(b=np.nan, t="text").to_csv(tmp_path / "a.csv", index=False)
        said = rf"'b' in {len(x)}, 'd' in 2 of {len(x)} samples"
    else:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"] = x
        said = rf"'x' in 2 of {len(x)} samples"
    predict(model, data="a.csv" if table else "a.h5", **({} if table else {"x": ["x"]}))
    assert re.search(f"replaced as in training: {said}", caplog.text)


@pytest.mark.parametrize(
    ("name", "raised", "says"),
    [
        ("nothing.csv", ConfigError, r"--data: does not exist.*dataset:NAME/SPLIT"),
        ("notes.doc", ConfigError, r"no known format.*Known: \.csv"),
        ("a.h5", DataError, "say which datasets are the features"),
        ("wide", ConfigError, "does not match the samples"),
    ],
)
def test_what_cannot_be_predicted_says_the_way_out(kinds, tmp_path, predict, name, raised, says):
    (tmp_path / "notes.doc").write_text("text")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/X"], file["data/Z"] = X, X
    write_shards(tmp_path / "wide", np.zeros((20, 5), np.float32))
    with pytest.raises(raised, match=says):
        predict(kinds, data=name)


@pytest.mark.parametrize("name", ["p.csv", "p.parquet", "p.h5"])
def test_nothing_half_written_is_left(kinds, tmp_path, predict, name):
    blocks = own_blocks(kinds)
    for path in (tmp_path / "kinds").glob("shard-*"):
        path.write_bytes(path.read_bytes()[:-8] + b"damaged!")
    (tmp_path / name).write_text("before")
    with pytest.raises(DataError, match="is damaged"):
        predict_blocks(kinds, blocks, tmp_path / name)
    assert (tmp_path / name).read_text() == "before" and not list(tmp_path.glob(".p.*"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("file/p.csv", r"--out: cannot be written .*Received: .*file/p\.csv"),
        ("p.xls", r"--out: must end in \.csv, \.parquet, \.h5, \.hdf5"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused(kinds, tmp_path, predict, name, says):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=says):
        predict(kinds, name)


def test_only_samples_that_are_held_out_of_training_are_test_data(tmp_path, predict):
    write_shards(tmp_path / "kinds", X, LABELS, 2, classes=KINDS, window=4)
    model = model_for(tmp_path, read(tmp_path / "kinds", 4, validation_share=0.3), *classes())
    found = pd.read_csv(predict(model))
    assert 8 <= len(found) <= 12
    np.testing.assert_allclose(found["probability"], model.predict(X[found["sample"]]).max(1), rtol=1e-4)
    assert len(blocks_of(model, str(tmp_path / "kinds"))[0].ranges) == 1, "--data means all samples"


@pytest.mark.parametrize("described", [{}, {"recordinput1": '{"columns": [], "encoders": []}'}])
def test_a_checkpoint_without_a_description_of_this_version_is_refused(kinds_run, tmp_path, predict, described):
    prepared, path = kinds_run
    early = checkpoints.save(replace(checkpoints.load(path), described=described), tmp_path / "early.h5")
    with pytest.raises(DataError, match=r"was written by an older version of singa_dask\. Train again"):
        predict(model_of(prepared.job, None, early))


@pytest.mark.parametrize("data", ["fields", "x.h5"])
def test_fields_with_channels_first_and_their_fields_as_targets(tmp_path, predict, data):
    x = DRAW.normal(size=(12, 2, 5, 4)).astype(np.float32)
    y = DRAW.normal(size=(12, 3, 2)).astype(np.float32)
    write_shards(tmp_path / "fields", x, y, channels="first", window=4)
    model = model_for(tmp_path, read(tmp_path / "fields", 4), *numbers_of(6))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = x
    with h5py.File(predict(model, "p.h5", data)) as file:
        expected = model.predict(np.moveaxis(x, 1, -1))
        np.testing.assert_allclose(file["euclideanloss1/prediction"], expected, rtol=1e-4, atol=1e-6)
        assert ("euclideanloss1/target" in file) == (data == "fields")


def test_targets_of_a_file_are_in_the_order_of_what_is_predicted(tmp_path, predict):
    x, y = DRAW.normal(size=(12, 3)).astype(np.float32), DRAW.normal(size=(12, 2, 5, 5)).astype(np.float32)
    write_shards(tmp_path / "fields", x, y, window=4)
    model = model_for(tmp_path, read(tmp_path / "fields", 4), *numbers_of(50))
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"], file["y"] = x, y
    with h5py.File(predict(model, "p.h5", "f.h5", x=["x"], y=["y"])) as file:
        targets = file["euclideanloss1/target"][:].reshape(12, -1)
        np.testing.assert_array_equal(targets, np.moveaxis(y, 1, -1).reshape(12, -1))


def test_a_checkpoint_of_another_net_is_refused(kinds_run, sizes, tmp_path):
    prepared, path = kinds_run  # where that of the other net is by now
    with pytest.raises(CheckpointError, match="does not fit this job"):
        model_of(prepared.job, None, path)


def test_too_many_columns_go_to_hdf5(tmp_path):
    wide = LayerOutput("loss", False, tuple(map(str, range(20_000))))
    with pytest.raises(ConfigError, match=r"20,001 columns.*predictions\.h5"), writing(tmp_path / "p.csv", [wide]):
        pass


def test_shards_of_a_table_with_other_categories_are_refused(tmp_path):
    for name, texts in (("trained", ["a", "b"]), ("new", ["b", "c"])):
        shard(pd.DataFrame({"kind": texts * 20}), np.arange(40) % 2, tmp_path / name, durable=False)
    model = model_for(tmp_path, read(tmp_path / "trained"), *classes(2))
    with pytest.raises(DataError, match=r"new: encodes the columns of its table otherwise than the training data"):
        blocks_of(model, str(tmp_path / "new"))
    assert blocks_of(model, str(tmp_path / "trained"))


TABLES = {
    "codes": ("code,a,price\n07,1,2.5\n7,2,3.5\n012,3,4.5\n", {"category": "code", "encode": {"code": "onehot"}}),
    "flags": ("flag,price\ntrue,2.5\nfalse,1.5\nunknown,0.5\n", {}),
    "days": ("day,price\n2024-01-01,2.5\n2024-02-01,1.5\n", {"category": "day", "encode": {"day": "ordinal"}}),
    "texts": ("kind;site;price\nx;p;1\ny;q;2\n", {"separator": ";"}),
    "dates": ("day,price\n01.02.2024,2.5\n02.02.2024,1.5\n", {"date": "day=%d.%m.%Y"}),
    "zoned": ("day,price\n2024-02-01T10:00Z,2.5\n2024-02-01T10:00+02:00,1.5\n", {}),
    "bare": ("1,2,2.5\n3,4,1.5\n", {"header": False}),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_csv_file_is_read_as_the_training_data_were(tmp_path, predict, name):
    text, options = TABLES[name]
    (tmp_path / "t.csv").write_text(text)
    target = "2" if name == "bare" else "price"
    shard_files("csv", tmp_path / "out", source=tmp_path / "t.csv", target=target, shuffle=False, **options)
    model = model_for(tmp_path, read(tmp_path / "out", 1), *numbers_of(1))
    expected = model.predict(load(tmp_path / "out")[0])[:, 0]
    header, *rows = text.split()
    new = "\n".join(line.rpartition(options.get("separator", ","))[0] for line in [header, *rows[::-1]])
    (tmp_path / "new.csv").write_text(text if name in ("bare", "zoned") else new)
    found = pd.read_csv(predict(model, data="new.csv"))[model.known.names(model.outputs[0])[0]]
    np.testing.assert_allclose(found, expected if name in ("bare", "zoned") else expected[::-1], rtol=1e-5)


def test_texts_of_a_table_in_memory_stay_texts_in_a_csv_file(tmp_path, predict):
    frame = pd.DataFrame({"code": ["07", "7", "12"], "day": pd.date_range("2024-01-01", periods=3)})
    shard(frame, np.arange(3.0), tmp_path / "out", shuffle=False)
    model = model_for(tmp_path, read(tmp_path / "out", 1), *numbers_of(1))
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = pd.read_csv(predict(model, data="t.csv"))
    np.testing.assert_allclose(found["y"], model.predict(load(tmp_path / "out")[0])[:, 0], rtol=1e-5)
    assert blocks_of(model, str(tmp_path / "t.csv"))[0].block.types["code"] == "text"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"category": ("a",)}, "column 'a': holds texts, but the net was trained with numbers"),
        ({"separator": ";"}, r"Is the separator another one\? --separator ',' Otherwise: .*has no column 'a'"),
        ({"header": False}, "line 1, column '0': 'a' is not a number"),
    ],
)
def test_options_of_reading_overrule_those_of_training(tmp_path, predict, options, says):
    (tmp_path / "t.csv").write_text("a,b,price\n1,2,2.5\n3,4,1.5\n")
    shard_files("csv", tmp_path / "out", source=tmp_path / "t.csv", target="price")
    model = model_for(tmp_path, read(tmp_path / "out", 1), *numbers_of(1))
    with pytest.raises(DataError, match=says):
        blocks_of(model, str(tmp_path / "t.csv"), **options)[0].read(model)
    pd.DataFrame({"a": [1.0], "b": [2.0]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=f"--{next(iter(options))}.*is for CSV files"):
        blocks_of(model, str(tmp_path / "t.parquet"), **options)


def test_every_time_step_has_a_line(tmp_path):
    outputs = [LayerOutput("tags", classifies=True, names=KINDS), LayerOutput("size", False, ("size",))]
    likely, sizes = DRAW.uniform(size=(2, 4, 3)).astype(np.float32), DRAW.normal(size=(2, 4, 1)).astype(np.float32)
    labels = np.array(KINDS, object)[DRAW.integers(0, 3, (2, 4))]
    with writing(tmp_path / "tags.csv", outputs) as write:
        write(Samples(np.array([5, 6]), {"tags": likely, "size": sizes}, {"tags": labels}))
    lines = pd.read_csv(tmp_path / "tags.csv")
    assert lines["sample"].tolist() == [5] * 4 + [6] * 4 and lines["step"].tolist() == [0, 1, 2, 3] * 2
    assert lines["tags.label"].tolist() == labels.ravel().tolist()
    assert lines["tags.class"].tolist() == [KINDS[best] for best in likely.argmax(2).ravel()]
    np.testing.assert_allclose(lines["tags.probability_green"], likely[..., 1].ravel(), rtol=1e-6)
    np.testing.assert_allclose(lines["size.size"], sizes.ravel(), rtol=1e-6)
    differing = Samples(np.array([5, 6]), {"tags": likely, "size": sizes[:, 0]}, {})
    with pytest.raises(ConfigError, match="differ in their time steps"), writing(tmp_path / "x.csv", outputs) as write:
        write(differing)
    with writing(tmp_path / "tags.h5", outputs) as write:
        write(differing)
    with h5py.File(tmp_path / "tags.h5") as file:
        np.testing.assert_array_equal(file["tags/class"].asstr()[:], np.array(KINDS)[likely.argmax(2)])


def tables(folder, count=1):
    """Tables of 60 rows in all, the folder with them, and a model of shards of them with a test split."""
    table = pd.DataFrame({"a": np.arange(60.0), "y": np.arange(60.0)})
    (folder / "in").mkdir()
    for number in range(count):
        step = 60 // count
        table[number * step : (number + 1) * step].to_csv(folder / "in" / f"{number}.csv", index=False)
    shard_files("csv", folder / "out", source=folder / "in", target="y", test=0.2)
    conf = {"path": str(folder / "out" / "test"), "batchsize": 5}
    return model_for(folder, layers.RecordInput(**conf), *numbers_of(1))


PAIR = pd.DataFrame(TARGETS.astype(float), columns=["low", "high"])


def in_rows(folder, x, y=None, **options):
    shard(x, y, folder, shuffle=False, durable=False, progress=False, **options)


def other_answers(folder, form):
    """New data of a net of two targets, and the columns of true values that suit it."""
    table = pd.DataFrame(X, columns=list("abcd"))
    match form:
        case "both":
            in_rows(folder, table, PAIR.to_numpy())
        case "one of two":
            in_rows(folder, table, PAIR["low"])
        case "three":
            in_rows(folder, table, np.column_stack([TARGETS, TARGETS[:, 0]]))
        case "labels":
            in_rows(folder, table, LABELS, labels=True)
        case "none":
            in_rows(folder, table)
        case "csv":
            table.assign(y=TARGETS[:, 0]).to_csv(folder := folder.with_suffix(".csv"), index=False)
        case "npz":
            np.savez(folder := folder.with_suffix(".npz"), x=X, y=TARGETS[:, 0])
    return folder


SHARDS = ["both", "one of two", "three", "labels", "none"]


@pytest.mark.parametrize(
    ("form", "horizon"), [*((form, horizon) for form in SHARDS for horizon in (0, 1, 2)), ("csv", 0), ("npz", 0)]
)
def test_true_values_are_those_of_what_is_predicted(tmp_path, predict, caplog, form, horizon):
    in_rows(tmp_path / "in", X if form == "npz" else pd.DataFrame(X, columns=list("abcd")), PAIR.to_numpy())
    windows = {"sequence": 3, "horizon": horizon} if horizon else {}
    model = model_for(tmp_path, read(tmp_path / "in", **windows), *numbers_of(2 * max(horizon, 1)))
    data = other_answers(tmp_path / "new", form)
    found = pd.read_csv(predict(model, data=data.name))
    names = ["y_0_1", "y_1_1", "y_0_2", "y_1_2"] if horizon == 2 else ["y_0", "y_1"]
    truth = [f"true_{name}" for name in names] if form == "both" else []
    assert list(found) == ["sample", *truth, *names]
    warned = [record.getMessage() for record in caplog.records if "no true values are written" in record.getMessage()]
    assert len(warned) == (form not in ("both", "none"))
    assert all("the net predicts the target 'y' of shape [2]" in told for told in warned)


def test_targets_in_another_order_are_no_true_values(caplog):
    known, new = (Column("y", Role.TARGET, "float32", (2,), names=names) for names in (("a", "b"), ("b", "a")))
    of = KnownData(SimpleNamespace(), {})
    of.__dict__["inputs"] = {"data": SimpleNamespace(answers=known)}
    assert of.comparable("data", known, "new") is known and of.comparable("other", new, "new") is new
    assert (
        of.comparable("data", new, "new") is None and "new: has the target b, a, and the net predicts" in caplog.text
    )


@pytest.mark.parametrize(
    ("width", "names"),
    [(1, ["true_price"]), (2, ["true_price_1", "true_price_2"]), (4, [f"true_price_{i}" for i in (1, 2, 3, 4)])],
)
def test_true_values_tell_their_step_beside_several_predictions_of_each(width, names):
    price = Column("y", Role.TARGET, "float32", (), names=("price",))
    output = LayerOutput("out", False, tuple(f"q{i}" for i in range(3 * width)), column=price)
    rows = np.arange(6.0 * width).reshape(2, -1)
    found = table(Samples(np.arange(2), {"out": rows}, {"out": rows[:, :width]}), [output])
    assert [name for name in found if name.startswith("true")] == names


@pytest.mark.parametrize("data", [None, "out/train", "in"])
@pytest.mark.parametrize("name", ["p.csv", "p.parquet", "p.h5"])
def test_predictions_name_the_row_of_the_source(tmp_path, predict, data, name):
    path = predict(tables(tmp_path), name, data)
    if name == "p.h5":
        with h5py.File(path) as file:
            assert "file" not in file
            rows = file["sample"][:]
            truth = next(file[key]["target"][:] for key in file if key != "sample").ravel()
    else:
        table = pd.read_csv(path) if name == "p.csv" else pd.read_parquet(path)
        rows, truth = table["sample"], table["true_y"]
        assert "file" not in table
    np.testing.assert_array_equal(rows, truth)
    assert len(rows) == {None: 12, "out/train": 48, "in": 60}[data]


@pytest.mark.parametrize("data", [None, "in"])
def test_predictions_of_several_files_name_the_file(tmp_path, predict, data):
    table = pd.read_csv(predict(tables(tmp_path, 3), data=data))
    assert list(table)[:2] == ["sample", "file"]
    numbers = table["file"].str.removesuffix(".csv").astype(int)
    np.testing.assert_array_equal(20 * numbers + table["sample"], table["true_y"])


def test_shuffled_shards_without_rows_are_named(kinds, tmp_path, predict, caplog):
    write_shards(tmp_path / "old", X, LABELS, classes=KINDS, shuffle_seed=1)
    fields = json.loads((tmp_path / "old" / "manifest.json").read_text())
    fields["columns"] = [column for column in fields["columns"] if column["role"] != "row"]
    (tmp_path / "old" / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(DataError, match="damaged"):  # the hashes are those with the rows
        predict(kinds, data="old")
    assert "it does not tell their rows in the source" in caplog.text


def test_files_in_place_are_named(kinds, tmp_path, predict):
    (tmp_path / "in").mkdir()
    for number, rows in enumerate((slice(0, 10), slice(10, 25))):
        with h5py.File(tmp_path / "in" / f"{number}.h5", "w") as file:
            file["x"], file["y"] = X[rows], LABELS[rows]
    shard_files("hdf5", tmp_path / "out", source=tmp_path / "in", in_place=True)
    table = pd.read_csv(predict(kinds, data="out"))
    assert table["file"].tolist() == ["0.h5"] * 10 + ["1.h5"] * 15
    assert table["sample"].tolist() == [*range(10), *range(15)]


def test_a_target_keeps_its_name_beside_the_row(tmp_path):
    outputs = [LayerOutput("net", False, ("sample",))]
    with writing(tmp_path / "p.csv", outputs) as write:
        write(Samples(np.array([7]), {"net": np.array([[0.5]])}, {}))
    assert lines(tmp_path / "p.csv") == [["sample_", "sample"], ["7", "0.5"]]
    with writing(tmp_path / "p.h5", [LayerOutput("file", False, ("y",))]) as write:
        write(Samples(np.array([7]), {"file": np.array([[0.5]])}, {}, np.array(["a.csv"], object)))
    with h5py.File(tmp_path / "p.h5") as file:
        assert file["file_"].asstr()[:].tolist() == ["a.csv"] and "prediction" in file["file"]


def test_a_block_that_waits_for_a_paused_worker_is_predicted_on_another(monkeypatch):
    class Waits:
        key, cancelled = "block 0", False

        def result(self, timeout=None):
            raise TimeoutError

        def cancel(self):
            self.cancelled = True

    waits = Waits()
    futures = iter([waits, SimpleNamespace(result=lambda timeout=None: "predicted")])
    monkeypatch.setattr(run_module, "check_workers", lambda *_: None)
    monkeypatch.setattr(run_module, "waiting_for_paused", lambda client: {"block 0"})
    assert [*run_module._in_order(lambda block: next(futures), ["block"], 2, "client")] == ["predicted"]
    assert waits.cancelled


def write_fields(path, scale, dims=("time", "lat", "lon"), **names):
    """Two fields on a square grid, and one made of them."""
    t, u = (np.random.default_rng(i).normal(size=(12, 4, 4)).astype("f4") for i in range(2))
    data = xarray.Dataset(
        {name: (("time", "lat", "lon"), v * scale) for name, v in (("t", t), ("u", u), ("s", t - u))}
    )
    data.transpose(*dims).rename(names).to_netcdf(path, engine="h5netcdf")
    return path


def test_fields_are_found_by_their_names_and_dimensions(tmp_path):
    shard_files("netcdf", tmp_path / "out", source=write_fields(tmp_path / "a.nc", 1), x=("t", "u"), target="s")
    first, second = (layers.RecordInput(n, path=str(tmp_path / "out"), batchsize=4, column=n) for n in "tu")
    mixed = layers.Sub()(first, layers.Activation(type="RELU")(second))
    model = model_for(tmp_path, layers.EuclideanLoss()(mixed, first))

    def predicted(path, x=(), y=()):
        predict_blocks(model, blocks_of(model, str(path), x, y), tmp_path / "p.h5")
        with h5py.File(tmp_path / "p.h5") as file:
            (group,) = (file[name] for name in model.outputs)
            return group["prediction"][...], group["target"][...] if "target" in group else None

    values, answers = predicted(tmp_path / "a.nc")
    assert answers is not None and values.std() > 0.5
    np.testing.assert_array_equal(predicted(tmp_path / "a.nc", ("u", "t"))[0], values)
    turned = predicted(write_fields(tmp_path / "b.nc", 1, ("time", "lon", "lat")))
    np.testing.assert_array_equal(turned[0], values.swapaxes(1, 2))
    np.testing.assert_array_equal(turned[1], answers.swapaxes(1, 2))
    renamed = write_fields(tmp_path / "c.nc", 1, t="temperature")
    np.testing.assert_array_equal(predicted(renamed, ("t=temperature", "u"))[0], values)
    with pytest.raises(DataError, match=r"say which datasets are the features"):
        predicted(renamed)
    with pytest.raises(DataError, match=r"a\.nc: has no dataset 'heet'.*The file holds:"):
        predicted(tmp_path / "a.nc", y=["heet"])
    with pytest.raises(ConfigError, match=r"--x: must name the columns .*, t, u\..*--x u=OTHER"):
        predicted(tmp_path / "a.nc", ("t", "t"))
    with pytest.raises(DataError, match="t: has samples along y, lon, but in the training data along lat, lon"):
        predicted(write_fields(tmp_path / "d.nc", 1, lat="y"))
    with xarray.open_dataset(tmp_path / "a.nc", engine="h5netcdf") as every:
        every.isel(time=0).to_netcdf(tmp_path / "single.nc", engine="h5netcdf")
    with pytest.raises(
        DataError, match=r"Is that of the samples missing\? Add it to a single field: data\.expand_dims"
    ):
        predicted(tmp_path / "single.nc")
    turned = write_fields(tmp_path / "e.nc", 1, ("time", "lon", "lat"))
    shard_files("netcdf", tmp_path / "turned", source=turned, x=("t", "u"), target="s")
    with pytest.raises(
        DataError, match=r"t: has samples whose dimensions or coordinates are in another order than in the"
    ):
        blocks_of(model, str(tmp_path / "turned"))


def write_grid(path, lat, dims=("time", "lat", "lon")):
    """A field on a square grid and one made of it, as Zarr or netCDF."""
    t, coords = np.random.default_rng(0).normal(size=(12, 4, 4)).astype("f4"), {"lat": lat, "lon": np.arange(4.0)}
    fields = {name: (("time", "lat", "lon"), value, {"units": "K"}) for name, value in (("t", t), ("s", t * 2))}
    data = xarray.Dataset(fields, coords).transpose(*dims)
    data.to_zarr(path, mode="w") if path.suffix == ".zarr" else data.to_netcdf(path, engine="h5netcdf")
    return data


@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
def test_grids_that_run_the_other_way_are_turned_or_refused(tmp_path, kind):
    north, south = np.arange(4.0), np.arange(4.0)[::-1]
    suffix = {"netcdf": "nc", "zarr": "zarr"}[kind]
    paths = {name: tmp_path / f"{name}.{suffix}" for name in ("north", "south")}
    grid = write_grid(paths["north"], north)
    other = write_grid(paths["south"], south)
    for name, path in paths.items():
        (manifest,) = shard_files(kind, tmp_path / name, source=path, x="t", target="s").values()
        values = (0.0, 1.0, 2.0, 3.0)
        assert manifest.schema.reading.coordinates == {
            "lat": Coordinates("number", 4, values if name == "north" else values[::-1]),
            "lon": Coordinates("number", 4, values),
        }
    x = layers.RecordInput("t", path=str(tmp_path / "north"), batchsize=4, shape=[4, 4])
    model = model_for(tmp_path, layers.EuclideanLoss()(layers.Activation(type="RELU")(x), x))
    (block,) = blocks_of(model, str(paths["south"]))
    np.testing.assert_allclose(block.read(model).values["t"], other.t[:, ::-1], rtol=1e-6)
    xarray.testing.assert_allclose(model.predict(other.t), model.predict(other.t.sortby("lat")).sel(lat=other.lat))
    with pytest.raises(DataError, match="coordinates are in another order than in the training data"):
        blocks_of(model, str(tmp_path / "south"))
    turned = model.predict(grid.t.transpose("lon", "time", "lat").transpose("time", ...))
    assert turned.dims[:3] == ("time", "lon", "lat")
    xarray.testing.assert_equal(turned.transpose(*grid.t.dims, ...), model.predict(grid.t))
    shard_files(kind, tmp_path / "both", source=str(tmp_path / f"*th.{suffix}"), x="t", target="s", shuffle=False)
    both = np.concatenate([grid.t, other.t[:, ::-1]])
    np.testing.assert_allclose(np.asarray(load(tmp_path / "both", ["x"])[0]), both, rtol=1e-6)
    write_grid(tmp_path / f"far.{suffix}", south - 9)
    with pytest.raises(DataError, match=r"far.*: t: the coordinates along 'lat' are falling from -6 to -9, but were"):
        blocks_of(model, str(tmp_path / f"far.{suffix}"))[0].read(model)


def test_shards_whose_labels_have_other_numbers_are_refused(tmp_path):
    for name, labels in (("all", LABELS), ("some", np.where(LABELS == 1, 2, LABELS))):
        shard(X, np.array(KINDS)[labels], tmp_path / name, shuffle=False)
    model = model_for(tmp_path, read(tmp_path / "all"), *classes())
    with pytest.raises(
        DataError, match=r"some: has the classes blue, red, but the net was trained with blue, green, red"
    ):
        blocks_of(model, str(tmp_path / "some"))


@pytest.mark.parametrize("beside", ["readme.txt", "labels.csv", ".thumbs/old.csv", ".trash/3.png"])
def test_a_folder_of_images_may_have_other_files(tmp_path, predict, beside):
    for name in ("in/a/1.png", "in/b/2.png", "new/1.png", "new/2.png", f"new/{beside}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("png"):
            PIL.Image.fromarray(np.full((4, 4, 3), 7, np.uint8)).save(tmp_path / name)
        else:
            (tmp_path / name).write_text("a,b\n1,2\n")
    shard_files("images", tmp_path / "out", source=tmp_path / "in")
    model = model_for(tmp_path, read(tmp_path / "out", 1), *classes(2))
    if beside.startswith("."):
        assert len(lines(predict(model, data="new"))) == 3
    else:
        with pytest.raises(
            DataError, match=rf"{beside}: cannot be read .*Is it an image that Pillow can read\? Remove"
        ):
            predict(model, data="new")
