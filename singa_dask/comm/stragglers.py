"""Which ranks have not reached an operation that does not complete."""

from __future__ import annotations

from typing import Any

import numpy as np

# Of point-to-point messages, which collectives never see; MPI guarantees tags up to 32767.
_TAG = 31_415


class StragglerReport:
    """Ranks that wait long in an operation tell the others, so that at the deadline each knows the stragglers.

    Operations have ascending numbers, the same on all ranks.
    """

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self._comm = mpi, comm
        self._told: Any = None  # MPI may still read from it

    def answer(self, number: int) -> None:
        """Tell every other rank that this one has reached an operation."""
        note = np.array([number], np.int64)
        others = (rank for rank in range(self._comm.size) if rank != self._comm.rank)
        self._told = note, [self._comm.Isend(note, rank, _TAG) for rank in others]

    def missing(self, number: int) -> list[int]:
        """The ranks that have not reported this operation."""
        status, note = self._mpi.Status(), np.empty(1, np.int64)
        here = {self._comm.rank}
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _TAG, status):
            self._comm.Recv(note, status.source, _TAG)
            if note[0] >= number:
                here.add(status.source)
        return [rank for rank in range(self._comm.size) if rank not in here]


def named(ranks: list[int]) -> str:
    """
    >>> named([0, 2])
    'ranks 0, 2 are'
    """
    several = f"ranks {', '.join(map(str, ranks))} are"
    return several if len(ranks) > 1 else f"rank {ranks[0]} is" if ranks else ""
