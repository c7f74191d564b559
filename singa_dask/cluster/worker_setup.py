"""Preloaded into the workers of a local cluster (`dask_setup` is the name that Dask calls)."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np


def dask_setup(worker: Any) -> None:
    """Leave Ctrl-C to the driver: a terminal sends it to every process, and a worker would die of it half-way. Have
    random numbers of its own: forked workers begin with the same state of NumPy's global generator."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    np.random.seed()
