"""What holds for files of every format."""

import os
import sys

import numpy as np
import pandas as pd
import pytest
import zarr
from support.sources import CONTENT, read_all, record_proto, write_file

from singa_dask.data.sharding import FORMATS, shard_files
from singa_dask.data.sources import files, hdf5, images, kvfile, npz, parquet
from singa_dask.errors import ConfigError, DataError

DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((50, 3, 4, 5)).astype("f4")
Y = np.arange(50) % 4
CHUNKED = {"x": {"data": X, "chunks": (8, 3, 4, 5)}, "y": {"data": Y, "chunks": (7,)}}
FRAME = pd.DataFrame({"f": np.linspace(-1, 1, 40), "label": np.arange(40) % 3})
PIXELS = DRAW.integers(0, 256, (8, 3, 4, 3), np.uint8)
IMAGES = {f"{'ant' if i < 4 else 'bee'}/{i}.png": image for i, image in enumerate(PIXELS)}
RECORD = record_proto(PIXELS[0], 1)


@pytest.mark.parametrize(
    ("kind", "content", "options", "limits", "sizes"),
    [
        ("hdf5", CHUNKED, {}, (20 * (240 + 8), 1 << 20), [16, 16, 16, 2]),
        ("hdf5", CHUNKED, {}, (1, 1 << 20), [8] * 6 + [2]),
        ("hdf5", CHUNKED, {}, (1, 5 * (240 + 8)), [5] * 10),
        ("zarr", CHUNKED, {"version": 2}, (20 * (240 + 8), 1 << 20), [16, 16, 16, 2]),
        ("zarr", CHUNKED, {"version": 3}, (20 * (240 + 8), 1 << 20), [16, 16, 16, 2]),
        ("netcdf", {"x": X, "y": Y}, {"encoding": {"x": {"chunksizes": (4, 3, 4, 5)}}}, (2300, 9999), [8] * 6 + [2]),
        ("npz", {"x": X, "y": Y}, {}, (20 * (240 + 8), 1 << 20), [20, 20, 10]),
        ("npz", {"x": np.asfortranarray(X), "y": Y}, {}, (20 * (240 + 8), 1 << 20), [50]),
        ("npz", {"x": np.zeros_like(X), "y": Y}, {"packed": True}, (1000, 2 * 6000), [48, 2]),
        ("parquet", FRAME, {"row_group_size": 7}, (16 * 16, 1 << 20), [14, 14, 12]),
        ("parquet", FRAME, {"row_group_size": 7}, (16 * 16, 5 * 16), [5, 2] * 5 + [5]),
        ("images", IMAGES, {}, (3 * 36, 0), [3, 3, 2]),
        ("kvfile", [RECORD] * 8, {}, (3 * len(RECORD), 0), [3, 3, 2]),
    ],
)  # fmt: skip
def test_blocks_have_a_limited_size_and_whole_chunks(tmp_path, monkeypatch, kind, content, options, limits, sizes):
    path = write_file(kind, tmp_path / f"f.{kind}", content, **options)
    expected = read_all(FORMATS[kind].load(path)[""])
    for module in (files, parquet, images, kvfile):
        monkeypatch.setattr(module, "BLOCK_NBYTES", limits[0])
    for module in (files, parquet, npz):
        monkeypatch.setattr(module, "MAX_BLOCK_NBYTES", limits[1])
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 3)
    source = FORMATS[kind].load(path)[""]
    assert [len(next(iter(block.read().values()))) for block in source.blocks] == sizes
    for name, values in read_all(source).items():
        np.testing.assert_array_equal(values, expected[name])
        if isinstance(content, dict) and name in content:
            given = content[name]
            np.testing.assert_array_equal(values, given["data"] if isinstance(given, dict) else given)


@pytest.mark.parametrize("kind", ["hdf5", "npz"])
@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["x", "y"], {"": (("x",), ("y",))}),
        (["in/Images", "in/Labels"], {"": (("Images",), ("Labels",))}),
        (["train/x", "train/y", "test/x", "test/y"], {"train": (("x",), ("y",)), "test": (("x",), ("y",))}),
        (["x_train", "y_train", "x_val"], {"train": (("x_train",), ("y_train",)), "validation": (("x_val",), ())}),
        (["whatever/data"], {"": (("data",), ())}),
    ],
)
def test_usual_names_need_no_options(tmp_path, kind, names, found):
    content = {name: np.zeros((4, 2) if name.lower().split("/")[-1][0] != "y" else 4) for name in names}
    made = FORMATS[kind].load(write_file(kind, tmp_path / "f", content))
    assert {split: (source.x, source.y) for split, source in made.items()} == found


