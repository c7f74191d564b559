"""Descriptions of shards, runs and files."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from support.shards import write_shards

from singa_dask import Job, layers, updaters
from singa_dask.cli.data import describe as command
from singa_dask.data.sharding import shard_files
from singa_dask.errors import CheckpointError, ConfigError, DataError
from singa_dask.inference.describe import describe
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

ROWS = 20


@pytest.fixture
def table(tmp_path):
    """A CSV file, and its shards."""
    days = pd.date_range("2024-01-31", periods=ROWS, tz="UTC").strftime("%Y-%m-%dT%H:%MZ")
    columns = {"zip": ["01067", "20095"] * (ROWS // 2), "day": days, "area": np.arange(ROWS) + 0.5}
    pd.DataFrame(columns | {"price": np.arange(ROWS) / 4}).to_csv(tmp_path / "t.csv", index=False, sep=";")
    options = {"source": tmp_path / "t.csv", "target": "price", "category": "zip", "separator": ";", "test": 0.2}
    shard_files("csv", tmp_path / "out", **options, encode={"zip": "onehot"}, missing={"area": 7})
    return tmp_path / "out"


SCHEMA = [
    "  x  feature  float32 (4,)",
    "    zip   2 categories, one-hot: 01067, 20095; others are an error; missing: an error",
    "    day   zoned date, days in UTC since 2024-01-31; missing: an error",
    "    area  number; missing: 7.0",
    "  read from: csv, separator ';', with a header",
    "  types: zip text, day zoned date, area number, price number",
]


def test_shards_of_several_splits(table):
    lines = [*describe(str(table))]
    assert [line.split(": ")[0] for line in lines if line.startswith("/")] == [f"{table}/test", f"{table}/train"]
    assert [line for line in SCHEMA if lines.count(line) != 2] == []
    assert any(line.startswith("  y  target   float64, 'price', mean") for line in lines)
    assert any("; replacements of missing values: the " in line and "categories: all 20" in line for line in lines)


def saved(folder, described, step=3):
    state = checkpoints.Checkpoint(step, 1, 'name: "x"', {"w": np.zeros(1, np.float32)}, described=described)
    return checkpoints.save(state, checkpoints.path_of(folder / "run" / "checkpoint", step))


def test_what_a_run_was_trained_on_by_input_layer(table, tmp_path):
    net = [layers.RecordInput("rows", path=str(table / "train"), batchsize=4), layers.InnerProduct(num_output=1)]
    net.append(layers.EuclideanLoss())
    job = Job(name="t", layers=net, updater=updaters.SGD(lr=0.1), train_steps=1)
    path = saved(tmp_path, prepare(job, phases=[]).described)
    for what in (path, tmp_path / "run", tmp_path / "run" / "checkpoint"):
        first, layer, *lines = describe(str(what))
        assert (first, layer) == (f"{path}: after 3 steps, trained on:", "layer 'rows'")
        assert [line for line in SCHEMA if line not in lines] == []


def test_images_with_names_of_classes(tmp_path):
    y = np.arange(9) % 8
    write_shards(tmp_path / "out", np.zeros((9, 3, 8, 8), np.uint8), y, classes=[*"abcdefgh"], shuffle_seed=None)
    found = CliRunner().invoke(command, [str(tmp_path / "out")], catch_exceptions=False).output
    assert "9 samples in 1 shard; order: source" in found
    assert "  x  feature  uint8 (3, 8, 8), channels first\n" in found
    assert "  y  label    int64, 8 classes: a, b, c, d, e, f, ...\n" in found


def test_the_columns_of_a_file(tmp_path):
    pd.DataFrame({"a": [1.5], "day": pd.to_datetime(["2024-01-01"])}).to_parquet(tmp_path / "t.parquet")
    first, columns = describe(str(tmp_path / "t.parquet"))
    assert f"singa-dask shard parquet --source {tmp_path}/t.parquet --out FOLDER" in first
    assert "a    number" in columns and "day  date" in columns


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("no", DataError, "no: does not exist"),
        ("run", CheckpointError, r"describes no data.*train again"),
        ("t.conf", ConfigError, "describe: has a suffix of no known format"),
        ("empty", DataError, "a folder of images has no columns"),
    ],
)
def test_what_cannot_be_described(tmp_path, name, error, says):
    saved(tmp_path, {})
    (tmp_path / "t.conf").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=says):
        [*describe(str(tmp_path / name))]
