"""From files of the user's to shards."""

import numpy as np
import pandas as pd
import pytest
from support.blocks import stored
from support.sources import write_file

from singa_dask.data import shard_files
from singa_dask.data.columns import Role
from singa_dask.errors import ConfigError, DataError


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
    source = write_file("csv", tmp_path / "t.csv", text)
    manifest = shard_files("csv", tmp_path / "out", source=source, shuffle=False, **options)[""]
    found = stored(manifest)
    assert (found["x"].tolist(), found["y"].tolist()) == (x, y)
    assert manifest.column("y").classes == classes


@pytest.mark.parametrize("options", [{"label": -1}, {}, {"target": 0}])
def test_float_targets_of_a_csv_are_never_classes(tmp_path, options):
    source = write_file("csv", tmp_path / "r.csv", pd.DataFrame(np.random.default_rng(0).random((500, 4))))
    made = shard_files("csv", tmp_path / "out", source=source, header=False, **options)[""]
    assert (made.column("y").role, made.column("y").classes) == (Role.TARGET, None)


def test_categories_may_be_labels(tmp_path):
    (tmp_path / "0.csv").write_text("x,k\n" + "".join(f"{i},{i % 3}\n" for i in range(6)))
    (tmp_path / "1.csv").write_text("x,k\n" + "".join(f"{i},{'a1'[i % 2]}\n" for i in range(6)))
    options = {"source": tmp_path / "*.csv", "label": "k", "overwrite": True}
    with pytest.raises(DataError, match=r"'a' is not a number\..*--category k"):
        shard_files("csv", tmp_path / "out", **options)
    for how, classes in (("onehot", ("0", "1", "2", "a")), (["a", "2", "1", "0"], ("a", "2", "1", "0"))):
        made = shard_files("csv", tmp_path / "out", **options, category="k", encode={"k": how})[""]
        assert made.targets.classes == classes
    with pytest.raises(ConfigError, match=r"encode: names a target, which holds numbers.*'x'"):
        shard_files("csv", tmp_path / "out", **{**options, "label": None, "target": "x"}, encode={"x": "onehot"})


def test_tables_come_from_parquet_with_shares(tmp_path):
    frame = pd.DataFrame({"a": np.arange(100.0), "b": ["u", "v"] * 50, "target": np.arange(100.0) * 2})
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=30)
    made = shard_files("parquet", tmp_path / "out", source=tmp_path / "t.parquet", validation=0.2, test=0.1)
    assert {split: manifest.total for split, manifest in made.items()} == {"train": 70, "validation": 20, "test": 10}
    train = stored(made["train"])
    np.testing.assert_array_equal(train["y"], 2 * train["x"][:, 0])
    assert [encoder.column for encoder in made["test"].encoders] == ["a", "b"]


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
    assert stored(made["test"])["y"].tolist() == numbers


@pytest.mark.parametrize(("shuffle", "same"), [(None, False), (False, True)])
def test_of_splits_of_the_source_only_training_samples_are_shuffled(tmp_path, shuffle, same):
    x = np.arange(200.0)
    source = write_file("npz", tmp_path / "a.npz", {"x_train": x, "y_train": x, "x_test": x, "y_test": x})
    made = shard_files("npz", tmp_path / "out", source=source, shuffle=shuffle)
    assert stored(made["test"])["x"].tolist() == x.tolist()
    assert (stored(made["train"])["x"].tolist() == x.tolist()) == same


@pytest.mark.parametrize("shuffle", [None, False])
def test_samples_drawn_for_a_test_are_shuffled_too(tmp_path, shuffle):
    source = write_file("csv", tmp_path / "t.csv", "".join(f"{i},1\n" for i in range(300)))
    made = shard_files("csv", tmp_path / "out", source=source, header=False, label=1, test=0.5, shuffle=shuffle)
    for manifest in made.values():
        found = stored(manifest)["x"][:, 0].tolist()
        assert (found == sorted(found)) is (shuffle is False)


@pytest.mark.parametrize(
    ("options", "same"),
    [({"label": "none"}, True), ({"label": 1}, False), ({"label": "none", "shuffle": True}, False)],
)
def test_samples_without_labels_keep_their_order(tmp_path, options, same):
    source = write_file("csv", tmp_path / "t.csv", "".join(f"{i},1\n" for i in range(300)))
    made = shard_files("csv", tmp_path / "out", source=source, header=False, **options)[""]
    assert (stored(made)["x"][:, 0].tolist() == [*range(300)]) is same


ONES = np.ones((4, 2))
SPLITS = {"x_train": ONES, "x_test": ONES}


@pytest.mark.parametrize(
    ("what", "content", "options", "error", "fault"),
    [
        ("minst", None, {}, ConfigError, "Did you mean mnist"),
        ("csv", None, {}, ConfigError, "source: is missing: csv needs a file or folder"),
        ("text", None, {}, ConfigError, "source: is missing: text needs a file or folder"),
        ("csv", "1,2", {"lable": 1}, ConfigError, r"lable: is not an option of csv.*Did you mean label"),
        ("digits", None, {"resize": 3}, ConfigError, r"resize: is not an option of digits"),
        ("csv", "1,2", {"in_place": True}, ConfigError, "in_place: is for hdf5 only"),
        (
            "hdf5",
            SPLITS,
            {"in_place": True, "test": 0.5},
            ConfigError,
            "test: needs the samples in shards of their own",
        ),
        (
            "hdf5",
            SPLITS,
            {"in_place": True, "missing": "mean"},
            ConfigError,
            "missing: is of samples that are written, and in_place reads them as they lie",
        ),
        ("hdf5", SPLITS, {"in_place": True}, ConfigError, "in_place: needs one split, but .* train, test"),
        ("npz", SPLITS, {"validation": 0.5}, ConfigError, r"validation: .* train, test already.*validation_share"),
        (
            "npz",
            SPLITS | {"y_train": np.array([3, 5, 9, 5]), "y_test": np.array([3, 4, 3, 3])},
            {},
            DataError,
            "the label '4' .* is not one of the 3 classes",
        ),
        (
            "csv",
            "a,n\n" + "".join(f"{i},{i}\n" for i in range(300)),
            {"y": "n"},
            DataError,
            r"300 different integers .*--target.*--label",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path, what, content, options, error, fault):
    if content is not None:
        options = {**options, "source": write_file(what, tmp_path / "f", content)}
    with pytest.raises(error, match=fault):
        shard_files(what, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
