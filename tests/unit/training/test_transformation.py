"""Transforms change the mini-batches of training, in the same way for any number of workers."""

import os
import time

import numpy as np
import pytest
from support.shards import write_shards
from support.trained import assert_alike, saved_at, train_group

from singa_dask import Classifier, Job, Regressor, load_model, train, transforms
from singa_dask.errors import ConfigError, DataError
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import Convolution, InnerProduct, MSELoss, RecordInput, SoftmaxLoss
from singa_dask.ops import get_ops
from singa_dask.training.feed import Feed
from singa_dask.training.prepare import prepare
from singa_dask.transforms import Draws, brightness, crop, mirror, noise, rotate
from singa_dask.updaters import SGD

DRAW = np.random.default_rng(0)
B, H, W, C = 12, 6, 6, 2
X = DRAW.standard_normal((B, H, W, C)).astype("f4")
MAPS = DRAW.integers(0, 3, (B, H, W))


def augment(batch, rng):
    batch = crop(rotate(mirror(batch, rng), rng), rng, pad=2)
    return noise(brightness(batch, rng), rng, std=0.3)


def watched(batch, rng):
    """Workers get a copy of the function, so it writes what it sees to a folder."""
    folder = os.environ["SEEN"]
    np.savez(f"{folder}/{len(os.listdir(folder)):04d}.npz", **batch)
    return batch


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """The batches that `watched` has seen."""
    folder = tmp_path / "seen"
    folder.mkdir()
    monkeypatch.setenv("SEEN", str(folder))
    return lambda: [dict(np.load(path)) for path in sorted(folder.iterdir())]


def rows_of(first, rows):
    return Draws(7, 3, first, rows)


@pytest.mark.parametrize("change", [mirror, rotate, crop, noise, brightness, augment])
def test_rows_do_not_depend_on_the_others(change):
    whole = change({"x": X, "y": MAPS}, rows_of(0, B))
    for first, last in ((0, 5), (5, 12)):
        part = change({"x": X[first:last], "y": MAPS[first:last]}, rows_of(first, last - first))
        for name, values in part.items():
            np.testing.assert_array_equal(values, whole[name][first:last])
    assert whole["x"].shape == X.shape and whole["x"].dtype == X.dtype
    assert (whole["x"] != X).any() and (change({"x": X}, Draws(7, 4, 0, B))["x"] != whole["x"]).any()


@pytest.mark.parametrize("change", [mirror, rotate, crop])
def test_maps_and_masks_are_turned_with_the_images(change):
    batch = {"x": X, "y": X[..., 0].copy(), "mask": X[..., :1].copy(), "label": np.arange(B), "w": np.ones((B, 1))}
    found = change(batch, rows_of(0, B))
    np.testing.assert_array_equal(found["y"], found["x"][..., 0])
    np.testing.assert_array_equal(found["mask"], found["x"][..., :1])
    np.testing.assert_array_equal(found["label"], batch["label"])


def test_draws_are_spread_as_they_say():
    rng = Draws(0, 0, 0, 20_000)
    uniform, normal, integers = rng.random(2), rng.normals(2), rng.integers(-1, 3)
    assert uniform.shape == (20_000, 2) and uniform.min() >= 0 and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01 and abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    assert set(integers.tolist()) == {-1, 0, 1, 2} and abs((integers == 0).mean() - 0.25) < 0.02


def test_images_that_cannot_be_turned_are_refused():
    with pytest.raises(ValueError, match="needs square images, not 6 x 5"):
        rotate({"x": X[:, :, :5]}, rows_of(0, B))
    with pytest.raises(ValueError, match=r"x must be images .* has the shape \(12, 3\)"):
        mirror({"x": X[:, 0, :3, 0]}, rows_of(0, B))


@pytest.mark.parametrize("change", [mirror, rotate, crop])
@pytest.mark.parametrize(
    "other",
    [
        {"y": MAPS[:, ::2, ::2]},
        {"y": X[:, 1:-1, 1:-1]},
        {"y": X[..., 0].reshape(B, -1)},
        {"high": np.repeat(X, 2, axis=1)},
        {"mask": X[:, :3, :3, :1]},
        {"high.y": MAPS[:, :2]},
        {"z": np.ones((B, H * W))},
    ],
    ids=lambda other: "".join(f"{name} {values.shape}" for name, values in other.items()),
)
def test_fields_of_another_size_are_refused(change, other):
    (name,) = other
    with pytest.raises(
        ValueError, match=rf"^{name} has the shape \(12, .* and x images of 6 x 6.*change x alone: batch"
    ):
        change({"x": X, **other}, rows_of(0, B))
    alone = {"x": X, **other, **change({"x": X}, rows_of(0, B))}
    assert alone[name] is other[name] and (alone["x"] != X).any()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 1, 4), (1, 6, 1), (5, 1, 1), (24, 5)], ids=str)
def test_what_is_no_field_stays(shape):
    name = "series" if shape == (24, 5) else "y"
    values = DRAW.standard_normal((B, *shape))
    assert mirror({"x": X, name: values}, rows_of(0, B))[name] is values


def job(folder, workers, transform=None, **data):
    net = [
        RecordInput("data", path=str(folder), batchsize=10, normalise=True, **data),
        Convolution("scores", num_filters=3, kernel=1),
        SoftmaxLoss("loss", ["scores", "data"]),
    ]
    made = Job(name="t", layers=net, updater=SGD(lr=0.1), train_steps=6, checkpoint_freq=6)
    made.proto.cluster.nworkers_per_group = workers
    if transform:
        made.proto.neuralnet.layer[0].store_conf.transform = transform
    return made


