"""A group of processes that share an MPI communicator."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from singa_dask.comm.buffers import check_counts, check_flat, check_met, check_runs, check_target, run_of
from singa_dask.comm.communicator import Communicator
from singa_dask.errors import ClusterError, CommTimeout

# Ranks may be more than cores, so a waiting rank must give its core away. Milliseconds per step of 3 ranks on 2 cores,
# each 10 ms of matrix products, then reduce-scatter and all-gather (medians of 15 rounds, MPICH 5.0.2;
# benchmarks/poll.py measures it):
#
#   buffer    blocking   Test without pause   sched_yield   0.2 ms of sched_yield, then sleeps of 50 us
#   40 KB       20.6            36.4              20.9            17.9
#   2 MB        21.5            41.0              21.5            19.5
#   48 MB       56.9            50.3              41.0            35.4
#
# Test without a pause holds the core that a computing rank needs; a blocking call can have no deadline and is slowest
# for large buffers. With a core per rank (2 ranks) the sleeps cost 0.4 ms in 10.2 ms, hence the yields first.
# MPIR_CVAR_POLLS_BEFORE_YIELD (0, 1, default) makes no difference to any of them beyond the noise.
_YIELD_S = 2e-4
_SLEEP_S = 5e-5


class MpiCommunicator(Communicator):
    """Collectives over an mpi4py communicator, each with a deadline.

    timeout_s: seconds after which an operation raises CommTimeout.
    abort_event: set by another thread, makes the operation in progress and all later ones raise ClusterError.

    MPI cannot take an unfinished collective back. After an error the communicator is broken: every later call raises
    ClusterError, and the request stays referenced here because MPI may still write into its buffers.
    """

    def __init__(self, mpi_comm: Any, timeout_s: float = 30.0, abort_event: threading.Event | None = None) -> None:
        super().__init__()
        from mpi4py import MPI

        self._mpi, self._comm = MPI, mpi_comm
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size, self.timeout_s = mpi_comm.rank, mpi_comm.size, timeout_s
        self.abort_event = abort_event or threading.Event()
        self._unfinished: Any = None
        self._broken = ""
        self._aborted = ""

    @property
    def aborted(self) -> str:
        return self._aborted or ("the group was told to leave" if self.abort_event.is_set() else "")

    def abort(self, reason: str) -> None:
        self._aborted = self._aborted or reason

    @property
    def broken(self) -> bool:
        """Whether an operation failed, so that MPI may still use its buffers."""
        return bool(self._broken)

    def reduce_scatter(self, send: np.ndarray, recv: np.ndarray, counts: Sequence[int]) -> None:
        check_counts(counts, self.size)
        check_flat("send", send, sum(counts))
        check_flat("recv", recv, counts[self.rank])
        self._run("reduce_scatter", send.nbytes, self._comm.Ireduce_scatter, send, recv, list(counts))

    def all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> None:
        check_counts(counts, self.size)
        check_flat("buffer", buffer, sum(counts))
        recv = [buffer, list(counts)]
        self._run("all_gather", buffer.nbytes, self._comm.Iallgatherv, self._mpi.IN_PLACE, recv)

    def gather(self, send: np.ndarray, recv: np.ndarray | None, counts: Sequence[int], root: int = 0) -> None:
        check_counts(counts, self.size)
        check_flat("send", send, counts[self.rank])
        target = None
        if self.rank == root:
            target = [check_target(recv, root, counts), list(counts)]
        self._run("gather", send.nbytes, self._comm.Igatherv, send, target, root)

    def all_to_all(
        self, send: np.ndarray, send_counts: Sequence[int], recv: np.ndarray, recv_counts: Sequence[int]
    ) -> None:
        check_runs(send, send_counts, recv, recv_counts, self.size)
        own, there = run_of(self.rank, send_counts), run_of(self.rank, recv_counts)
        check_met(self.rank, own.stop - own.start, self.rank, there.stop - there.start)
        recv[there] = send[own]
        # As bytes: MPI has no name for some of NumPy's types, and nothing is computed with them here.
        runs = [
            self._runs_of_others(array.view(np.uint8), [n * array.itemsize for n in counts])
            for array, counts in ((send, send_counts), (recv, recv_counts))
        ]
        self._run("all_to_all", send.nbytes, self._comm.Ialltoallv, *runs)

    def _runs_of_others(self, array: np.ndarray, counts: list[int]) -> list[Any]:
        """What MPI takes for the runs of an array without the own one: that would go by 8 KB per Test, and sleeps."""
        starts = [run_of(rank, counts).start for rank in range(self.size)]
        counts[self.rank] = 0
        return [array, (counts, starts), self._mpi.BYTE]

    def all_reduce(self, buffer: np.ndarray) -> None:
        check_flat("buffer", buffer)
        self._run("all_reduce", buffer.nbytes, self._comm.Iallreduce, self._mpi.IN_PLACE, buffer)

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        check_flat("buffer", buffer)
        self._run("broadcast", buffer.nbytes, self._comm.Ibcast, buffer, root)

    def barrier(self) -> None:
        self._run("barrier", 0, self._comm.Ibarrier)

    def close(self) -> None:
        # MPI_Comm_free is collective: where a member is lost it would wait for ever, so a broken one is abandoned.
        kept = (self._mpi.COMM_NULL, self._mpi.COMM_WORLD, self._mpi.COMM_SELF)
        if not (self._broken or self._aborted or self._comm in kept):
            self._comm.Free()

    def _run(self, operation: str, nbytes: int, start: Any, *args: Any) -> None:
        if self._broken:
            raise ClusterError(f"rank {self.rank}: {operation} after {self._broken}")
        if self._aborted:
            raise ClusterError(f"rank {self.rank}, {operation}: {self._aborted}")
        began = time.perf_counter()
        try:
            self._finish(operation, start(*args), began)
        except self._mpi.Exception as error:
            self._broken = f"a failed {operation}"
            raise ClusterError(f"rank {self.rank}: {operation} failed: {error}") from error
        finally:
            self.wait_s += time.perf_counter() - began
        self.nbytes[operation] += nbytes

    def _finish(self, operation: str, request: Any, began: float) -> None:
        """Poll until the request is done, the deadline passes, or the group is told to abort."""
        deadline = began + self.timeout_s
        while not request.Test():
            waited = time.perf_counter() - began
            if self.aborted:
                self._give_up(operation, request)
                what = f"rank {self.rank}: aborted during {operation}, after {waited:.1f} s"
                raise ClusterError(f"{what}: {self.aborted}")
            if began + waited >= deadline:
                self._give_up(operation, request)
                raise CommTimeout(
                    f"rank {self.rank}: {operation} did not finish within {waited:.1f} s; "
                    f"at least one of the {self.size} ranks is lost, stopped or late"
                )
            if waited < _YIELD_S:
                os.sched_yield()
            else:
                time.sleep(_SLEEP_S)

    def _give_up(self, operation: str, request: Any) -> None:
        self._unfinished = request
        self._broken = f"an unfinished {operation}"
