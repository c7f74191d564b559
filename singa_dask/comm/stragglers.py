"""Who has come to an operation that does not end."""

from __future__ import annotations

from typing import Any

import numpy as np

# Of point-to-point messages, which collectives never see; every MPI has tags up to 32767.
_TAG = 31_415


class StragglerReport:
    """A rank that has waited long in an operation says so to the others; at its deadline it knows who has not.

    Operations are told apart by their number, which is the same on all ranks and grows.
    """

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self._comm = mpi, comm
        self._told: Any = None  # MPI may still read from it

    def answer(self, number: int) -> None:
        """Tell every other rank that this one has come to an operation."""
        note = np.array([number], np.int64)
        others = (rank for rank in range(self._comm.size) if rank != self._comm.rank)
        self._told = note, [self._comm.Isend(note, rank, _TAG) for rank in others]

    def missing(self, number: int) -> list[int]:
        """The ranks that have not said to have come to this operation."""
        status, note = self._mpi.Status(), np.empty(1, np.int64)
        here = {self._comm.rank}
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _TAG, status):
            self._comm.Recv(note, status.source, _TAG)
            if note[0] >= number:
                here.add(status.source)
        return [rank for rank in range(self._comm.size) if rank not in here]
