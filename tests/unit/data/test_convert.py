"""Converters: small files of every format, written here."""

from __future__ import annotations

import gzip
import os
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.blocks import stored

from singa_dask.data import shard_files
from singa_dask.data.catalogue import load_recipe, parse_recipe, recipe_names
from singa_dask.data.converters import cifar10, idx
from singa_dask.data.sharding import shard_recipe
from singa_dask.errors import DataError

# digits


def test_digits_are_split_by_class_and_always_in_the_same_way(tmp_path):
    made, again = (shard_files("digits", tmp_path / name, 3) for name in "ab")
    assert again["train"].digest == made["train"].digest
    assert made["train"].features.shape == (8, 8, 1) and made["train"].targets.classes == tuple("0123456789")
    train, test = stored(made["train"]), stored(made["test"])
    assert (len(train["y"]), len(test["y"]), train["x"].max(), train["x"].dtype) == (1438, 359, 16, np.uint8)
    of_class = np.bincount(test["y"])
    assert (abs(of_class / (of_class + np.bincount(train["y"])) - 0.2) < 0.01).all()
    assert (np.diff(train["y"]) < 0).any(), "mixed"
    assert len({row.tobytes() for row in train["x"]} & {row.tobytes() for row in test["x"]}) < 5


# IDX


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def mnist_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mnist"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, count in (("train", 40), ("t10k", 9)):
        images, labels = rng.integers(0, 256, (count, 5, 4), np.uint8), rng.integers(0, 10, count, np.uint8)
        with gzip.open(folder / f"{name}-images-idx3-ubyte.gz", "wb") as file:
            file.write(idx_bytes(images))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))  # unpacked will do
    return folder


def test_idx_files_become_two_splits_in_the_published_order(tmp_path, mnist_folder, caplog):
    made = shard_files("mnist", tmp_path / "out", 2, source=mnist_folder, shuffle=False)
    x, y, _ = stored(made["train"]).values()
    with gzip.open(mnist_folder / "train-images-idx3-ubyte.gz") as file:
        np.testing.assert_array_equal(x[..., 0], np.frombuffer(file.read()[16:], np.uint8).reshape(40, 5, 4))
    np.testing.assert_array_equal(y, list((mnist_folder / "train-labels-idx1-ubyte").read_bytes()[8:]))
    assert (made["test"].total, made["test"].folder) == (9, tmp_path / "out" / "test")
    assert "other checksum" in caplog.text


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "ends 4 bytes early"),
        (struct.pack(">I", 0x00000D03) + bytes(12), "magic number 0x00000d03, expected 0x00000803"),
        (idx_bytes(np.zeros(5, np.uint8)), "expected 0x00000803"),
        (idx_bytes(np.zeros((2, 3, 4), np.uint8))[:-1], "ends 1 bytes early"),
        (idx_bytes(np.zeros((2, 3, 4), np.uint8)) + b"x", "longer than its header says"),
        (struct.pack(">I3I", 0x803, 2**32 - 1, 2**32 - 1, 9), "empty or too large"),
        (struct.pack(">I3I", 0x803, 0, 3, 3), "empty or too large"),
        (gzip.compress(idx_bytes(np.zeros((2, 30, 40), np.uint8)), mtime=0)[:-9], r"f\.gz"),
    ],
)
def test_damaged_idx_files_are_errors(tmp_path, data, fault):
    path = tmp_path / ("f.gz" if data.startswith(b"\x1f\x8b") else "f")
    path.write_bytes(data)
    with pytest.raises(DataError, match=fault):
        idx.read_idx(path, 3)


def test_images_without_labels_are_an_error(tmp_path, mnist_folder):
    (mnist_folder / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(8, np.uint8)))
    with pytest.raises(DataError, match="8 labels for 9 images"):
        shard_files("mnist", tmp_path / "out", source=mnist_folder)
    assert not (tmp_path / "out").exists()


# CIFAR-10


def cifar_records(seed: int, count: int = 6) -> tuple[bytes, np.ndarray, np.ndarray]:
    """File content, images (N, 32, 32, 3) and labels."""
    rng = np.random.default_rng(seed)
    labels, planes = rng.integers(0, 10, (count, 1), np.uint8), rng.integers(0, 256, (count, 3, 32, 32), np.uint8)
    data = np.concatenate([labels, planes.reshape(count, -1)], axis=1).tobytes()
    return data, planes.transpose(0, 2, 3, 1), labels[:, 0]


def cifar_folder(folder: Path, names: list[str]) -> Path:
    folder.mkdir()
    for i, name in enumerate(names):
        (folder / name).write_bytes(cifar_records(i)[0])
    return folder


ALL_FILES = [*cifar10.TRAIN_FILES, cifar10.TEST_FILE]


