"""Missing values of arrays: what replaces them is learned from the training samples, and kept with them."""

import json

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray

from singa_dask import Job, layers, load, shard, updaters
from singa_dask.data import Manifest, ShardFolder
from singa_dask.data.columns import Fill
from singa_dask.data.manifest_reader import read_description
from singa_dask.data.sharding import shard_files
from singa_dask.errors import ConfigError, DataError, NotFinite
from singa_dask.job.job_pb2 import Phase
from singa_dask.training.prepare import prepare

DRAW = np.random.default_rng(5)
Y = DRAW.normal(size=30)
CHUNKS = 7


def with_gaps(*shape, dtype=np.float32):
    x = DRAW.normal(2, 3, (30, *shape)).astype(dtype)
    x[DRAW.random(x.shape) < 0.1] = np.nan
    return x


def held(manifest, name="x"):
    column, shards = manifest.column(name), ShardFolder(manifest)
    read = [shards.reader(i).column(name) for i in range(len(manifest.shards))]
    return np.concatenate(read).reshape(-1, *column.shape)


def write(x, out, **options):
    (made,) = shard(x, Y, out, shuffle=False, **options).values()
    return made


CASES = [  # sample shape, channels, the axes of a mean, the axis of the channels
    ((), None, (0,), None),
    ((4,), None, (0,), 1),
    ((4, 3), None, (0, 1, 2), None),
    ((3, 6, 5), "first", (0, 2, 3), 1),
    ((6, 5, 2), "last", (0, 1, 2), 3),
    ((6, 5, 2), "none", (0, 1, 2, 3), None),
]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("shape", "channels", "axes", "_"), CASES)
def test_the_mean_is_taken_as_the_statistics_are_and_they_follow_it(tmp_path, shape, channels, axes, _, lazy):
    x = with_gaps(*shape)
    given = da.from_array(x, chunks=(CHUNKS, *shape)) if lazy else x
    made = write(given, tmp_path / "made", missing="mean", channels=channels)
    expected = np.where(np.isnan(x), np.nanmean(x, axes, np.float64, keepdims=True), x)
    np.testing.assert_allclose(held(made), expected, rtol=1e-5)
    np.testing.assert_allclose(made.features.mean, np.ravel(expected.mean(axes)), rtol=1e-5)
    np.testing.assert_allclose(made.features.std, np.ravel(expected.std(axes)), rtol=1e-5)
    assert len(made.features.fill.values) == made.features.num_statistics
    assert "replacements of missing values: the 30 training samples" in made.schema.fitted
    assert read_description(made.description).columns[0].fill == made.features.fill


@pytest.mark.parametrize(("shape", "channels", "axes", "axis"), [case for case in CASES if case[3]])
def test_a_mask_says_where_values_are(tmp_path, shape, channels, axes, axis):
    x = with_gaps(*shape)
    made = write(x, tmp_path / "made", missing="mask", channels=channels)
    values, flags = np.split(held(made), 2, axis)
    np.testing.assert_array_equal(flags, ~np.isnan(x))
    expected = np.where(np.isnan(x), np.nanmean(x, axes, np.float64, keepdims=True), x)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert made.features.raw.shape == shape and made.features.fill.flags
    assert Manifest.load(made.folder) == made


def test_only_training_samples_say_the_mean(tmp_path):
    x = with_gaps(4)
    made = shard(x, Y, tmp_path / "made", missing="mean", test=0.3)
    train = held(made["train"])
    rows = held(made["train"], "row").ravel()
    np.testing.assert_allclose(made["train"].features.fill.values, np.nanmean(x[rows], 0), rtol=1e-5)
    means = np.broadcast_to(np.nanmean(x[rows], 0), train.shape)
    np.testing.assert_allclose(train, np.where(np.isnan(x[rows]), means, x[rows]), rtol=1e-5)
    assert made["test"].features.fill == made["train"].features.fill


