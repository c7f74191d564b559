"""Shards from outside: whatever is wrong with one is a DataError that names the file, never a wrong batch."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from singa_dask.data import Manifest, ShardFolder
from singa_dask.data.shards import window_hash
from singa_dask.errors import DataError

SHAPE = (67, 3, 4, 2)


def write(path: Path, features=None, labels=None, **options) -> None:
    """A shard in place of the first one; the arguments replace what it should hold."""
    path.unlink()
    with h5py.File(path, "w") as file:
        file.create_dataset("y", data=np.zeros(67, "<i8") if labels is None else labels)
        if callable(features):
            features(file)
        else:
            file.create_dataset("x", data=np.zeros(SHAPE, "u1") if features is None else features, **options)


def read_all(manifest: Manifest) -> None:
    ShardFolder(manifest).verify()


def test_good_shards_are_read_as_they_were_written(images, image_arrays):
    folder = ShardFolder(images)
    folder.verify()
    readers = [folder.reader(i) for i in range(3)]
    np.testing.assert_array_equal(
        np.concatenate([r.column("x") for r in readers]).reshape(image_arrays[0].shape), image_arrays[0]
    )
    np.testing.assert_array_equal(np.concatenate([r.column("y")[:, 0] for r in readers]), image_arrays[1])
    assert not readers[0].column("x").flags.writeable
    assert folder.reader(0) is readers[0]


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_flipped_bit_is_found_on_first_use_of_its_window(images, name):
    path = images.folder / images.shards[1].file
    with h5py.File(path) as file:
        offset = file[name].id.get_offset() + 12 * file[name][0].nbytes  # sample 12: window 1
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))
    reader = ShardFolder(images).reader(1)
    reader.check_windows(np.array([0, 2]))
    with pytest.raises(DataError, match=r"shard-00001.h5: window 1 \(samples 8 to 15\) is damaged.*singa-dask shard"):
        reader.check_windows(np.array([0, 1]))


def test_a_truncated_file_is_found_when_it_is_opened(images):
    path = images.folder / images.shards[0].file
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(DataError, match=r"shard-00000\.h5"):
        ShardFolder(images).check()


def test_data_behind_the_end_of_the_file_is_an_error(images):
    """HDF5 itself allocates late: a file of 6 KB may declare any size."""
    path = images.folder / images.shards[0].file
    write(path, lambda file: file.create_dataset("x", SHAPE, "u1"))
    with pytest.raises(DataError, match="truncated"):
        ShardFolder(images).check()


def test_huge_declared_sizes_are_errors(images):
    path = images.folder / images.shards[0].file
    write(path, lambda file: file.create_dataset("x", (10**9, 10**4, 1, 1), "u1"))
    with pytest.raises(DataError, match=r"shard-00000.h5: 'x' has the shape \(1000000000"):
        ShardFolder(images).check()


def external_link(file: h5py.File) -> None:
    file["x"] = h5py.ExternalLink("shard-00001.h5", "x")


def soft_link(file: h5py.File) -> None:
    file["other"] = np.zeros(SHAPE, "u1")
    file["x"] = h5py.SoftLink("/other")


def external_storage(file: h5py.File) -> None:
    file.create_dataset("x", SHAPE, "u1", external=[("/etc/passwd", 0, int(np.prod(SHAPE)))])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(SHAPE, "u1")
    layout[:] = h5py.VirtualSource("shard-00001.h5", "x", shape=SHAPE)
    file.create_virtual_dataset("x", layout)


def group(file: h5py.File) -> None:
    file.create_group("x")


def nothing(file: h5py.File) -> None:
    file.create_dataset("feature", data=np.zeros(SHAPE, "u1"))


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (external_link, "link"),
        (soft_link, "link"),
        (external_storage, "external storage"),
        (virtual, "virtual"),
        (group, "not a dataset"),
        (nothing, "no dataset 'x'"),
    ],
)
def test_what_leads_out_of_the_file_is_refused(images, make, fault):
    write(images.folder / images.shards[0].file, make)
    with pytest.raises(DataError, match=f"shard-00000.h5.*{fault}.*singa-dask shard"):
        ShardFolder(images).check()


@pytest.mark.parametrize(
    ("data", "options", "fault"),
    [
        (np.zeros(SHAPE, "u1"), {"chunks": SHAPE}, "contiguous"),
        (np.zeros(SHAPE, "u1"), {"compression": "gzip"}, "contiguous"),
        (np.zeros(SHAPE, "i1"), {}, "holds int8, but must hold uint8"),
        (np.zeros(SHAPE, "f4"), {}, "holds float32"),
        (np.zeros(SHAPE, "S1"), {}, "only plain numbers"),
        (np.zeros(SHAPE, np.dtype([("a", "u1")])), {}, "only plain numbers"),
        (np.zeros((67, 2, 4, 3), "u1"), {}, r"has the shape \(67, 2, 4, 3\), but must have \(67, 3, 4, 2\)"),
        (np.zeros((66, 3, 4, 2), "u1"), {}, "has the shape"),
    ],
)
def test_other_types_shapes_and_storage_are_refused(images, data, options, fault):
    write(images.folder / images.shards[0].file, data, **options)
    with pytest.raises(DataError, match=f"shard-00000.h5: 'x' .*{fault}"):
        ShardFolder(images).check()


def test_labels_are_checked_too(images):
    write(images.folder / images.shards[0].file, labels=np.zeros(67, "<i4"))
    with pytest.raises(DataError, match="'y' holds int32, but must hold int64"):
        ShardFolder(images).check()


def test_other_good_data_than_the_manifest_was_written_for_is_damage(images):
    write(images.folder / images.shards[0].file)
    ShardFolder(images).check()
    with pytest.raises(DataError, match="window 0"):
        read_all(images)


@pytest.mark.parametrize("content", [b"", b"not HDF5", None])
def test_what_is_no_hdf5_file_is_an_error(images, content):
    path = images.folder / images.shards[2].file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"shard-00002\.h5"):
        ShardFolder(images).check()


def test_a_pipe_does_not_block(images):
    path = images.folder / images.shards[0].file
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="is a pipe, not a file"):
        ShardFolder(images).check()


def with_labels(manifest: Manifest, labels: np.ndarray) -> Manifest:
    """The manifest of shards of which the first one holds these labels, with hashes that agree."""
    write(manifest.folder / manifest.shards[0].file, labels=labels.astype("<i8"))
    features = np.zeros((len(labels), 24), "u1")
    starts = range(0, len(labels), manifest.window)
    hashes = [window_hash([features[a : a + manifest.window], labels[a : a + manifest.window]]) for a in starts]
    return replace(manifest, shards=(replace(manifest.shards[0], windows=tuple(hashes)), *manifest.shards[1:]))


@pytest.mark.parametrize(("label", "refused"), [(-1, True), (0, False), (6, False), (7, True)])
def test_labels_are_between_zero_and_the_number_of_classes(images, label, refused):
    """Also where whoever wrote the shard gave it hashes that fit: there are 7 classes."""
    labels = np.arange(67) % 7
    labels[20] = label
    manifest = with_labels(images, labels)
    reader = ShardFolder(manifest).reader(0)
    reader.check_windows(np.array([0, 1, 3]))
    if not refused:
        reader.check_windows(np.array([2]))
        return
    with pytest.raises(DataError, match=rf"window 2 has the label {label} in 'y', which has 7 classes \(0 to 6\)"):
        reader.check_windows(np.array([2]))
    with pytest.raises(DataError, match=f"has the label {label}"):
        reader.check_windows(np.array([2]))  # it was not taken for checked


def test_every_label_fits_where_the_number_of_classes_is_unknown(images):
    manifest = with_labels(images, np.arange(67) - 5)
    features, labels = manifest.columns
    ShardFolder(replace(manifest, columns=(features, replace(labels, classes=None)))).verify()
