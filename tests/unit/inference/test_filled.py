"""A net that was trained with a rule for missing values fills those of new samples, wherever these come from."""

import pickle

import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pytest
import xarray

from singa_dask import Job, Model, layers, shard, train, updaters
from singa_dask.errors import DataError, NotFinite
from singa_dask.inference.describe import describe
from singa_dask.inference.evaluate import load_model, model_of
from singa_dask.inference.run import predict_blocks
from singa_dask.inference.sources import blocks_of
from singa_dask.job import job_to_text
from singa_dask.job.job_pb2 import Phase
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

DRAW = np.random.default_rng(7)
N = 24
Y = DRAW.normal(size=N)


def with_gaps(*shape):
    x = DRAW.normal(2, 3, (N, *shape)).astype(np.float32)
    x[DRAW.random(x.shape) < 0.1] = np.nan
    return x


def model_for(folder, **store):
    """A net with its initial parameters, of shards."""
    source = layers.RecordInput(path=str(folder / "train"), batchsize=8, normalise=True, **store)
    net = (source, layers.InnerProduct(num_output=2), layers.EuclideanLoss())
    job = Job(name="fill", layers=net, updater=updaters.SGD(lr=0.1), train_steps=8, seed=5)
    prepared = prepare(job, phases=[Phase.kTest])
    state = Model(prepared.job.neuralnet, seed=5).state_dict()
    saved = checkpoints.Checkpoint(
        8, 5, job_to_text(prepared.job), state, described=prepared.described, code=prepared.code
    )
    return model_of(prepared.job, prepared.code, checkpoints.save(saved, checkpoints.path_of(folder / "run", 8)))


def predicted(model, data, folder, x=()):
    out = folder / f"{np.random.default_rng().integers(1 << 60)}.h5"
    predict_blocks(model, blocks_of(model, str(data), x), out)
    with h5py.File(out) as file:
        return np.asarray(file[model.outputs[0]]["prediction"])


SHAPES = [((4,), None), ((4, 3), None), ((3, 6, 5), "first"), ((6, 5, 3), "last")]
CASES = [(*shape, missing) for shape in SHAPES for missing in ("mean", -2, "mask") if (*shape, missing)[0] != (4, 3)]
CASES += [((4, 3), None, "mean")]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(("shape", "channels", "missing"), CASES)
def test_new_samples_are_filled_like_the_shards(tmp_path, shape, channels, missing, flat):
    x, new = with_gaps(*shape), with_gaps(*shape)
    y = np.stack([Y, Y], 1)
    options = {"missing": missing, "channels": channels}
    made = shard(x, y, tmp_path / "train", **options)[""]
    model = model_for(tmp_path, **({"shape": [made.features.values]} if flat else {}))
    shard(new, y, tmp_path / "new", like=made, shuffle=False, channels=channels)
    expected = predicted(model, tmp_path / "new", tmp_path)
    assert np.isfinite(expected).all()
    np.savez(tmp_path / "new.npz", x=new)
    found = {
        "array": model.predict(new),
        "mini-batches": model.predict(new, batchsize=5),
        "masked": model.predict(np.ma.masked_invalid(np.nan_to_num(new) + np.where(np.isnan(new), np.nan, 0))),
        "double": model.predict(new.astype(np.float64)),
        "dask": model.predict(da.from_array(new, chunks=(7, *shape))).compute(),
        "another process": pickle.loads(pickle.dumps(model)).predict(new),
        "file": predicted(model, tmp_path / "new.npz", tmp_path, ("x",)),
    }
    if channels == "first" and not flat:
        found["channels last"] = model.predict(np.moveaxis(new, 1, -1))
    for name, values in found.items():
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    assert model.evaluate(new, y)["loss"] == pytest.approx(model.evaluate(np.asarray(new, np.float64), y)["loss"])


def test_a_flat_net_reads_the_channels_of_a_file_as_those_of_shards(tmp_path):
    x = np.nan_to_num(with_gaps(3, 6, 5))
    shard(x, np.stack([Y, Y], 1), tmp_path / "train", shuffle=False)
    model = model_for(tmp_path, shape=[90])
    np.savez(tmp_path / "new.npz", x=x)
    expected = predicted(model, tmp_path / "train", tmp_path)
    np.testing.assert_allclose(predicted(model, tmp_path / "new.npz", tmp_path, ("x",)), expected, rtol=1e-5)


def test_labelled_arrays_and_windows_are_filled(tmp_path):
    x, y = with_gaps(3), np.stack([Y, Y], 1)
    made = shard(x, y, tmp_path / "train", missing="mask", shuffle=False)[""]
    model = model_for(tmp_path, sequence=4, horizon=1)
    windows = np.moveaxis(np.lib.stride_tricks.sliding_window_view(x, 4, axis=0), -1, 1)
    full = np.concatenate([np.where(np.isnan(x), made.features.fill.values, x), ~np.isnan(x)], 1).astype(np.float32)
    expected = model.predict(np.moveaxis(np.lib.stride_tricks.sliding_window_view(full, 4, axis=0), -1, 1))
    np.testing.assert_allclose(model.predict(windows), expected, rtol=1e-5)
    labelled = model.predict(xarray.DataArray(windows, dims=["t", "step", "value"]))
    np.testing.assert_allclose(np.asarray(labelled).reshape(expected.shape), expected, rtol=1e-5)


