"""The base Ops against formulas written out with loops."""

import itertools

import numpy as np
import pytest
from support import layer_formulas as formulas
from support.op_cases import WINDOWS

from singa_dask.ops import Ops, Window, get_ops
from singa_dask.ops.cpu.toolkit.vectors import VECTOR
from singa_dask.ops.random import Columns, random_bits, stream_key

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("window", "height", "width"), WINDOWS)
def test_convolution_and_pooling_by_definition(window, height, width):
    ops = Ops(np.float64)
    x, weight, bias = (RNG.standard_normal(s) for s in ((2, height, width, 3), (*window.kernel, 3, 4), (4,)))
    of_window = window.kernel, window.stride, window.pad
    convolved = formulas.convolve(*of_window)(x, weight, bias)
    largest, average = formulas.pool(np.max, *of_window, -np.inf)(x), formulas.pool(np.mean, *of_window, 0)(x)
    columns = ops.empty(ops.workspace_shape(x.shape, window, 4, 1 << 20))
    argmax = ops.empty(largest.shape, np.uint8)
    np.testing.assert_allclose(ops.convolve(x, weight, bias, window, ops.empty(convolved.shape), columns), convolved)
    np.testing.assert_allclose(ops.max_pool(x, window, ops.empty(largest.shape), argmax), largest)
    np.testing.assert_allclose(ops.average_pool(x, window, ops.empty(average.shape)), average, atol=1e-15)


@pytest.mark.parametrize(("size", "count"), [(4, 2), (5, 2), (6, 3), (7, 3)])
def test_a_window_that_overhangs_begins_on_the_image_or_the_padding_before_it(size, count):
    """As PyTorch's ceil_mode counts."""
    assert Window((2, 2), (3, 3), (1, 1), up=True).output_size(size, size) == (count, count)


def test_the_largest_of_what_holds_nan_is_nan():
    ops, window = get_ops(), Window((2, 2), (2, 2))
    x = ops.zeros((1, 2, 4, 1))
    x[0, 0, 1], x[0, 1, 3] = np.nan, 7
    argmax = ops.empty((1, 1, 2, 1), np.uint8)
    assert str(ops.max_pool(x, window, ops.empty(argmax.shape), argmax).ravel()) == "[nan  7.]"
    assert argmax.ravel().tolist() == [1, 3]


def test_argmax_takes_a_wider_dtype_for_large_windows():
    ops = get_ops()
    window = Window((17, 17), (1, 1))
    x = ops.zeros((1, 17, 17, 1))
    x[0, 16, 16, 0] = 1
    argmax = ops.empty((1, 1, 1, 1), ops.argmax_dtype(window))
    ops.max_pool(x, window, ops.empty((1, 1, 1, 1)), argmax)
    assert argmax.item() == 288
    dx = ops.max_pool_backward(ops.zeros((1, 1, 1, 1)) + 5, argmax, window, ops.empty(x.shape))
    assert dx[0, 16, 16, 0] == 5
    assert dx.sum() == 5


def test_columns_stay_under_the_limit_but_hold_an_image():
    window, shape = Window((3, 3)), (10, 8, 8, 2)
    image_nbytes = 36 * 18 * 4
    assert Ops().workspace_shape(shape, window, 3, 3 * image_nbytes + 1) == (3 * 36, 18)
    assert Ops().workspace_shape(shape, window, 3, 1) == (36, 18)
    assert Ops().workspace_shape(shape, window, 3, 1 << 40) == (360, 18)


def test_topk_counts_equal_values_in_order_of_their_index():
    x = np.array([[1.0, 1.0, 1.0], [0.0, 2.0, 2.0]])
    assert Ops().argsort_topk(x, 2).tolist() == [[0, 1], [1, 2]]
    for label, expected in ((0, 1), (1, 2), (2, 1)):
        assert Ops().count_topk(x, np.array([label, label]), 2) == expected


