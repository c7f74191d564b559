"""Preloaded into the workers of a local cluster (`dask_setup` is the name that Dask calls)."""

from __future__ import annotations

import os
import signal
from typing import Any

import numba

from singa_dask.cluster.stop_signals import FOR_THE_DRIVER
from singa_dask.ops.blas import set_blas_threads

_VARIABLES = {"openblas": "OPENBLAS_NUM_THREADS", "mkl": "MKL_NUM_THREADS", "openmp": "OMP_NUM_THREADS"}


def dask_setup(worker: Any) -> None:
    """Leave signals that stop a run to the driver. Have the threads that the environment says: libraries of a
    forked worker were loaded before it was told."""
    for number in FOR_THE_DRIVER:
        signal.signal(number, signal.SIG_IGN)
    numba.config.reload_config()
    told = {api: os.environ.get(name, "") for api, name in _VARIABLES.items()}
    set_blas_threads({api: int(count) for api, count in told.items() if count.isdigit()})