@pytest.mark.parametrize("names", [["a", "b"], ["x", "data", "y"], ["x", "temperature"], ["x", "y", "x_test"]])
def test_other_names_are_listed_with_an_example(tmp_path, names):
    content = {name: np.zeros((4, 5 - place)) for place, name in enumerate(names)}
    path = write_file("hdf5", tmp_path / "f.h5", content)
    with pytest.raises(DataError, match=r"\(--x\)") as caught:
        hdf5.FORMAT.load(path)
    assert all(f"  {name}" in str(caught.value) for name in names)
    assert f"--x {names[0]} --y {names[-1]}" in str(caught.value) and "float64 (4, 5)" in str(caught.value)


@pytest.mark.parametrize("kind", ["hdf5", "npz", "zarr"])
@pytest.mark.parametrize(
    ("content", "options", "error", "says"),
    [
        ({"x": np.ones((4, 2)), "y": np.ones(3)}, {"x": "x", "y": "y"}, DataError, "x has 4 samples, but y has 3"),
        ({"x": np.ones((0, 2))}, {}, DataError, "x has no samples"),
        ({}, {}, DataError, r"\(--x\).*\n.*holds no datasets"),
        ({"x": np.ones(3)}, {"x": "xx"}, DataError, r"has no dataset 'xx'.*\n?.*The file holds:\n  x  float64 \(3,\)"),
        ({"x": np.ones(3)}, {"y": "x"}, DataError, r"\(--x\)"),
        ({"x": np.float64(3)}, {"x": "x"}, DataError, "x is a single value"),
        ({"x": np.array([["a"], ["b"]], "U1")}, {"x": "x"}, DataError, "x holds texts, which only labels and the col"),
        ({"x": np.ones((4, 2)), "y": np.ones(4)}, {"x": "x", "y": "x"}, ConfigError, "'x'. Name it once"),
        ({"x": np.ones((4, 2))}, {"x": "x", "channels": "third"}, ConfigError, "channels.*first, last or none"),
    ],
)
def test_arrays_that_cannot_be_used_are_named(tmp_path, kind, content, options, error, says):
    path = write_file(kind, tmp_path / f"f.{kind}", content)
    with pytest.raises(error, match=says):
        shard_files(kind, tmp_path / "out", source=path, **options)
    assert [left.name for left in tmp_path.iterdir()] == [path.name]


