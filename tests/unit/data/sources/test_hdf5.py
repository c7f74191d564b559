"""HDF5 files as a source, and those that are trained on as they lie."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from support.blocks import stored
from support.sources import read_all, write_file

from singa_dask.data import Loader, ShardFolder, make_stream, shard_files
from singa_dask.data.columns import Channels, Role
from singa_dask.data.sources import files, hdf5
from singa_dask.errors import DataError
from singa_dask.job.job_pb2 import Phase, StoreProto

FIELDS = np.random.default_rng(0).standard_normal((50, 3, 4, 5)).astype("f4")
NUMBERS = np.arange(50.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with most that HDF5 has."""
    kinds = h5py.enum_dtype({"dog": 4, "ant": 1}, "i1")
    content = {
        "data/X": {"data": FIELDS, "chunks": (8, 3, 4, 5), "compression": "gzip", "shuffle": True},
        "data/y": NUMBERS,
        "data/big": FIELDS.astype(">f8"),
        "data/flags": NUMBERS > 20,
        "nothing": h5py.Empty("f4"),
        "names": np.array(["kæt", "dog"] * 25),
        "codes": np.array([b"a", b"bc"] * 25),
        "kinds": {"data": np.array([4, 1] * 25), "dtype": kinds},
        "odd": {"data": np.array([4, 2] * 25), "dtype": kinds},
        "table": np.array([(i, (i, 2 * i)) for i in range(50)], [("t", "<f4"), ("v", ">i2", (2,))]),
        "ragged": {"shape": (50,), "dtype": h5py.vlen_dtype("f4")},
        "unwritten": {"shape": (50, 3), "dtype": "f4"},
        "complex": NUMBERS + 1j,
        "deep": np.zeros((50, 1, 1, 1, 1, 1)),
        "hollow": np.zeros((50, 0)),
        "soft": h5py.SoftLink("/data/X"),
        "elsewhere": h5py.ExternalLink("g.h5", "/a"),
    }
    write_file("hdf5", tmp_path / "g.h5", {"a": NUMBERS})
    layout = h5py.VirtualLayout((50,), "f8")
    layout[:] = h5py.VirtualSource(tmp_path / "g.h5", "a", (50,))
    with h5py.File(write_file("hdf5", tmp_path / "f.h5", content), "a") as file:
        file.create_virtual_dataset("virtual", layout)
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
    source = hdf5.FORMAT.load(path, x=name)[""]
    assert source.x == (name.rsplit("/", 1)[-1],) and source.y == ()
    np.testing.assert_array_equal(read_all(source)[source.x[0]], values)


@pytest.mark.parametrize(
    ("name", "labels"), [("names", ["kæt", "dog"] * 25), ("codes", ["a", "bc"] * 25), ("kinds", [1, 0] * 25)]
)
def test_texts_and_enumerations_are_labels(path, name, labels):
    source = hdf5.FORMAT.load(path, x="data/X", label=name)[""]
    assert read_all(source)[name].tolist() == labels
    assert source.roles == {name: Role.LABEL}
    assert source.classes == ({"kinds": ("ant", "dog")} if name == "kinds" else {})


def test_every_column_has_its_role_and_name(path, tmp_path):
    names = {"x": ["data/X", "table/v"], "target": "data/y", "weight": "table/t", "mask": "data/flags"}
    made = shard_files("hdf5", tmp_path / "out", 2, source=path, channels="first", shuffle=False, **names)[""]
    assert [(column.name, column.role) for column in made.columns] == [
        ("X", Role.FEATURE), ("v", Role.FEATURE), ("y", Role.TARGET), ("weight", Role.WEIGHT), ("mask", Role.MASK),
    ]  # fmt: skip
    assert (made.columns[0].channels, len(made.shards)) == (Channels.FIRST, 2)
    expected = (FIELDS, np.stack([NUMBERS, 2 * NUMBERS], axis=1), NUMBERS * (NUMBERS > 20), NUMBERS, NUMBERS > 20)
    for found, values in zip(stored(made).values(), (*expected, np.arange(len(FIELDS))), strict=True):
        np.testing.assert_array_equal(found, values)


