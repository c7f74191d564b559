"""Processes of one machine that a user starts with multiprocessing, and that train together: SINGA's way."""

from __future__ import annotations

import multiprocessing.util
import secrets
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Client, Listener
from typing import Any

from singa_dask.cluster.cores import equal_share
from singa_dask.cluster.join import RankPlan, join_group
from singa_dask.cluster.pmi_server import PmiEndpoint, PmiServer
from singa_dask.comm import Communicator
from singa_dask.distopt.worlds import LEAVING_S, enter
from singa_dask.errors import ClusterError, ConfigError, Problem
from singa_dask.ops.blas import set_blas_threads

_FORMING_S = 60.0


class NcclIdHolder:
    """What the processes have in common: made once, before they are started, and given to each.

    The name is SINGA's. The process that makes it lets the others form an MPI world, so it must live until they have.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        listener = Listener(("127.0.0.1", 0), authkey=self._key, backlog=64)
        self._address: Any = listener.address
        threading.Thread(target=_serve, args=(listener,), name="nccl-id", daemon=True).start()

    def endpoint(self, size: int) -> PmiEndpoint:
        """Where `size` processes form their world. Raises ClusterError if others have named another number, or if the
        process that made this object has ended."""
        try:
            with Client(self._address, authkey=self._key) as connection:
                connection.send(size)
                if not connection.poll(_FORMING_S):
                    raise EOFError("no answer")
                found = connection.recv()
        except (OSError, EOFError) as error:
            raise ClusterError(f"the process that made the NcclIdHolder does not answer: {error}") from error
        if isinstance(found, str):
            raise ClusterError(found)
        return found


def _serve(listener: Listener) -> None:
    server, planned = None, 0
    while True:
        with suppress(OSError, EOFError, multiprocessing.AuthenticationError), listener.accept() as connection:
            size = connection.recv()
            if server is None:
                server, planned = PmiServer([0] * size), size
            differs = f"gpu_per_node is {size} in one process and {planned} in another"
            connection.send(server.endpoint if size == planned else differs)


def joined(holder: NcclIdHolder, rank: int | None, size: int | None, timeout_s: float = 30.0) -> Communicator:
    """The communicator of the processes of a holder, of which this is rank `rank` of `size`. Collective.

    It becomes the `world` of this process, whose BLAS gets an equal share of the cores. Raises ConfigError for wrong
    numbers, ClusterError where the processes do not come within 60 s.
    """
    if not isinstance(holder, NcclIdHolder):
        hint = "Make it once, before the processes are started: nccl_id = opt.NcclIdHolder()."
        raise ConfigError(Problem("nccl_id", "must be an NcclIdHolder", repr(holder), hint))
    if size is None or size < 1:
        raise ConfigError(Problem("gpu_per_node", "must be the number of processes", repr(size)))
    if rank is None or not 0 <= rank < size:
        raise ConfigError(Problem("gpu_num", f"must be this process's number, 0 to {size - 1}", repr(rank)))
    set_blas_threads(dict.fromkeys(("openblas", "mkl", "openmp"), equal_share(size)))
    endpoint = holder.endpoint(size) if size > 1 else None
    plan = RankPlan("distopt", rank, size, endpoint=endpoint, forming_s=_FORMING_S, comm_timeout_s=timeout_s)
    comm = join_group(plan)
    enter(comm)
    # Processes of multiprocessing end without atexit.
    multiprocessing.util.Finalize(None, _leave, (comm,), exitpriority=100)
    return comm


def _leave(comm: Communicator) -> None:
    """Others may still be in a collective to which this rank's MPI must contribute; not so after an error."""
    error = sys.exc_info()[1]
    if error is not None and not (isinstance(error, SystemExit) and not error.code):
        comm.abort(f"rank {comm.rank} failed: {type(error).__name__}: {error}")
    elif not comm.aborted:
        comm.timeout_s = LEAVING_S
        with suppress(ClusterError):
            comm.barrier()
