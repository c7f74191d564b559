"""Dropout: the mask is a function of the position in the whole mini-batch, however the group divides it."""

from __future__ import annotations

import numpy as np
import pytest

from singa_dask.algorithms import BP
from singa_dask.job.job_pb2 import NetProto
from singa_dask.layers import BatchNorm, Convolution, Dropout, InnerProduct, RecordInput, SoftmaxLoss, Step
from singa_dask.layers.context import Context
from singa_dask.layers.partition import Form, LayerPartition, even_bounds
from singa_dask.ops import Ops, get_ops
from tests.support.partitioned import assert_equal_to_serial

ROWS = 6
IMAGE = (2, 3, 5)


def outputs(x, form, rank=0, size=1, ops=None, steps=1):
    """What one worker makes of its part of x, and the gradient for a gradient of ones."""
    layer = Dropout("drop", "x", dropout_ratio=0.4)
    layer.proto.unroll_len = steps
    layer.partition = LayerPartition(form, form, (x.shape[1:],), rank, size)
    first, last = even_bounds(ROWS // steps, size)[rank : rank + 2]
    step = Step(number=3, seed=5, first_row=first if form is Form.ROWS else 0, total_rows=ROWS)
    if form is Form.ROWS:
        x = x.reshape(steps, -1, *x.shape[1:])[:, first:last].reshape(-1, *x.shape[1:])
    elif form is Form.COLUMNS:
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
    serial = outputs(x, Form.ROWS, ops=ops, steps=steps)
    assert 0 < np.count_nonzero(serial[0]) < x.size
    for form, axis in ((Form.ROWS, 1), (Form.COLUMNS, -1)):
        parts = [outputs(x, form, rank, size, ops, steps) for rank in range(size)]
        for i, whole in enumerate(serial):
            by_step = [part[i].reshape(steps, -1, *part[i].shape[1:]) for part in parts]
            np.testing.assert_array_equal(np.concatenate(by_step, axis).reshape(whole.shape), whole)
    for i, whole in enumerate(serial):
        np.testing.assert_array_equal(outputs(x, Form.WHOLE, size - 1, size, ops, steps)[i], whole)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_group_trains_as_one_worker(dim):
    layers = [
        RecordInput("data", shape=[2, 4, 4]),
        Dropout("drop0", "data", dropout_ratio=0.2),
        Convolution("conv", "drop0", num_filters=5, kernel=3),
        BatchNorm("norm", "conv"),
        Dropout("drop1", "norm", dropout_ratio=0.5),
        InnerProduct("ip1", "drop1", num_output=30, partition_dim=dim),
        Dropout("drop2", "ip1", dropout_ratio=0.5),
        InnerProduct("ip2", "drop2", num_output=4),
        SoftmaxLoss("loss", ["ip2", "data"]),
    ]
    proto = NetProto(layer=[layer.proto for layer in layers], partition_dim=dim)
    draw = np.random.default_rng(0)
    batches = [{"data": (draw.random((8, 4, 4, 2)), draw.integers(0, 4, 8))} for _ in range(3)]
    assert_equal_to_serial(proto, BP(), batches, (2, 3, 4))
