"""The flat arrays: layout, views, slices and conversion."""

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


GOOD = {"p0": np.zeros((2, 3)), "p1": np.zeros(4)}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"p0": GOOD["p0"]}, "the given arrays lack the parameters p1."),
        ({}, "the given arrays lack the parameters p0, p1."),
        ({**GOOD, "p11": GOOD["p1"]}, "this net has no parameters p11. Did you mean p1?"),
        ({**GOOD, "other": GOOD["p1"]}, "this net has no parameters other. Valid: p0, p1."),
        ({"p0": GOOD["p0"], "p11": GOOD["p1"]}, "the given arrays lack the parameters p1. Did you mean p11?"),
        ({"p0": GOOD["p0"], "other": 1, "p11": 2}, "the given arrays lack the parameters p1. Did you mean p11?"),
        ({"p0": GOOD["p0"], "other": GOOD["p1"]}, "the given arrays lack the parameters p1. Valid: other."),
        (
            {**GOOD, "p0": np.zeros((3, 2))},
            "parameter 'p0' has shape (2, 3) in this net, but (3, 2) in the given arrays",
        ),
    ],
    ids=["missing", "all missing", "unknown", "unlike any", "renamed", "renamed among others", "replaced", "shape"],
)
def test_checkpoints_of_another_net_are_refused(arrays, message):
    flat = FlatParams.of(params_of((2, 3), (4,)), get_ops())
    with pytest.raises(CheckpointError) as caught:
        flat.flattened(arrays)
    assert str(caught.value) == message


def test_a_flat_array_of_another_length_is_refused():
    flat = FlatParams.of(params_of((2, 3), (4,)), get_ops())
    with pytest.raises(CheckpointError, match=r"must have shape \(32,\), not \(31,\)"):
        flat.named(np.zeros(31))
