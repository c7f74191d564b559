"""Layers that write."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from singa_dask.errors import ConfigError
from singa_dask.layers import Context, CSVOutput, RecordOutput, Step
from singa_dask.ops import get_ops

X = np.random.default_rng(0).random((5, 3, 2), np.float32)


def write(layer, step: Step, *batches: np.ndarray) -> None:
    layer.setup(batches[0].shape[1:])
    ctx = Context(get_ops(), step)
    for batch in batches:
        assert layer.forward(ctx, batch) is batch
    layer.close()
    layer.close()


def test_csv_has_one_line_per_sample(tmp_path):
    path = tmp_path / "new" / "y.csv"
    layer = CSVOutput("out", "x", path=str(path), separator=";")
    write(layer, Step(total_rows=3), X[:3], X[3:])
    np.testing.assert_array_equal(np.loadtxt(path, delimiter=";", dtype=np.float32), X.reshape(5, 6))
    write(layer, Step(total_rows=1), np.array([[1, 2]]))
    assert path.read_text() == "1;2\n"


def test_records_grow_batch_by_batch(tmp_path):
    path = tmp_path / "y.h5"
    write(RecordOutput("out", "x", path=str(path)), Step(total_rows=3), X[:3], X[3:])
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["features"][:], X)
        assert file["features"].dtype == np.float32


def test_workers_that_share_a_batch_write_files_of_their_own(tmp_path):
    for rows in (slice(0, 3), slice(3, 5)):
        layer = CSVOutput("out", "x", path=str(tmp_path / "y.csv"))
        write(layer, Step(first_row=rows.start, total_rows=5), X[rows])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["y-0.csv", "y-3.csv"]


@pytest.mark.parametrize(("kind", "name"), [(CSVOutput, "out.csv"), (RecordOutput, "out.h5")])
def test_nothing_is_written_through_a_link(tmp_path, kind, name):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / name).symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match=rf"layer 'out'.*symbolic link.*{name}"):
        write(kind("out", "x", path=str(tmp_path / name)), Step(total_rows=3), X[:3])
    assert (tmp_path / "mine").read_bytes() == b"precious"
