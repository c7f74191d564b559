"""The ways to convolve without columns, by direct sums and by Winograd's algorithm, against plain NumPy."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.convolutions import all_passes, assert_as_in_numpy, by_ops, check, drawn

from singa_dask.ops import Ops, Window
from singa_dask.ops.cpu.convolution import tables
from singa_dask.ops.cpu.convolution.convolution_ops import convolution
from singa_dask.ops.cpu.convolution.direct_convolution import DirectConvolution
from singa_dask.ops.cpu.convolution.winograd_convolution import WinogradConvolution, suits
from singa_dask.ops.cpu.convolution.winograd_matrices import TILE, evaluation, interpolation, scaled_evaluation
from singa_dask.ops.cpu.ops import CpuOps
from singa_dask.ops.cpu.toolkit.vectors import VECTOR

needs_vectors = pytest.mark.skipif(VECTOR == 0, reason="no vectors on this CPU")
if VECTOR:
    from singa_dask.ops.cpu.convolution.winograd_transforms import factors

KINDS = pytest.mark.parametrize("kind", [DirectConvolution, WinogradConvolution])
pair = st.tuples(st.integers(1, 5), st.integers(1, 5))


@pytest.mark.timeout(240)
@settings(max_examples=36, suppress_health_check=list(HealthCheck))
@given(
    kernel=pair,
    stride=pair,
    pad=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    size=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    count=st.integers(1, 27),
    channels=st.integers(1, 37),
    filters=st.integers(1, 70),
    threads=st.integers(1, 3),
)
def test_any_shape_computes_what_numpy_computes(kernel, stride, pad, size, count, channels, filters, threads):
    window = Window(kernel, stride, pad)
    assume(min(window.output_size(*size)) >= 1)
    arrays = drawn(window, (count, *size, channels), filters)
    assert_as_in_numpy(window, arrays, by_ops(CpuOps(threads=threads), window, *arrays))


@needs_vectors
@pytest.mark.timeout(240)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    size=st.sampled_from(sorted(TILE)),
    pad=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    image=st.tuples(st.integers(1, 17), st.integers(1, 17)),
    count=st.integers(1, 9),
    channels=st.integers(1, 2 * VECTOR + 3),
    filters=st.integers(1, 2 * VECTOR + 3),
    threads=st.integers(1, 3),
)
def test_any_shape_computes_by_winograd_what_numpy_computes(size, pad, image, count, channels, filters, threads):
    window = Window((size, size), (1, 1), pad)
    assume(min(window.output_size(*image)) >= 1)
    check(WinogradConvolution, window, threads, (count, *image, channels), filters)


@needs_vectors
@pytest.mark.timeout(240)
@KINDS
@pytest.mark.parametrize("channels", [1, VECTOR - 1, VECTOR + 1, 2 * VECTOR + 1])
def test_last_vectors_stay_inside_their_arrays(kind, channels):
    for filters in (1, VECTOR - 1, VECTOR, VECTOR + 1, 2 * VECTOR, 2 * VECTOR + 1, 3 * VECTOR + 1):
        check(kind, Window((3, 3), (1, 1), (1, 0)), 3, (4, 6, 7, channels), filters)


LARGE = {
    "many filters over many weights": (DirectConvolution, Window((3, 3)), (7, 8, 9, 32), 75),
    "many filters, padded": (DirectConvolution, Window((3, 3), pad=(1, 1)), (7, 8, 9, 32), 75),
    "gradients of weights in parts": (DirectConvolution, Window((2, 3)), (3, 2, 300, 3), 20),
    "gradients of weights in parts of an image": (DirectConvolution, Window((2, 3)), (5, 9, 101, 3), 20),
    "many channels": (WinogradConvolution, Window((3, 3), pad=(1, 1)), (9, 19, 23, 128), 136),
    "many channels, 5 x 5": (WinogradConvolution, Window((5, 5), pad=(1, 1)), (9, 19, 23, 48), 64),
}


@needs_vectors
@pytest.mark.parametrize("name", LARGE)
def test_many_filters_channels_and_positions_compute_what_numpy_computes(name):
    kind, window, shape, filters = LARGE[name]
    for threads in (1, 2):
        check(kind, window, threads, shape, filters)


@needs_vectors
@pytest.mark.parametrize("images", [1, 2, 3, 4, 5])
def test_windows_of_positions_side_by_side_overlap_and_are_added_up(images):
    """Of one column of positions there may be more than a tile has rows, and fewer than a tall one has."""
    for height in (9, 11, 13, 15):
        check(DirectConvolution, Window((3, 3), (2, 2), (0, 0)), 1, (images, height, 13, 1), 20)


@needs_vectors
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@KINDS
def test_what_is_not_finite_shows_where_its_window_lies(kind, bad):
    """By Winograd's algorithm it may show in other places of its image, but in no other image."""
    window = Window((3, 3), (1, 1), (1, 1))
    x, weight, bias, dy = drawn(window, (5, 9, 9, 20), 20)
    x[2, 4, 4, 1] = dy[3, 4, 4, 7] = bad
    y, _, dweight, _, dx = all_passes(kind, window, 1, x, weight, bias, dy)
    near = slice(3, 6) if kind is DirectConvolution else slice(None)
    for result, image in ((y, 2), (dx, 3)):
        assert not np.isfinite(result[image, 3:6, 3:6]).any()
        finite = np.isfinite(result).all(axis=3)
        finite[image, near, near] = True
        assert finite.all()
    assert not np.isfinite(dweight[:, :, 1]).any() and np.isfinite(dweight[:, :, 2, 6]).all()


