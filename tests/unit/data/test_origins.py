"""Rows and files of the source: in shards, of every format and of Dask collections."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from support.blocks import stored

from singa_dask import shard
from singa_dask.data import Manifest
from singa_dask.data.ingest import blocks
from singa_dask.data.origins import read_files
from singa_dask.data.sharding import shard_files
from singa_dask.data.sources import dialect
from singa_dask.errors import DataError

TABLE = pd.DataFrame({"a": np.arange(60.0), "y": np.arange(60.0)})


def written(frame, out, **options):
    return shard(frame[["a"]], frame["y"], out, durable=False, **options)


def check_rows(made, total=60):
    """Every row of the source is in one split, beside its own values."""
    parts = [stored(manifest) for manifest in made.values()]
    rows = np.concatenate([part["row"] for part in parts])
    np.testing.assert_array_equal(np.concatenate([part["x"] for part in parts])[:, 0], rows)
    np.testing.assert_array_equal(np.sort(rows), np.arange(total))


@pytest.mark.parametrize("options", [{}, {"test": 0.2, "validation": 0.1, "nshards": 3}, {"shuffle": False}])
def test_rows_survive_the_shuffle_and_shares(tmp_path, options, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_NBYTES", 200)
    check_rows(written(TABLE, tmp_path / "out", **options))


def test_rows_of_dask_collections_go_on_from_partition_to_partition(tmp_path):
    check_rows(written(dd.from_pandas(TABLE, npartitions=4), tmp_path / "frame", test=0.2))
    x = da.from_array(TABLE[["a"]].to_numpy(), chunks=(17, 1))
    check_rows(shard(x, da.from_array(TABLE["y"].to_numpy(), chunks=17), tmp_path / "array", durable=False))


def test_several_files_are_named_and_their_rows_begin_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(dialect, "BLOCK_NBYTES", 100)
    (tmp_path / "in" / "b").mkdir(parents=True)
    cuts = {"a.csv": (0, 25), "b/a.csv": (25, 60)}
    for name, (start, stop) in cuts.items():
        TABLE[start:stop].to_csv(tmp_path / "in" / name, index=False)
    made = shard_files("csv", tmp_path / "out", source=tmp_path / "in", target="y", test=0.25)
    for split, manifest in made.items():
        got, names = stored(manifest), read_files(tmp_path / "out" / split)
        starts = np.array([cuts[name][0] for name in names[got["file"]]])
        np.testing.assert_array_equal(got["x"][:, 0], starts + got["row"])
        assert '"file"' not in manifest.description and '"row"' not in manifest.description


def test_images_are_named_by_their_files(tmp_path):
    for kind, shade in (("cat", 10), ("dog", 20)):
        (tmp_path / "in" / kind).mkdir(parents=True)
        for number in range(5):
            Image.new("L", (4, 4), shade + number).save(tmp_path / "in" / kind / f"{number}.png")
    got = stored(shard_files("images", tmp_path / "out", source=tmp_path / "in")[""])
    names = read_files(tmp_path / "out")[got["file"]]
    shades = [{"cat": 10, "dog": 20}[name[:3]] + int(name[4]) for name in names]
    assert got["x"][:, 0, 0, 0].tolist() == shades
    np.testing.assert_array_equal(got["row"], got["file"])


def test_a_column_of_the_user_keeps_its_name(tmp_path):
    x = {"row": np.arange(9.0), "b": np.zeros((9, 2))}
    (made,) = shard(x, None, tmp_path / "out", durable=False).values()
    got = stored(made)
    np.testing.assert_array_equal(got["row"], got["row_"])


def test_a_damaged_list_of_files_is_refused(tmp_path):
    (tmp_path / "files.json").write_text("{}")
    with pytest.raises(DataError, match=r"files\.json: must be a list of texts"):
        read_files(tmp_path)
    with pytest.raises(DataError, match=r"files\.json: cannot be read"):
        read_files(tmp_path / "none")


def test_samples_like_those_of_a_folder_have_rows_too(tmp_path):
    train = written(TABLE[:40], tmp_path / "train")[""]
    check_rows(written(TABLE, tmp_path / "new", like=train))
    assert Manifest.load(tmp_path / "train").column("row").role == "row"
