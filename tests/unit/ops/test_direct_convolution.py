"""Convolution without columns against plain NumPy, on any shapes, by one thread and several."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import singa_dask
from singa_dask.ops import Ops, Window
from singa_dask.ops.cpu.convolution import tables
from singa_dask.ops.cpu.convolution.convolution_ops import convolution
from singa_dask.ops.cpu.convolution.direct_convolution import DirectConvolution
from singa_dask.ops.cpu.convolution.winograd_convolution import WinogradConvolution
from singa_dask.ops.cpu.ops import CpuOps
from singa_dask.ops.cpu.toolkit import team as team_module
from singa_dask.ops.cpu.toolkit.team import Team
from singa_dask.ops.cpu.toolkit.vectors import VECTOR

needs_vectors = pytest.mark.skipif(VECTOR == 0, reason="no micro-kernel for this CPU")
pair = st.tuples(st.integers(1, 5), st.integers(1, 5))


def call_all(ops: Ops, window: Window, x, weight, bias, dy):
    """The results of every convolution kernel, from a workspace full of NaN."""
    workspace = ops.empty(ops.workspace_shape(x.shape, window, weight.shape[-1], 1 << 20))
    workspace[...] = np.nan
    return [
        ops.convolve(x, weight, bias, window, ops.empty(dy.shape), workspace),
        ops.convolve(x, weight, None, window, ops.empty(dy.shape), workspace),
        ops.convolve_backward_weight(x, dy, window, ops.empty(weight.shape), workspace),
        ops.convolve_backward_weight(x, dy, window, weight.copy(), workspace, accumulate=True),
        ops.convolve_backward_input(dy, weight, window, ops.empty(x.shape), workspace),
    ]


def arrays(window: Window, shape: tuple[int, int, int, int], filters: int):
    rng = np.random.default_rng(0)
    result = (shape[0], *window.output_size(*shape[1:3]), filters)
    shapes = shape, (*window.kernel, shape[3], filters), (filters,), result
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


@pytest.mark.timeout(240)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
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
    drawn = arrays(window, (count, *size, channels), filters)
    expected = call_all(Ops(), window, *drawn)
    for want, got in zip(expected, call_all(CpuOps(threads=threads), window, *drawn), strict=True):
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5 * scale)


@needs_vectors
@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("threads", [1, 2])
def test_many_filters_over_many_weights_compute_what_numpy_computes(pad, threads):
    window = Window((3, 3), (1, 1), (pad, pad))
    drawn = arrays(window, (7, 8, 9, 32), 75)
    expected = call_all(Ops(), window, *drawn)
    for want, got in zip(expected, call_all(CpuOps(threads=threads), window, *drawn), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_shows_where_its_window_lies_and_nowhere_else(bad):
    window = Window((3, 3), (1, 1), (1, 1))
    x, weight, _, dy = arrays(window, (5, 9, 9, 5), 20)
    x[2, 4, 4, 1] = dy[3, 4, 4, 7] = bad
    y, _, dweight, _, dx = call_all(CpuOps(threads=1), window, x, weight, np.zeros(20, np.float32), dy)
    finite = np.ones((5, 9, 9), bool)
    finite[2, 3:6, 3:6] = False
    np.testing.assert_array_equal(np.isfinite(y).all(axis=3), finite)
    assert not np.isfinite(dweight[:, :, 1]).any()
    assert np.isfinite(dweight[:, :, 2, 6]).all()
    finite[2], finite[3, 3:6, 3:6] = True, False
    np.testing.assert_array_equal(np.isfinite(dx).all(axis=3), finite)


@needs_vectors
@pytest.mark.parametrize("foreign", [lambda a: a.astype(np.float64), lambda a: np.repeat(a, 2, axis=1)[:, ::2]])
@pytest.mark.parametrize(("channels", "way"), [(5, DirectConvolution), (40, WinogradConvolution)])
def test_arrays_of_another_type_or_with_gaps_are_read_for_what_they_are(foreign, channels, way):
    window = Window((3, 3), (1, 1), (1, 1))
    x, weight, bias, dy = arrays(window, (30, 8, 8, channels), 20)
    assert isinstance(convolution(x.shape, window, 20, 1), way)
    expected = call_all(CpuOps(), window, x, weight, bias, dy)
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
    x, weight, bias, dy = arrays(window, (3, 7, 7, 5), 20)
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
def test_a_steady_state_step_allocates_nothing_of_the_size_of_an_image(threads):
    ops, window = CpuOps(threads=threads), Window((5, 5), (1, 1), (2, 2))
    x, weight, bias, dy = arrays(window, (24, 20, 20, 16), 32)
    workspace = ops.empty(ops.workspace_shape(x.shape, window, 32, 0))
    out, dweight, dx = np.empty_like(dy), np.empty_like(weight), np.empty_like(x)

    def step() -> None:
        ops.convolve(x, weight, bias, window, out, workspace)
        ops.convolve_backward_weight(x, dy, window, dweight, workspace)
        ops.convolve_backward_input(dy, weight, window, dx, workspace)

    step()
    tracemalloc.start()
    try:
        step()
        assert tracemalloc.get_traced_memory()[1] < x[0].nbytes // 2
    finally:
        tracemalloc.stop()


def test_the_workspace_is_small_beside_the_columns():
    window, shape = Window((5, 5), (1, 1), (2, 2)), (64, 32, 32, 32)
    columns = np.prod(Ops().workspace_shape(shape, window, 32, 1 << 40))
    assert np.prod(CpuOps(threads=2).workspace_shape(shape, window, 32, 1 << 40)) < columns / 40


def run_python(code: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


ONE_CONVOLUTION = """
import numpy as np
from singa_dask.ops import Ops, Window
from singa_dask.ops.cpu.ops import CpuOps
from singa_dask.ops.cpu.convolution import direct_kernels
from singa_dask.ops.cpu.toolkit.vectors import VECTOR
window, rng = Window((3, 3), (1, 1), (1, 1)), np.random.default_rng(0)
x, weight = (rng.standard_normal(s).astype(np.float32) for s in ((3, 7, 7, 5), (3, 3, 5, 41)))
results = []
for ops in (Ops(), CpuOps(threads=1)):
    workspace = ops.empty(ops.workspace_shape(x.shape, window, 41, 1 << 20))
    results.append(ops.convolve(x, weight, None, window, ops.empty((3, 7, 7, 41)), workspace))
