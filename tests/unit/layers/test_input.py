"""Input layers, and what prepares images."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import CharRNN, Context, Dummy, ImagePreprocess, RecordInput, Step
from singa_dask.ops import Ops, get_ops

RNG = np.random.default_rng(0)


def feed(layer: RecordInput, x: np.ndarray) -> np.ndarray:
    layer.setup()
    return layer.forward(Context(get_ops()), x)


def mean_file(path, mean: np.ndarray) -> str:
    with h5py.File(path, "w") as file:
        file["mean"] = mean
    return str(path)


@pytest.mark.parametrize(
    ("shape", "own"),
    [
        ([3, 4, 5], (4, 5, 3)),
        ([1, 4, 5], (4, 5, 1)),
        ([4, 5], (4, 5, 1)),
        ([60], (60,)),
        ([2, 3, 4, 5], (3, 4, 5, 2)),
        ([1], (1,)),
    ],
)
def test_shape_of_a_job_becomes_height_width_channels(shape, own):
    assert RecordInput("data", shape=shape).setup() == own


def test_layouts_of_images_that_a_shard_may_have():
    planes = RNG.integers(0, 256, (2, 3, 4, 5), np.uint8)
    expected = np.moveaxis(planes, 1, 3).astype(np.float32)
    for stored in (planes, np.moveaxis(planes, 1, 3), planes.reshape(2, -1)):
        y = feed(RecordInput("data", shape=[3, 4, 5]), stored)
        np.testing.assert_array_equal(y, expected)
        assert y.dtype == np.float32
        assert y.flags.c_contiguous
    grey = RNG.integers(0, 256, (2, 4, 5), np.uint8)
    np.testing.assert_array_equal(feed(RecordInput("data", shape=[4, 5]), grey)[..., 0], grey)
    np.testing.assert_array_equal(feed(RecordInput("data", shape=[20]), grey), grey.reshape(2, 20))


@pytest.mark.parametrize(
    ("shape", "sample"),
    [([1], (7,)), ([1, 1, 1], (7,)), ([5], (7, 5)), ([3, 4, 5], (7, 4, 5, 3)), ([4, 5], (7, 4, 5, 1))],
)
def test_sequences_have_their_records_in_front(shape, sample):
    layer = RecordInput("data", shape=shape, sequence=5, lookahead=2)
    assert layer.setup() == sample
    x = RNG.random((2, *sample), np.float32)
    assert feed(layer, x) is x


def test_characters_are_sequences_of_one_more_than_is_unrolled():
    """The job stays as it is."""
    proto = CharRNN("text", path="somewhere", unroll_len=4, batchsize=3).proto
    layer = CharRNN.from_proto(proto)
    x = np.arange(15, dtype=np.uint8).reshape(3, 5)
    y = feed(layer, x)
    np.testing.assert_array_equal(y, x)
    assert y.dtype == np.float32
    store = layer.proto.store_conf
    assert (store.path, store.sequence, store.lookahead, list(store.batchsize)) == ("somewhere", 4, 1, [3])
    assert not store.has_label
    assert not proto.HasField("store_conf")
    assert CharRNN("text", path="somewhere").setup() == (51,)


def preprocess(x: np.ndarray, step: Step, ops: Ops, **conf) -> np.ndarray:
    layer = ImagePreprocess("aug", "data", **conf)
    assert layer.setup(x.shape[1:]) == (conf.get("cropsize") or x.shape[1], conf.get("cropsize") or x.shape[2], 3)
    return layer.forward(Context(ops, step), x)


def places(images: np.ndarray, crops: np.ndarray) -> set[tuple[int, int, int]]:
    """Where the crops are from: top, left, and 1 if mirrored."""
    _, height, width, _ = crops.shape
    found = set()
    for image, crop in zip(images, crops, strict=True):
        for top, left in np.ndindex(image.shape[0] - height + 1, image.shape[1] - width + 1):
            piece = image[top : top + height, left : left + width]
            found |= {(top, left, m) for m, p in enumerate((piece, piece[:, ::-1])) if np.allclose(p, crop, atol=1e-6)}
    return found


@pytest.mark.parametrize("ops", [Ops(), get_ops()], ids=repr)
def test_preprocess_takes_the_centre_outside_training(ops, tmp_path):
    x, mean = RNG.random((2, 7, 8, 3), np.float32), RNG.random((7, 8, 3))
    y = preprocess(
        x, Step(Phase.kTest), ops, cropsize=4, mirror=True, scale=0.5, meanfile=mean_file(tmp_path / "m", mean)
    )
    np.testing.assert_allclose(y, 0.5 * (x - mean)[:, 1:5, 2:6], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ops", [Ops(), get_ops()], ids=repr)
def test_preprocess_crops_and_mirrors_at_random_in_training(ops):
    x = RNG.random((64, 5, 6, 3), np.float32)
    y = preprocess(x, Step(number=4), ops, cropsize=3, mirror=True)
    found = places(x, y)
    assert len(found) > 15
    assert [set(axis) for axis in zip(*found, strict=True)] == [{0, 1, 2}, {0, 1, 2, 3}, {0, 1}]
    assert not np.array_equal(y, preprocess(x, Step(number=5), ops, cropsize=3, mirror=True))


@pytest.mark.parametrize("ops", [Ops(), get_ops()], ids=repr)
def test_preprocess_pads_with_zeros_behind_the_mean(ops, tmp_path):
    x, mean = RNG.random((64, 4, 5, 3), np.float32), RNG.random((4, 5, 3))
    meanfile = mean_file(tmp_path / "m", mean)
    padded = np.pad(x - mean.astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    found = places(padded, preprocess(x, Step(number=4), ops, pad=1, meanfile=meanfile))
    assert found == {(top, left, 0) for top in range(3) for left in range(3)}
    tested = preprocess(x, Step(Phase.kTest), ops, pad=1, meanfile=meanfile)
    np.testing.assert_allclose(tested, x - mean, rtol=1e-5, atol=1e-6)


def test_a_row_is_prepared_alike_whoever_has_it():
    x = RNG.random((8, 5, 6, 3), np.float32)
    whole = preprocess(x, Step(), get_ops(), cropsize=3, mirror=True)
    shares = [preprocess(x[r], Step(first_row=r.start), get_ops(), cropsize=3) for r in (slice(0, 3), slice(3, 8))]
    unmirrored = preprocess(x, Step(), get_ops(), cropsize=3)
    np.testing.assert_array_equal(np.concatenate(shares), unmirrored)
    assert not np.array_equal(whole, unmirrored)


def test_dummy_input_gives_the_same_numbers_at_every_step():
    layer = Dummy("d", input=True, shape=[2, 3, 4, 5])
    assert layer.setup() == (4, 5, 3)
    ctx = Context(get_ops())
    first = layer.forward(ctx).copy()
    assert first.shape == (2, 4, 5, 3)
    assert len(np.unique(first)) == first.size
    np.testing.assert_array_equal(first, layer.forward(ctx))
