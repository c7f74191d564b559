"""The flat arrays: layout, views, slices and conversion."""

from __future__ import annotations

import numpy as np
import pytest

from singa_dask.errors import CheckpointError
from singa_dask.job.job_pb2 import ParamProto
from singa_dask.layers.param import Param
from singa_dask.net import FlatParams
from singa_dask.ops import get_ops


def params_of(*shapes, **proto):
    return [Param(ParamProto(**proto), f"p{i}", shape, 1, 1) for i, shape in enumerate(shapes)]


SHAPES = [(3, 5), (7,), (2, 2, 4), (1,)]


def test_params_are_aligned_views_into_the_flat_arrays():
    params = params_of(*SHAPES, lr_scale=2, wd_scale=0)
    flat = FlatParams.of(params, get_ops())
    assert [(e.start, e.size) for e in flat.entries] == [(0, 15), (16, 7), (32, 16), (48, 1)]
    assert flat.size == 64
    assert {(e.lr_scale, e.wd_scale) for e in flat.entries} == {(2.0, 0.0)}
    for i, param in enumerate(params):
        param.value[...] = i + 1
        param.grad[...] = -i
    assert flat.values.sum() == 15 * 1 + 7 * 2 + 16 * 3 + 1 * 4
    assert flat.grads.sum() == -(7 + 32 + 3)
    assert [p.value.shape for p in params] == SHAPES


def test_named_and_flattened_are_inverse():
    flat = FlatParams.of(params_of(*SHAPES), get_ops())
    rng = np.random.default_rng(0)
    arrays = {f"p{i}": rng.normal(size=shape).astype(np.float32) for i, shape in enumerate(SHAPES)}
    packed = flat.flattened(arrays)
    assert packed.dtype == np.float32
    for name, array in flat.named(packed).items():
        np.testing.assert_array_equal(array, arrays[name])
    np.testing.assert_array_equal(flat.flattened(flat.named(packed)), packed)
    padding = np.ones(flat.size, bool)
    for e in flat.entries:
        padding[e.start : e.stop] = False
    assert not packed[padding].any()


def test_checkpoints_of_another_net_are_refused():
    flat = FlatParams.of(params_of((2, 3), (4,)), get_ops())
    good = {"p0": np.zeros((2, 3)), "p1": np.zeros(4)}
    with pytest.raises(CheckpointError, match="the given arrays lack the parameters p1"):
        flat.flattened({"p0": good["p0"]})
    with pytest.raises(CheckpointError, match=r"no parameters p2. Did you mean p1\?|no parameters p2"):
        flat.flattened({**good, "p2": good["p1"]})
    with pytest.raises(CheckpointError, match=r"'p0' has shape \(2, 3\) in this net, but \(3, 2\)"):
        flat.flattened({**good, "p0": np.zeros((3, 2))})
    with pytest.raises(CheckpointError, match=r"shape \(32,\)"):
        flat.named(np.zeros(31))