def test_all_cifar_files_make_the_published_splits(tmp_path, caplog):
    folder = cifar_folder(tmp_path / "raw", ALL_FILES)
    made = shard_files("cifar10", tmp_path / "out", source=folder, shuffle=False)
    train = stored(made["train"])
    np.testing.assert_array_equal(train["x"], np.concatenate([cifar_records(i)[1] for i in range(5)]))
    np.testing.assert_array_equal(train["y"], np.concatenate([cifar_records(i)[2] for i in range(5)]))
    np.testing.assert_array_equal(stored(made["test"])["x"], cifar_records(5)[1])
    assert made["train"].notes == () and caplog.text == ""
    made = shard_files("cifar10", tmp_path / "mixed", source=folder)  # training images alone, with their labels
    mixed = stored(made["train"])
    assert not np.array_equal(mixed["x"], train["x"])
    for name, values in train.items():
        np.testing.assert_array_equal(mixed[name], values[mixed["row"]])
    np.testing.assert_array_equal(stored(made["test"])["x"], cifar_records(5)[1])


def test_the_published_archive_is_read_without_unpacking_it(tmp_path):
    inner = cifar_folder(tmp_path / "inner", ["readme.html", *ALL_FILES])
    folder = tmp_path / "raw"
    folder.mkdir()
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(inner, "cifar-10-batches-bin")
    made = shard_files("cifar10", tmp_path / "out", source=folder)
    assert made["train"].total == 30
    np.testing.assert_array_equal(stored(made["test"])["x"], cifar_records(6)[1])
    assert [p.name for p in folder.iterdir()] == ["cifar-10-binary.tar.gz"]


def test_without_the_test_batch_the_last_one_is_held_out_and_this_is_said(tmp_path, caplog):
    folder = cifar_folder(tmp_path / "raw", ["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin"])
    made = shard_files("cifar10", tmp_path / "out", source=folder)
    assert made["train"].total == 12
    np.testing.assert_array_equal(stored(made["test"])["x"], cifar_records(2)[1])
    for manifest in made.values():
        assert "data_batch_3.bin is used as the test split" in manifest.notes[0]
    assert "Results do not compare" in caplog.text


@pytest.mark.parametrize(
    ("names", "data", "fault"),
    [
        (["data_batch_1.bin"], None, "at least two"),
        (["data_batch_1.bin", "data_batch_2.bin"], b"x" * 3072, "not whole records"),
        (["data_batch_1.bin", "data_batch_2.bin"], b"\xff" * 3073, "labels above 9"),
        (["data_batch_1.bin", "data_batch_2.bin"], b"", "not whole records"),
    ],
)
def test_damaged_cifar_files_are_errors(tmp_path, names, data, fault):
    folder = cifar_folder(tmp_path / "raw", names)
    if data is not None:
        (folder / names[0]).write_bytes(data)
    with pytest.raises(DataError, match=fault):
        shard_files("cifar10", tmp_path / "out", source=folder)


# Recipes


def test_every_recipe_can_be_read():
    assert {"digits", "mnist", "cifar10"} <= set(recipe_names())
    for name in recipe_names():
        recipe = load_recipe(name)
        assert recipe.name == name
        assert all(source.url.startswith("https://") and source.size > 0 for source in recipe.sources)


def test_recipes_inside_an_installed_package_come_first(tmp_path, monkeypatch):
    (tmp_path / "_datasets").mkdir()
    (tmp_path / "_datasets" / "n.toml").write_text(HEAD)
    monkeypatch.setattr("singa_dask.data.catalogue.files", lambda package: tmp_path)
    assert recipe_names() == ["n"]
    assert load_recipe("n").splits == ("train",)


HEAD = 'name="n"\ndescription=""\nformat="idx"\nclasses=["a"]\nsplits=["train"]\n'


def test_recipes_may_give_sha256_and_faults_are_errors(tmp_path):
    text = '[[sources]]\nfile="f"\nurl="https://x"\nsha256="ab"\nsize=3\n'
    assert parse_recipe(HEAD + text, "n.toml").sources[0].checksum == ("sha256", "ab")
    with pytest.raises(DataError, match=r"n\.toml: is not a valid data set recipe"):
        parse_recipe(text, "n.toml")
    with pytest.raises(DataError, match="format 'digit' is unknown"):
        shard_recipe(replace(load_recipe("digits"), format="digit"), tmp_path / "out", 1)


# The real data sets, where they are


@pytest.mark.parametrize(
    ("name", "train", "test", "shape", "counts"),
    [
        ("mnist", 60_000, 10_000, (28, 28, 1), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
        ("cifar10", None, 10_000, (32, 32, 3), None),
    ],
)
def test_real_data_sets(tmp_path, name, train, test, shape, counts):
    folder = os.environ.get("SINGA_DASK_DATA")
    if not folder or not (Path(folder) / name).is_dir():
        pytest.skip(f"{name} is not in the folder named by SINGA_DASK_DATA")
    made = shard_files(name, tmp_path / "out", 4, source=Path(folder) / name)
    assert train in (None, made["train"].total) and test == made["test"].total
    assert made["train"].features.shape == shape
    x, y, *_ = stored(made["test"]).values()
    assert np.abs(np.bincount(y) - (counts or 1000)).max() < (1 if counts else 150)
    assert 20 < x.mean() < 140