np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)
stats = direct_kernels.convolve.stats
print(VECTOR, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""
AVX2 = "+avx2,+fma,+avx,+sse4.2,+bmi,+bmi2,+popcnt,+f16c"


@needs_vectors
@pytest.mark.timeout(240)
def test_the_cache_on_disk_knows_kernels_of_different_cpus_apart(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    haswell = {**cache, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2}
    generic = {**cache, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse2"}
    assert run_python(ONE_CONVOLUTION, **cache).split() == [str(VECTOR), "0", "1"]
    assert run_python(ONE_CONVOLUTION, **haswell).split() == ["8", "0", "1"]
    assert run_python(ONE_CONVOLUTION, **cache).split() == [str(VECTOR), "1", "0"]
    assert run_python(ONE_CONVOLUTION, **generic).split() == ["0", "0", "0"]


@needs_vectors
@pytest.mark.timeout(240)
def test_kernels_are_compiled_anew_where_another_file_of_theirs_has_changed(tmp_path):
    package = tmp_path / "singa_dask"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(singa_dask.__file__).parent, package, ignore=ignored)
    place = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    assert run_python(ONE_CONVOLUTION, **place).split() == [str(VECTOR), "0", "1"]
    tile = package / "ops" / "cpu" / "convolution" / "micro_kernel.py"
    tile.write_text(tile.read_text().replace("_ROWS = {16: 12, 8: 6,", "_ROWS = {16: 10, 8: 5,"))
    assert run_python(ONE_CONVOLUTION, **place).split() == [str(VECTOR), "0", "1"]
    assert run_python(ONE_CONVOLUTION, **place).split() == [str(VECTOR), "1", "0"]


def test_a_team_does_every_task_once_and_raises_what_one_of_them_raised():
    team, seen = Team(3), []
    for count in (1, 2, 3):
        seen.clear()
        team.run(count, seen.append)
        assert sorted(seen) == list(range(count))

    def fail(number: int) -> None:
        seen.append(number)
        if number == 2:
            raise ArithmeticError("two")

    seen.clear()
    with pytest.raises(ArithmeticError, match="two"):
        team.run(3, fail)
    assert sorted(seen) == [0, 1, 2]
    # A team at work does not take another task: its member does that alone.
    team.run(2, lambda number: team.run(2, seen.append))
    assert sorted(seen) == [0, 0, 0, 1, 1, 1, 2]
    with pytest.raises(ValueError, match="size=0"):
        Team(0)


def test_a_team_forgets_what_a_task_that_was_broken_off_has_left():
    team, seen, slow = Team(2), [], threading.Event()

    def stuck(number: int) -> None:
        if number == 1:
            assert slow.wait(10)

    interrupted = patch.object(team_module, "SimpleQueue", _Interrupting)
    with interrupted, pytest.raises(KeyboardInterrupt):
        team.run(2, stuck)
    slow.set()

    def late(number: int) -> None:
        time.sleep(0.05 * number)
        seen.append(number)

    for _ in range(3):
        seen.clear()
        team.run(2, late)
        assert sorted(seen) == [0, 1]


class _Interrupting(SimpleQueue):
    """Of the thread that waits for the others: it is interrupted there."""

    def get(self, *args, **settings):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return super().get(*args, **settings)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_team_works_in_a_process_that_was_forked():
    team, seen = Team(2), []
    team.run(2, seen.append)
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        signal.alarm(20)
        team.run(2, seen.append)
        os._exit(len(seen))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4


def test_a_team_that_could_not_start_can_be_asked_again(monkeypatch):
    team, seen = Team(3), []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no more threads")))
        with pytest.raises(RuntimeError, match="no more threads"):
            team.run(3, seen.append)
    team.run(3, seen.append)
    assert sorted(seen) == [0, 1, 2]


def test_a_team_warns_where_its_caller_does():
    a = np.full((64, 64), np.inf, np.float32)
    ops = CpuOps(threads=2)
    ops._product_worth_a_thread = 1
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("error")
        assert np.isnan(ops.gemm(a, -a * np.eye(64, dtype=np.float32), out=np.zeros_like(a), accumulate=True)).all()


@pytest.mark.parametrize("shape", [(64, 300, 200), (300, 64, 200), (1, 3000, 1000)])
def test_products_by_several_threads_are_those_of_one(shape):
    rows, inner, columns = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((rows, inner), np.float32), rng.standard_normal((inner, columns), np.float32)
    ops, out = CpuOps(threads=3), np.ones((rows, columns), np.float32)
    np.testing.assert_allclose(ops.gemm(a, b), a @ b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ops.gemm(a, b, out, accumulate=True), a @ b + 1, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ops.gemm(b.T, a.T), (a @ b).T, rtol=1e-4, atol=1e-4)


def test_shares_cover_the_batch():
    spans = tables.spans(7, 3)
    assert spans[0][0] == 0 and spans[-1][1] == 7
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert len(tables.spans(2, 8)) == 2
