"""The newest checkpoint in memory, on two machines: a group that is lost with a machine goes on from there.

It is the same file as on the disk, written every few seconds into the memory of nannies.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from singa_dask.errors import CheckpointError
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Checkpoint
from singa_dask.training.checkpoint_file import DiskFull
from singa_dask.training.memory import format_nbytes, has_room_here

if TYPE_CHECKING:
    from singa_dask.cluster.deposits import Deposit

logger = logging.getLogger(__name__)

_COPIES = 2
# The first one is made after so many seconds. Until then a lost group would go back to the start.
_FIRST_S = 1.0
# They take at most this share of the time, and come at least so often: nannies let go what is older.
_SHARE = 0.02
_AT_LEAST_EVERY_S = 300.0


class Deposits(Protocol):
    """What nannies keep for a group (cluster.deposits.Depositor)."""

    def keep(self, nanny: str, number: int, content: Any, data: np.ndarray) -> bool:
        """Have a nanny keep bytes in the place of those with a lower number; returns whether it does."""

    def read(self, deposit: Deposit, out: Callable[[bytes], Any]) -> None:
        """Read what a nanny keeps. Raises ClusterError if it is gone."""


class MemoryCheckpoints:
    """Keeps the newest checkpoint of a group in the memory of two nannies.

    nannies: the machines and addresses of those that may keep it, by preference. every_s: seconds between two
    checkpoints, more if they would take more than 2 % of the time.
    """

    def __init__(self, deposits: Deposits, nannies: Sequence[tuple[str, str]], every_s: float) -> None:
        self._deposits, self._nannies, self._every_s = deposits, nannies, every_s
        self._began = time.monotonic()
        self._next = self._began + _FIRST_S
        self.kept: tuple[str, ...] = ()

    @property
    def due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() >= self._next

    def write(self, checkpoint: Checkpoint, begin: Callable[[], None]) -> None:
        """Write a checkpoint into the memory of the nannies. begin: as for checkpoints.save.

        Raises CheckpointError if this process or all nannies have no memory for it.
        """
        began = time.monotonic()
        self._next = began + _AT_LEAST_EVERY_S  # unless it succeeds
        nbytes = checkpoints.nbytes_of(checkpoint)
        if not has_room_here(nbytes):
            raise CheckpointError(f"there is no memory for a checkpoint of {format_nbytes(nbytes)}")
        with _memory_file() as path:
            try:
                checkpoints.write(checkpoint, path, begin)
            except (OSError, DiskFull) as error:
                raise CheckpointError(f"the checkpoint in memory: {error}") from error
            found = checkpoints.found(path)
            before, self.kept = self.kept, self._keep(found.step, found, np.memmap(path, np.uint8, "r"))
        if not self.kept:
            raise CheckpointError("no nanny keeps a checkpoint")
        now = time.monotonic()
        took_s = now - began if self.kept == before else 0.0  # a nanny imports this package with its first one
        every_s = min(self._every_s, 2 * (now - self._began))
        self._next = now + min(max(took_s / _SHARE, every_s), _AT_LEAST_EVERY_S)

    def _keep(self, step: int, content: Any, data: np.ndarray) -> tuple[str, ...]:
        """The nannies that keep it: on as many machines as there are, at most two."""
        kept: dict[str, str] = {}
        for apart in (True, False):  # two nannies of one machine, if there is no other
            for machine, nanny in self._nannies:
                if len(kept) < _COPIES and nanny not in kept and not (apart and machine in kept.values()):
                    kept |= {nanny: machine} if self._deposits.keep(nanny, step, content, data) else {}
        return tuple(kept)


def load_deposit(deposits: Deposits, deposit: Deposit) -> Checkpoint:
    """A checkpoint that nannies keep. Raises ClusterError if it is gone, CheckpointError if it is damaged."""
    with _memory_file() as path:
        with path.open("wb") as file:
            deposits.read(deposit, file.write)
        return checkpoints.load(path)  # its arrays hold the file open


@contextmanager
def _memory_file() -> Iterator[Path]:
    """A file in memory, which lives as long as somebody has it open."""
    descriptor = os.memfd_create("singa_dask-checkpoint")
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
