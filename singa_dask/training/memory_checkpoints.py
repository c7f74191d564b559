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
from typing import Any

from singa_dask.errors import CheckpointError, ClusterError
from singa_dask.memory.owner import Saved
from singa_dask.memory.store import Store
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Checkpoint
from singa_dask.training.checkpoint_file import DiskFull
from singa_dask.training.memory import format_nbytes

logger = logging.getLogger(__name__)

_COPIES = 2
# The first one is made after so many seconds. Until then a lost group would go back to the start.
_FIRST_S = 1.0
# They take at most this share of the time, but come at least so often, unless the job wants them less often.
_SHARE = 0.02
AT_LEAST_EVERY_S = 300.0
# For so long a nanny is not asked again that has not answered, or its machine.
_SILENT_S = 300.0


class MemoryCheckpoints:
    """Keeps the newest checkpoint of a group in the memory of two nannies.

    nannies: the machines and addresses of those that may keep it, by preference. every_s: seconds between two
    checkpoints, more if they would take more than 2 % of the time. room: whether this process has memory for so many
    bytes.
    """

    def __init__(
        self, store: Store, nannies: Sequence[tuple[str, str]], every_s: float, room: Callable[[int], bool]
    ) -> None:
        self._store, self._nannies, self._every_s, self._room = store, nannies, every_s, room
        self._began = time.monotonic()
        self._next = self._began + _FIRST_S
        self._silent: dict[str, float] = {}  # nannies and machines, until when they are not asked
        self.kept: dict[str, str] = {}  # nanny -> machine

    @property
    def due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() >= self._next

    def write(self, checkpoint: Checkpoint, begin: Callable[[], None]) -> None:
        """Write a checkpoint into the memory of the nannies. begin: as for checkpoints.save.

        Raises CheckpointError if this process has no memory for it, or if nannies of several machines should keep it
        and those of at most one do.
        """
        began = time.monotonic()
        at_most_s = max(AT_LEAST_EVERY_S, self._every_s)
        self._next = began + at_most_s  # unless it succeeds
        nbytes = checkpoints.nbytes_of(checkpoint)
        if not self._room(nbytes):
            raise CheckpointError(f"there is no memory for a checkpoint of {format_nbytes(nbytes)}")
        before = self.kept
        try:
            with _memory_file() as path:
                checkpoints.write(checkpoint, path, begin)
                found = checkpoints.found(path)
                self.kept = self._keep(found.step, found, path)
        except (OSError, DiskFull) as error:
            raise CheckpointError(str(error)) from error
        now = time.monotonic()
        # A nanny imports this package with its first one.
        took_s = now - began if self.kept == before else 0.0
        every_s = min(self._every_s, 2 * (now - self._began))
        self._next = now + max(every_s, min(took_s / _SHARE, at_most_s))
        machines, wanted = set(self.kept.values()), {machine for machine, _ in self._nannies}
        if len(machines) < min(_COPIES, len(wanted)) and not self._store.leaves():
            kept = "only nannies of one machine keep" if machines else "no nanny keeps"
            raise CheckpointError(f"{kept} a checkpoint")

    def _keep(self, step: int, content: Any, path: Path) -> dict[str, str]:
        """Have nannies keep it: of as many machines as there are, at most two."""
        kept: dict[str, str] = {}
        for apart in (True, False):  # two nannies of one machine, if there is no other
            for machine, nanny in self._nannies:
                if len(kept) < _COPIES and nanny not in kept and not (apart and machine in kept.values()):
                    kept |= {nanny: machine} if self._asked(machine, nanny, step, content, path) else {}
        return kept

    def _asked(self, machine: str, nanny: str, step: int, content: Any, path: Path) -> bool:
        now = time.monotonic()
        if self._store.leaves() or any(self._silent.get(each, now) > now for each in (machine, nanny)):
            return False
        try:
            return self._store.keep(nanny, step, content, path)
        except (OSError, TimeoutError) as error:
            logger.info("the nanny %s keeps no checkpoint: %r", nanny, error)
            self._silent[machine if isinstance(error, TimeoutError) else nanny] = now + _SILENT_S
            return False


def load_deposit(store: Store, copies: Sequence[Saved]) -> Checkpoint:
    """A checkpoint of which nannies keep copies. Raises ClusterError if none can be read."""
    for deposit in sorted(copies, key=lambda copy: copy.holder != store.place[1]):
        try:
            with _memory_file() as path:
                with path.open("wb") as file:
                    store.read(deposit, file.write)
                return checkpoints.load(path)  # its arrays hold the file open
        except (ClusterError, CheckpointError, OSError) as error:
            logger.warning("a checkpoint in the memory of the nanny %s cannot be read: %s", deposit.holder, error)
    raise ClusterError("the checkpoint in memory is gone")


@contextmanager
def _memory_file() -> Iterator[Path]:
    """A file in memory, which lives as long as somebody has it open."""
    descriptor = os.memfd_create("singa_dask-checkpoint")
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
