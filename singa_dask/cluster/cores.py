"""How many cores the processes of one machine use each, and the environment that tells them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def equal_share(nprocs: int) -> int:
    """Cores for each of so many processes, at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // nprocs)


@contextmanager
def cores_each(cores: int) -> Iterator[None]:
    """Processes that are started inside use so many cores, unless the environment says otherwise.

    BLAS reads its variables when NumPy loads it, so they must be there before a process starts.
    """
    with added_variables(dict.fromkeys(THREAD_VARIABLES, str(cores))):
        yield


@contextmanager
def added_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Add to the environment what it lacks of these, as long as the context is open."""
    missing = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)