@pytest.mark.parametrize("missing", [-1.5, {"x": -1.5}])
def test_a_number_replaces_them_in_blocks_of_any_type(tmp_path, missing):
    x = np.ma.masked_array(np.arange(30 * 4).reshape(30, 4), mask=np.arange(120).reshape(30, 4) == 9)
    made = write(da.from_array(x, chunks=(CHUNKS, 4)), tmp_path / "made", missing=missing)
    np.testing.assert_array_equal(held(made), x.filled(0) + np.where(x.mask, -1.5, 0))


def test_other_samples_are_filled_like_those_of_training(tmp_path):
    x, other = with_gaps(3, 4, 4), with_gaps(3, 4, 4, dtype=np.float64) + 50
    made = write(x, tmp_path / "made", missing="mask")
    like = write(other, tmp_path / "like", like=made)
    assert like.features.fill == made.features.fill
    means = np.array(made.features.fill.values).reshape(1, 3, 1, 1)
    np.testing.assert_allclose(held(like)[:, :3], np.where(np.isnan(other), means, other))
    whole = write(DRAW.integers(0, 9, (30, 3, 4, 4)), tmp_path / "whole", like=made)
    assert (held(whole)[:, 3:] == 1).all()
    plain = write(np.nan_to_num(x), tmp_path / "plain")
    with pytest.raises(NotFinite, match="training samples had none: fill these, or write"):
        write(x, tmp_path / "refused", like=plain)


def test_columns_have_ways_of_their_own(tmp_path):
    x = {"images": with_gaps(4, 4, 3), "points": with_gaps(2), "whole": DRAW.normal(size=(30, 2))}
    made = write(x, tmp_path / "made", missing={"images": "mean", "points": "mask"})
    assert made.column("whole").fill is None and made.column("points").shape == (4,)
    assert not np.isnan(held(made, "images")).any()
    with pytest.raises(NotFinite, match=r"'points': .* are NaN"):
        write(x, tmp_path / "refused", missing={"images": "mean"})


@pytest.mark.parametrize(
    ("shape", "missing", "says"),
    [
        ((4,), "median", "missing: is for the columns of a table. Received: 'median'"),
        ((4,), "none", "missing: must be a way to fill missing values. Received: 'none'"),
        ((4,), True, "missing: must be a way to fill missing values. Received: True"),
        ((4,), float("inf"), "missing: must be a way to fill missing values. Received: inf"),
        ((4,), 1e300, "missing: is beyond float32, in which 'x' is read. Received: 1e"),
        ((4,), {"z": 0}, "missing: names a column that the features do not have. Received: 'z'"),
        ((), "mask", "samples with channels, or vectors, and those of 'x' are neither"),
        ((4, 4), "mask", "samples with channels, or vectors, and those of 'x' are neither"),
        ((4,), "error", r"Fill them with the option missing \(--missing\): mean, a number, or mask"),
    ],
)
def test_what_cannot_fill_is_refused(tmp_path, shape, missing, says):
    with pytest.raises((ConfigError, DataError), match=says):
        write(with_gaps(*shape), tmp_path / "made", missing=missing)
    assert not (tmp_path / "made").exists()


def test_a_mask_is_not_for_tables_and_encoders_not_for_arrays(tmp_path):
    with pytest.raises(ConfigError, match="missing: mask is for arrays, and these are columns of a table"):
        write({"a": with_gaps(), "b": with_gaps()}, tmp_path / "made", missing="mask")
    with pytest.raises(ConfigError, match="encode: names a column that the features do not have"):
        write(with_gaps(4), tmp_path / "made", encode={"x": "onehot"})


def test_values_that_are_all_missing_have_no_mean(tmp_path):
    x = with_gaps(4)
    x[:, 2] = np.nan
    with pytest.raises(DataError, match=r"'x': all training values of x\[2\] are missing, and have no mean"):
        write(x, tmp_path / "made", missing="mean")
    assert (held(write(x, tmp_path / "made", missing=7))[:, 2] == 7).all()


