"""The communicator of a group of one worker."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from singa_dask.comm.checks import check_flat
from singa_dask.comm.rendezvous import Rendezvous
from singa_dask.comm.threads import ThreadCommunicator


class SoloCommunicator(ThreadCommunicator):
    """Collectives of a group of one: copies where there is something to copy. It waits for nobody: seconds are 0.

    interrupted: returns why operations must end; "" while there is no reason.
    """

    kind = "nobody"

    def __init__(self, timeout_s: float = 30.0, interrupted: Callable[[], str] = str) -> None:
        super().__init__(0, Rendezvous(1, interrupted), timeout_s)

    def all_reduce(self, buffer: np.ndarray) -> None:
        check_flat("buffer", buffer)
        with self._operation("all_reduce", buffer, buffer.size):
            pass

    def _of_color(self, colors: list[int]) -> SoloCommunicator:
        return SoloCommunicator(self.timeout_s, lambda: self.aborted)
