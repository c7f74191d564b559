"""Products of few rows, and of few outputs, by the row tile, against NumPy, by one thread and several."""

from __future__ import annotations

import ctypes
import mmap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singa_dask.ops.cpu.gemm import packed_product
from singa_dask.ops.cpu.gemm.row_products import FEW, LEAST, STREAMED, packed_shape, product_of
from singa_dask.ops.cpu.gemm.row_tile import PANEL, ROWS
from singa_dask.ops.cpu.ops import CpuOps
from singa_dask.ops.cpu.toolkit.team import Team
from singa_dask.ops.cpu.toolkit.vectors import VECTOR
from singa_dask.ops.cpu.toolkit.workspace import aligned

pytestmark = pytest.mark.skipif(VECTOR == 0, reason="no tile for this CPU")
MARGIN = 100


# Ways of the tile, by product and by what is few: rows or outputs.
WAYS = {
    ("y", "rows"): "_streamed",
    ("dx", "rows"): "_transposed",
    ("y", "outputs"): "_narrow",
    ("dW", "outputs"): "_long_transposed",
}
EVERY_WAY = pytest.mark.parametrize(("product", "few"), list(WAYS))


def factors(product: str, rows: int, inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Those of y = x W, dW = x' dy or dx = dy W'."""
    rng = np.random.default_rng(0)
    x, w, dy = (
        rng.standard_normal(shape, np.float32) for shape in ((rows, inputs), (inputs, outputs), (rows, outputs))
    )
    return {"y": (x, w), "dW": (x.T, dy), "dx": (dy, w.T)}[product]


def sizes(product: str, few: str, share: float, inputs: int, large: int) -> tuple[int, int, int]:
    """Rows, inputs and outputs; what is few has a share of the most."""
    if few == "outputs":
        return large, inputs, FEW[0] + round(share * (LEAST - 1 - FEW[0]))
    most = STREAMED if product == "y" else FEW[-1]
    rows = FEW[0] + round(share * (most - FEW[0]))
    if product == "dx" and VECTOR == 8 and 0 < rows % 16 <= 8:
        rows += 8
    return rows, inputs, large


def check(way: str, a: np.ndarray, b: np.ndarray, threads: int, accumulate: bool) -> None:
    """The product is NumPy's and is all that is written."""
    memory = np.full(a.shape[0] * b.shape[1] + 2 * MARGIN, 7, np.float32)
    out = memory[MARGIN:-MARGIN].reshape(a.shape[0], b.shape[1])
    chosen = product_of(a, b, out)
    assert chosen is not None and chosen.__name__ == way
    chosen(Team(threads), threads, a, b, out, accumulate)
    np.testing.assert_allclose(out, a @ b + 7 * accumulate, rtol=1e-4, atol=1e-3)
    assert (memory[:MARGIN] == 7).all() and (memory[-MARGIN:] == 7).all()


@EVERY_WAY
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(
    share=st.floats(0, 1),
    inputs=st.integers(LEAST, LEAST + 300),
    large=st.integers(FEW[-1] + 1, FEW[-1] + 300),
    threads=st.integers(1, 3),
    accumulate=st.booleans(),
)
def test_any_size_computes_what_numpy_computes(product, few, share, inputs, large, threads, accumulate):
    check(WAYS[product, few], *factors(product, *sizes(product, few, share, inputs, large)), threads, accumulate)


@EVERY_WAY
@pytest.mark.parametrize("guarded", [0, 1])
def test_nothing_is_read_behind_a_matrix(product, few, guarded):
    page = mmap.PAGESIZE
    both = list(factors(product, *sizes(product, few, 0.03, LEAST + 1, FEW[-1] + 3)))
    factor = both[guarded]
    size = -(-factor.nbytes // page) * page
    memory = mmap.mmap(-1, size + page)
    place = np.frombuffer(memory, np.uint8)
    libc, guard = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p(place.ctypes.data + size)
    assert libc.mprotect(guard, ctypes.c_size_t(page), 0) == 0
    try:
        stored = factor if factor.flags.c_contiguous else factor.T
        copy = place[size - factor.nbytes : size].view(np.float32).reshape(stored.shape)
        copy[...] = stored
        both[guarded] = copy if factor.flags.c_contiguous else copy.T
        check(WAYS[product, few], *both, threads=2, accumulate=False)
    finally:
        assert libc.mprotect(guard, ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE) == 0


@pytest.mark.parametrize("columns", [LEAST, LEAST + 16, LEAST + 10, 512])
def test_a_matrix_is_read_where_it_lies_or_from_a_copy_of_panels_alike(columns):
    rng = np.random.default_rng(0)
    x, values = (
        rng.standard_normal((50, LEAST + 70), np.float32),
        rng.standard_normal((LEAST + 70, columns), np.float32),
    )
    results = []
    for begin in (0, 1):  # with a line of the cache, and within one
        w = aligned(np.empty, (values.size + 1,), np.float32)[begin : begin + values.size].reshape(values.shape)
        w[...] = values
        check("_streamed", x, w, threads=1, accumulate=False)
        results.append(CpuOps().gemm(x, w))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("columns", [1, VECTOR - 1, VECTOR, PANEL - 1, PANEL, PANEL + 1, 2 * PANEL + 2])
def test_tiles_of_every_height_and_width(columns):
    rng = np.random.default_rng(0)
    depth = packed_product._DEPTH
    for rows in range(1, 4 * ROWS + 2):
        for length in (1, 3, 4, depth - 1, depth + 1, 2 * depth + 1):
            a, b = rng.standard_normal((rows, length), np.float32), rng.standard_normal((length, columns), np.float32)
            panels = CpuOps().pack([b], np.full(packed_shape(length, columns), np.nan, np.float32))
            for accumulate in (False, True):
                out = np.full((rows + 2, columns), 7, np.float32)
                packed_product.product(a, panels, out[1:-1], accumulate)
                np.testing.assert_allclose(out[1:-1], a @ b + 7 * accumulate, rtol=1e-4, atol=1e-4)
                assert (out[[0, -1]] == 7).all()


def test_two_callers_have_their_own_memory():
    ops = CpuOps(threads=2)
    ops._product_worth_a_thread = 1
    rng = np.random.default_rng(0)
    cases = [(rng.standard_normal((64, 600), np.float32), rng.standard_normal((700, 600), np.float32)) for _ in "ab"]

    def many(number: int) -> bool:
        dy, w = cases[number]
        wanted = dy @ w.T
        return all(np.allclose(ops.gemm(dy, w.T), wanted, rtol=1e-3, atol=1e-3) for _ in range(30))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(many, range(2)))


def test_a_factor_may_be_a_part_of_the_columns_of_an_array():
    x, dy = np.random.default_rng(0).standard_normal((2, FEW[-1] + 50, LEAST + 40), np.float32)
    check("_long_transposed", x[:, 10 : LEAST + 20].T, dy[:, :65].copy(), threads=1, accumulate=True)


def test_blas_multiplies_what_a_tile_does_not_suit():
    x, w = factors("y", 64, LEAST, LEAST)
    out = np.empty((64, LEAST), np.float32)
    assert product_of(x, w, out) is not None
    square, many = np.empty((LEAST, LEAST), np.float32), np.empty((FEW[-1] + 1, FEW[-1] + 1), np.float32)
    more = np.empty((STREAMED + 1, LEAST), np.float32)
    for unsuited in (
        (x.astype(np.float64), w, out),
        (x, w, out.astype(np.float64)),
        (x, np.repeat(w, 2, axis=1)[:, ::2], out),
        (x, w, np.empty((LEAST, 64), np.float32).T),
        (x, w[:, :-1].copy(), out[:, :-1].copy()),
        (x[: FEW[0] - 1], w, out[: FEW[0] - 1]),
        (x.T, x, square),
        (w[:, :64].copy(), x, square),
        (more, square, more),
        (many, many, many),
        (many, many.T, many),
        (many.T, many, many),
    ):
        assert product_of(*unsuited) is None


@pytest.mark.skipif(VECTOR != 8, reason="AVX2's tile")
def test_gradients_of_rows_that_do_not_fill_the_tile_of_avx2_are_left_to_blas():
    for rows in (9, 15, 16, 25, 63, 64, 128):
        check("_transposed", *factors("dx", rows, LEAST, LEAST), threads=1, accumulate=False)
    for rows in (6, 8, 17, 24, 50, 100):
        dy, turned = factors("dx", rows, LEAST, LEAST)
        assert product_of(dy, turned, np.empty((rows, LEAST), np.float32)) is None


def test_rows_that_tiles_do_not_divide_evenly():
    for rows in (6, 7, 8, 9, 13, 14, 17, 19, 24, 50, 101):
        check("_streamed", *factors("y", rows, LEAST + 5, LEAST + 9), threads=2, accumulate=True)
    check("_transposed", *factors("dx", 96, LEAST, LEAST), threads=LEAST, accumulate=False)


@EVERY_WAY
def test_threads_have_no_part_in_the_sums(product, few):
    a, b = factors(product, *sizes(product, few, 0.25, LEAST + 70, LEAST + 50))
    results = []
    for threads in (1, 3):
        ops = CpuOps(threads=threads)
        ops._product_worth_a_thread = 1
        results.append(ops.gemm(a, b))
    np.testing.assert_array_equal(*results)
