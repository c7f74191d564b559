"""What one core of this machine does at most. As a program: `Peaks` as JSON on standard output.

Products: float32, by NumPy's BLAS and by our kernel on a packed matrix. Moving: arrays of so many bytes together that
are read (a dot product), copied, or updated (momentum SGD: three read, two written), over and over; the faster one
counts. Small ones stay in a cache, the largest ones in none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from singa_dask.ops.cpu.elementwise import update_kernels
from singa_dask.ops.cpu.gemm import packed_product, row_products
from singa_dask.ops.cpu.toolkit.vectors import VECTOR
from singa_dask.ops.cpu.toolkit.workspace import aligned

SQUARE = 2048
# Bytes of the arrays together.
SIZES = tuple(1 << power for power in range(18, 30))
SECONDS = 0.15
# Where one measurement is no longer than this, several are taken at once.
TICK = 1e-3


@dataclass(frozen=True)
class Peaks:
    """gflops: GFLOP/s by kernel. gbytes: (bytes, GB/s) of arrays that are used over and over, small ones first."""

    gflops: Mapping[str, float]
    gbytes: list[tuple[int, float]]

    @property
    def product(self) -> float:
        """GFLOP/s of the fastest product."""
        return max(self.gflops.values())

    @property
    def memory(self) -> float:
        """GB/s of arrays that fit into no cache."""
        return self.gbytes[-1][1]

    def moving(self, among: float) -> float:
        """GB/s of bytes among so many that are used in turn: at least the rate of any larger number."""
        fitting = [rate for size, rate in self.gbytes if size > among / 2]
        return max(fitting, default=self.memory)

    def better(self, other: Peaks) -> Peaks:
        """The higher one of each figure."""
        gflops = {name: max(rate, other.gflops[name]) for name, rate in self.gflops.items()}
        pairs = zip(self.gbytes, other.gbytes, strict=True)
        return Peaks(gflops, [(size, max(rate, again)) for (size, rate), (_, again) in pairs])


def measure() -> Peaks:
    """All of them, with one thread."""
    with threadpool_limits(1):
        gflops = {"BLAS": _blas()}
        if VECTOR:
            gflops["packed"] = _packed()
        return Peaks(gflops, [(size, _moving(size)) for size in SIZES])


def _blas() -> float:
    a = np.ones((SQUARE, SQUARE), np.float32)
    out = np.empty_like(a)
    return _rate(2 * SQUARE**3, lambda: np.matmul(a, a, out=out))


def _packed() -> float:
    """As recurrent layers do it: the packed matrix stays in the cache of a core."""
    rows, length, columns = 500, 512, 512
    shapes = (rows, length), row_products.packed_shape(length, columns), (rows, columns)
    a, panels, out = (aligned(np.empty, shape, np.float32) for shape in shapes)
    for array in (a, panels, out):  # zeros that nobody has written would all lie in one page
        array.fill(1)
    return _rate(2 * rows * length * columns, lambda: packed_product.product(a, panels, out, False))


def _moving(nbytes: int) -> float:
    def arrays(count: int) -> list[np.ndarray]:
        return [np.ones(nbytes // count // 4, np.float32) for _ in range(count)]

    (a, b), (w, g, v) = arrays(2), arrays(3)
    rates = (
        _rate(nbytes, lambda: np.dot(a, b)),
        _rate(nbytes, lambda: np.copyto(a, b)),
        _rate(nbytes * 5 / 3, lambda: update_kernels.sgd(w, g, v, 1e-6, 0.9, 0.0, -np.inf, np.inf)),
    )
    return max(rates)


def _rate(work: float, run: Callable[[], object]) -> float:
    """So much work / 1e9 a second, in the fastest of some runs."""
    run()
    began = time.perf_counter()
    run()
    count = max(1, int(TICK / max(time.perf_counter() - began, 1e-9)))
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(count):
            run()
        best = min(best, (time.perf_counter() - began) / count)
    return work / best / 1e9


if __name__ == "__main__":
    print(json.dumps(asdict(measure())))
