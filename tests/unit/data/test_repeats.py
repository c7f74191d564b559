"""Samples that are in several splits."""

import dask.array as da
import h5py
import numpy as np
import pytest

from singa_dask import shard
from singa_dask.data import Manifest
from singa_dask.data.ingest import repeats
from singa_dask.data.ingest.repeats import row_hashes
from singa_dask.data.sharding import shard_files


@pytest.mark.parametrize("lazy", [False, True])
def test_samples_of_two_splits_are_counted(tmp_path, caplog, lazy):
    x = np.arange(100.0)[:, None] % 80
    where = {"part": np.array(["train"] * 70 + ["validation"] * 10 + ["test"] * 20)}
    if lazy:
        x, where = da.from_array(x, chunks=(30, 1)), {"part": da.from_array(where["part"], chunks=30)}
    made = shard(x, x[:, 0], tmp_path / "out", split_data=where, split_column="part", nshards=3)
    note = "20 of 20 test samples are also among the training samples"
    assert made["test"].notes == (note,) and note in caplog.text
    assert made["validation"].notes == () and made["train"].notes == ()
    assert Manifest.load(tmp_path / "out" / "test").digest == made["test"].digest


def test_other_answers_make_other_samples(tmp_path):
    x, y = np.arange(100.0)[:, None] % 50, np.arange(100.0)
    made = shard(x, y, tmp_path / "out", split_data={"n": y}, split_by="n", test_from=50)
    assert made["test"].notes == ()


def test_splits_of_the_source_are_compared(tmp_path, caplog):
    x = np.random.default_rng(0).random((20, 3, 5)).astype(np.float32)
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["train/x"], file["train/y"] = x, np.arange(20) % 2
        file["test/x"], file["test/y"] = x[4:10], np.arange(4, 10) % 2
    made = shard_files("hdf5", tmp_path / "out", source=tmp_path / "t.h5")
    assert made["test"].notes == ("6 of 6 test samples are also among the training samples",)


def test_repeats_on_a_cluster(tmp_path):
    from distributed import Client

    x = np.arange(60.0)[:, None] % 40
    with Client(processes=False, n_workers=1, dashboard_address=None) as client:
        made = shard(
            x, None, tmp_path / "out", client=client, split_data={"n": np.arange(60)}, split_by="n", test_from=40
        )
    assert made["test"].notes == ("20 of 20 test samples are also among the training samples",)


def test_very_many_samples_are_not_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(repeats, "MAX_SAMPLES", 10)
    assert shard(np.zeros((20, 2)), None, tmp_path / "out", test=0.5)["test"].notes == ()


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "u1", "f2"])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_hashes_tell_rows_apart(dtype, width, monkeypatch):
    monkeypatch.setattr(repeats, "CHUNK_NBYTES", 1000)
    rows = np.unique(np.random.default_rng(0).integers(0, 200, (20_000, width)).astype(dtype), axis=0)
    hashes = row_hashes(rows)
    assert len(np.unique(hashes)) == len(rows)
    np.testing.assert_array_equal(row_hashes(rows[::-1])[::-1], hashes)
    if width > 1:
        swapped = rows[rows[:, 0] != rows[:, 1]]
        assert (row_hashes(swapped[:, ::-1]) != row_hashes(swapped)).mean() > 0.99
