"""Processes of one machine that a user starts with multiprocessing, and that train together: SINGA's way."""

from __future__ import annotations

import multiprocessing.util
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from typing import Any

from singa_dask.cluster.cores import equal_share
from singa_dask.cluster.join import RankPlan, join_group
from singa_dask.cluster.pmi_server import PmiEndpoint, PmiServer
from singa_dask.comm import Communicator
from singa_dask.errors import ClusterError, ConfigError, Problem
from singa_dask.loops.distopt.worlds import LEAVING_S, enter
from singa_dask.ops.blas import set_blas_threads

_FORMING_S = 60.0


class NcclIdHolder:
    """What the processes have in common: made once, before they are started, and given to each.

    The name is SINGA's. The process that makes it lets the others form an MPI world, so it must live until they have.
    """

    def __init__(self) -> None:
        self._key, self._maker = secrets.token_bytes(32), os.getpid()
        listener = Listener(("127.0.0.1", 0), backlog=64)
        self._address: Any = listener.address
        threading.Thread(target=_serve, args=(listener, self._key), name="nccl-id", daemon=True).start()

    def endpoint(self, size: int, timeout_s: float = _FORMING_S) -> PmiEndpoint:
        """Where `size` processes form their world.

        Raises ClusterError if others have named another number, or if the process that made this object has ended or
        does not answer in time.
        """
        start = time.monotonic()
        try:
            opened = socket.create_connection(self._address, timeout_s)
            opened.settimeout(None)
            with Connection(opened.detach()) as connection, _ended_after(connection, timeout_s):
                answer_challenge(connection, self._key)
                deliver_challenge(connection, self._key)
                connection.send(size)
                found = connection.recv()
        except (OSError, EOFError, AuthenticationError) as error:
            late = time.monotonic() - start >= timeout_s
            fault = f"did not answer within {timeout_s:g} s: it may be stopped" if late else "has ended"
            raise ClusterError(
                f"process {self._maker}, which made the NcclIdHolder, {fault}. "
                "It must run until all others have made their DistOpt: let it join them."
            ) from error
        if isinstance(found, str):
            raise ClusterError(found)
        return found


class _NcclWorld:
    """The world that the processes form: of as many as the first one names."""

    def __init__(self) -> None:
        self._lock, self._size = threading.Lock(), 0
        self._server: PmiServer | None = None

    def endpoint(self, size: int) -> PmiEndpoint | str:
        """Where to form it, or why that is not possible."""
        with self._lock:
            if self._server is None:
                self._server, self._size = PmiServer([0] * size), size
            if size != self._size:
                other = f"gpu_per_node is {size} in one process and {self._size} in another"
                return f"{other}. Give all the same number."
            return self._server.endpoint


def _serve(listener: Listener, key: bytes) -> None:
    world = _NcclWorld()
    while True:
        with suppress(OSError):
            connection = listener.accept()
            threading.Thread(target=_answer, args=(connection, key, world), daemon=True).start()


def _answer(connection: Connection, key: bytes, world: _NcclWorld) -> None:
    with suppress(OSError, EOFError, AuthenticationError), connection, _ended_after(connection, _FORMING_S):
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        connection.send(world.endpoint(connection.recv()))


@contextmanager
def _ended_after(connection: Connection, seconds: float) -> Iterator[None]:
    """Inside, a wait for the other side ends with EOFError or OSError when the time is over."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:

        def end() -> None:
            with suppress(OSError):
                same.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def joined(holder: NcclIdHolder, rank: int | None, size: int | None, timeout_s: float = 30.0) -> Communicator:
    """The communicator of the processes of a holder, of which this is rank `rank` of `size`. Collective.

    It becomes the `world` of this process, whose BLAS gets an equal share of the cores. Raises ConfigError for wrong
    numbers, ClusterError where the processes do not come within 60 s.
    """
    if not isinstance(holder, NcclIdHolder):
        hint = "Make it once, before the processes are started: nccl_id = opt.NcclIdHolder()."
        raise ConfigError(Problem("nccl_id", "must be an NcclIdHolder", repr(holder), hint))
    if size is None or size < 1:
        raise ConfigError(Problem("gpu_per_node (world_size)", "must be the number of processes", repr(size)))
    if rank is None or not 0 <= rank < size:
        message = f"must be this process's number, 0 to {size - 1}"
        raise ConfigError(Problem("gpu_num (local_rank)", message, repr(rank)))
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
