"""The communicator of the processes that mpiexec or `launch` have started together."""

from __future__ import annotations

import atexit
import os
import sys
import time
from contextlib import suppress
from typing import Any

from singa_dask.cluster.bootstrap import each_alone, launched_size, library_name, mpi_report
from singa_dask.cluster.join import call_by, communicator, join_launched
from singa_dask.cluster.segments import unlink_segments
from singa_dask.comm import Communicator, MpiCommunicator, SoloCommunicator
from singa_dask.errors import ClusterError, ConfigError

# Ranks end at different times, and launchers kill everybody when one leaves before all are ready to.
LEAVING_S = 3600.0
_FINALISE_S = 10.0
_worlds: list[Communicator] = []


def world(timeout_s: float = 30.0) -> Communicator:
    """The communicator of all processes of this mpiexec, srun or `launch`; elsewhere a group of one. Made once.

    timeout_s: after which a collective raises CommTimeout; at the first call also of the start of MPI.
    Raises ConfigError where the launcher is of another MPI library, so that every process is alone in its world.
    """
    if not _worlds:
        _worlds.append(_launched(timeout_s))
    return _worlds[0]


def enter(comm: Communicator) -> None:
    """Let `comm` be the world of this process."""
    _worlds[:] = [comm]


def _launched(timeout_s: float) -> Communicator:
    count = launched_size(os.environ)
    initialised = bool(mpi_report().world)
    if count < 2 and not initialised:
        return SoloCommunicator(timeout_s)
    mpi = join_launched(timeout_s)
    size = mpi.COMM_WORLD.size
    try:
        MpiCommunicator(mpi.COMM_WORLD, timeout_s).barrier()
    finally:
        # Every rank has attached to MPICH's shared memory: its names serve nothing, and a killed job would leave them.
        unlink_segments()
    if size == 1 < count:
        raise ConfigError(each_alone(count, library_name(mpi)))
    if size == 1:
        return SoloCommunicator(timeout_s)
    made = call_by(time.monotonic() + timeout_s, "MPI_Comm_create_group", communicator, range(size), "distopt")
    comm = MpiCommunicator(made, timeout_s)
    if not initialised:
        atexit.register(_leave, mpi, comm)
    return comm


def _leave(mpi: Any, comm: MpiCommunicator) -> None:
    """Finalise MPI together with all other ranks; not after an error, so that the launcher ends them."""
    if comm.broken or comm.aborted or getattr(sys, "last_value", None) is not None:
        return
    with suppress(ClusterError, mpi.Exception):
        comm.timeout_s = LEAVING_S
        comm.barrier()
        call_by(time.monotonic() + _FINALISE_S, "MPI_Finalize", mpi.Finalize)
