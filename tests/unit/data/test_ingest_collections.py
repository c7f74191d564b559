"""singa_dask.shard: arrays, tables and Dask collections; in this process and on a cluster of threads."""

import os
from collections import Counter
from functools import partial
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster
from support.blocks import COMPUTED, note, stored, write_rows

from singa_dask import shard
from singa_dask.data import shared_files
from singa_dask.data.ingest import blocks, collections, stage, write
from singa_dask.errors import ClusterError, DataError

ROWS = 90


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, protocol="inproc://"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(params=["here", "cluster"])
def where(request):
    """The client to pass: None, or that of a cluster."""
    return None if request.param == "here" else request.getfixturevalue("client")


@pytest.fixture(autouse=True)
def _nothing_computed():
    COMPUTED.clear()


def samples(*shape):
    return np.random.default_rng(0).random((ROWS, *shape)).astype(np.float32)


def written(tmp_path, X, y=None, **options):
    """What the only folder holds, in the order of the samples."""
    (manifest,) = shard(X, y, tmp_path / "out", **{"shuffle": False, "durable": False, **options}).values()
    return stored(manifest), manifest


@pytest.mark.parametrize("shape", [(), (4,), (4, 6), (3, 5, 5), (2, 3, 4, 4)])
def test_arrays_of_up_to_five_axes(tmp_path, shape, where):
    x = samples(*shape)
    channels = "first" if len(shape) == 4 else "none"
    x_dask = da.from_array(x, chunks=(40, *(max(1, size // 2) for size in shape)))
    for X in (x, x_dask):
        got, manifest = written(tmp_path, X, samples(2), client=where, channels=channels, overwrite=True)
        np.testing.assert_array_equal(got["x"], x)
        np.testing.assert_array_equal(got["y"], samples(2))
    assert manifest.features.shape == shape


def test_every_kind_of_array(tmp_path, monkeypatch):
    x, y = samples(3, 4, 4), np.arange(ROWS) % 3
    monkeypatch.setattr(blocks, "BLOCK_NBYTES", 20 * x[:1].nbytes)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        kinds = [
            x,
            x.tolist(),
            np.asfortranarray(x),
            file.create_dataset("x", data=x, chunks=(16, 3, 4, 4), compression="gzip"),
            zarr.array(x, chunks=(16, 3, 4, 4)),
            xr.DataArray(x, dims=("sample", "band", "lat", "lon")),
            xr.DataArray(da.from_array(x, chunks=(25, 3, 4, 4)), dims=("sample", "band", "lat", "lon")),
        ]
        for X in kinds:
            got, _ = written(tmp_path, X, y, overwrite=True)
            np.testing.assert_array_equal(got["x"], x.astype(got["x"].dtype))
            np.testing.assert_array_equal(got["y"], y)
        assert [block.stop - block.start for block in collections.source_of(file["x"]).blocks] == [16] * 5 + [10]


def test_datasets_and_mappings_have_several_columns(tmp_path):
    x, y = samples(3, 4, 4), np.arange(ROWS) % 3
    frame = xr.Dataset({"a": ("s", x[:, 0, 0, 0]), "b": (("s", "k"), x[:, :, 0, 0])})
    got, manifest = written(tmp_path, frame, {"kind": y, "value": x[:, 0, 0, 1]})
    assert [(column.name, column.role) for column in manifest.columns] == [
        ("a", "feature"), ("b", "feature"), ("kind", "label"), ("value", "target"),
    ]  # fmt: skip
    np.testing.assert_array_equal(got["b"], x[:, :, 0, 0])


def test_pandas(tmp_path):
    frame = pd.DataFrame({"a": range(ROWS), "kind": ["p", "q", "r"] * (ROWS // 3), 3: 0.5}, index=range(ROWS, 0, -1))
    target = pd.Series(np.linspace(0, 1, ROWS), index=frame.index, name="a")
    got, manifest = written(tmp_path, frame, target, sample_weight=pd.Series(range(ROWS)))
    assert manifest.features.names == ("a", "kind=p", "kind=q", "kind=r", "3")
    np.testing.assert_array_equal(got["x"][:, 0], np.arange(ROWS))
    np.testing.assert_array_equal(got["y"], target)
    np.testing.assert_array_equal(got["weight"], np.arange(ROWS))
    got, manifest = written(tmp_path, frame.a, frame.kind, overwrite=True)
    assert manifest.features.names == ("a",) and manifest.targets.classes == ("p", "q", "r")


def test_each_chunk_is_computed_once(tmp_path, where):
    def noted(block, block_info=None):
        return note(block, block_info[0]["chunk-location"])

    x = samples(4, 6)
    both = da.from_array(np.concatenate([x, x[:, :1]], 1), chunks=(30, 5, 3)).map_blocks(noted, meta=x[:0])
    X, y = both[:, :4], both[:, 4, 0]
    got, _ = written(tmp_path, X, y, client=where, channels="none")
    np.testing.assert_array_equal(got["x"], x)
    np.testing.assert_array_equal(got["y"], x[:, 0, 0])
    assert Counter(COMPUTED) == {(i, 0, k): 1 for i in range(3) for k in range(2)}


def test_each_partition_is_computed_once(tmp_path, where):
    def part(number):
        return note(pd.DataFrame({"a": np.arange(30.0) + 30 * number, "b": 1.0, "t": [f"k{number}"] * 30}), number)

    meta = pd.DataFrame({"a": [1.0], "b": [1.0], "t": ["k"]})
    frame = dd.from_map(part, range(3), meta=meta)
    got, manifest = written(tmp_path, frame[["a", "b"]], frame.t, client=where)
    np.testing.assert_array_equal(got["x"][:, 0], np.arange(ROWS))
    np.testing.assert_array_equal(got["y"], np.arange(ROWS) // 30)
    assert manifest.targets.classes == ("k0", "k1", "k2")
    assert sorted(COMPUTED) == [0, 1, 2]


def test_unknown_chunk_sizes(tmp_path, where):
    x = samples(4)
    X = da.from_array(x, chunks=(30, 4))
    some, kept = X[X[:, 0] > 0.5], x[x[:, 0] > 0.5]
    frame = dd.from_pandas(pd.DataFrame(x, columns=list("abcd")), npartitions=3)
    for lazy, y, expected in ((some, some[:, 1], kept[:, 1]), (frame, frame.to_dask_array()[:, 0], x[:, 0])):
        got, _ = written(tmp_path, lazy, y, client=where, overwrite=True)
        np.testing.assert_array_equal(got["x"], kept if lazy is some else x)
        np.testing.assert_array_equal(got["y"], expected)


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (lambda some: np.ones(90), r"y: is in memory, but X is a Dask collection .* compute_chunk_sizes\(\)"),
        (lambda some: some[:, 0].blocks[:2], r"X has 3 partitions, but y has 2, and the rows of them are unknown"),
        (
            lambda some: dd.from_pandas(pd.Series(np.ones(90), name="y"), npartitions=3),
            r"y: partition \d has 30 rows, but \d+ of x",
        ),
    ],
)
def test_labels_must_fit_unknown_chunk_sizes(tmp_path, y, said):
    X = da.from_array(samples(4), chunks=(30, 4))
    some = X[X[:, 0] > 0.5]
    with pytest.raises(DataError, match=said):
        shard(some, y(some), tmp_path / "bad")
    assert os.listdir(tmp_path) == []


def test_other_chunks_are_rechunked_and_said(tmp_path, where, caplog):
    x = samples(4)
    table, answers = pd.DataFrame(x, columns=list("abcd")), pd.Series(x[:, 0])
    for X, y, said in (
        (x, da.from_array(x[:, 0], chunks=40), ""),
        (da.from_array(x, chunks=(30, 4)), da.from_array(x[:, 0], chunks=45), "other chunks than X, and is rechunked"),
        (
            dd.from_pandas(table, npartitions=3),
            dd.from_pandas(answers, npartitions=2),
            "y has other divisions than X, and is repartitioned",
        ),
    ):
        got, _ = written(tmp_path, X, y, client=where, overwrite=True)
        np.testing.assert_array_equal(got["x"], x)
        np.testing.assert_array_equal(got["y"], x[:, 0])
        assert said in caplog.text
    got, _ = written(tmp_path, da.from_array(x, chunks=(30, 4)), sample_weight=x[:, 1], client=where, overwrite=True)
    np.testing.assert_array_equal(got["weight"], x[:, 1])


@pytest.mark.parametrize("wrap", [np.asarray, partial(da.from_array, chunks=40)])
@pytest.mark.parametrize(
    ("y", "weight", "said"),
    [(np.arange(80), None, "but y has 80"), (np.arange(90.0), np.ones(89), "but sample_weight has 89")],
)
def test_different_lengths_name_both_numbers(tmp_path, wrap, y, weight, said):
    with pytest.raises(DataError, match=f"X has 90 samples, {said}"):
        shard(wrap(samples(2)), wrap(y), tmp_path / "out", sample_weight=weight)


def test_the_cluster_writes_the_same_bytes(tmp_path, client):
    x, y = da.from_array(samples(3, 4, 4), chunks=(20, 3, 4, 4)), da.from_array(np.arange(ROWS) % 4, chunks=20)
    frame = pd.DataFrame({"a": samples(), "b": ["u", "v", None] * (ROWS // 3)})
    for name, X, Y, options in (
        ("arrays", x, y, {"validation": 0.2, "test": 0.1}),
        ("table", dd.from_pandas(frame, npartitions=4), None, {"missing": {"b": "most_frequent"}}),
        ("memory", samples(3), np.arange(ROWS) % 2, {"nshards": 4}),
    ):
        here = shard(X, Y, tmp_path / name / "here", durable=False, **options)
        there = shard(X, Y, tmp_path / name / "there", client=client, durable=False, **options)
        assert {k: v.digest for k, v in here.items()} == {k: v.digest for k, v in there.items()}
        assert sorted(os.listdir(tmp_path / name)) == ["here", "there"]


def test_each_block_is_read_once(tmp_path, where):
    log = tmp_path / "log"
    write_rows(tmp_path / "out", {"x": samples(2)}, (30, 60), log=log, client=where)
    assert sorted(log.read_text().split()) == ["0-30", "30-60", "60-90"]


def test_the_current_client_is_used_for_dask_collections_only(tmp_path, client, monkeypatch):
    used = []
    monkeypatch.setattr(collections, "write", lambda source, out, client, **_: used.append(client) or {})
    with client.as_current():
        shard(da.ones((4, 2)), None, tmp_path / "out")
        shard(np.ones((4, 2)), None, tmp_path / "out")
    shard(da.ones((4, 2)), None, tmp_path / "out")
    assert used == [client, None, None]


def test_an_error_on_a_worker_comes_back_and_cleans_up(tmp_path, where):
    x = samples(2)
    x[47, 1] = np.nan
    with pytest.raises(DataError, match=r"column 'x': 1 value\(s\) are NaN, the first in sample 47\."):
        shard(da.from_array(x, chunks=(20, 2)), None, tmp_path / "out", client=where)

    def fails(block):
        raise RuntimeError("no such detector")

    with pytest.raises(RuntimeError, match="no such detector"):
        shard(da.from_array(x, chunks=(20, 2)).map_blocks(fails, meta=x[:0]), None, tmp_path / "out", client=where)
    assert not (tmp_path / "out").exists()


def test_a_crash_of_the_driver_resumes_and_leaves_nothing_of_arrays_in_memory(tmp_path, where, monkeypatch):
    lazy = da.from_array(samples(2), chunks=(30, 2)).map_blocks(note, meta=samples(2)[:0], token="the same")
    monkeypatch.setattr(write, "make_layout", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shard(samples(2), None, tmp_path / "out")
    assert os.listdir(tmp_path) == []
    with pytest.raises(KeyboardInterrupt):
        shard(lazy, None, tmp_path / "out", client=where)
    monkeypatch.undo()
    assert COMPUTED == [30] * 3 and not (tmp_path / "out").exists()
    shard(lazy, None, tmp_path / "out", client=where, durable=False)
    assert COMPUTED == [30] * 3 and os.listdir(tmp_path) == ["out"]


def interrupted(*_):
    raise KeyboardInterrupt


def test_workers_that_do_not_share_the_folder_are_named_before_the_work(tmp_path, client, monkeypatch):
    staged = []
    monkeypatch.setattr(stage, "_write", staged.append)
    monkeypatch.setattr(shared_files.os.path, "exists", lambda path: not Path(path).name.startswith(".probe-"))
    with pytest.raises(
        ClusterError, match=r"/\.out\.parts-\w+: the Dask workers on .* do not share this folder\. Write"
    ):
        shard(da.ones((ROWS, 2), chunks=(30, 2)), None, tmp_path / "out", client=client)
    assert not staged


def test_numbers_of_classes_are_not_taken_for_their_names_if_that_is_said(tmp_path, where):
    y = da.from_array(1 + np.arange(ROWS) % 2, chunks=40)
    for places, expected in ((False, [0, 1]), (True, [1, 2])):
        options = {"classes": ["1", "2", "3"], "places": places, "overwrite": True, "client": where}
        got, manifest = written(tmp_path, samples(2), y, **options)
        assert manifest.column("y").classes == ("1", "2", "3")
        np.testing.assert_array_equal(np.unique(got["y"]), expected)


@pytest.mark.parametrize(
    ("y", "options", "columns"),
    [
        (np.arange(ROWS) % 2, {"classes": ["no", "yes"]}, [("y", "label", ("no", "yes"))]),
        (np.arange(ROWS), {"targets": True}, [("y", "target", None)]),
        (np.arange(ROWS) % 2.0, {"labels": True}, [("y", "label", 2)]),
        (
            pd.DataFrame({"a": np.arange(ROWS) % 2, "b": np.arange(ROWS)}),
            {"targets": "b"},
            [("a", "label", 2), ("b", "target", None)],
        ),
    ],
)
def test_classes_labels_and_targets_can_be_said(tmp_path, y, options, columns):
    _, manifest = written(tmp_path, samples(2), y, **options)
    assert [(column.name, column.role, column.classes) for column in manifest.columns[1:]] == columns