@needs_vectors
@pytest.mark.parametrize("foreign", [lambda a: a.astype(np.float64), lambda a: np.repeat(a, 2, axis=1)[:, ::2]])
@pytest.mark.parametrize(("channels", "way"), [(5, DirectConvolution), (40, WinogradConvolution)])
def test_arrays_of_another_type_or_with_gaps_are_read_for_what_they_are(foreign, channels, way):
    window = Window((3, 3), (1, 1), (1, 1))
    x, weight, bias, dy = drawn(window, (30, 8, 8, channels), 20)
    assert isinstance(convolution(x.shape, window, 20, 1), way)
    expected = by_ops(CpuOps(), window, x, weight, bias, dy)
    ops = CpuOps()
    workspace = ops.empty(ops.workspace_shape(x.shape, window, 20, 0))
    results = (np.empty_like(a) for a in (dy, weight, x))
    x, weight, dy = foreign(x), foreign(weight), foreign(dy)
    y = ops.convolve(x, weight, bias.astype(np.float64), window, next(results), workspace)
    dweight = ops.convolve_backward_weight(x, dy, window, next(results), workspace)
    dx = ops.convolve_backward_input(dy, weight, window, next(results), workspace)
    for got, want in zip((y, dweight, dx), (expected[0], expected[2], expected[4]), strict=True):
        np.testing.assert_array_equal(got, want)


@needs_vectors
@pytest.mark.parametrize("made", [lambda a: a.astype(np.float64), lambda a: np.repeat(a, 2, axis=1)[:, ::2]])
def test_results_that_kernels_cannot_write_to_are_refused(made):
    ops, window = CpuOps(), Window((3, 3), (1, 1), (1, 1))
    x, weight, bias, dy = drawn(window, (3, 7, 7, 5), 20)
    workspace = ops.empty(ops.workspace_shape(x.shape, window, 20, 0))
    for call in (
        lambda: ops.convolve(x, weight, bias, window, made(dy), workspace),
        lambda: ops.convolve_backward_weight(x, dy, window, made(weight), workspace),
        lambda: ops.convolve_backward_input(dy, weight, window, made(x), workspace),
    ):
        with pytest.raises(ValueError, match="contiguous array of float32"):
            call()


