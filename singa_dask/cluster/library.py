"""Which MPI library groups of this machine would use."""

from __future__ import annotations

import subprocess
import sys

from singa_dask.errors import ClusterError

_PROGRAM = """
from singa_dask.cluster.bootstrap import library_name, load_mpi
from singa_dask.errors import ClusterError
try:
    print("found", library_name(load_mpi()))
except ClusterError as error:
    print("fault", error)
"""


def mpi_library(timeout_s: float = 30.0) -> str:
    """The name of the MPI library, asked in a process of its own, so that this one stays without MPI.

    Raises ClusterError where there is none, or one that cannot form groups inside Dask workers.
    """
    try:
        done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"MPI did not load within {timeout_s:g} s") from error
    verdict, _, text = done.stdout.strip().partition(" ")
    if verdict == "found":
        return " ".join(text.split())
    raise ClusterError(text or f"MPI cannot be loaded: {done.stderr.strip()[-500:]}")
