"""The checkpoints of a worker group: on the disk, and the newest one in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singa_dask.errors import ClusterError
from singa_dask.job import job_to_text
from singa_dask.job.schedule import checkpoint_seconds, memory_checkpoint_seconds
from singa_dask.memory.owner import Saved
from singa_dask.memory.store import Store
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Checkpoint
from singa_dask.training.memory import has_room_here
from singa_dask.training.memory_checkpoints import MemoryCheckpoints, load_deposit
from singa_dask.training.resume import must_save
from singa_dask.training.saver import Saver

if TYPE_CHECKING:
    from singa_dask.comm.communicator import Communicator
    from singa_dask.training.replica import Replica
    from singa_dask.training.reporter import Reporter
    from singa_dask.training.worker import RankServices, WorkerPlan


def load_source(source: Path | Sequence[Saved], deposits: Store | None, folder: Path | None) -> Checkpoint:
    """The checkpoint in a file, or in the memory of nannies; if those do not have it any more, the newest in the
    folder, if one is given.

    Raises CheckpointError if the file is missing or damaged, ClusterError if nothing is left.
    """
    if isinstance(source, Path):
        return checkpoints.load(source)
    assert deposits is not None
    try:
        return load_deposit(deposits, source)
    except ClusterError:
        found = None if folder is None else checkpoints.newest(folder)[0]
        if found is None:
            raise
        return checkpoints.load(found.path)


class GroupCheckpoints:
    """Saves the checkpoints of a worker group. All methods but `due` are collective.

    stack: closes it.
    """

    def __init__(
        self, replica: Replica, plan: WorkerPlan, services: RankServices, reporter: Reporter, stack: ExitStack
    ) -> None:
        self._replica, self._plan, self._services, self._job = replica, plan, services, replica.job
        self._reporter = reporter
        self._saver = Saver(replica.comm, services.memory_limit)
        stack.push(lambda kind, error, trace: self._saver.close(failed=kind is not None))
        self._every_s, self._saved_at = checkpoint_seconds(replica.job), time.monotonic()
        self._memory = self._in_memory()
        self._told = False  # that none is kept in memory

    def _in_memory(self) -> MemoryCheckpoints | None:
        """What keeps the newest checkpoint in memory, on the first rank, if a loss may need it: of a machine, or of a
        process that leaves no shadow."""
        group, deposits, replica = self._plan.group, self._services.deposits, self._replica
        machines = {machine for machine, _ in group.nannies}
        wanted = len(machines) > 1 or (replica.in_process_servers and replica.shadow is None)
        if not (wanted and group.leads and deposits is not None and deposits.place[1] and replica.comm.rank == 0):
            return None
        every_s = memory_checkpoint_seconds(self._job)
        room = partial(has_room_here, dask_limit=self._services.memory_limit)
        return MemoryCheckpoints(deposits, group.nannies, every_s, room) if every_s else None

    @property
    def due(self) -> tuple[bool, bool]:
        """Whether this rank wants one to be saved now: on the disk, in memory."""
        on_disk = self._replica.comm.rank == 0 and time.monotonic() - self._saved_at >= self._every_s
        return on_disk, self._memory is not None and self._memory.due and not self._saver.busy

    def save_step(self, step: int, decisions: Mapping[str, Any]) -> None:
        """Begin to save one on the disk, unless there is an intact one of this step."""
        self._saver.wait()  # it may be this step's
        self._saved_at = time.monotonic()
        path = checkpoints.path_of(self._plan.checkpoints, step)
        if must_save(self._replica, path, step, self._plan.run):
            self.save(step, decisions, path, partial(self._reporter.saved, path, step))

    def save(
        self,
        step: int,
        decisions: Mapping[str, Any],
        path: Path,
        saved: Callable[[], None],
        *,
        own_values: bool = False,
    ) -> None:
        """Begin to save one on the disk. decisions: of evaluations. saved: as for Saver.save; own_values: as for
        GroupState.snapshot."""

        def write(checkpoint: Checkpoint, begin: Callable[[], None]) -> None:
            checkpoints.save(checkpoint, path, begin)
            if self._job.keep:
                checkpoints.keep_newest(path.parent, self._job.keep, checkpoint.step)

        take = partial(self._snapshot, step, decisions, own_values)
        self._saver.save(take, write, saved, partial(self._reporter.unsaved, step))

    def keep(self, step: int, decisions: Mapping[str, Any]) -> None:
        """Begin to save one in memory."""

        def failed(why: str) -> None:
            if not self._told:
                self._reporter.unkept(step, why)
            self._told = True

        write = self._memory.write if self._memory is not None else None  # only the first rank writes
        self._saver.save(partial(self._snapshot, step, decisions, False), write, lambda: None, failed)

    def look(self) -> None:
        """Report one that has been written since."""
        self._saver.look()

    def wait(self) -> None:
        """Return once the last one is written. Raises CheckpointError if it could not be."""
        self._saver.wait(must=True)

    def _snapshot(self, step: int, decisions: Mapping[str, Any], own_values: bool, comm: Communicator) -> Checkpoint:
        self._replica.drain()
        state, plan = self._replica.group_state, self._plan
        found = state.snapshot(step, job_to_text(self._job), plan.data, comm, own_values=own_values)
        found.described, found.code, found.decisions, found.run = plan.described, plan.code, decisions, plan.run
        return found