def test_random_numbers_are_those_of_splitmix64():
    # First outputs of the reference implementation (Vigna, splitmix64.c) seeded with 1234567.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert random_bits(np, 1234567, 0, 5).tolist() == expected
    assert random_bits(np, 1234567, 3, 2).tolist() == expected[3:]


def test_streams_differ_in_seed_step_and_name():
    keys = {stream_key(*parts) for parts in itertools.product(range(5), range(5), ("a", "b"))}
    assert len(keys) == 50


@pytest.mark.parametrize("ops", [Ops(), get_ops()], ids=repr)
@pytest.mark.parametrize("draws", ["dropout", "bernoulli", "normal"])
def test_what_columns_draw_makes_up_what_the_whole_draws(ops, draws):
    """Six rows, of images of four positions with seven channels each."""
    whole, first = np.full((6, 2, 2, 7), 0.5, np.float32), 1000

    def draw(x, start, columns=None):
        out = ops.empty(x.shape)
        if draws == "dropout":
            return ops.dropout(x, 0.4, 99, first + start, out, ops.empty(x.shape, np.uint8), columns)
        return getattr(ops, draws)(x, 99, first + start, out, columns)

    expected = draw(whole, 0)
    for start, stop in ((0, 2), (2, 3), (3, 3), (3, 7)):
        part = np.ascontiguousarray(whole[..., start:stop])
        np.testing.assert_array_equal(draw(part, start, Columns(stop - start, 7)), expected[..., start:stop])
    assert len(np.unique(expected)) > 1


def test_dropout_drops_its_share_and_keeps_the_mean():
    ops = get_ops()
    x = np.ones((200, 500), np.float32)
    y = ops.dropout(x, 0.3, 5, 0, ops.empty(x.shape), mask := ops.empty(x.shape, np.uint8))
    assert abs(mask.mean() - 0.7) < 0.005
    assert abs(y.mean() - 1) < 0.01


@pytest.mark.parametrize("ops", [Ops(), get_ops()], ids=repr)
def test_a_diverged_gradient_stays_visible(ops):
    """Fast-math must not turn NaN into a number, nor clip it away."""
    w, g, v = np.ones(20, np.float32), np.full(20, np.nan, np.float32), np.zeros(20, np.float32)
    ops.update("sgd", w, g, [v], lr=0.1, momentum=0.9, weight_decay=0.0, clip_low=-1.0, clip_high=1.0)
    assert np.isnan(w).all()


@pytest.mark.parametrize("ops", [Ops(), get_ops()], ids=repr)
def test_one_hot_rows_are_known_from_others(ops):
    x = np.eye(5, dtype=np.float32)[[3, 0, 3]]
    np.testing.assert_array_equal(ops.one_hot_columns(x), [3, 0, 3])
    for value, row, column in ((1, 1, 4), (0, 2, 3), (0.5, 0, 3), (np.nan, 0, 1)):
        other = x.copy()
        other[row, column] = value
        assert ops.one_hot_columns(other) is None


def test_tanh_of_the_cells_is_exact_to_a_few_units_in_the_last_place():
    ops = get_ops()
    x = np.concatenate([np.linspace(-12, 12, 100_001), np.logspace(-30, 0, 1000), [0, 1e30, -np.inf]])
    x = x.astype(np.float32)[None]
    h = ops.empty(x.shape)
    ops.rnn_cell(x, h)
    exact = np.tanh(x.astype(np.float64))
    units = 5 if VECTOR else 6  # every CPU with vectors fuses multiplication and addition
    assert (np.abs(h - exact) <= units * np.spacing(np.abs(exact).astype(np.float32))).all()
    x[0, 5] = np.nan
    ops.rnn_cell(x, h)
    assert np.isnan(h[0, 5])


