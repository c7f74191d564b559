"""Statistics of a target with a mask: of the values that count."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from support.shards import write_shards

from singa_dask import Job, layers, shard, updaters
from singa_dask.cli import main
from singa_dask.data.columns import Channels, Column, Role
from singa_dask.data.manifest import Manifest
from singa_dask.data.plan import StreamConf, own_windows
from singa_dask.data.statistics import Statistics, mask_of
from singa_dask.errors import DataError
from singa_dask.estimators.new import write_job
from singa_dask.monitor.progress import Display
from singa_dask.supervision.driver import train
from singa_dask.training.prepare import prepare

ROWS = 400
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((ROWS, 3)).astype(np.float32)
MASK = (DRAW.random((ROWS, 2)) > 0.1).astype(np.float32)
Y = np.where(MASK > 0, 290 + 3 * DRAW.standard_normal((ROWS, 2)), 0).astype(np.float32)
WEIGHT = DRAW.integers(0, 4, ROWS).astype(np.float32)


def moments(rows, weight=None):
    factor = MASK[rows] * (1 if weight is None else weight[rows, None])
    mean = (factor * Y[rows]).sum(axis=0) / factor.sum(axis=0)
    return mean, np.sqrt((factor * (Y[rows] - mean) ** 2).sum(axis=0) / factor.sum(axis=0))


def check(mean, std, expected):
    np.testing.assert_allclose(mean, expected[0], rtol=1e-6)
    np.testing.assert_allclose(std, expected[1], rtol=1e-4)


def source(folder: Path) -> str:
    with h5py.File(folder / "data.h5", "w") as file:
        file.update({"x": X, "y": Y, "ok": MASK})
    return str(folder / "data.h5")


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_of_arrays(tmp_path, weight):
    manifest = write_shards(tmp_path / "s", X, Y, 3, mask=MASK, weight=weight, window=16)
    check(manifest.targets.mean, manifest.targets.std, moments(slice(None), weight))


@pytest.mark.parametrize("option", [[], ["--in-place"]], ids=["copied", "in place"])
def test_of_files(tmp_path, option):
    given = ["--x", "x", "--target", "y", "--mask", "ok", *option]
    made = CliRunner().invoke(
        main, ["shard", "hdf5", "--source", source(tmp_path), "--out", str(tmp_path / "s"), *given]
    )
    assert made.exit_code == 0, made.output
    target = next(column for column in Manifest.load(tmp_path / "s").columns if column.role is Role.TARGET)
    check(target.mean, target.std, moments(slice(None)))


def test_without_what_is_held_out(tmp_path):
    manifest = write_shards(tmp_path, X, Y, mask=MASK, window=16)
    read = {"path": str(tmp_path), "batchsize": 8, "validation_share": 0.3}
    net = [
        layers.RecordInput("data", column="x", normalise_target=True, **read),
        layers.RecordInput("ok", column="mask", has_label=False, **read),
        layers.InnerProduct("top", "data", num_output=2),
        layers.EuclideanLoss("loss", ["top", "data", "ok"]),
    ]
    job = prepare(Job(name="m", layers=net, updater=updaters.SGD(lr=0.1), train_steps=2)).job
    store = job.neuralnet.layer[0].store_conf
    windows = own_windows(manifest, StreamConf(8, validation_share=0.3))
    rows = np.concatenate([np.arange(of.start, of.start + of.samples) for of in windows])
    check(store.target_mean, store.target_std, moments(rows))


def test_a_proposed_job_normalises_it_and_learns(tmp_path):
    y = np.where(MASK > 0, 290 + 3 * X[:, :2], 0)
    write_shards(tmp_path / "s", X, y, mask=MASK)
    job = write_job(str(tmp_path / "s"), tmp_path / "job.conf")
    assert job.proto.neuralnet.layer[0].store_conf.normalise_target
    result = train(job, processes=False, workspace=tmp_path / "run", display=Display(), curves=False)
    assert result.summary["validate"]["r2"] > 0.9


def test_a_position_that_never_counts_has_no_part():
    x = np.array([[5, 1], [7, 2], [9, 3]], np.float32)
    mask = np.array([[1, 0], [0, 0], [2, 0]])
    found = Statistics.of(x[:2], None, mask[:2]).merge(Statistics.of(x[2:], None, mask[2:]))
    vector = found.in_column(Column("y", Role.TARGET, "float32", (2,)))
    assert vector.mean == pytest.approx((23 / 3, 0))
    assert vector.std == pytest.approx((np.std([5, 9, 9]), 0))
    field = found.in_column(Column("y", Role.TARGET, "float32", (1, 1, 2), Channels.FIRST))
    assert field.mean == pytest.approx((23 / 3,))
    assert field.std == pytest.approx((np.std([5, 9, 9]),))


@pytest.mark.parametrize(
    ("channels", "shape", "expected"),
    [(Channels.LAST, (1, 2, 2), [[1, 1, 0, 0]]), (Channels.FIRST, (2, 1, 2), [[1, 0, 1, 0]])],
)
def test_a_mask_of_positions_counts_all_channels(channels, shape, expected):
    columns = [Column("y", Role.TARGET, "float32", shape, channels), Column("m", Role.MASK, "uint8", (1, 2))]
    arrays = {"m": np.array([[[1, 0]]], np.uint8)}
    assert mask_of(columns[0], columns, arrays).tolist() == expected


@pytest.mark.parametrize("shape", [(8,), (8, 1), (8, 4, 1)])
def test_a_mask_that_leaves_nothing_is_refused(shape, tmp_path):
    y = np.random.default_rng(0).random(shape)
    with pytest.raises(DataError, match=r"column 'mask': the mask of all samples is 0\. At least one must count"):
        shard(y, y, tmp_path / "s", mask=np.zeros(shape), progress=False)


@pytest.mark.parametrize(("shape", "own"), [((8, 4, 1), (8, 4)), ((8, 1, 4), (8, 4)), ((8, 2, 2), (8, 4))])
def test_a_mask_of_another_shape_is_named_where_targets_are_missing(shape, own, tmp_path):
    y, mask = np.random.default_rng(0).random(shape), np.ones(own)
    y.reshape(own)[0, 1], mask[0, 1] = np.nan, 0
    with pytest.raises(DataError, match=r"mask: must be shaped like the targets \(y .*\)\. Received: \(4,\)"):
        shard(np.ones(shape), y, tmp_path / "s", mask=mask, progress=False)
