from __future__ import annotations

import json
from pathlib import Path

import pytest

from singa_dask.data import Manifest
from singa_dask.errors import DataError


def test_a_manifest_survives_the_round_trip(images):
    again = Manifest.load(images.folder)
    assert again == images
    assert again.digest == images.digest
    assert again.folder == images.folder
    assert (images.features.name, images.features.shape, images.features.channels) == ("x", (3, 4, 2), "last")
    assert images.targets is not None
    assert (images.targets.name, images.targets.role, images.targets.num_classes) == ("y", "label", 7)


def test_windows_cover_all_samples_and_stay_inside_shards(images):
    windows = images.windows
    assert [w.start for w in windows] == [sum(v.samples for v in windows[:i]) for i in range(len(windows))]
    assert sum(w.samples for w in windows) == images.total
    for window in windows:
        assert window.position + window.samples <= images.shards[window.shard].samples
        assert window.start == images.shard_starts[window.shard] + window.position


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "zip"),
        ("version", 3),
        ("version", True),
        ("hash", "md5"),
        ("total", 204),
        ("columns", []),
        ("columns", [1]),
        ("window", 0),
        ("window", 9),
        ("order", None),
        ("in_place", "yes"),
        ("encoders", [1]),
        ("notes", [1]),
        ("shards", []),
        ("shards", [1]),
    ],
)
def test_every_false_field_is_an_error_that_names_it(images, key, value):
    path = images.folder / "manifest.json"
    fields = json.loads(path.read_text())
    fields[key] = value
    path.write_text(json.dumps(fields))
    with pytest.raises(
        DataError, match=f"manifest.json: {'shards' if key == 'window' and value else key}.*Received"
    ) as e:
        Manifest.load(images.folder)
    assert "singa-dask shard" in str(e.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", ""),
        ("name", "a/b"),
        ("name", "y"),
        ("role", "input"),
        ("shape", [3, -2]),
        ("shape", [3, 4, 10**12]),
        ("shape", [1, 1, 1, 1, 1]),
        ("shape", "3 4 2"),
        ("dtype", "object"),
        ("channels", "HWC"),
        ("classes", ["a", "a"]),
        ("classes", 0),
        ("mean", [1.0, 2.0, 3.0]),
        ("mean", [1.0, float("nan")]),
        ("std", None),
        ("names", ["a"]),
        ("dataset", "../x"),
    ],
)
def test_every_false_field_of_a_column_is_an_error(images, key, value):
    path = images.folder / "manifest.json"
    fields = json.loads(path.read_text())
    fields["columns"][0][key] = value
    path.write_text(json.dumps(fields))
    with pytest.raises(DataError, match=r"manifest\.json: columns.*Received.*singa-dask shard"):
        Manifest.load(images.folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("file", "../shard-00000.h5"),
        ("file", "/etc/passwd"),
        ("file", "shard-00001.h5"),
        ("samples", 0),
        ("windows", []),
        ("windows", ["xyz"] * 9),
    ],
)
def test_every_false_entry_of_a_shard_is_an_error(images, key, value):
    path = images.folder / "manifest.json"
    fields = json.loads(path.read_text())
    fields["shards"][0][key] = value
    path.write_text(json.dumps(fields))
    with pytest.raises(DataError, match=r"manifest.json: shards"):
        Manifest.load(images.folder)


def test_a_missing_field_is_an_error(images):
    path = images.folder / "manifest.json"
    fields = json.loads(path.read_text())
    del fields["columns"][0]["dtype"]
    path.write_text(json.dumps(fields))
    with pytest.raises(DataError, match=r"columns\[0\]\.dtype must be one of uint8, .*\. Received: 'nothing'"):
        Manifest.load(images.folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\xff"])
def test_what_is_no_json_object_is_an_error(tmp_path: Path, text):
    (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"manifest\.json"):
        Manifest.load(tmp_path)


def test_a_folder_without_manifest_is_an_error_with_a_way_out(tmp_path: Path):
    with pytest.raises(DataError, match=r"not a folder of shards.*singa-dask shard"):
        Manifest.load(tmp_path)
