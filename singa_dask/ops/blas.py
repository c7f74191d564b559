"""The number of threads of BLAS."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Inside, BLAS and OpenMP use so many threads in this process, whichever thread asks."""
    before = _in_a_thread_that_ends(_set, lambda api: count)
    try:
        yield
    finally:
        _in_a_thread_that_ends(_restore, before)


def set_blas_threads(counts: Mapping[str, int]) -> None:
    """Set the number of threads by threadpoolctl's name of the library: "openblas", "mkl", "openmp"."""
    _in_a_thread_that_ends(_set, counts.get)


def _in_a_thread_that_ends(function: Callable[..., T], *args: Any) -> T:
    """threadpoolctl (3.8) lets only the thread that first set OpenBLAS's number set it again, while that lives."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def _set(wanted: Callable[[str], int | None]) -> dict[str, int]:
    """Returns what it was before, by file."""
    before: dict[str, int] = {}
    for library in ThreadpoolController().lib_controllers:
        count = wanted(library.internal_api)
        if count is not None:
            before[library.filepath] = library.num_threads
            library.set_num_threads(count)
    return before


def _restore(before: Mapping[str, int]) -> None:
    for library in ThreadpoolController().lib_controllers:
        if library.filepath in before:
            library.set_num_threads(before[library.filepath])