def test_infinite_values_are_not_missing(tmp_path):
    x = with_gaps(4)
    x[3, 1] = np.inf
    with pytest.raises(NotFinite, match=r"1 value.s. are infinite .* sample 3"):
        write(x, tmp_path / "made", missing="mean")


def test_fill_values_of_netcdf_are_missing(tmp_path):
    x = with_gaps(5, 4, 2)
    fields = {"field": (("sample", "y", "x", "channel"), x), "y": ("sample", Y)}
    xarray.Dataset(fields).to_netcdf(
        tmp_path / "f.nc", engine="h5netcdf", encoding={"field": {"_FillValue": np.float32(-99)}}
    )
    options = {"x": "field", "y": "y", "shuffle": False, "missing": "mean"}
    (made,) = shard_files("netcdf", tmp_path / "made", source=tmp_path / "f.nc", **options).values()
    np.testing.assert_allclose(held(made), np.where(np.isnan(x), np.nanmean(x, (0, 1, 2)), x), rtol=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("values", [1.0, 2.0], "must be 1 or 4 finite number"),
        ("values", [1.0, None, 2.0, 3.0], "must be 1 or 4 finite number"),
        ("flags", "yes", "must be true or false"),
    ],
)
def test_a_damaged_rule_is_refused(tmp_path, key, value, says):
    made = write(with_gaps(4), tmp_path / "made", missing="mask")
    fields = json.loads((tmp_path / "made" / "manifest.json").read_text())
    assert fields["columns"][0]["fill"]["flags"] is True
    fields["columns"][0]["fill"][key] = value
    (tmp_path / "made" / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(DataError, match=rf"columns\[0\].fill.{key} {says}"):
        Manifest.load(made.folder)


def test_shards_that_fill_otherwise_are_no_test_data(tmp_path):
    x = with_gaps(4)
    write(x, tmp_path / "train", missing="mean")
    write(x + 1, tmp_path / "test", missing="mean")
    write(np.nan_to_num(x), tmp_path / "whole")

    def job(test):
        inputs = [
            layers.RecordInput("data", path=str(tmp_path / "train"), batchsize=5, include=["kTrain"]),
            layers.RecordInput("data", path=str(tmp_path / test), batchsize=5, include=["kTest"]),
        ]
        net = (*inputs, layers.InnerProduct(num_output=1), layers.EuclideanLoss())
        return Job(name="fill", layers=net, updater=updaters.SGD(lr=0.1), train_steps=1, test_freq=1, test_steps=1)

    with pytest.raises(ConfigError, match="fills missing values of 'x' otherwise than"):
        prepare(job("test"), phases=[Phase.kTrain, Phase.kTest])
    prepare(job("whole"), phases=[Phase.kTrain, Phase.kTest])


def test_a_fill_is_told_in_few_values():
    assert str(Fill((1.0, 2.5, 3.0, 4.0, 5.0), flags=True)) == "1, 2.5, 3, 4, ... and flags"


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize(
    ("how", "days"), [(0, 0), ({"when": 50}, 50), (-1.5, -1.5), ("mean", 50), ("median", 45), ("most_frequent", 10)]
)
def test_a_number_for_a_missing_date_is_in_days_since_the_first_one(tmp_path, zone, how, days):
    when = pd.to_datetime(["2020-01-01", None, "2020-01-11", "2020-04-10", "2020-01-11", "2020-04-10", "2020-03-21"])
    when = when.where(when.notna(), other=pd.NaT)
    table = pd.DataFrame({"a": np.arange(7.0), "when": when.tz_localize(zone)})
    if how == "mean":
        table = table.drop(index=[2, 4, 5, 6]).reset_index(drop=True)
        table.loc[2, "when"] = pd.Timestamp("2020-04-10", tz=zone)
    made = shard(table, np.arange(len(table)) / 2, tmp_path / "made", missing=how, shuffle=False, durable=False)
    assert load(tmp_path / "made")[0][1].tolist() == [1, days]
    (only,) = made.values()
    filled = only.encoders.apply(table)
    assert filled[1].tolist() == [1, days]
