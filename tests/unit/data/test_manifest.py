from __future__ import annotations

import json
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest

from singa_dask.data import Manifest
from singa_dask.errors import DataError

MISSING = object()


def test_a_manifest_survives_the_round_trip(images):
    again = Manifest.load(images.folder)
    assert again == images
    assert (again.digest, again.folder) == (images.digest, images.folder)
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


def every(place: tuple[str | int, ...], **values: list[object]) -> list[tuple]:
    return [((*place, key), value) for key in values for value in values[key]]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *every((), format=["zip"], version=[3, True], hash=["md5"], total=[204], window=[0, 9], order=[None]),
        *every((), columns=[[], [1]], in_place=["yes"], encoders=[[1]], notes=[[1]], shards=[[], [1]]),
        *every(("columns", 0), name=["", "a/b", "y"], role=["input"], dtype=["object", MISSING], channels=["HWC"]),
        *every(("columns", 0), shape=[[3, -2], [3, 4, 10**12], [1, 1, 1, 1, 1], "3 4 2"], dataset=["../x"]),
        *every(("columns", 0), mean=[[1.0, 2.0, 3.0], [1.0, float("nan")]], std=[None]),
        *every(("columns", 0), classes=[["a", "a"], 0], names=[["a"]]),
        *every(("shards", 0), file=["../shard-00000.h5", "/etc/passwd", "shard-00001.h5"], samples=[0]),
        *every(("shards", 0), windows=[[], ["xyz"] * 9]),
    ],
)
def test_every_false_field_is_an_error_that_names_it(images, place, value):
    path = images.folder / "manifest.json"
    fields = json.loads(path.read_text())
    *groups, key = place
    if value is MISSING:
        del reduce(getitem, groups, fields)[key]
    else:
        reduce(getitem, groups, fields)[key] = value
    path.write_text(json.dumps(fields))
    named = "shards" if (key, value) == ("window", 9) else place[0]
    with pytest.raises(DataError, match=rf"manifest\.json: {named}.*Received.*singa-dask shard"):
        Manifest.load(images.folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\xff"])
def test_what_is_no_json_object_is_an_error(tmp_path: Path, text):
    (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"manifest\.json"):
        Manifest.load(tmp_path)


def test_a_folder_without_manifest_is_an_error_with_a_way_out(tmp_path: Path):
    with pytest.raises(DataError, match=r"not a folder of shards.*singa-dask shard"):
        Manifest.load(tmp_path)