def test_an_array_in_place_of_a_table_is_filled_like_its_columns(tmp_path):
    x = with_gaps(3)
    table = pd.DataFrame(x, columns=list("abc"))
    whole = table.assign(c=table.c.fillna(0))
    shard(whole, np.stack([Y, Y], 1), tmp_path / "train", missing={"a": "mean", "b": 4})
    model = model_for(tmp_path)
    np.testing.assert_allclose(model.predict(whole.to_numpy()), model.predict(whole).to_numpy(), rtol=1e-5)
    with pytest.raises(NotFinite, match="'c': 3 value"):
        model.predict(table.assign(c=[np.nan] * 3 + [0] * (N - 3)).to_numpy())


def test_what_no_rule_fills_is_refused(tmp_path):
    x = with_gaps(4)
    shard(np.nan_to_num(x), np.stack([Y, Y], 1), tmp_path / "train")
    with pytest.raises(NotFinite, match="are NaN"):
        model_for(tmp_path).predict(x)
    (tmp_path / "filled").mkdir()
    shard(x, np.stack([Y, Y], 1), tmp_path / "filled" / "train", missing="mask")
    model = model_for(tmp_path / "filled")
    x[9, 1] = np.inf
    with pytest.raises(NotFinite, match=r"'x\[1\]': 1 value.s. are infinite .* sample 9"):
        model.predict(x)
    with pytest.raises(DataError, match="samples of shape"):
        model.predict(x[:, :3])


def test_shards_that_are_filled_otherwise_are_not_predicted(tmp_path):
    x, y = with_gaps(4), np.stack([Y, Y], 1)
    shard(x, y, tmp_path / "train", missing="mean")
    model = model_for(tmp_path)
    shard(x + 1, y, tmp_path / "other", missing="mean")
    with pytest.raises(DataError, match="fills missing values of 'x' otherwise than the training data"):
        predicted(model, tmp_path / "other", tmp_path)


def test_training_keeps_the_rule_and_validates_with_it(tmp_path):
    x = with_gaps(4)
    made = shard(x, Y, tmp_path / "train", missing="mask")[""]
    net = (layers.RecordInput(batchsize=8), layers.InnerProduct(num_output=1), layers.EuclideanLoss())
    job = Job(name="fill", layers=net, updater=updaters.SGD(lr=0.001), train_steps=2, seed=5)
    options = {"processes": False, "workspace": tmp_path / "run", "curves": False}
    result = train(job, data=tmp_path / "train", validation=(with_gaps(4), Y), **options)
    assert np.isfinite(load_model(result.workspace).predict(x)).all()
    told = "\n".join(describe(str(tmp_path / "run")))
    assert f"missing: {made.features.fill}" in told and "and flags" in told


def test_the_numbers_of_replaced_values_are_told(tmp_path, caplog):
    x, y = with_gaps(3), np.stack([Y, Y], 1)
    file = h5py.File(tmp_path / "x.h5", "w")
    file["x"] = x
    made = shard(x, y, tmp_path / "train", missing="mean")[""]
    assert made.schema.fitted.endswith(f"; missing values: {np.isnan(x).sum()} in 'x'")
    other = shard(x[:8], y[:8], tmp_path / "new", like=made)[""]
    assert other.schema.fitted.endswith(f"samples; missing values: {np.isnan(x[:8]).sum()} in 'x'")
    table = pd.DataFrame(x, columns=list("abc"))
    fitted = shard(table, y, tmp_path / "t" / "train", missing="mean")[""].schema.fitted
    assert f"{table.b.isna().sum()} in 'b'" in fitted
    for model, given, name, count in (
        (model_for(tmp_path), x, "'x'", np.isnan(x).any(axis=1).sum()),
        (model_for(tmp_path), da.from_array(x, chunks=(N, 3)), "'x'", np.isnan(x).any(axis=1).sum()),
        (model_for(tmp_path / "t"), table, "'b'", table.b.isna().sum()),
        (model_for(tmp_path), np.ma.masked_invalid(x), "'x'", np.isnan(x).any(axis=1).sum()),
        (model_for(tmp_path), x.tolist(), "'x'", np.isnan(x).any(axis=1).sum()),
        (model_for(tmp_path), file["x"], "'x'", np.isnan(x).any(axis=1).sum()),
        (model_for(tmp_path), xarray.DataArray(x), "'x'", np.isnan(x).any(axis=1).sum()),
    ):
        caplog.clear()
        for _ in range(2):
            with caplog.at_level("INFO"):
                np.asarray(model.predict(given))
        told = [record for record in caplog.records if f"{name} in {count}" in record.getMessage()]
        assert told[0].levelname == "WARNING"
        assert isinstance(given, da.Array) or [record.levelname for record in told] == ["WARNING", "INFO"]
    caplog.clear()
    model_for(tmp_path).predict(np.nan_to_num(x))
    assert "were replaced" not in caplog.text
