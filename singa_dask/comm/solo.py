"""The communicator of a group of one worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from singa_dask.comm.checks import check_counts, check_flat, check_met, check_parts, check_target
from singa_dask.comm.communicator import Communicator
from singa_dask.errors import ClusterError

# Operations whose array holds nothing but the part of this rank.
_OF_PARTS = ("reduce_scatter", "all_gather", "all_to_all")


class SoloCommunicator(Communicator):
    """Collectives of a group of one: copies where there is something to copy. They take 0 seconds."""

    kind = "nobody"

    def __init__(self, timeout_s: float = 30.0, interrupted: Callable[[], str] = str) -> None:
        super().__init__()
        self.rank, self.size, self.timeout_s = 0, 1, timeout_s
        self._aborted, self._interrupted = "", interrupted

    @property
    def aborted(self) -> str:
        return self._aborted or self._interrupted()

    def abort(self, reason: str) -> None:
        self._aborted = self._aborted or reason

    def reduce_scatter(self, send: np.ndarray, recv: np.ndarray, counts: Sequence[int]) -> None:
        self._checked("reduce_scatter", send, counts)
        check_flat("recv", recv, counts[0])
        np.copyto(recv, send)

    def all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> None:
        self._checked("all_gather", buffer, counts)

    def gather(self, send: np.ndarray, recv: np.ndarray | None, counts: Sequence[int], root: int = 0) -> None:
        self._checked("gather", send, counts)
        np.copyto(check_target(recv, root, counts), send)

    def all_to_all(
        self, send: np.ndarray, send_counts: Sequence[int], recv: np.ndarray, recv_counts: Sequence[int]
    ) -> None:
        check_parts(send, send_counts, recv, recv_counts, self.size)
        check_met(0, send_counts[0], 0, recv_counts[0])
        self._checked("all_to_all", send)
        np.copyto(recv, send)

    def all_reduce(self, buffer: np.ndarray) -> None:
        self._checked("all_reduce", buffer)

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        self._checked("broadcast", buffer)

    def barrier(self) -> None:
        """Return at once."""
        self._checked("barrier", np.empty(0))

    def _of_color(self, colors: list[int]) -> SoloCommunicator:
        return SoloCommunicator(self.timeout_s, lambda: self.aborted)

    def _checked(self, operation: str, array: np.ndarray, counts: Sequence[int] | None = None) -> None:
        if counts is not None:
            check_counts(counts, 1)
        check_flat("buffer", array, None if counts is None else counts[0])
        if self.aborted:
            raise ClusterError(f"rank 0, {operation}: {self.aborted}")
        self.nbytes[operation] += 0 if operation in _OF_PARTS else array.nbytes
        self.seconds[operation] += 0.0
