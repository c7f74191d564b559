"""How kernels are compiled: what several share once, and by one process of those that share a cache at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from numba.core.errors import TypingError
from support.commands import first_line

import singa_dask
from singa_dask.ops.cpu.convolution.padding_kernels import clear
from singa_dask.ops.cpu.toolkit import compile_lock, numba_kernel
from singa_dask.ops.cpu.toolkit.compile_lock import CompileLock, told_of_compiling
from singa_dask.ops.cpu.toolkit.numba_kernel import kernel, linked
from singa_dask.ops.cpu.toolkit.vectors import VECTOR

WITH_VECTORS = pytest.mark.skipif(VECTOR == 0, reason="these kernels need vectors")

BYTES = 4


@linked
def clear_first(target, count):
    clear(target, count)


@kernel
def clear_both(a, b, count):
    clear_first(a.ctypes.data, count)
    clear_first(b.ctypes.data + BYTES, count - 1)


@kernel
def cannot_be_compiled(a):
    return a.no_such_attribute


def test_kernels_share_what_is_linked():
    a, b = np.ones(5, np.float32), np.ones(5, np.float32)
    clear_both(a, b, 3)
    np.testing.assert_array_equal(a, [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(b, [1, 0, 0, 1, 1])
    clear_both(a.reshape(1, 5), b, 5)  # another kernel to Numba
    np.testing.assert_array_equal(a, np.zeros(5))
    assert len(clear_both.signatures) == 2
    assert len(clear_first.kernel.signatures) == 1


def run_python(code: str, *arguments: str, **variables: str) -> list[str]:
    """What it prints, in words."""
    command, environment = [sys.executable, "-c", code, *arguments], {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


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
AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+avx,+sse4.2,+bmi,+bmi2,+popcnt,+f16c"}


@WITH_VECTORS
@pytest.mark.timeout(240)
def test_the_cache_on_disk_knows_kernels_of_other_cpus_and_of_other_files_apart(tmp_path):
    package = tmp_path / "singa_dask"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(singa_dask.__file__).parent, package, ignore=ignored)
    place = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    assert run_python(ONE_CONVOLUTION, **place) == [str(VECTOR), "0", "1"]
    assert run_python(ONE_CONVOLUTION, **place, **AVX2) == ["8", "0", "1"]
    assert run_python(ONE_CONVOLUTION, **place) == [str(VECTOR), "1", "0"]
    tile = package / "ops" / "cpu" / "convolution" / "micro_kernel.py"
    tile.write_text(tile.read_text().replace("_ROWS = {16: 12, 8: 6,", "_ROWS = {16: 10, 8: 5,"))
    assert run_python(ONE_CONVOLUTION, **place) == [str(VECTOR), "0", "1"]


ONE_KERNEL = """
import sys
import numpy as np
from singa_dask.ops.cpu.convolution.padding_kernels import crop
from singa_dask.ops.cpu.convolution.winograd_kernels import turn_filters
print("ready", flush=True)
sys.stdin.readline()
weight = np.arange(36, dtype=np.float32).reshape(3, 3, 2, 2)
turned = np.empty_like(weight)
turn_filters(weight, 0, 2, turned)
np.testing.assert_array_equal(turned, weight.swapaxes(2, 3))
crop.kernel.get_compile_result(crop.signature)
stats = turn_filters.stats, crop.kernel.stats
print(*(sum(s.cache_misses.values()) for s in stats), *(sum(s.cache_hits.values()) for s in stats))
"""


@WITH_VECTORS
def test_of_several_processes_one_compiles_and_the_others_find_its_kernels(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", ONE_KERNEL]
    pipe = subprocess.PIPE
    runs = [subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    try:
        assert [first_line(run, within=60) for run in runs] == ["ready\n"] * 3
        said = []
        for run in runs:
            run.stdin.write("\n")  # type: ignore[union-attr]
            run.stdin.flush()  # type: ignore[union-attr]
        for run in runs:
            said.append([int(word) for word in run.communicate(timeout=60)[0].split()])
    finally:
        for run in runs:
            run.kill()
            run.wait()
    assert np.sum(said, axis=0).tolist() == [1, 1, 2, 2]


STEPS = """
import sys
import numpy as np
from singa_dask.ops.cpu.recurrent.recurrent_kernels import lstm_steps, rnn_steps
from singa_dask.ops.cpu.gemm.row_tile import PANEL
chosen = np.empty((0, 0), np.float32), np.empty(0, np.int64)
ones = lambda *shape: np.ones(shape, np.float32)
h = ones(10, PANEL)
if sys.argv[1] == "rnn":
    rnn_steps(ones(5, PANEL), ones(1, PANEL, PANEL), True, h, *chosen, 0, 5)
else:
    lstm_steps(ones(5, 4 * PANEL), ones(4, PANEL, PANEL), True, ones(10, PANEL), h, *chosen, 0, 5)
print(sum(rnn_steps.stats.cache_hits.values()), sum(lstm_steps.stats.cache_hits.values()))
"""


@WITH_VECTORS
def test_what_a_kernel_links_by_way_of_another_is_there_when_it_comes_from_disk(tmp_path):
    # The second one finds, on disk, the product that the first one's steps brought; the third one its own steps.
    for net, hits in (("rnn", ["0", "0"]), ("lstm", ["0", "0"]), ("lstm", ["0", "1"])):
        assert run_python(STEPS, net, NUMBA_CACHE_DIR=str(tmp_path)) == hits


def test_one_process_at_a_time_has_the_lock_until_its_first_kernel_is_compiled(tmp_path, monkeypatch):
    mine, other = CompileLock(), CompileLock()
    mine.acquire(tmp_path)
    mine.acquire(tmp_path)  # a kernel that the first one needs
    mine.release(1)
    waiting = Thread(target=other.acquire, args=(tmp_path,))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    mine.release(0)
    waiting.join(20)
    assert not waiting.is_alive() and other.depth == 1
    monkeypatch.setattr(compile_lock, "PATIENCE_S", 0.05)
    mine.acquire(tmp_path)  # goes on without: it has waited long enough
    mine.release(0)
    other.release(0)


def test_a_kernel_that_cannot_be_compiled_releases_the_lock():
    with pytest.raises(TypingError):
        cannot_be_compiled(np.ones(3))
    assert numba_kernel._lock.depth == 0


def test_the_first_compilation_is_told_once(tmp_path):
    lock, first, later = CompileLock(), [], []
    with told_of_compiling(first.append):
        for name in ("a", "b"):
            lock.acquire(tmp_path / name)
            with told_of_compiling(later.append):
                lock.acquire(tmp_path / "needed")  # a kernel that the first one needs
            lock.release(0)
    lock.acquire(tmp_path / "c")
    lock.release(0)
    assert (first, later) == ([tmp_path / "a"], [])
