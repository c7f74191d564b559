"""What one launch, copy, product and sum cost on this GPU. A figure that cannot be measured is an error among them."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import cupy
import numpy as np

from singa_dask.comm.nccl_library import device_identity, libraries, unique_id
from singa_dask.ops import Window, get_ops
from singa_dask.ops.gpu import kernels
from singa_dask.ops.gpu.visible import visible_gpus

# Rows and columns of the gradients of biases, and of batch normalisation, in nets of examples/.
TALL = ((65536, 16), (16384, 32), (4096, 64), (65536, 64), (8192, 512))
ROUNDS = 200
PRODUCT = 4096
FLOAT32, TF32 = 1, 7  # CuPy's types of computing; `cupy.cuda.cublas` has no public names for them


def seconds(call: Callable[[], Any], rounds: int = ROUNDS) -> tuple[float, float]:
    """Of one call: until it returns, and until the GPU has done what it asks for."""
    for _ in range(5):
        call()
    device = cupy.cuda.Device()
    device.synchronize()
    began = time.perf_counter()
    for _ in range(rounds):
        call()
    on_host = time.perf_counter() - began
    device.synchronize()
    return on_host / rounds, (time.perf_counter() - began) / rounds


def microseconds(call: Callable[[], Any], rounds: int = ROUNDS) -> float:
    return round(1e6 * seconds(call, rounds)[1], 1)


def first_kernel_s() -> float:
    """Seconds until the first kernel of a process is compiled, or found in the cache, and has run."""
    began = time.perf_counter()
    x = cupy.ones(8, "f4")
    kernels.build(cupy).sigmoid(x, x)
    cupy.cuda.Device().synchronize()
    return round(time.perf_counter() - began, 3)


def identity() -> dict[str, Any]:
    """What this GPU is told by."""
    gpu = visible_gpus()[0]
    bus = cupy.cuda.runtime.deviceGetPCIBusId(0)
    return {"machine and uuid": gpu.identity, "name": gpu.name, "nccl": device_identity(0), "bus": bus}


def nccl() -> dict[str, Any]:
    """An all-reduce of one rank."""
    _, library = libraries()
    communicator = library.NcclCommunicator(1, unique_id(), 0)
    x = cupy.arange(4, dtype="f4")
    communicator.allReduce(x.data.ptr, x.data.ptr, x.size, library.NCCL_FLOAT32, library.NCCL_SUM, 0)
    sums = x.get().tolist()
    communicator.destroy()
    return {"version": library.get_version(), "built_for": library.get_build_version(), "sums": sums}


def calls_us() -> dict[str, tuple[float, float]]:
    """Microseconds of calls on small arrays: on the host, and with the GPU."""
    x, y, sums = cupy.zeros((64, 64), "f4"), cupy.zeros((64, 64), "f4"), cupy.zeros(64, "f4")
    rows, made, host = cupy.arange(64), kernels.build(cupy), np.zeros(25600, "f4")
    calls = {
        "ElementwiseKernel": lambda: made.sigmoid(x, y),
        "ufunc into an array": lambda: cupy.add(x, y, out=y),
        "ufunc": lambda: x + y,
        "column sums": lambda: cupy.sum(x, axis=0, out=sums),
        "product": lambda: cupy.dot(x, x, out=y),
        "indexing by arrays": lambda: x[rows, rows],
        "a value to the host": lambda: float(sums[0]),
        "100 KB to the device": lambda: cupy.asarray(host),
    }
    return {name: tuple(round(1e6 * each, 1) for each in seconds(call)) for name, call in calls.items()}


def copy_tb_per_s() -> float:
    """Bytes read and written, of arrays of 1 GiB."""
    source = cupy.zeros(1 << 28, "f4")
    target = cupy.empty_like(source)
    return round(2 * source.nbytes / seconds(lambda: cupy.copyto(target, source), 10)[1] / 1e12, 2)


def product_tflops() -> dict[str, float]:
    """Of float32 matrices, without and with TF32."""
    from cupy._core import _routines_linalg as products  # the environment sets this only at CuPy's import

    a = cupy.asarray(np.random.default_rng(0).random((PRODUCT, PRODUCT), np.float32))
    out, rates = cupy.empty_like(a), {}
    for name, kind in (("float32", FLOAT32), ("TF32", TF32)):
        products.set_compute_type("f", kind)
        rates[name] = round(2 * PRODUCT**3 / seconds(lambda: cupy.dot(a, a, out=out), 10)[1] / 1e12, 1)
    products.set_compute_type("f", FLOAT32)
    return rates


def column_sums_us() -> dict[str, dict[str, float]]:
    """In one stage, as GpuOps adds up, and in float64 as batch normalisation does."""
    ops, found = get_ops("gpu"), {}
    for rows, columns in TALL:
        x = cupy.asarray(np.random.default_rng(0).random((rows, columns), np.float32))
        out, wide = cupy.empty(columns, "f4"), cupy.empty(columns, "f8")
        calls: Mapping[str, Callable[[], Any]] = {
            "one stage": lambda x=x, out=out: x.sum(axis=0, out=out),
            "GpuOps": lambda x=x, out=out: ops.sum_rows(x, out),
            "one stage, float64": lambda x=x, wide=wide: x.sum(axis=0, dtype="f8", out=wide),
            "GpuOps, float64": lambda x=x, wide=wide: ops.sum_rows(x, wide),
        }
        found[f"{rows} x {columns}"] = {name: microseconds(call, 50) for name, call in calls.items()}
    return found


def windows_gb_per_s() -> dict[str, float]:
    """Bytes that kernels for windows write, of 64 images of 32 x 32 x 16."""
    ops, window, halves = get_ops("gpu"), Window((3, 3), (1, 1), (1, 1)), Window((2, 2), (2, 2))
    x, columns = ops.zeros((64, 32, 32, 16)), ops.empty((64 * 32 * 32, 9 * 16))
    y = ops.empty((64, 16, 16, 16))
    argmax = ops.empty(y.shape, "u1")
    calls = {
        "im2col": (columns.nbytes, lambda: ops.im2col(x, window, columns)),
        "col2im": (x.nbytes, lambda: ops.col2im(columns, window, x)),
        "max_pool": (y.nbytes + argmax.nbytes, lambda: ops.max_pool(x, halves, y, argmax)),
    }
    return {name: round(nbytes / seconds(call, 30)[1] / 1e9, 1) for name, (nbytes, call) in calls.items()}


FIGURES = (
    identity,
    nccl,
    first_kernel_s,
    calls_us,
    copy_tb_per_s,
    product_tflops,
    column_sums_us,
    windows_gb_per_s,
)


@click.command()
@click.option("--json", "out", type=click.Path(path_type=Path), required=True, help="Write the figures to this file.")
def main(out: Path) -> None:
    """Measure each figure by itself."""
    found: dict[str, Any] = {}
    for figure in FIGURES:
        try:
            found[figure.__name__] = figure()
        except Exception as error:
            traceback.print_exc()
            found[figure.__name__] = {"error": f"{type(error).__name__}: {error}"}
        print(f"{figure.__name__}: {found[figure.__name__]}", flush=True)
        out.write_text(json.dumps(found, indent=1) + "\n")
    faults = [name for name, value in found.items() if isinstance(value, dict) and "error" in value]
    if faults:
        raise SystemExit(f"not measured: {', '.join(faults)}")


if __name__ == "__main__":
    main()
