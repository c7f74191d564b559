"""A group of processes that share an MPI communicator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from singa_dask.comm.checks import check_counts, check_flat, check_met, check_parts, check_target
from singa_dask.comm.communicator import Request, part_of
from singa_dask.comm.polled import PolledCommunicator
from singa_dask.comm.stragglers import StragglerReport
from singa_dask.errors import ClusterError


class MpiCommunicator(PolledCommunicator):
    """Collectives over an mpi4py communicator, each with a deadline.

    timeout_s: seconds after which an operation raises CommTimeout. It names the ranks that had not reached the
    operation after half of that time.
    abort_event: when set, the current operation and all later ones raise ClusterError.
    interrupted: returns why operations must end; "" while there is no reason.
    """

    kind = "MPI"
    goes_on = True

    def __init__(
        self,
        mpi_comm: Any,
        timeout_s: float = 30.0,
        abort_event: threading.Event | None = None,
        interrupted: Callable[[], str] = str,
    ) -> None:
        from mpi4py import MPI

        super().__init__(mpi_comm.rank, mpi_comm.size, timeout_s, interrupted)
        self._mpi, self._comm = MPI, mpi_comm
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._stragglers = StragglerReport(MPI, mpi_comm)
        self.abort_event = abort_event or threading.Event()

    @property
    def aborted(self) -> str:
        return super().aborted or ("the group was told to leave" if self.abort_event.is_set() else "")

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        return (self._mpi.Exception,)

    def _answer(self) -> None:
        self._stragglers.answer(self._number)

    def _missing(self) -> list[int]:
        return self._stragglers.missing(self._awaited)

    def reduce_scatter(self, send: np.ndarray, recv: np.ndarray, counts: Sequence[int]) -> None:
        self.start_reduce_scatter(send, recv, counts).wait()

    def start_reduce_scatter(self, send: np.ndarray, recv: np.ndarray, counts: Sequence[int]) -> Request:
        check_counts(counts, self.size)
        check_flat("send", send, sum(counts))
        check_flat("recv", recv, counts[self.rank])
        nbytes = send.nbytes - recv.nbytes
        return self._begin("reduce_scatter", nbytes, self._comm.Ireduce_scatter, send, recv, list(counts))

    def all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> None:
        self.start_all_gather(buffer, counts).wait()

    def start_all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> Request:
        check_counts(counts, self.size)
        check_flat("buffer", buffer, sum(counts))
        nbytes = buffer.nbytes - counts[self.rank] * buffer.itemsize
        return self._begin("all_gather", nbytes, self._comm.Iallgatherv, self._mpi.IN_PLACE, [buffer, list(counts)])

    def gather(self, send: np.ndarray, recv: np.ndarray | None, counts: Sequence[int], root: int = 0) -> None:
        check_counts(counts, self.size)
        check_flat("send", send, counts[self.rank])
        target = None
        if self.rank == root:
            target = [check_target(recv, root, counts), list(counts)]
        self._call("gather", send.nbytes, self._comm.Igatherv, send, target, root)

    def all_to_all(
        self, send: np.ndarray, send_counts: Sequence[int], recv: np.ndarray, recv_counts: Sequence[int]
    ) -> None:
        self.start_all_to_all(send, send_counts, recv, recv_counts).wait()

    def start_all_to_all(
        self, send: np.ndarray, send_counts: Sequence[int], recv: np.ndarray, recv_counts: Sequence[int]
    ) -> Request:
        check_parts(send, send_counts, recv, recv_counts, self.size)
        own, there = part_of(self.rank, send_counts), part_of(self.rank, recv_counts)
        check_met(self.rank, own.stop - own.start, self.rank, there.stop - there.start)
        recv[there] = send[own]
        # As bytes: MPI lacks some of NumPy's types, and nothing is computed here.
        parts = [
            self._parts_of_others(array.view(np.uint8), [n * array.itemsize for n in counts])
            for array, counts in ((send, send_counts), (recv, recv_counts))
        ]
        return self._begin("all_to_all", send.nbytes - send[own].nbytes, self._comm.Ialltoallv, *parts)

    def _parts_of_others(self, array: np.ndarray, counts: list[int]) -> list[Any]:
        """MPI's argument for the parts of the other ranks: MPI would move the own part at 8 KB per Test."""
        starts = [part_of(rank, counts).start for rank in range(self.size)]
        counts[self.rank] = 0
        return [array, (counts, starts), self._mpi.BYTE]

    def all_reduce(self, buffer: np.ndarray) -> None:
        check_flat("buffer", buffer)
        self._call("all_reduce", buffer.nbytes, self._comm.Iallreduce, self._mpi.IN_PLACE, buffer)

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        check_flat("buffer", buffer)
        self._call("broadcast", buffer.nbytes, self._comm.Ibcast, buffer, root)

    def barrier(self) -> None:
        self._call("barrier", 0, self._comm.Ibarrier)

    def one_machine(self) -> bool:
        self.barrier()  # has a deadline; Split_type has none
        try:
            here = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        except self._mpi.Exception as error:
            raise ClusterError(f"rank {self.rank}: MPI does not say which ranks share memory: {error}") from error
        size = here.size
        here.Free()
        return size == self.size

    def _of_color(self, colors: list[int]) -> MpiCommunicator:
        # Blocks without a deadline, but all ranks have just been in split's all-gather.
        members = self._comm.group.Incl(self._alike(colors))
        try:
            made = self._comm.Create_group(members)
        except self._mpi.Exception as error:
            raise ClusterError(f"rank {self.rank}: split failed: {error}") from error
        finally:
            members.Free()
        return MpiCommunicator(made, self.timeout_s, self.abort_event, lambda: self.aborted)

    def close(self) -> None:
        # MPI_Comm_free is collective and would wait for a lost rank: a broken communicator is not freed.
        kept = (self._mpi.COMM_NULL, self._mpi.COMM_WORLD, self._mpi.COMM_SELF)
        if not (self._broken or self.aborted or self._comm in kept):
            self._comm.Free()

    def _call(self, operation: str, nbytes: int, start: Callable[..., Any], *args: Any) -> None:
        self._begin(operation, nbytes, start, *args).wait()

    def _begin(self, operation: str, nbytes: int, start: Callable[..., Any], *args: Any) -> Request:
        return self._start(operation, nbytes, lambda: start(*args).Test)
