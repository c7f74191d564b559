"""Winograd's convolution: its matrices, its transforms, and its passes against plain NumPy on any shapes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from singa_dask.ops import Ops, Window
from singa_dask.ops.cpu.convolution.direct_convolution import DirectConvolution
from singa_dask.ops.cpu.convolution.winograd_convolution import WinogradConvolution, suits
from singa_dask.ops.cpu.convolution.winograd_matrices import TILE, evaluation, interpolation, scaled_evaluation
from singa_dask.ops.cpu.toolkit.team import Team
from singa_dask.ops.cpu.toolkit.vectors import VECTOR

needs_vectors = pytest.mark.skipif(VECTOR == 0, reason="no vectors on this CPU")
if VECTOR:
    from singa_dask.ops.cpu.convolution.winograd_transforms import factors

GUARD = 64


@pytest.mark.parametrize("size", TILE)
def test_the_matrices_compute_a_correlation(size):
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


class Guarded:
    """Arrays of NaN, each with numbers before and behind it that must stay."""

    def __init__(self) -> None:
        self._whole: list[np.ndarray] = []

    def array(self, *shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        whole = np.full(size + 2 * GUARD, 7, np.float32)
        whole[GUARD:-GUARD] = np.nan
        self._whole.append(whole)
        return whole[GUARD:-GUARD].reshape(shape)

    def check(self) -> None:
        for whole in self._whole:
            assert (whole[:GUARD] == 7).all() and (whole[-GUARD:] == 7).all()


def drawn(window: Window, shape: tuple[int, int, int, int], filters: int):
    """x, weight, bias, dy."""
    rng = np.random.default_rng(0)
    result = (shape[0], *window.output_size(*shape[1:3]), filters)
    shapes = shape, (*window.kernel, shape[3], filters), (filters,), result
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def all_passes(kind, window: Window, threads: int, x, weight, bias, dy):
    """What every pass of a way to convolve computes."""
    convolution, guarded, team = kind.of(x.shape, window, dy.shape[-1], threads), Guarded(), Team(threads)
    buffer = guarded.array(convolution.elements)
    y, plain, dx = guarded.array(*dy.shape), guarded.array(*dy.shape), guarded.array(*x.shape)
    dweight, total = guarded.array(*weight.shape), guarded.array(*weight.shape)
    total[...] = weight
    convolution.forward(team, x, weight, bias, y, buffer)
    convolution.forward(team, x, weight, None, plain, buffer)
    convolution.backward_weight(team, x, dy, dweight, buffer, False)
    convolution.backward_weight(team, x, dy, total, buffer, True)
    convolution.backward_input(team, dy, weight, dx, buffer)
    guarded.check()
    return y, plain, dweight, total, dx


def in_numpy(window: Window, x, weight, bias, dy, dtype=np.float32):
    ops = Ops(dtype)
    x, weight, bias, dy = (a.astype(dtype) for a in (x, weight, bias, dy))
    columns = ops.empty(ops.workspace_shape(x.shape, window, dy.shape[-1], 1 << 30))
    return (
        ops.convolve(x, weight, bias, window, ops.empty(dy.shape), columns),
        ops.convolve(x, weight, None, window, ops.empty(dy.shape), columns),
        ops.convolve_backward_weight(x, dy, window, ops.empty(weight.shape), columns),
        ops.convolve_backward_weight(x, dy, window, weight.copy(), columns, accumulate=True),
        ops.convolve_backward_input(dy, weight, window, ops.empty(x.shape), columns),
    )


def check(kind, window: Window, threads: int, shape: tuple[int, int, int, int], filters: int) -> None:
    arrays = drawn(window, shape, filters)
    got = all_passes(kind, window, threads, *arrays)
    for a, b in zip(got, in_numpy(window, *arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5 * max(1.0, float(np.abs(b).max())))


@needs_vectors
@pytest.mark.timeout(240)
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(
    size=st.sampled_from(sorted(TILE)),
    pad=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    image=st.tuples(st.integers(1, 17), st.integers(1, 17)),
    count=st.integers(1, 27),
    channels=st.integers(1, 70),
    filters=st.integers(1, 70),
    threads=st.integers(1, 3),
)
def test_any_shape_computes_what_numpy_computes(size, pad, image, count, channels, filters, threads):
    window = Window((size, size), (1, 1), pad)
    assume(min(window.output_size(*image)) >= 1)
    check(WinogradConvolution, window, threads, (count, *image, channels), filters)


@needs_vectors
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", [DirectConvolution, WinogradConvolution])
@pytest.mark.parametrize("channels", [1, VECTOR - 1, VECTOR + 1, 2 * VECTOR + 1])
def test_last_vectors_stay_inside_their_arrays(kind, channels):
    for filters in (1, VECTOR - 1, VECTOR, VECTOR + 1, 2 * VECTOR, 2 * VECTOR + 1, 3 * VECTOR + 1):
        check(kind, Window((3, 3), (1, 1), (1, 0)), 3, (4, 6, 7, channels), filters)


@needs_vectors
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(3, 2, 300, 3), (5, 9, 101, 3)])
def test_gradients_of_weights_from_many_positions_are_summed_up_in_parts(shape, threads):
    check(DirectConvolution, Window((2, 3), (1, 1), (0, 0)), threads, shape, 20)


@needs_vectors
@pytest.mark.parametrize("images", [1, 2, 3, 4, 5])
def test_windows_of_positions_side_by_side_overlap_and_are_added_up(images):
    """Of one column of positions there may be more than a tile has rows, and fewer than a tall one has."""
    for height in (9, 11, 13, 15):
        check(DirectConvolution, Window((3, 3), (2, 2), (0, 0)), 1, (images, height, 13, 1), 20)


@needs_vectors
@pytest.mark.parametrize(("size", "channels", "filters"), [(3, 128, 136), (5, 48, 64)])
def test_many_channels_and_many_tiles_compute_what_numpy_computes(size, channels, filters):
    window = Window((size, size), (1, 1), (1, 1))
    arrays = drawn(window, (9, 19, 23, channels), filters)
    got = all_passes(WinogradConvolution, window, 2, *arrays)
    for a, b in zip(got, in_numpy(window, *arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5 * float(np.abs(b).max()))


@needs_vectors
@pytest.mark.parametrize("size", TILE)
def test_rounding_costs_a_digit_at_most(size):
    window = Window((size, size), (1, 1), (size // 2, size // 2))
    arrays = drawn(window, (16, 16, 16, 32), 32)
    exact = in_numpy(window, *arrays, dtype=np.float64)

    def errors(kind) -> list[float]:
        got = all_passes(kind, window, 1, *arrays)
        return [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(got, exact, strict=True)]

    for winograd, direct in zip(errors(WinogradConvolution), errors(DirectConvolution), strict=True):
        assert winograd < 10 * direct


@needs_vectors
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_shows_and_stays_in_its_image(bad):
    window = Window((3, 3), (1, 1), (1, 1))
    x, weight, bias, dy = drawn(window, (5, 9, 9, 20), 20)
    x[2, 4, 4, 1] = dy[3, 4, 4, 7] = bad
    y, _, dweight, _, dx = all_passes(WinogradConvolution, window, 1, x, weight, bias, dy)
    assert not np.isfinite(y[2, 3:6, 3:6]).any()
    assert np.isfinite(np.delete(y, 2, axis=0)).all()
    assert not np.isfinite(dx[3, 3:6, 3:6]).any()
    assert np.isfinite(np.delete(dx, 3, axis=0)).all()
    assert not np.isfinite(dweight[:, :, 1]).any() and np.isfinite(dweight[:, :, 2, 6]).all()


@needs_vectors
@pytest.mark.parametrize("threads", [1, 2])
def test_passes_allocate_nothing_of_the_size_of_an_image(threads):
    window, team = Window((3, 3), (1, 1), (1, 1)), Team(threads)
    x, weight, bias, dy = drawn(window, (24, 24, 24, 32), 32)
    convolution = WinogradConvolution.of(x.shape, window, 32, threads)
    buffer, y, dweight, dx = (np.empty_like(a) for a in (np.empty(convolution.elements, np.float32), dy, weight, x))

    def step() -> None:
        convolution.forward(team, x, weight, bias, y, buffer)
        convolution.backward_weight(team, x, dy, dweight, buffer, False)
        convolution.backward_input(team, dy, weight, dx, buffer)

    step()
    tracemalloc.start()
    try:
        step()
        assert tracemalloc.get_traced_memory()[1] < x[0].nbytes // 2
    finally:
        tracemalloc.stop()


@needs_vectors
@pytest.mark.parametrize(
    ("shape", "window", "filters", "winograd"),
    [
        ((12, 12, 20), Window((5, 5)), 50, True),
        ((16, 16, 32), Window((5, 5), pad=(2, 2)), 32, True),
        ((8, 8, 128), Window((3, 3), pad=(1, 1)), 256, True),
        ((28, 28, 1), Window((5, 5)), 20, False),
        ((2, 2, 64), Window((3, 3), pad=(1, 1)), 64, False),
        ((16, 16, 64), Window((3, 3), (2, 2)), 64, False),
        ((16, 16, 64), Window((4, 4)), 64, False),
        ((16, 16, 64), Window((3, 5)), 64, False),
    ],
)
def test_it_is_used_where_it_saves_work(shape, window, filters, winograd):
    assert suits((64, *shape), window, filters) is winograd


@needs_vectors
def test_filters_are_transformed_for_many_images_only():
    window = Window((3, 3), (1, 1), (1, 1))
    assert suits((32, 4, 4, 256), window, 256)
    assert not suits((1, 4, 4, 256), window, 256)
