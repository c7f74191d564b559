"""How many cores the processes of one machine use each."""

from __future__ import annotations

import os
from collections.abc import Iterator
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
    set_here = [name for name in THREAD_VARIABLES if name not in os.environ]
    os.environ.update(dict.fromkeys(set_here, str(cores)))
    try:
        yield
    finally:
        for name in set_here:
            os.environ.pop(name, None)