def test_exponents_of_the_loss_are_exact_to_units_in_the_last_place():
    ops, below = get_ops(), np.concatenate([np.linspace(0, 87, 100_001), np.logspace(-9, 0, 1000)]).astype(np.float32)
    x = np.stack([np.zeros_like(below), -below], axis=1)
    labels = np.ones(len(x), np.int64)
    loss, correct = ops.softmax_cross_entropy(x, labels, 1, y := ops.empty(x.shape))
    exact = np.exp(-below.astype(np.float64))
    np.testing.assert_allclose(y[:, 1] / y[:, 0], exact, rtol=4 * 2.0**-24)
    np.testing.assert_allclose(loss, (np.log1p(exact) + below).sum(), rtol=1e-6)
    assert correct == 0 and ops.softmax_cross_entropy(x, 1 - labels, 1, y)[1] == len(x)


@pytest.mark.parametrize("ops", [Ops(), get_ops()], ids=repr)
def test_softmax_of_what_is_not_finite_is_none(ops):
    for bad in (np.nan, np.inf):
        for place in (0, 3):
            x = np.zeros((1, 9), np.float32)
            x[0, place] = bad
            with np.errstate(invalid="ignore"):
                loss, _ = ops.softmax_cross_entropy(x, np.array([4]), 1, y := ops.empty(x.shape))
            assert np.isnan(loss) and np.isnan(y[0, place])
    x, labels = np.full((4, 9), np.nan, np.float32), np.arange(4)
    assert ops.softmax_cross_entropy(x, labels, 3, ops.empty(x.shape))[1] == ops.count_topk(x, labels, 3) == 0
    x = np.array([[0, -np.inf, -1000, 0]], np.float32)
    loss, correct = ops.softmax_cross_entropy(x, np.array([3]), 1, y := ops.empty(x.shape))
    np.testing.assert_array_equal(y, [[0.5, 0, 0, 0.5]])
    assert correct == 0 and loss == np.log(np.float32(2))


@pytest.mark.parametrize("ops", [Ops(), get_ops()], ids=repr)
@pytest.mark.parametrize("size", [7, 4096])  # the rest of a vector, and whole ones
def test_sigmoid_and_silu_have_four_units_in_the_last_place_from_the_least_number_to_the_largest(ops, size):
    below, above = -np.geomspace(1e-30, 108, 20 * size), np.geomspace(1e-30, 3e38, 20 * size)
    x = np.concatenate([below, above, np.linspace(-110, 20, 60 * size), [0]]).astype(np.float32)
    exact = x.astype(np.longdouble)
    share = np.exp(np.minimum(exact, 0)) / (1 + np.exp(-np.abs(exact)))
    y, of_silu = np.empty_like(x), np.empty_like(x)
    for first in range(0, len(x), size):
        n = slice(first, first + size)
        ops.sigmoid(x[n], y[n])
        ops.silu(x[n], of_silu[n], np.empty_like(x[n]))
    for computed, expected in ((y, share), (of_silu, exact * share)):
        unit = np.spacing(np.abs(expected.astype(np.float32)))
        assert (np.abs(computed - expected) <= 4 * unit).all()
    assert y[x > -103].all() and of_silu[(x > -107) & (x != 0)].all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [Ops, get_ops], ids=["Ops", "CpuOps"])
def test_sigmoid_and_silu_of_what_is_no_number_and_of_infinities(kind, dtype):
    ops = kind(dtype=dtype)
    x = np.array([np.nan, np.inf, -np.inf, -1e30, 1e30] * 20, dtype)
    with np.errstate(invalid="ignore"):  # of the slope
        y = ops.silu(x, np.empty_like(x), np.empty_like(x))
    np.testing.assert_array_equal(ops.sigmoid(x, np.empty_like(x)), [np.nan, 1, 0, 0, 1] * 20)
    np.testing.assert_array_equal(y, np.array([np.nan, np.inf, 0, 0, 1e30] * 20, dtype))


@pytest.mark.parametrize("ops", [Ops(), get_ops()], ids=repr)
def test_sums_of_columns_that_are_opposite_cancel(ops):
    """Those of two calls of a layer: each is a sum of its own first."""
    x = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    out = ops.column_sums(-x, np.empty(5, np.float32))
    np.testing.assert_array_equal(ops.column_sums(x, out, accumulate=True), np.zeros(5))
