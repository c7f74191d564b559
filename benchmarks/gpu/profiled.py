"""The kernels that ncu is to look at, each launched once: im2col, sums of rows in one stage and as GpuOps has them."""

from __future__ import annotations

import cupy

from singa_dask.ops import Window, get_ops


def main() -> None:
    ops = get_ops("gpu")
    x, columns, sums = ops.zeros((64, 32, 32, 16)), ops.empty((64 * 32 * 32, 9 * 16)), ops.empty((16,))
    ops.im2col(x, Window((3, 3), (1, 1), (1, 1)), columns)
    rows = x.reshape(-1, 16)
    rows.sum(axis=0, out=sums)
    ops.sum_rows(rows, sums)
    rows.T.copy()
    cupy.cuda.Device().synchronize()


if __name__ == "__main__":
    main()
