"""Shards and manifests from outside: what is wrong is a DataError that names the file, never a wrong batch."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.shards import write_shards
from support.special_files import put

from singa_dask import load
from singa_dask.data import Manifest, ShardFolder
from singa_dask.data.schema import Schema
from singa_dask.data.shards import window_hash
from singa_dask.errors import DataError

SHAPE = (67, 3, 4, 2)
ZEROS = np.zeros(SHAPE, "u1")


def first(manifest: Manifest) -> Path:
    return manifest.path_in(manifest.shards[0].file)


def write(path: Path, labels=None, **x) -> None:
    """A shard in place of the first one. x: of its features; by default they are zeros."""
    path.unlink()
    with h5py.File(path, "w") as file:
        file.create_dataset("y", data=np.zeros(67, "<i8") if labels is None else labels)
        if "make" in x:
            x["make"](file)
        else:
            file.create_dataset("x", **(x or {"data": ZEROS}))


def test_good_shards_are_read_as_they_were_written(images, image_arrays):
    folder = ShardFolder(images)
    folder.verify()
    readers = [folder.reader(i) for i in range(3)]
    for name, given in zip("xy", image_arrays, strict=True):
        found = np.concatenate([reader.column(name) for reader in readers])
        np.testing.assert_array_equal(found.reshape(given.shape), given)
    assert not readers[0].column("x").flags.writeable
    assert folder.reader(0) is readers[0]


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_flipped_bit_is_found_on_first_use_of_its_window(images, name):
    path = images.path_in(images.shards[1].file)
    with h5py.File(path) as file:
        offset = file[name].id.get_offset() + 12 * file[name][0].nbytes  # sample 12: window 1
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)
    reader = ShardFolder(images).reader(1)
    reader.check_windows(np.array([0, 2]))
    with pytest.raises(DataError, match=r"shard-00001.h5: window 1 \(samples 8 to 15\) is damaged.*singa-dask shard"):
        reader.check_windows(np.array([0, 1]))
    with pytest.raises(DataError, match="is damaged"):
        load(images.folder)


def external_link(file: h5py.File) -> None:
    file["x"] = h5py.ExternalLink("shard-00001.h5", "x")


def soft_link(file: h5py.File) -> None:
    file["other"] = ZEROS
    file["x"] = h5py.SoftLink("/other")


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(SHAPE, "u1")
    layout[:] = h5py.VirtualSource("shard-00001.h5", "x", shape=SHAPE)
    file.create_virtual_dataset("x", layout)


@pytest.mark.parametrize(
    ("x", "fault"),
    [
        ({"make": external_link}, "link"),
        ({"make": soft_link}, "link"),
        ({"make": virtual}, "virtual"),
        ({"make": lambda file: file.create_group("x")}, "not a dataset"),
        ({"make": lambda file: file.create_dataset("feature", data=ZEROS)}, "no dataset 'x'"),
        ({"shape": SHAPE, "dtype": "u1", "external": [("/etc/passwd", 0, ZEROS.nbytes)]}, "external storage"),
        ({"shape": SHAPE, "dtype": "u1"}, "truncated"),  # HDF5 itself allocates late
        ({"shape": (10**9, 10**4, 1, 1), "dtype": "u1"}, r"has the shape \(1000000000"),
        ({"data": ZEROS, "chunks": SHAPE}, "contiguous"),
        ({"data": ZEROS, "compression": "gzip"}, "contiguous"),
        ({"data": ZEROS.astype("i1")}, "holds int8, but must hold uint8"),
        ({"data": ZEROS.astype("f4")}, "holds float32"),
        ({"data": ZEROS.astype("S1")}, "only plain numbers"),
        ({"data": np.zeros(SHAPE, [("a", "u1")])}, "only plain numbers"),
        ({"data": ZEROS.reshape(67, 2, 4, 3)}, r"has the shape \(67, 2, 4, 3\), but must have \(67, 3, 4, 2\)"),
        ({"data": ZEROS[1:]}, "has the shape"),
        ({"labels": np.zeros(67, "<i4")}, "'y' holds int32, but must hold int64"),
    ],
)
def test_other_datasets_and_what_leads_out_of_the_file_are_refused(images, x, fault):
    write(first(images), **x)
    with pytest.raises(DataError, match=rf"shard-00000\.h5.*{fault}.*singa-dask shard"):
        ShardFolder(images).check()


def test_other_good_data_than_the_manifest_was_written_for_is_damage(images):
    write(first(images))
    ShardFolder(images).check()
    with pytest.raises(DataError, match="window 0"):
        ShardFolder(images).verify()


@pytest.mark.parametrize("content", ["cut", b"", b"not HDF5", None, "fifo"])
def test_what_is_no_hdf5_file_is_an_error(images, content):
    path = first(images)
    if content == "cut":
        os.truncate(path, path.stat().st_size - 100)
    else:
        path.unlink()
    if content == "fifo":
        put(content, path)
    if isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"shard-00000\.h5.*" + ("is a pipe" if content == "fifo" else "")):
        ShardFolder(images).check()


@pytest.mark.parametrize(
    ("label", "classes", "refused"),
    [(-1, 7, True), (0, 7, False), (6, 7, False), (7, 7, True), (-1, None, False)],
)
def test_labels_are_between_zero_and_the_number_of_classes(images, label, classes, refused):
    """Also where whoever wrote the shard gave it hashes that fit."""
    labels = np.arange(67, dtype="<i8") % 7
    labels[20] = label
    write(first(images), labels)
    starts = range(0, 67, images.window)
    hashes = [window_hash([column[a : a + images.window] for column in (ZEROS, labels)]) for a in starts]
    shards = (replace(images.shards[0], windows=tuple(hashes)), *images.shards[1:])
    features, targets = images.columns
    manifest = replace(images, shards=shards, schema=Schema((features, replace(targets, classes=classes))))
    reader = ShardFolder(manifest).reader(0)
    reader.check_windows(np.array([0, 1, 3]))
    for _ in range(2):  # the second time, it was not taken for checked
        if refused:
            with pytest.raises(DataError, match=rf"window 2 has the label {label} in 'y'.* 7 classes \(0 to 6\)"):
                reader.check_windows(np.array([2]))
        else:
            reader.check_windows(np.array([2]))


# As arrays in memory


def test_all_samples_of_all_shards_as_they_were_written(images, image_arrays):
    x, y = load(images.folder)
    for found, given in zip((x, y), image_arrays, strict=True):
        np.testing.assert_array_equal(found, given)
    assert x.dtype == np.uint8
    x[0] = 0  # a copy of the shards, to write to
    np.testing.assert_array_equal(load(images.folder, "x")[0], image_arrays[0])


def test_columns_by_name_and_data_without_labels(tmp_path):
    draw = np.random.default_rng(0)
    x, weight = draw.normal(size=(9, 2)).astype(np.float32), draw.uniform(size=9).astype(np.float32)
    write_shards(tmp_path / "a", x, np.zeros(9, int), 2, weight=weight, classes=1)
    found = load(tmp_path / "a", ["weight", "x"])
    np.testing.assert_array_equal(found[0].ravel(), weight)
    np.testing.assert_array_equal(found[1], x)
    write_shards(tmp_path / "b", x)
    assert load(tmp_path / "b")[1] is None
    with pytest.raises(DataError, match=r"has no column 'wieght'. It has: x, y, weight. Did you mean weight\?"):
        load(tmp_path / "a", "wieght")


def test_named_data_sets_unless_a_folder_of_shards_has_the_name(tmp_path, monkeypatch):
    x, y = load("digits/test")
    np.testing.assert_array_equal(load("dataset:digits/test")[0], x)
    assert (x.shape, y.shape, set(y.tolist())) == ((359, 8, 8, 1), (359,), set(range(10)))
    monkeypatch.chdir(tmp_path)
    write_shards("digits/test", np.ones((3, 2), np.float32))
    assert load("digits/test")[0].shape == (3, 2)
    with pytest.raises(DataError, match="digits has the splits train, test"):
        load("digits/tset")


# Manifests


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
        *every((), format=["zip"], version=["3", True], hash=["md5"], total=[204], window=[0, 9], order=[None]),
        *every(
            (),
            columns=[[], [1]],
            reading=[1],
            fitted=[None],
            in_place=["yes"],
            encoders=[[1]],
            notes=[[1]],
            shards=[[], [1]],
        ),
        *every(
            ("columns", 0),
            name=["", "a/b", "y"],
            role=["input", "row", "file"],
            dtype=["object", MISSING],
            channels=["HWC"],
        ),
        *every(("columns", 0), shape=[[3, -2], [3, 4, 10**12], [1, 1, 1, 1, 1], "3 4 2"], dataset=["../x"]),
        *every(("columns", 0), mean=[[1.0, 2.0, 3.0], [1.0, float("nan")]], std=[None]),
        *every(("columns", 0), classes=[["a", "a"], 0], names=[["a"]]),
        *every(("columns", 1), role=["file"]),
        *every(("reading",), separator=[";;"], header=[1], dates=[{"a": 1}], types=[{"a": "x"}]),
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
