"""Sums, products and maxima: shapes that they take, ties."""

import math

import numpy as np
import pytest
from support.layer_cases import Bench

from singa_dask.errors import ConfigError
from singa_dask.layers import Add, Div, GlobalPooling, Max, Mul, Reshape, Sub
from singa_dask.layers.partition import Form, LayerPartition
from singa_dask.ops import Ops, get_ops

BASE = Ops(np.float64)


@pytest.mark.parametrize("shapes", [((3,), (4,)), ((2, 3, 4), (2, 2, 4)), ((2, 3, 4), (3,)), ((2, 3), (2, 3, 2))])
@pytest.mark.parametrize("kind", [Add, Sub, Mul, Div, Max])
def test_other_shapes_are_refused(kind, shapes):
    with pytest.raises(ConfigError, match=r"layer 'n'.*same shape, or size 1.*x: .*y: "):
        kind("n", ["x", "y"]).setup(*shapes)


def test_a_single_source_is_refused():
    with pytest.raises(ConfigError, match=r"Add takes at least 2 srclayers.*x"):
        Add("n", ["x"]).setup((3,))


def test_a_difference_has_two_sources():
    with pytest.raises(ConfigError, match=r"Sub takes 2 srclayers.*x, y, z"):
        Sub("n", ["x", "y", "z"]).setup((3,), (3,), (3,))


@pytest.mark.parametrize("shape", [[5], [4, 2, 3], []])
def test_a_reshape_keeps_the_number_of_elements(shape):
    with pytest.raises(ConfigError, match=r"shape must keep the number.*samples of shape \(1, 3, 4\).*product is 12"):
        Reshape("n", "x", shape=shape).setup((3, 4, 1))


def test_the_first_of_equals_gets_the_gradient_of_a_maximum():
    ours = Bench(Max("n", ["x", "y", "z"]), ((3,), (3,), (3,)), BASE, rows=1)
    ours.inputs = [np.array([[1.0, 5.0, 0.0]]), np.array([[2.0, 5.0, 7.0]]), np.array([[2.0, 5.0, 8.0]])]
    np.testing.assert_array_equal(ours.forward()[0], [[2, 5, 8]])
    gradients = ours.backward([np.array([[1.0, 10.0, 100.0]])])
    np.testing.assert_array_equal(np.concatenate(gradients), [[0, 10, 0], [1, 0, 0], [0, 0, 100]])


def test_a_repeated_channel_is_not_divided_over_workers():
    layer = Mul("n", ["x", "y"])
    layer.partition = LayerPartition(sources=((2, 3, 4), (4,)))
    assert Form.COLUMNS in layer.takes
    layer.partition = LayerPartition(sources=((2, 3, 4), (2, 3, 1)))
    assert Form.COLUMNS not in layer.takes


def test_global_pooling_needs_positions():
    with pytest.raises(ConfigError, match=r"needs images.*\(3,\)"):
        GlobalPooling("n", "x").setup((3,))


@pytest.mark.parametrize("ops", [BASE, get_ops("cpu", np.float64)])
def test_the_error_function(ops):
    x = np.concatenate([np.linspace(-9, 9, 4001), [-np.inf, np.inf, 1e300, np.nan]])
    expected = np.vectorize(math.erf)(x)
    np.testing.assert_allclose(ops.erf(x, np.empty_like(x)), expected, rtol=0, atol=1e-13)
    out, slope = np.empty_like(x), np.empty_like(x)
    finite = x[:-4]
    ops.gelu(finite, out[:-4], slope[:-4])
    np.testing.assert_allclose(out[:-4], finite * (1 + np.vectorize(math.erf)(finite / np.sqrt(2))) / 2, atol=1e-12)
    assert np.isnan(ops.gelu(x[-1:], out[-1:], slope[-1:])).all()
