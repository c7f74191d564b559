"""Rows that become columns, and panels of them, element by element."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singa_dask.ops.cpu.gemm.row_products import packed_shape
from singa_dask.ops.cpu.gemm.row_tile import PANEL
from singa_dask.ops.cpu.ops import CpuOps
from singa_dask.ops.cpu.toolkit.numba_kernel import kernel
from singa_dask.ops.cpu.toolkit.rows import StridedRows
from singa_dask.ops.cpu.toolkit.transpose import transpose
from singa_dask.ops.cpu.toolkit.vectors import VECTOR

pytestmark = pytest.mark.skipif(VECTOR == 0, reason="no vectors of this CPU")
SIZES = st.integers(1, 3 * max(VECTOR, 1) + 1)


@kernel
def run(source, accumulate, target):
    rows, columns = source.shape
    start, place = (
        StridedRows(source.ctypes.data, source.strides[0]),
        StridedRows(target.ctypes.data, target.strides[0]),
    )
    transpose(start, rows, columns, place, accumulate)


@settings(max_examples=60)
@given(SIZES, SIZES, st.booleans())
def test_rows_become_columns_and_nothing_else_is_written(rows, columns, accumulate):
    rng = np.random.default_rng(rows)
    source = rng.standard_normal((rows + 2, columns + 3), np.float32)[1:-1, 2:-1]
    whole = rng.standard_normal((columns + 2, rows + 2), np.float32)
    expected = whole.copy()
    expected[1:-1, 1:-1] = source.T + accumulate * expected[1:-1, 1:-1]
    run(source, accumulate, whole[1:-1, 1:-1])
    np.testing.assert_array_equal(whole, expected)


def test_zeros_keep_their_sign():
    out = np.ones((VECTOR, VECTOR), np.float32)
    run(np.full((VECTOR, VECTOR), -0.0, np.float32), False, out)
    assert np.signbit(out).all()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("widths", [(PANEL, PANEL), (1, PANEL, 2), (PANEL - 1, 2 * PANEL + 3), (5, 7, 9, 11)])
def test_matrices_are_packed_side_by_side(widths, turned):
    rng, length = np.random.default_rng(0), 2 * VECTOR + 3
    shapes = [(n, length) if turned else (length, n) for n in widths]
    matrices = [rng.standard_normal(shape, np.float32) for shape in shapes]
    matrices = [matrix.T if turned else matrix for matrix in matrices]
    panels = CpuOps().pack(matrices, np.full(packed_shape(length, sum(widths)), 7, np.float32))
    lines = panels.transpose(1, 0, 2).reshape(length, -1)
    np.testing.assert_array_equal(lines[:, : sum(widths)], np.hstack(matrices))
    assert (lines[:, sum(widths) :] == 7).all()
    halves = np.full_like(panels, 7)
    for rows in (slice(0, VECTOR), slice(VECTOR, length)):
        CpuOps().pack([matrix[rows] for matrix in matrices], halves[..., rows, :])
    np.testing.assert_array_equal(halves, panels)
