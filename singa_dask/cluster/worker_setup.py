"""Preloaded into the workers of a local cluster (`dask_setup` is the name that Dask calls)."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, TextIO, cast

import numba

from singa_dask.cluster import stop_signals
from singa_dask.ops.blas import set_blas_threads
from singa_dask.output.streams import Output, for_messages

_VARIABLES = {"openblas": "OPENBLAS_NUM_THREADS", "mkl": "MKL_NUM_THREADS", "openmp": "OMP_NUM_THREADS"}


def dask_setup(worker: Any) -> None:
    """Leave signals that stop a run to the driver. Let no print of a layer's fail. Have the threads that the
    environment says: libraries of a forked worker were loaded before it was told."""
    stop_signals.dask_setup(worker)
    sys.stdout, sys.stderr = (cast(TextIO, Output.of(stream)) for stream in (sys.stdout, sys.stderr))
    logging.getLogger("singa_dask").addHandler(logging.StreamHandler(for_messages(sys.stderr)))
    numba.config.reload_config()
    told = {api: os.environ.get(name, "") for api, name in _VARIABLES.items()}
    set_blas_threads({api: int(count) for api, count in told.items() if count.isdigit()})
