"""Files whose headers promise what no machine has, and machines that lack what a reader needs: one sentence each."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.limits import few_files, little_memory, small_disk
from support.shards import write_shards
from support.sources import CONTENT, write_file

from singa_dask.data import Manifest
from singa_dask.data.sharding import shard_files
from singa_dask.data.shards import ShardFolder
from singa_dask.errors import DataError


def hdf5(path: Path, shape: tuple[int, ...]) -> None:
    """An HDF5 file of a few kilobytes with a dataset of this shape."""
    chunks = (1, *(min(axis, 32) for axis in shape[1:]))
    with h5py.File(path, "w") as file:
        file.create_dataset("x", shape, "f4", chunks=chunks)[(0,) * len(shape)] = 1
        file.create_dataset("y", shape[:1], "i4", chunks=(min(shape[0], 1024),))[0] = 1


def npz(path: Path, header: str, rows: int = 4) -> None:
    """A .npz file of a few bytes whose array x has this header, and whose array y so many rows."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (("x", header), ("y", of_shape(f"({rows},)"))):
            head = text.encode() + b" " * (-(len(text) + 11) % 64) + b"\n"
            archive.writestr(f"{name}.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head + bytes(64))


def zarr(path: Path, shape: list[int], chunks: list[int]) -> None:
    """A Zarr store without values."""
    write_file("zarr", path, CONTENT["zarr"], version=2)
    for name, whole, part in (("x", shape, chunks), ("y", shape[:1], [1024])):
        metadata = path / name / ".zarray"
        metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"shape": whole, "chunks": part}))


def of_shape(shape: str) -> str:
    return f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"


@pytest.mark.parametrize(
    ("make", "header", "says"),
    [
        (
            hdf5,
            [(4, 10**15)],
            r"f\.hdf5: a sample of x has 4,000,000,000,000,000 bytes; at most 256 MiB .* Cut the samples",
        ),
        (hdf5, [(4, 2**20, 2**20, 2**10)], r"f\.hdf5: a sample of x has "),
        (hdf5, [(10**14, 4)], r"f\.hdf5: holds 100,000,000,000,000 samples by its header.* Copy it again"),
        (npz, [of_shape(f"({10**15}, 4)"), 10**15], r"f\.npz: x ends early.* Write it with"),
        (npz, [of_shape(f"(4, {10**15})")], r"f\.npz: x ends early"),
        (npz, [of_shape(f"(4, {10**40})")], r"f\.npz: x ends early"),
        (npz, ["(" * 3000], r"f\.npz: cannot be read \("),
        (npz, ["{" * 200 + "}" * 200], r"f\.npz: cannot be read \("),
        (npz, [of_shape("(4, -2)")], r"f\.npz: x has the shape \(4, -2\)"),
        (zarr, [[4, 10**15], [1, 10**15]], r"f\.zarr: a sample of x has "),
        (zarr, [[10**14, 4], [10**14, 4]], r"f\.zarr: holds 100,000,000,000,000 samples by its header"),
        (zarr, [[4, 2], [0, 0]], r"f\.zarr: cannot be read"),
    ],
)
def test_absurd_sizes(tmp_path, make, header, says):
    kind = make.__name__
    make(tmp_path / f"f.{kind}", *header)
    with little_memory(1 << 29), small_disk(1 << 26), pytest.raises(DataError, match=says) as refused:
        shard_files(kind, tmp_path / "out", source=tmp_path / f"f.{kind}", x="x", y="y")
    assert len(str(refused.value)) < 500 and os.listdir(tmp_path) == [f"f.{kind}"]


@pytest.mark.parametrize("resize", ["1000000x1000000", str(10**12)])
def test_images_are_not_scaled_beyond_what_a_sample_may_have(tmp_path, resize):
    source = write_file("images", tmp_path / "images", CONTENT["images"])
    with pytest.raises(DataError, match=r"a sample of x has .*; at most 256 MiB .*--resize"):
        shard_files("images", tmp_path / "out", source=source, resize=resize)


def test_samples_that_do_not_fit_on_the_disk_are_refused_before_it_is_full(tmp_path, monkeypatch):
    hdf5(tmp_path / "f.hdf5", (10**9, 4))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10**9}))
    monkeypatch.setattr("singa_dask.data.sources.arrays.RowsBlock.read", lambda block: pytest.fail("was read"))
    with pytest.raises(DataError, match=r"out: its disk has 1\.0 GB free, and the samples need 20\.0 GB"):
        shard_files("hdf5", tmp_path / "out", source=tmp_path / "f.hdf5")
    assert os.listdir(tmp_path) == ["f.hdf5"]


@pytest.mark.parametrize("kind", ["csv", "hdf5", "images", "npz", "parquet"])
def test_too_many_open_files(tmp_path, kind):
    """Not "copy the file again": it is in order."""
    source = write_file(kind, tmp_path / f"f.{kind}", CONTENT[kind])
    shard_files(kind, tmp_path / "before", source=source, progress=False)  # imports and compiles
    with few_files(), pytest.raises(DataError, match=r"Too many open files.* Raise the limit: ulimit -n") as refused:
        shard_files(kind, tmp_path / "out", source=source, progress=False)
    assert "opy" not in str(refused.value)
    assert sorted(os.listdir(tmp_path)) == ["before", source.name]


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("csv", "singa_dask.data.sources.csv._trimmed"),
        ("hdf5", "singa_dask.data.sources.hdf5._resolve"),
        ("images", "PIL.Image.Image.convert"),
        ("parquet", "singa_dask.data.sources.parquet._values"),
    ],
)
def test_too_little_memory(tmp_path, kind, where, monkeypatch):
    source = write_file(kind, tmp_path / f"f.{kind}", CONTENT[kind])

    def refuse(*_: Any, **__: Any) -> None:
        raise MemoryError("Unable to allocate 3.55 PiB")

    monkeypatch.setattr(where, refuse)
    with pytest.raises(DataError, match=r"f\.\w+.*Unable to allocate 3\.55 PiB.* more memory") as refused:
        shard_files(kind, tmp_path / "out", source=source, progress=False)
    assert "opy" not in str(refused.value)


def test_shards_that_cannot_be_opened_or_mapped(tmp_path, monkeypatch):
    write_shards(tmp_path / "shards", np.ones((4, 2), "f4"), np.arange(4), 2)
    folder = ShardFolder(Manifest.load(tmp_path / "shards"))
    for more in (0, 1):
        with few_files(more), pytest.raises(DataError, match=r"shard-00000\.h5: .*Raise the limit: ulimit -n"):
            folder.check()
    folder.check()

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("Unable to get dataset (bad symbol table node signature)")

    monkeypatch.setattr("h5py.h5o.open", refuse)
    with pytest.raises(DataError, match=r"shard-00000\.h5: .* cannot be read \(.*signature\)"):
        ShardFolder(Manifest.load(tmp_path / "shards")).check()
