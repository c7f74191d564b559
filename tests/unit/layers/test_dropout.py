"""Dropout: the mask is a function of the position in the whole mini-batch, however the group divides it."""

import numpy as np
import pytest

from singa_dask.layers import Dropout, Step
from singa_dask.layers.context import Context
from singa_dask.layers.partition import LayerPartition, Sharding, even_bounds
from singa_dask.ops import Ops, get_ops

ROWS = 6
IMAGE = (2, 3, 5)


def outputs(x, sharding, rank=0, size=1, ops=None, steps=1):
    """What one worker makes of its part of x, and the gradient for a gradient of ones."""
    layer = Dropout("drop", "x", dropout_ratio=0.4)
    layer.proto.unroll_len = steps
    layer.partition = LayerPartition(sharding, sharding, (x.shape[1:],), rank, size)
    first, last = even_bounds(ROWS // steps, size)[rank : rank + 2]
    step = Step(number=3, seed=5, first_row=first if sharding is Sharding.BATCH else 0, total_rows=ROWS)
    if sharding is Sharding.BATCH:
        x = x.reshape(steps, -1, *x.shape[1:])[:, first:last].reshape(-1, *x.shape[1:])
    elif sharding is Sharding.FEATURES:
        x = x[..., slice(*layer.partition.own(x.shape[-1]))]
    x = np.ascontiguousarray(x)
    assert layer.setup(x.shape[1:]) == x.shape[1:]
    ctx = Context(ops or Ops(), step)
    y = layer.forward(ctx, x)
    return y, layer.backward(ctx, np.ones_like(y))


@pytest.mark.parametrize("shape", [(7,), IMAGE], ids=str)
@pytest.mark.parametrize("ops", [Ops(), get_ops()], ids=repr)
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("size", [2, 3])
def test_every_form_gets_the_mask_of_one_worker(shape, ops, steps, size):
    x = np.random.default_rng(0).standard_normal((ROWS, *shape), np.float32)
    serial = outputs(x, Sharding.BATCH, ops=ops, steps=steps)
    assert 0 < np.count_nonzero(serial[0]) < x.size
    for sharding, axis in ((Sharding.BATCH, 1), (Sharding.FEATURES, -1)):
        parts = [outputs(x, sharding, rank, size, ops, steps) for rank in range(size)]
        for i, whole in enumerate(serial):
            by_step = [part[i].reshape(steps, -1, *part[i].shape[1:]) for part in parts]
            np.testing.assert_array_equal(np.concatenate(by_step, axis).reshape(whole.shape), whole)
    for i, whole in enumerate(serial):
        np.testing.assert_array_equal(outputs(x, Sharding.REPLICATED, size - 1, size, ops, steps)[i], whole)