@needs_vectors
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("channels", "filters", "way"), [(2, 20, DirectConvolution), (32, 32, WinogradConvolution)])
def test_a_steady_state_step_allocates_nothing_of_the_size_of_an_image(channels, filters, way, threads):
    ops, window = CpuOps(threads=threads), Window((3, 3), (1, 1), (1, 1))
    x, weight, bias, dy = drawn(window, (24, 40, 24, channels), filters)
    assert isinstance(convolution(x.shape, window, filters, threads), way)
    workspace = ops.empty(ops.workspace_shape(x.shape, window, filters, 0))
    out, dweight, dx = np.empty_like(dy), np.empty_like(weight), np.empty_like(x)

    def step() -> None:
        ops.convolve(x, weight, bias, window, out, workspace)
        ops.convolve_backward_weight(x, dy, window, dweight, workspace)
        ops.convolve_backward_input(dy, weight, window, dx, workspace)

    step()
    tracemalloc.start()
    try:
        step()
        assert tracemalloc.get_traced_memory()[1] < dy[0].nbytes // 2
    finally:
        tracemalloc.stop()


def test_the_workspace_is_small_beside_the_columns():
    window, shape = Window((5, 5), (1, 1), (2, 2)), (64, 32, 32, 32)
    columns = np.prod(Ops().workspace_shape(shape, window, 32, 1 << 40))
    assert np.prod(CpuOps(threads=2).workspace_shape(shape, window, 32, 1 << 40)) < columns / 40


def test_shares_cover_the_batch():
    spans = tables.spans(7, 3)
    assert spans[0][0] == 0 and spans[-1][1] == 7
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert len(tables.spans(2, 8)) == 2


@pytest.mark.parametrize("size", TILE)
def test_winograds_matrices_compute_a_correlation(size):
    tile, rng = TILE[size], np.random.default_rng(0)
    image, weight = rng.standard_normal(tile + size - 1), rng.standard_normal(size)
    y = evaluation(tile).T @ ((scaled_evaluation(size) @ weight) * (interpolation() @ image))
    np.testing.assert_allclose(y, np.correlate(image, weight, "valid"), rtol=1e-12, atol=1e-13)


@needs_vectors
@pytest.mark.parametrize(
    "matrix",
    [interpolation(), interpolation().T, *(evaluation(n) for n in (2, 4)), *(scaled_evaluation(n).T for n in (3, 5))],
)
def test_factors_make_up_their_matrix_with_fewer_multiplications(matrix):
    first, second = factors(matrix)
    np.testing.assert_array_equal(second @ first, matrix)

    def multiplications(*parts) -> int:
        return sum(np.count_nonzero(~np.isin(part, (0, 1, -1))) for part in parts)

    assert multiplications(first, second) < multiplications(matrix)


@needs_vectors
@pytest.mark.parametrize("size", TILE)
def test_rounding_costs_a_digit_at_most(size):
    window = Window((size, size), (1, 1), (size // 2, size // 2))
    arrays = drawn(window, (16, 16, 16, 32), 32)
    exact = by_ops(Ops(np.float64), window, *arrays)
    winograd, direct = (all_passes(kind, window, 1, *arrays) for kind in (WinogradConvolution, DirectConvolution))
    for ours, theirs, want in zip(winograd, direct, exact, strict=True):
        assert np.linalg.norm(ours - want) < 10 * np.linalg.norm(theirs - want)


@needs_vectors
@pytest.mark.parametrize(
    ("shape", "window", "filters", "winograd"),
    [
        ((64, 12, 12, 20), Window((5, 5)), 50, True),
        ((64, 16, 16, 32), Window((5, 5), pad=(2, 2)), 32, True),
        ((64, 8, 8, 128), Window((3, 3), pad=(1, 1)), 256, True),
        ((64, 28, 28, 1), Window((5, 5)), 20, False),
        ((64, 2, 2, 64), Window((3, 3), pad=(1, 1)), 64, False),
        ((64, 16, 16, 64), Window((3, 3), (2, 2)), 64, False),
        ((64, 16, 16, 64), Window((4, 4)), 64, False),
        ((64, 16, 16, 64), Window((3, 5)), 64, False),
        # Filters are transformed for many images only.
        ((32, 4, 4, 256), Window((3, 3), pad=(1, 1)), 256, True),
        ((1, 4, 4, 256), Window((3, 3), pad=(1, 1)), 256, False),
    ],
)
def test_winograds_algorithm_is_used_where_it_saves_work(shape, window, filters, winograd):
    assert suits(shape, window, filters) is winograd