def test_two_workers_train_as_one(tmp_path):
    write_shards(tmp_path / "shards", X, MAPS)
    reached = {}
    for workers, transform in ((1, None), (1, f"{__name__}:augment"), (2, f"{__name__}:augment")):
        out = tmp_path / f"{workers}{transform}"
        train_group(prepare(job(tmp_path / "shards", workers, transform)), out)
        reached[workers, bool(transform)] = saved_at(out, 6)
    assert_alike(reached[2, True], reached[1, True], rtol=1e-4, atol=1e-6)
    with pytest.raises(AssertionError):
        assert_alike(reached[1, False], reached[1, True], rtol=1e-2)


def test_a_transform_of_nothing_changes_nothing(tmp_path, seen):
    write_shards(tmp_path / "shards", X, MAPS)
    for name in ("watched", ""):
        made = job(tmp_path / "shards", 1, name and f"{__name__}:{name}")
        train_group(prepare(made), tmp_path / f"out{name}")
    assert_alike(saved_at(tmp_path / "outwatched", 6), saved_at(tmp_path / "out", 6), rtol=1e-5, atol=1e-7)


def test_a_slow_transform_counts_as_loading():
    def slow(every, number):
        time.sleep(0.02)
        return every

    feed = Feed({}, get_ops("cpu"), Phase.kTrain, 0, 1, slow)
    feed.next(0)
    assert feed.wait_s >= 0.02


def test_batches_are_in_the_units_of_the_data_and_only_of_training(seen):
    y = 1000 + 50 * X.sum(axis=-1)
    validation = 20 + X, y
    net = [Convolution(num_filters=1, kernel=1), MSELoss()]
    model = Regressor(net, epochs=2, batch_size=4, validation=validation, random_state=0, transform=watched).fit(X, y)
    _, *batches = seen()  # the first one warms the net up
    assert len(batches) == 6 and {tuple(batch) for batch in batches} == {("x", "y")}
    read = np.concatenate([batch["x"] for batch in batches[:3]])
    np.testing.assert_allclose(np.sort(read, axis=None), np.sort(X, axis=None), rtol=1e-6)
    assert batches[0]["y"].shape == (4, H, W, 1) and abs(batches[0]["y"].mean() - 1000) < 100
    model.predict(X)
    assert len(seen()) == 7


def test_masks_and_labels_of_positions_are_in_the_batch(seen):
    fitted = Classifier(epochs=1, random_state=0, transform=watched).fit(X, MAPS, sample_weight=np.arange(B))
    batch = seen()[0]
    assert {name: (values.shape, values.dtype.kind) for name, values in batch.items()} == {
        "x": ((B, H, W, C), "f"),
        "y": ((B, H, W), "f"),
        "sample_weight": ((B, 1), "f"),
    }
    assert set(np.unique(batch["y"])) == {0, 1, 2}
    assert fitted.get_params()["transform"] is watched


def test_a_job_names_the_ready_ones(tmp_path):
    made = job(tmp_path / "none", 1, "singa_dask.transforms:mirror")
    made.proto.neuralnet.layer[0].store_conf.ClearField("path")
    result = train(made, data=(X, MAPS), processes=False, workspace=tmp_path / "run", transform=None)
    assert load_model(result.workspace).predict(X).shape == (B, H, W, 3)


def bad(batch, rng):
    return batch["x"]


def smaller(batch, rng):
    return {**batch, "x": batch["x"][:, 1:]}


def failing(batch, rng):
    return batch["z"]


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (bad, r"transform bad must return a dict with x, y. Received: ndarray"),
        (smaller, r"must return x as numbers of shape \(12, 6, 6, 2\). Received: float32 of shape \(12, 5, 6, 2\)"),
        (failing, r"layer 'data': the transform failing failed at step 0: KeyError: 'z'"),
    ],
)
def test_what_a_transform_returns_is_checked(transform, message):
    with pytest.raises(DataError, match=message):
        Classifier([Convolution(num_filters=3, kernel=1)], epochs=1, transform=transform).fit(X, MAPS)


def test_wrong_names_are_refused_before_the_first_step(tmp_path):
    write_shards(tmp_path / "shards", X, MAPS)
    for name, message in (
        ("nowhere:f", "no module named 'nowhere'"),
        (f"{__name__}:X", r"must be a class or function|must name a function"),
        (f"{__name__}:Draws", "must name a function"),
        ("augment", 'must be spelled "module:Name"'),
        ("os:system", "belongs to the standard library"),
    ):
        with pytest.raises(ConfigError, match=message):
            prepare(job(tmp_path / "shards", 1, name))
    made = job(tmp_path / "shards", 1, f"{__name__}:augment")
    test = made.proto.neuralnet.layer.add()
    test.CopyFrom(made.proto.neuralnet.layer[0])
    made.proto.neuralnet.layer[0].exclude.append(4)
    test.include.append(4)
    with pytest.raises(ConfigError, match="this layer has no part in it"):
        prepare(made)
    with pytest.raises(ConfigError, match=r"transform: must be a function"):
        Classifier([InnerProduct(num_output=2)], transform="mirror").fit(X[:, 0, 0], MAPS[:, 0, 0])
    assert transforms.mirror is mirror
