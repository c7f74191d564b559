"""Checkpoints are written beside training: a copy of the group's state is taken in a moment, and a thread saves it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.errors import CheckpointError
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Checkpoint
from singa_dask.training.memory import has_room

# Writing a large checkpoint takes minutes on a slow disk.
WRITING_TIMEOUT_S = 300.0


Write: TypeAlias = Callable[[Checkpoint, Callable[[], None]], Any]


class Saver:
    """Saves the checkpoints of a worker group, one at a time.

    Where the memory of any rank has no room for a copy, training waits until the checkpoint is written.
    All methods but `look` and `busy` are collective.
    """

    def __init__(self, comm: Communicator, dask_limit: int | None = None) -> None:
        self._parent, self._dask_limit = comm, dask_limit
        self._own: Communicator | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: tuple[Future[None], Callable[[], None], Callable[[str], None]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written, as far as this rank knows."""
        return self._under_way is not None

    def save(
        self,
        take: Callable[[Communicator], Checkpoint],
        write: Write | None,
        saved: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        """Begin to save a checkpoint, once the last one is written.

        take: returns it; the communicator gathers its arrays. write: on the first rank, writes it as checkpoints.save
        does. saved, failed: called by a later method, once it is written, or on the first rank, why it could not be.
        """
        self.wait()
        comm = self._comm()
        checkpoint = take(comm)
        beside = has_room(self._parent, checkpoint.own_nbytes, self._dask_limit)
        writing = self._pool.submit(_write, checkpoint.taken() if beside else checkpoint, comm, write)
        self._under_way = writing, saved, failed
        if not beside:
            self.wait()

    def look(self) -> None:
        """Report a checkpoint that has been written since."""
        if self._under_way is not None and self._under_way[0].done():
            self._report()

    def wait(self, *, must: bool = False) -> None:
        """Return when everything is written. Raises CheckpointError on the first rank if the last one `must` be there
        and could not be written; ClusterError where another rank is lost."""
        fault: CheckpointError | None = None
        if self._under_way is not None:
            try:
                self._report(must=must)
            except CheckpointError as error:
                fault = error
        with self._parent.patiently(WRITING_TIMEOUT_S):  # only the first rank has written
            self._parent.barrier()
        if fault is not None:
            raise fault

    def close(self, *, failed: bool) -> None:
        """End the thread. failed: whether other ranks may not take part any more."""
        if failed and self._own is not None:
            self._own.abort("the worker failed")
        self._pool.shutdown(wait=True)
        if self._own is not None:
            self._own.close()

    def _report(self, *, must: bool = False) -> None:
        assert self._under_way is not None
        (written, saved, failed), self._under_way = self._under_way, None
        try:
            written.result()
        except CheckpointError as error:
            if must:
                raise
            failed(str(error))
        else:
            saved()

    def _comm(self) -> Communicator:
        """What carries the gathered arrays of its checkpoints."""
        if self._own is None:
            self._own = self._parent.split(0)
            self._own.hurried = False
        return self._own


def _write(checkpoint: Checkpoint, comm: Communicator, write: Write | None) -> None:
    begins = np.zeros(1)
    with comm.patiently(WRITING_TIMEOUT_S):
        if comm.rank > 0:
            comm.broadcast(begins)
            if begins[0]:
                checkpoints.contribute(checkpoint)
            return

        def begin() -> None:
            begins[0] = 1
            comm.broadcast(begins)

        assert write is not None
        try:
            write(checkpoint, begin)
        finally:
            if not begins[0]:
                comm.broadcast(begins)
