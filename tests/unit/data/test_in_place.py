"""HDF5 files that are trained on as they lie."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from singa_dask.data import Loader, ShardFolder, make_stream, shard_files
from singa_dask.data.columns import Channels, Role
from singa_dask.data.in_place import index
from singa_dask.errors import DataError
from singa_dask.job.job_pb2 import Phase, StoreProto

DATASETS = {"x": ("data/fields", Role.FEATURE), "y": ("data/energy", Role.TARGET), "kind": ("kind", Role.LABEL)}


@pytest.fixture
def files(tmp_path):
    draw = np.random.default_rng(0)
    paths = []
    for i, rows in enumerate((30, 21)):
        path = tmp_path / f"run{i}.h5"
        with h5py.File(path, "w") as file:
            file["data/fields"] = draw.normal(size=(rows, 3, 6, 6)).astype(np.float32)
            file["data/energy"] = draw.normal(size=rows)
            file["kind"] = draw.integers(0, 4, rows).astype(np.int32)
        paths.append(path)
    return paths


def test_files_are_read_where_they_lie(files, tmp_path, pool):
    before = [path.read_bytes() for path in files]
    manifest = index(files, tmp_path / "out", DATASETS, window=8)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["manifest.json", "statistics.h5"]
    assert [path.read_bytes() for path in files] == before
    x, y, kind = manifest.columns
    assert (x.channels, y.dtype, kind.classes) == (Channels.FIRST, "float64", 4)
    ShardFolder(manifest).verify()
    every = [h5py.File(path) for path in files]
    fields = np.concatenate([file["data/fields"][()] for file in every])
    np.testing.assert_allclose(x.mean, fields.mean((0, 2, 3), dtype=np.float64), rtol=1e-6, atol=1e-9)
    store = StoreProto(path=str(tmp_path / "out"), batchsize=[51], label="kind")
    with Loader(make_stream(store, manifest, seed=0, phase=Phase.kTest), store, pool.submit) as loader:
        batch = loader.next()
        np.testing.assert_array_equal(batch.features, np.moveaxis(fields, 1, -1))
        np.testing.assert_array_equal(batch.labels, np.concatenate([file["kind"][()] for file in every]))


@pytest.mark.parametrize(("role", "expected"), [("y", Role.LABEL), ("target", Role.TARGET)])
def test_columns_have_the_roles_that_were_named(files, tmp_path, role, expected):
    names = {"x": "data/fields", role: "kind", "weight": "data/energy"}
    manifest = shard_files("hdf5", tmp_path / "out", source=files[0], in_place=True, **names)[""]
    assert [(column.name, column.role, column.dataset) for column in manifest.columns] == [
        ("x", Role.FEATURE, "data/fields"), ("y", expected, "kind"), ("weight", Role.WEIGHT, "data/energy"),
    ]  # fmt: skip


def test_a_file_that_changed_is_noticed(files, tmp_path):
    manifest = index(files, tmp_path / "out", DATASETS, window=8)
    with h5py.File(files[1], "r+") as file:
        file["data/energy"][3] += 1
    with pytest.raises(DataError, match=r"run1\.h5: window 0 .* is damaged"):
        ShardFolder(manifest).verify()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda f: f.create_dataset("data/energy", data=np.ones(30), chunks=(10,)), "chunked.*--in-place"),
        (lambda f: f.create_dataset("data/energy", data=np.ones(30, ">f4")), "holds >f4.*--in-place"),
        (lambda f: f.create_dataset("data/energy", data=np.ones(29)), "30 in 'data/fields', 29 in 'data/energy'"),
        (lambda f: f.create_dataset("data/energy", data=np.full(30, np.nan)), "sample 0 of 'data/energy'.*not finite"),
        (lambda f: f.__setitem__("data/energy", h5py.SoftLink("/kind")), "link.*--in-place"),
        (lambda f: None, "no dataset 'data/energy'"),
    ],
)
def test_what_does_not_suit_is_converted_instead(files, tmp_path, change, fault):
    with h5py.File(files[0], "r+") as file:
        del file["data/energy"]
        change(file)
    with pytest.raises(DataError, match=fault):
        index(files[:1], tmp_path / "out", DATASETS)
    assert not (tmp_path / "out").exists()