def test_small_files_share_a_block_in_the_order_of_their_names(tmp_path, monkeypatch):
    for number in (10, 2, 1):
        content = {"x": np.full((4, 2), number), "y": np.arange(4)}
        write_file("hdf5", tmp_path / f"run-{number:02d}.h5", content)
    monkeypatch.setattr(files, "BLOCK_NBYTES", 8 * 24)
    for where in (tmp_path, tmp_path / "run-*.h5"):
        source = hdf5.FORMAT.load(where)[""]
        assert [len(block.rows) for block in source.blocks] == [2, 1]
        assert read_all(source)["x"][:, 0].tolist() == [1] * 4 + [2] * 4 + [10] * 4


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"x": "data/Y"}, r"has no dataset 'data/Y'\. Did you mean data/(y|X)\?\nThe file holds:"),
        ({"x": "nothing"}, "nothing is empty"),
        ({"x": "table"}, r"has values of the fields t, v \(a compound type\)\. Name one of them, for example table/t"),
        ({"x": "ragged"}, "different lengths"),
        ({"x": "unwritten"}, "was created, but never written"),
        ({"x": "complex"}, "not real numbers"),
        ({"x": "deep"}, "at most 4 dimensions"),
        ({"x": "hollow"}, "hollow has no values"),
        ({"x": "virtual"}, "is a virtual dataset.*--allow-virtual"),
        ({"x": "elsewhere"}, "external link.*--allow-virtual"),
        ({"x": "data/X", "y": "odd"}, r"odd holds 2, but its enumeration has only \[1, 4\]"),
    ],
)
def test_faults_name_the_dataset_and_the_way_out(path, options, fault):
    with pytest.raises(DataError, match=rf"f\.h5: .*{fault}"):
        read_all(hdf5.FORMAT.load(path, **options)[""])


@pytest.mark.parametrize("name", ["virtual", "elsewhere"])
def test_virtual_datasets_are_read_if_allowed(path, name, monkeypatch):
    source = hdf5.FORMAT.load(path, x=name, allow_virtual=True)[""]
    with monkeypatch.context() as patch:  # their files are looked at once, and only then
        patch.setattr(hdf5, "_lost", lambda dataset: pytest.fail("it opens other files"))
        np.testing.assert_array_equal(read_all(source)[name], NUMBERS)
        assert "virtual" in hdf5.FORMAT.listing(path)
    (path.parent / "g.h5").unlink()
    with pytest.raises(DataError, match=r"g\.h5 is missing|has no dataset 'elsewhere'"):
        hdf5.FORMAT.load(path, x=name, allow_virtual=True)


@pytest.mark.parametrize(("values", "said"), [(FIELDS[:, :2], r"\(50, 2, 4, 5\)"), (FIELDS.astype("f8"), "float64")])
def test_files_that_do_not_fit_name_file_and_dataset(path, tmp_path, values, said):
    write_file("hdf5", tmp_path / "h.h5", {"data/X": values})
    with pytest.raises(DataError, match=rf"h\.h5: data/X is .*{said}.*, but it is float32 \(50, .* in .*f"):
        hdf5.FORMAT.load(tmp_path / "[fh].h5", x="data/X")


def test_unknown_filters_name_the_plugin(path, monkeypatch):
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)
    with pytest.raises(DataError, match=r"data/X is compressed with .*pip install hdf5plugin"):
        hdf5.FORMAT.load(path, x="data/X")


# In place


def index(source, out):
    names = {"x": "data/fields", "target": "data/energy", "label": "kind"}
    return shard_files("hdf5", out, source=source, in_place=True, window=8, **names)[""]


@pytest.fixture
def runs(tmp_path):
    draw = np.random.default_rng(0)
    return [
        write_file(
            "hdf5",
            tmp_path / f"run{i}.h5",
            {
                "data/fields": draw.normal(size=(rows, 3, 6, 6)).astype(np.float32),
                "data/energy": draw.normal(size=rows),
                "data/power": draw.random(rows),
                "kind": draw.integers(0, 4, rows).astype(np.int32),
            },
        )
        for i, rows in enumerate((30, 21))
    ]


