"""HDF5 files as a source."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from support.sources import read_all

from singa_dask.data.columns import Channels, Role
from singa_dask.data.sources import files, hdf5
from singa_dask.errors import ConfigError, DataError

FIELDS = np.random.default_rng(0).standard_normal((50, 3, 4, 5)).astype("f4")
NUMBERS = np.arange(50.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with most that HDF5 has."""
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("data/X", data=FIELDS, chunks=(8, 3, 4, 5), compression="gzip", shuffle=True)
        file["data/y"] = NUMBERS
        file["data/big"] = FIELDS.astype(">f8")
        file["data/flags"] = NUMBERS > 20
        file["short"] = NUMBERS[:49]
        file["one"] = 3.0
        file["nothing"] = h5py.Empty("f4")
        file["names"] = np.array(["kæt", "dog"] * 25, object)
        file["codes"] = np.array([b"a", b"bc"] * 25)
        kinds = h5py.enum_dtype({"dog": 4, "ant": 1}, "i1")
        file.create_dataset("kinds", data=np.array([4, 1] * 25), dtype=kinds)
        file.create_dataset("odd", data=np.array([4, 2] * 25), dtype=kinds)
        file["table"] = np.array([(i, (i, 2 * i)) for i in range(50)], [("t", "<f4"), ("v", ">i2", (2,))])
        file.create_dataset("ragged", shape=(50,), dtype=h5py.vlen_dtype("f4"))
        file.create_dataset("unwritten", shape=(50, 3), dtype="f4")
        file["complex"] = NUMBERS + 1j
        file["deep"] = np.zeros((50, 1, 1, 1, 1, 1))
        file["hollow"] = np.zeros((50, 0))
        file["soft"] = h5py.SoftLink("/data/X")
        file["elsewhere"] = h5py.ExternalLink("g.h5", "/a")
        layout = h5py.VirtualLayout((50,), "f8")
        layout[:] = h5py.VirtualSource(tmp_path / "g.h5", "a", (50,))
        file.create_virtual_dataset("virtual", layout)
    with h5py.File(tmp_path / "g.h5", "w") as file:
        file["a"] = NUMBERS
    return tmp_path / "f.h5"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("data/X", FIELDS),
        ("/data/X", FIELDS),
        ("soft", FIELDS),
        ("data/big", FIELDS.astype("f8")),
        ("data/y", NUMBERS),
        ("data/flags", NUMBERS > 20),
        ("table/t", NUMBERS),
        ("table/v", np.stack([NUMBERS, 2 * NUMBERS], axis=1)),
    ],
)
def test_datasets_are_read_as_they_lie(path, name, values):
    source = hdf5.load(path, x=name)[""]
    assert source.x == (name.rsplit("/", 1)[-1],) and source.y == ()
    np.testing.assert_array_equal(read_all(source)[source.x[0]], values)


@pytest.mark.parametrize(
    ("name", "labels"), [("names", ["kæt", "dog"] * 25), ("codes", ["a", "bc"] * 25), ("kinds", [1, 0] * 25)]
)
def test_texts_and_enumerations_are_labels(path, name, labels):
    source = hdf5.load(path, x="data/X", label=name)[""]
    assert read_all(source)[name].tolist() == labels
    assert source.roles == {name: Role.LABEL}
    assert source.classes == ({"kinds": ("ant", "dog")} if name == "kinds" else {})


def test_every_column_has_its_role_and_name(path):
    source = hdf5.load(
        path,
        x=["data/X", "table/v"],
        y="data/y",
        target=["data/flags"],
        weight="table/t",
        mask="soft",
        channels="first",
    )[""]
    assert (source.x, source.y, source.weight, source.mask) == (("X", "v"), ("y", "flags"), "t", "soft")
    assert source.roles == {"flags": Role.TARGET}
    assert source.channels == {"X": Channels.FIRST}
    assert set(read_all(source)) == {"X", "v", "y", "flags", "t", "soft"}