TABLES = {"csv": FRAME.assign(k="a"), "parquet": FRAME.assign(k="a")}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("columns", "options", "error", "says"),
    [
        (["f", "k"], {}, DataError, r"\(--label NAME\).*\n.*\n  f  number"),
        (["f", "label"], {"label": "lable"}, DataError, "'lable'. Did you mean label"),
        (["f", "label"], {"label": 2}, DataError, "columns 0 to 1. Received: 2"),
        (["label"], {}, DataError, "no feature columns besides 'label'"),
        (["f", "label"], {"drop": ["label"], "y": "label"}, ConfigError, "drop: .*'label'"),
    ],
)
def test_tables_that_cannot_be_used_name_the_column(tmp_path, kind, columns, options, error, says):
    path = write_file(kind, tmp_path / f"f.{kind}", TABLES[kind][columns])
    with pytest.raises(error, match=says):
        shard_files(kind, tmp_path / "out", source=path, **options)
    assert [left.name for left in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("hdf5", "cannot be read .*whole HDF5 file"),
        ("images", "cannot be read|damaged"),
        ("kvfile", r"the record at byte \d+ is not complete. Is it a whole kvfile|holds no records"),
        ("netcdf", "cannot be read .*whole netCDF 4 file"),
        ("npz", r"cannot be read .*numpy\.savez"),
        ("parquet", "cannot be read .*whole Parquet file"),
        ("zarr", "cannot be read .*whole Zarr store"),
    ],
)
def test_files_that_are_not_whole_are_refused(tmp_path, kind, says, damage):
    path = write_file(kind, tmp_path / f"f.{kind}", CONTENT[kind])
    (file,) = [path] if path.is_file() else [*path.glob("x/zarr.json"), *path.glob("ant/*")]
    data = file.read_bytes()
    file.write_bytes({"cut": data[: len(data) * 2 // 5], "text": b"hello" * 1000, "empty": b""}[damage])
    with pytest.raises(DataError, match=rf"f\.{kind}.*: ({says})"):
        shard_files(kind, tmp_path / "out", source=path)


EVEN = np.arange(9000.0).reshape(50, 180)
PACKED = {"x": {"data": EVEN, "chunks": (50, 180), "compression": "gzip"}}


@pytest.mark.parametrize(
    ("kind", "content", "options", "says"),
    [
        ("hdf5", PACKED, {}, "x, samples 0 to 49 cannot be read .* damaged"),
        ("npz", {"x": EVEN}, {}, "cannot be read"),
        ("npz", {"x": EVEN}, {"packed": True}, "cannot be read"),
        ("parquet", {"x": EVEN.ravel(), "y": 0}, {"compression": "zstd"}, "cannot be read"),
        ("zarr", {"x": {"data": EVEN, "compressors": zarr.codecs.GzipCodec()}}, {}, "cannot be read"),
    ],
)
def test_damaged_values_are_noticed(tmp_path, kind, content, options, says):
    path = write_file(kind, tmp_path / f"f.{kind}", content, **options)
    source = FORMATS[kind].load(path)[""]
    largest = max([path, *path.rglob("*")], key=lambda file: file.is_file() and file.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = b"\xff" * 64
    largest.write_bytes(bytes(data))
    with pytest.raises(DataError, match=rf"f\.{kind}: {says}"):
        read_all(source)


@pytest.mark.parametrize("kind", ["csv", "hdf5", "npz"])
def test_files_that_shrink_or_vanish_are_noticed(tmp_path, kind):
    path = write_file(kind, tmp_path / "f", CONTENT[kind])
    source = FORMATS[kind].load(path)[""]
    write_file(kind, path, {name: values[:1] for name, values in CONTENT[kind].items()})
    with pytest.raises(DataError, match=r"has changed since|was truncated"):
        read_all(source)
    path.unlink()
    with pytest.raises(DataError, match="Every worker must reach the files"):
        read_all(source)


@pytest.mark.parametrize("kind", FORMATS)
def test_keys_of_blocks_change_with_the_file(tmp_path, kind):
    path = write_file(kind, tmp_path / f"f.{kind}", CONTENT[kind])
    before = [block.key for block in FORMATS[kind].load(path)[""].blocks]
    assert before == [block.key for block in FORMATS[kind].load(path)[""].blocks]
    for file in (path, *path.rglob("*")):
        os.utime(file, (1, 1))
    assert before != [block.key for block in FORMATS[kind].load(path)[""].blocks]


@pytest.mark.parametrize("kind", [*FORMATS, "text"])
def test_missing_files_are_refused(tmp_path, kind):
    with pytest.raises(DataError, match="nowhere"):
        shard_files(kind, tmp_path / "out", source=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("source", "says"), [("nowhere.h5", "does not exist"), ("no*.h5", "no file matches"), (".", "holds no files")]
)
def test_missing_files_are_told_apart(tmp_path, monkeypatch, source, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=says):
        hdf5.FORMAT.load(source, x="x")


@pytest.mark.parametrize("kind", [name for name, each in FORMATS.items() if each.contents])
def test_contents_are_listed(tmp_path, kind):
    listed = FORMATS[kind].listing(write_file(kind, tmp_path / f"f.{kind}", CONTENT[kind]))
    assert all(f"  {name} " in listed for name in CONTENT[kind])


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [
        ("csv", "pyarrow.csv", "tables"),
        ("images", "PIL.Image", "datasets"),
        ("netcdf", "h5netcdf", "fields"),
        ("parquet", "pyarrow.parquet", "tables"),
        ("zarr", "zarr", "fields"),
    ],
)
def test_a_missing_library_names_the_extra(tmp_path, monkeypatch, kind, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=rf"{module} is not installed.*pip install '\.\[{extra}\]'"):
        FORMATS[kind].load(tmp_path)
