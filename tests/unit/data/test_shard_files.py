"""From files of the user's to shards."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from support.sources import record_proto, write_kvfile

from singa_dask.data import Manifest, ShardFolder, shard_files
from singa_dask.data.columns import Channels, Role
from singa_dask.errors import ConfigError, DataError

FIELDS = np.random.default_rng(0).standard_normal((60, 3, 6, 6)).astype("f4")


def stored(manifest: Manifest, name: str = "x") -> np.ndarray:
    """All values of a column (N, ...)."""
    folder = ShardFolder(manifest)
    folder.verify()
    found = np.concatenate([folder.reader(i).column(name) for i in range(len(manifest.shards))])
    return found.reshape(-1, *manifest.column(name).shape)


@pytest.fixture
def h5(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["data/X"], file["data/y"] = FIELDS, FIELDS.mean((1, 2, 3))
        file["data/kind"] = np.arange(60) % 4
        file["data/w"] = np.ones(60, "f4")
    return tmp_path / "f.h5"


def test_fields_and_targets_come_from_hdf5(tmp_path, h5):
    made = shard_files("hdf5", tmp_path / "out", 2, source=h5, x="data/X", y=["data/y", "data/kind"], weight="data/w")
    manifest = made[""]
    assert [(column.name, column.role, column.dtype) for column in manifest.columns] == [
        ("x", Role.FEATURE, "float32"),
        ("y", Role.TARGET, "float32"),
        ("kind", Role.LABEL, "int64"),
        ("weight", Role.WEIGHT, "float32"),
    ]
    assert (manifest.features.channels, len(manifest.shards)) == (Channels.FIRST, 2)
    x = stored(manifest)
    np.testing.assert_allclose(stored(manifest, "y"), x.mean((1, 2, 3)), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(np.sort(x, axis=0), np.sort(FIELDS, axis=0))
    assert not np.array_equal(x, FIELDS)


@pytest.mark.parametrize(("options", "role"), [({}, Role.LABEL), ({"target": True}, Role.TARGET)])
def test_hdf5_files_are_indexed_in_place(tmp_path, h5, options, role):
    y = {"target": "data/kind"} if options else {"y": "data/kind"}
    before = h5.read_bytes()
    manifest = shard_files("hdf5", tmp_path / "out", source=h5, x="data/X", **y, weight="data/w", in_place=True)[""]
    assert manifest.in_place and h5.read_bytes() == before
    assert [(c.name, c.role, c.dataset) for c in manifest.columns] == [
        ("x", Role.FEATURE, "data/X"),
        ("y", role, "data/kind"),
        ("weight", Role.WEIGHT, "data/w"),
    ]
    np.testing.assert_array_equal(stored(manifest), FIELDS)


@pytest.mark.parametrize(
    ("text", "options", "x", "y", "classes"),
    [
        ("1,2,3\n0,4,5\n", {}, [[2, 3], [4, 5]], [1, 0], 2),  # SINGA: the label comes first
        ("a,b,kind\n1,2,x\n3,4,w\n", {"label": "kind"}, [[1, 2], [3, 4]], [1, 0], ("w", "x")),
        ("a,b,y\n1,p,0.5\n3,q,1.5\n", {}, [[1, 1, 0], [3, 0, 1]], [0.5, 1.5], None),
        ("a,y\n1,0\n,1\n3,1\n", {"missing": "mean"}, [[1], [2], [3]], [0, 1, 1], 2),
    ],
)
def test_tables_come_from_csv(tmp_path, text, options, x, y, classes):
    (tmp_path / "t.csv").write_text(text)
    manifest = shard_files("csv", tmp_path / "out", source=tmp_path / "t.csv", shuffle=False, **options)[""]
    np.testing.assert_array_equal(stored(manifest), x)
    np.testing.assert_array_equal(stored(manifest, "y"), y)
    assert manifest.column("y").classes == classes


def test_float_targets_of_a_csv_are_never_classes(tmp_path):
    """The first of the ten bugs of 22."""
    np.savetxt(tmp_path / "r.csv", np.random.default_rng(0).random((500, 4)), delimiter=",")
    for options in ({"label": -1, "header": False}, {"header": False}, {"target": 0, "header": False}):
        made = shard_files("csv", tmp_path / "out", source=tmp_path / "r.csv", overwrite=True, **options)[""]
        assert (made.column("y").role, made.column("y").classes) == (Role.TARGET, None)
    (tmp_path / "n.csv").write_text("a,n\n" + "".join(f"{i},{i}\n" for i in range(300)))
    with pytest.raises(DataError, match=r"300 different whole numbers .*--target.*--label"):
        shard_files("csv", tmp_path / "out", source=tmp_path / "n.csv", y="n", overwrite=True)


def test_tables_come_from_parquet_with_shares(tmp_path):
    frame = pd.DataFrame({"a": np.arange(100.0), "b": ["u", "v"] * 50, "target": np.arange(100.0) * 2})
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=30)
    made = shard_files("parquet", tmp_path / "out", source=tmp_path / "t.parquet", validation=0.2, test=0.1)
    assert {split: manifest.total for split, manifest in made.items()} == {"train": 70, "validation": 20, "test": 10}
    x, y = stored(made["train"]), stored(made["train"], "y")
    np.testing.assert_array_equal(y, 2 * x[:, 0])
    assert [encoder["column"] for encoder in made["test"].encoders] == ["a", "b"]


@pytest.mark.parametrize(
    ("train", "test", "classes", "numbers"),
    [
        ([0, 1, 2, 1], [2, 0], 3, [2, 0]),
        ([3, 5, 9, 5], [9, 3], ("3", "5", "9"), [2, 0]),
        (["c", "a", "b", "a"], ["b", "b"], ("a", "b", "c"), [1, 1]),
        ([0.5, 1.5, 2.5, 1], [0, 1], None, [0, 1]),
    ],
)
def test_test_samples_have_the_classes_of_the_training_samples(tmp_path, train, test, classes, numbers):
    arrays = {"x_train": np.ones((4, 2)), "y_train": np.array(train), "x_test": np.ones((2, 2))}
    np.savez(tmp_path / "a.npz", y_test=np.array(test), **arrays)
    made = shard_files("npz", tmp_path / "out", source=tmp_path / "a.npz")
    assert {manifest.folder for manifest in made.values()} == {tmp_path / "out" / "train", tmp_path / "out" / "test"}
    assert made["train"].column("y").classes == classes
    assert made["test"].column("y").num_classes == made["train"].column("y").num_classes
    assert stored(made["test"], "y").tolist() == numbers


def test_unknown_classes_in_test_samples_are_an_error(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        x_train=np.ones((4, 2)),
        y_train=np.array([3, 5, 9, 5]),
        x_test=np.ones((2, 2)),
        y_test=np.array([3, 4]),
    )
    with pytest.raises(DataError, match=r"the label '4' .* is not one of the 3 classes"):
        shard_files("npz", tmp_path / "out", source=tmp_path / "a.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_only_training_samples_are_shuffled(tmp_path):
    x = np.arange(200.0)[:, np.newaxis]
    np.savez(tmp_path / "a.npz", x_train=x, y_train=x[:, 0], x_test=x, y_test=x[:, 0])
    made = shard_files("npz", tmp_path / "out", source=tmp_path / "a.npz")
    assert stored(made["test"]).tolist() == x.tolist() != stored(made["train"]).tolist()
    made = shard_files("npz", tmp_path / "out", source=tmp_path / "a.npz", shuffle=False, overwrite=True)
    assert stored(made["train"]).tolist() == x.tolist()


def test_samples_without_labels_keep_their_order(tmp_path):
    (tmp_path / "t.csv").write_text("".join(f"{i},1\n" for i in range(300)))
    for options, same in (
        ({"label": "none"}, True),
        ({"label": 1}, False),
        ({"label": "none", "shuffle": True}, False),
    ):
        out = tmp_path / "out"
        made = shard_files("csv", out, source=tmp_path / "t.csv", header=False, overwrite=True, **options)[""]
        assert (stored(made)[:, 0].tolist() == list(range(300))) is same


def test_singas_records_become_images(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (30, 3, 4, 4), dtype=np.uint8)
    records = [record_proto(image, number % 3) for number, image in enumerate(images)]
    for name in ("train_data.bin", "test_data.bin"):
        write_kvfile(tmp_path / name, records)
    made = shard_files("kvfile", tmp_path / "out", source=tmp_path)
    manifest = made["test"]
    assert (manifest.features.channels, manifest.features.dtype) == (Channels.FIRST, "uint8")
    np.testing.assert_array_equal(stored(manifest), images)
    assert stored(manifest, "y").tolist() == [number % 3 for number in range(30)]


@pytest.mark.parametrize(
    ("arguments", "options", "fault"),
    [
        (("minst",), {}, "Did you mean mnist"),
        (("csv",), {}, "source: is missing: csv needs a file or folder"),
        (("text",), {}, "source: is missing: text needs a file or folder"),
        (("csv",), {"source": "x", "lable": 1}, r"lable: is not an option of csv.*Did you mean label"),
        (("digits",), {"resize": 3}, r"resize: is not an option of digits"),
        (("csv",), {"source": "x", "in_place": True}, "in_place: is for hdf5 only"),
        (("hdf5",), {"source": "x", "in_place": True, "test": 0.5}, "test: is not an option of hdf5"),
    ],
)
def test_unknown_names_and_options_are_errors_with_the_nearest_name(tmp_path, arguments, options, fault):
    with pytest.raises(ConfigError, match=fault):
        shard_files(*arguments, tmp_path / "out", **options)


def test_splits_of_the_source_and_shares_exclude_each_other(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.ones((4, 2)), x_test=np.ones((4, 2)))
    with pytest.raises(
        ConfigError, match=r"validation: is a share .* the splits train, test already.*validation_share"
    ):
        shard_files("npz", tmp_path / "out", source=tmp_path / "a.npz", validation=0.5)


def test_in_place_needs_one_split(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name in ("x_train", "x_test"):
            file[name] = np.ones((4, 2))
    with pytest.raises(ConfigError, match="in_place: needs one split, but the source has train, test"):
        shard_files("hdf5", tmp_path / "out", source=tmp_path / "f.h5", in_place=True)


@pytest.mark.parametrize("what", ["csv", "hdf5", "images", "kvfile", "netcdf", "npz", "parquet", "text", "zarr"])
def test_missing_sources_are_errors(tmp_path, what):
    with pytest.raises(DataError, match="nowhere"):
        shard_files(what, tmp_path / "out", source=tmp_path / "nowhere")