def test_files_are_read_where_they_lie(runs, tmp_path, pool):
    before = [path.read_bytes() for path in runs]
    manifest = index(tmp_path / "run*.h5", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["manifest.json", "statistics.h5"]
    assert [path.read_bytes() for path in runs] == before
    x, kind, energy = manifest.columns
    assert (x.channels, kind.dtype, kind.classes, energy.dtype) == (Channels.FIRST, "int32", 4, "float64")
    ShardFolder(manifest).verify()
    every = [h5py.File(path) for path in runs]
    fields = np.concatenate([file["data/fields"][()] for file in every])
    np.testing.assert_allclose(x.mean, fields.mean((0, 2, 3), dtype=np.float64), rtol=1e-6, atol=1e-9)
    store = StoreProto(path=str(tmp_path / "out"), batchsize=[51], label="kind")
    with Loader(make_stream(store, manifest, seed=0, phase=Phase.kTest), store, pool.submit) as loader:
        batch = loader.next()
        np.testing.assert_array_equal(batch.features, np.moveaxis(fields, 1, -1))
        np.testing.assert_array_equal(batch.labels, np.concatenate([file["kind"][()] for file in every]))


@pytest.mark.parametrize(("role", "expected"), [("y", Role.LABEL), ("target", Role.TARGET)])
def test_columns_have_the_roles_that_were_named(runs, tmp_path, role, expected):
    names = {"x": "data/fields", role: "kind", "weight": "data/power"}
    manifest = shard_files("hdf5", tmp_path / "out", source=runs[0], in_place=True, **names)[""]
    assert [(column.name, column.role, column.dataset) for column in manifest.columns] == [
        ("x", Role.FEATURE, "data/fields"), ("y", expected, "kind"), ("weight", Role.WEIGHT, "data/power"),
    ]  # fmt: skip


def test_labels_keep_their_numbers_where_they_lie(runs, tmp_path, caplog):
    with h5py.File(runs[1], "r+") as file:
        file["kind"][:] = 6
    manifest = index(tmp_path / "run*.h5", tmp_path / "out")
    assert manifest.column("kind").classes == 7 and not caplog.records
    with h5py.File(runs[1], "r+") as file:
        file["kind"][:] = -6
    with pytest.raises(DataError, match="labels must be at least 0"):
        index(tmp_path / "run*.h5", tmp_path / "negative")


def test_a_file_that_changed_is_noticed(runs, tmp_path):
    manifest = index(tmp_path / "run*.h5", tmp_path / "out")
    with h5py.File(runs[1], "r+") as file:
        file["data/energy"][3] += 1
    with pytest.raises(DataError, match=r"run1\.h5: window 0 .* is damaged"):
        ShardFolder(manifest).verify()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda f: f.create_dataset("data/energy", data=np.ones(30), chunks=(10,)), "chunked.*--in-place"),
        (lambda f: f.create_dataset("data/energy", data=np.ones(30, ">f4")), "holds >f4.*--in-place"),
        (
            lambda f: f.create_dataset("data/energy", data=np.ones(29)),
            "has 30 samples, but data/energy has 29",
        ),
        (
            lambda f: f.create_dataset("data/energy", data=np.full(30, np.nan)),
            "30 value.*NaN, the first in sample 0.*--in-place",
        ),
        (lambda f: f.__setitem__("data/energy", h5py.SoftLink("/kind")), "link.*--in-place"),
        (lambda f: None, "no dataset 'data/energy'"),
    ],
)
def test_what_does_not_suit_is_converted_instead(runs, tmp_path, change, fault):
    with h5py.File(runs[0], "r+") as file:
        del file["data/energy"]
        change(file)
    with pytest.raises(DataError, match=fault):
        index(runs[0], tmp_path / "out")
    assert not (tmp_path / "out").exists()
