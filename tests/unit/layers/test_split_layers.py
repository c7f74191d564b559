"""Layers whose features are divided over workers compute what the layer on its own computes."""

import numpy as np
import pytest
from support.split_layers import BASE, CASES, SplitLayer, images, loss, normal, recurrent

from singa_dask.layers import LRN, LSTM, GroupNorm, Mul, SoftmaxLoss
from singa_dask.layers.partition import LayerPartition, Sharding
from singa_dask.ops import get_ops

SIZES = (2, 3)
CPU = get_ops("cpu", np.float64)


# What BatchNorm learns of its statistics is not a derivative.


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_layer_on_its_own(name, size):
    case = CASES[name]()
    serial, case.ops = case.run(1), CPU
    split = case.run(size)
    np.testing.assert_allclose(split.y, serial.y, rtol=1e-11, atol=1e-13)
    for ours, theirs in zip(split.dx, serial.dx, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    for ours, theirs in zip([*split.grads, *split.states], [*serial.grads, *serial.states], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    for metrics in split.metrics:
        assert metrics == pytest.approx(serial.metrics[0], rel=1e-12)


def split_loss(logits, labels, topk=1, ops=BASE):
    logits = np.array(logits, ops.dtype)
    classes = logits.shape[1]
    layer = SoftmaxLoss("loss", ["x", "data"], topk=topk)
    return SplitLayer(layer, ((classes,), (1,)), [logits, np.array(labels)], len(logits), ops=ops)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", SIZES)
def test_softmax_loss_of_extreme_logits(dtype, size):
    inf = np.inf
    logits = [
        [3e38, -3e38, 0, 1, 2, 3],  # exp overflows
        [-1e5, -1e5 - 50, -1e5, -2e5, -1e5, -1e5],  # all of exp underflows
        [0, 1, -inf, -inf, -inf, -inf],  # a worker has nothing but -inf
        [-90, -90, 0, 0, 90, 90],
        [0, 0, 0, 0, 0, -120],
    ]
    case = split_loss(logits, [0, 1, 1, 2, 5], ops=get_ops("cpu", dtype))
    with np.errstate(over="ignore"):
        serial, split = case.run(1), case.run(size)
    assert np.isfinite(split.y).all()
    tiny = np.finfo(dtype).tiny
    np.testing.assert_allclose(split.y, serial.y, rtol=1e-6, atol=2 * tiny)
    np.testing.assert_allclose(split.dx[0], serial.dx[0], rtol=1e-6, atol=1e-7)
    (loss,) = {metrics["loss"] for metrics in split.metrics}
    assert loss == pytest.approx(
        (50 + np.log(4) + np.log1p(np.exp(-1)) + 90 + np.log(2) + 120 + np.log(5)) / 5, rel=1e-6
    )
    assert {metrics["accuracy"] for metrics in split.metrics} == {serial.metrics[0]["accuracy"]}


@pytest.mark.parametrize("label", range(6))
@pytest.mark.parametrize("topk", [1, 2, 3, 5])
def test_equal_logits_rank_by_their_class(topk, label):
    logits = [[1, 2, 2, 1, 2, 0], [0, 0, 0, 0, 0, 0], [0, 0, 5, 5, 0, 0], [1, np.nan, 2, 3, np.nan, 4]]
    for row in logits:
        case = split_loss([row], [label], topk)
        (serial,) = case.run(1).metrics
        for size in SIZES:
            for metrics in case.run(size).metrics:
                assert metrics["accuracy"] == serial["accuracy"], row


def test_labels_may_be_small_integers():
    for labels in (np.array([299, 200, 0], np.uint16), np.array([255, 200, 0], np.uint8)):
        each = split_loss(normal(3, 300), labels)
        assert each.run(2).metrics[1] == pytest.approx(each.run(1).metrics[0])


@pytest.mark.parametrize("size", SIZES)
def test_values_that_cross_workers(size):
    rows, units, steps = 4, 6, 3
    # Of every row, three values of all workers are gathered and one is summed.
    assert loss(rows).run(size).nbytes == 8 * rows * (3 * (size - 1) + 1)
    # The first worker's two channels beside the next worker's, forward and backward.
    assert images(LRN("n", "x", local_size=5), 1, 1, 6, rows=1).run(size).nbytes == 8 * 2 * 2
    # The state between steps, forward and backward.
    cell = recurrent(LSTM, normal(steps * rows, 2), units=units, steps=steps, rows=rows)
    others = units * (size - 1) // size
    assert cell.run(size).nbytes == 8 * rows * (steps - 1) * 2 * others


class OwnLoss(SoftmaxLoss):
    type = "kUserLayer"

    def forward(self, ctx, *x):
        return super().forward(ctx, *x)


class OwnCell(LSTM):
    type = "kUserLayer"

    def forward(self, ctx, *x):
        return super().forward(ctx, *x)


@pytest.mark.parametrize(
    ("layer", "sources", "workers", "columns"),
    [
        (SoftmaxLoss("n", ["x", "data"]), ((12,), (1,)), 1, True),
        (SoftmaxLoss("n", ["x", "data"]), ((2, 2, 3), (1,)), 1, False),  # images are not classes by channel
        (OwnLoss("n", ["x", "data"]), ((12,), (1,)), 1, False),
        (Mul("n", ["x", "y"]), ((2, 3, 4), (4,)), 1, True),
        (Mul("n", ["x", "y"]), ((2, 3, 4), (2, 3, 1)), 1, False),
        (GroupNorm("n", "x", num_groups=4), ((12,),), 2, True),
        (GroupNorm("n", "x", num_groups=4), ((12,),), 3, False),
        (GroupNorm("n", "x", num_groups=6), ((12,),), 3, True),
        (GroupNorm("n", "x", num_groups=1), ((12,),), 2, False),
    ],
)
def test_layers_take_the_columns_that_they_can_compute_on(layer, sources, workers, columns):
    """A user's own forward is promised nothing: a loss of all rows on every worker would have too large a gradient."""
    layer.partition = LayerPartition(sources=sources, size=workers)
    assert (Sharding.FEATURES in layer.takes) == columns
    assert Sharding.BATCH in layer.takes


def test_a_cell_of_ones_own_is_computed_whole():
    cell = OwnCell("cell", "x", dim_hidden=2)
    assert cell.takes == (Sharding.BATCH, Sharding.REPLICATED)
    assert cell.shardings(1, [Sharding.FEATURES]) == (Sharding.REPLICATED, Sharding.REPLICATED)
