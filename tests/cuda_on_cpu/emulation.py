"""The emulation in this process: entered when CuPy is first imported, asked by tests for what happened."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from math import prod
from types import ModuleType
from typing import Any

RUNTIME = "cupy_backends.cuda.api.runtime"


@cache
def loaded() -> dict[str, Any]:
    """The libraries, by name. From now on, those of the same names are not looked for."""
    from cuda_on_cpu import build  # here, as every process of a run imports this module at its start

    folder = build.libraries()
    return {name: ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL) for name in build.LIBRARIES}


def _enter(runtime: ModuleType) -> None:
    enter = ctypes.PyDLL(loaded()["emulated_runtime.so"]._name).cuda_on_cpu_enter
    enter.restype = ctypes.py_object
    enter(ctypes.py_object(runtime))


def _settle(cupy: ModuleType) -> None:
    cupy.cuda.set_allocator(None)  # every array is a block of its own: poisoned, guarded
    cupy.cuda.thrust.argsort = _argsort


def _argsort(dtype: Any, places: int, values: int, keys: int, shape: Sequence[int]) -> None:
    """In place of Thrust's, which has kernels that are not compiled from sources. Of the last axis."""
    import numpy as np

    def array(address: int, dtype: Any) -> Any:
        raw = (ctypes.c_char * (prod(shape) * np.dtype(dtype).itemsize)).from_address(address)
        return np.frombuffer(raw, dtype).reshape(shape)

    array(places, np.int64)[...] = np.argsort(array(values, dtype), axis=-1, kind="stable")


AFTER: dict[str, Callable[[ModuleType], None]] = {"cupy": _settle, RUNTIME: _enter}


class Finder:
    """Loads the libraries before CuPy is, and enters the emulation into what has been imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in AFTER:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        loader, run = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loaded()
            run(module)
            AFTER[name](module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Have this process emulate GPUs once it imports CuPy."""
    os.environ.setdefault("CUPY_ACCELERATORS", "")  # kernels of CuPy's own for sums, in place of compiled ones
    sys.meta_path.insert(0, Finder)


def counts() -> Counter[str]:
    """What has happened since the last call: launches by kernel, products, waits, uploads, allocations ..."""
    function = loaded()["libcuda.so.1"].cuda_on_cpu_counts
    function.restype = ctypes.c_char_p
    lines = (line.split("\t") for line in function().decode().splitlines())
    return Counter({what: int(times) for what, times in lines})


def faults() -> list[str]:
    """What no program may do and was done since the last call: writes beyond arrays, copies in wrong directions ..."""
    function = loaded()["libcuda.so.1"].cuda_on_cpu_faults
    function.restype = ctypes.c_char_p
    return list(function().decode().splitlines())


def memory(device: int, nbytes: int) -> None:
    """Let a GPU have so much memory."""
    loaded()["libcuda.so.1"].cuda_on_cpu_memory(device, ctypes.c_size_t(nbytes))


def next_nccl_status(status: int) -> None:
    """Have the next call of NCCL fail."""
    loaded()["libnccl.so.2"].cuda_on_cpu_nccl_status(status)