def test_blocks_are_whole_chunks_of_a_limited_size(path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_NBYTES", 20 * (FIELDS[0].nbytes + 8))
    blocks = hdf5.load(path, x="data/X", y="data/y")[""].blocks
    assert [len(block.read()["y"]) for block in blocks] == [16, 16, 16, 2]
    monkeypatch.setattr(files, "BLOCK_NBYTES", 1)
    assert [len(block.read()["X"]) for block in hdf5.load(path, x="data/X")[""].blocks] == [8] * 6 + [2]
    monkeypatch.setattr(files, "MAX_BLOCK_NBYTES", 5 * FIELDS[0].nbytes)
    assert len(hdf5.load(path, x="data/X")[""].blocks) == 10


def test_small_files_share_a_block_in_the_order_of_their_names(tmp_path, monkeypatch):
    for number in (10, 2, 1):
        with h5py.File(tmp_path / f"run-{number:02d}.h5", "w") as file:
            file["x"], file["y"] = np.full((4, 2), number), np.arange(4)
    monkeypatch.setattr(files, "BLOCK_NBYTES", 8 * 24)
    for where in (tmp_path, tmp_path / "run-*.h5"):
        source = hdf5.load(where)[""]
        assert [len(block.rows) for block in source.blocks] == [2, 1]
        assert read_all(source)["x"][:, 0].tolist() == [1] * 4 + [2] * 4 + [10] * 4


def test_keys_change_with_the_file(path):
    before = [block.key for block in hdf5.load(path, x="data/X")[""].blocks]
    assert before == [block.key for block in hdf5.load(path, x="data/X")[""].blocks]
    with h5py.File(path, "a") as file:
        file["more"] = 1
    assert before != [block.key for block in hdf5.load(path, x="data/X")[""].blocks]


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
def test_usual_names_need_no_options(tmp_path, names, found):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name in names:
            file[name] = np.zeros((4, 2) if name.lower().split("/")[-1][0] != "y" else 4)
    assert {split: (s.x, s.y) for split, s in hdf5.load(tmp_path / "f.h5").items()} == found


@pytest.mark.parametrize("names", [["a", "b"], ["x", "data", "y"], ["x", "temperature"], ["x", "y", "x_test"], []])
def test_other_names_are_listed_with_an_example(tmp_path, names):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for place, name in enumerate(names):
            file[name] = np.zeros((4, 5 - place))
    with pytest.raises(DataError, match=r"\(--x\)") as caught:
        hdf5.load(tmp_path / "f.h5")
    if names:
        assert f"--x {names[0]} --y {names[-1]}" in str(caught.value)
        assert all(f"  {name}" in str(caught.value) for name in names)
        assert "float64 (4, 5)" in str(caught.value)
    else:
        assert "holds no datasets" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"x": "data/Y"}, r"has no dataset 'data/Y'\. Did you mean data/(y|X)\?\nThe file holds:"),
        ({"y": "data/y"}, r"say which datasets are the features \(--x\)"),
        ({"x": "data/X", "y": "short"}, r"data/X has 50 samples, but short has 49"),
        ({"x": "one"}, "one is a single value"),
        ({"x": "nothing"}, "nothing is empty"),
        ({"x": "names"}, "names holds texts, which only labels may"),
        ({"x": "table"}, r"has values of the fields t, v \(a compound type\)\. Name one of them, for example table/t"),
        ({"x": "ragged"}, "different lengths"),
        ({"x": "unwritten"}, "was created, but never written"),
        ({"x": "complex"}, "not real numbers"),
        ({"x": "deep"}, "at most 4 dimensions"),
        ({"x": "hollow"}, "hollow has no values"),
        ({"x": "virtual"}, "is a virtual dataset.*--allow-virtual"),
        ({"x": "elsewhere"}, "external link.*--allow-virtual"),
    ],
)
def test_faults_name_the_dataset_and_the_way_out(path, options, fault):
    with pytest.raises(DataError, match=fault) as caught:
        hdf5.load(path, **options)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "fault"), [({"channels": "third"}, "first, last or none"), ({"y": "data/X"}, "once only")]
)
def test_wrong_options_are_errors(path, options, fault):
    with pytest.raises(ConfigError, match=fault):
        hdf5.load(path, x="data/X", **options)


@pytest.mark.parametrize("name", ["virtual", "elsewhere"])
def test_virtual_datasets_are_read_if_allowed(path, name):
    source = hdf5.load(path, x=name, allow_virtual=True)[""]
    np.testing.assert_array_equal(read_all(source)[name], NUMBERS)
    (path.parent / "g.h5").unlink()
    with pytest.raises(DataError, match=r"g\.h5 is missing|has no dataset 'elsewhere'"):
        hdf5.load(path, x=name, allow_virtual=True)


def test_files_that_do_not_fit_name_file_and_dataset(path, tmp_path):
    other = tmp_path / "h.h5"
    for values, message in ((FIELDS[:, :2], r"\(50, 2, 4, 5\)"), (FIELDS.astype("f8"), "float64")):
        with h5py.File(other, "w") as file:
            file["data/X"] = values
        with pytest.raises(
            DataError, match=rf"h\.h5: data/X is .*{message}.*, but it is float32 \(50, 3, 4, 5\) in .*f"
        ):
            hdf5.load(tmp_path / "[fh].h5", x="data/X")


def test_values_outside_an_enumeration_are_an_error(path):
    source = hdf5.load(path, x="data/X", y="odd")[""]
    with pytest.raises(DataError, match=r"odd holds 2, but its enumeration has only \[1, 4\]"):
        read_all(source)


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_files_that_are_not_whole_are_errors(path, damage):
    data = path.read_bytes()
    path.write_bytes({"cut": data[: len(data) // 2], "text": b"hello" * 1000, "empty": b""}[damage])
    with pytest.raises(DataError, match=r"f\.h5: cannot be read .*whole HDF5 file"):
        hdf5.load(path, x="data/X")


def test_damaged_chunks_name_dataset_and_samples(path):
    with h5py.File(path) as file:
        place = file["data/X"].id.get_chunk_info(2).byte_offset
    data = bytearray(path.read_bytes())
    data[place : place + 64] = bytes(64)
    source = hdf5.load(path, x="data/X")[""]
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"data/X, samples 0 to 49 cannot be read .* damaged"):
        source.blocks[0].read()


def test_files_that_vanish_or_shrink_are_errors(path):
    source = hdf5.load(path, x="data/X")[""]
    with h5py.File(path, "w") as file:
        file["data/X"] = FIELDS[:3]
    with pytest.raises(DataError, match="has changed since"):
        source.blocks[0].read()
    path.unlink()
    with pytest.raises(DataError, match="Every worker must reach the files"):
        source.blocks[0].read()


def test_unknown_filters_name_the_plugin(path, monkeypatch):
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)
    with pytest.raises(DataError, match=r"data/X is compressed with .*pip install hdf5plugin"):
        hdf5.load(path, x="data/X")


@pytest.mark.parametrize(
    ("source", "fault"), [("nowhere.h5", "does not exist"), ("no*.h5", "no file matches"), (".", "holds no files")]
)
def test_missing_files_are_errors(tmp_path, monkeypatch, source, fault):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=fault):
        hdf5.load(source, x="x")
