"""When a worker group saves its state, and where: in files, and in the memory of nannies of two machines.

Both are the same checkpoint, which a thread writes beside training: a copy of the state is taken in a moment.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singa_dask.comm.communicator import Communicator
from singa_dask.comm.objects import broadcast_object
from singa_dask.errors import CheckpointError
from singa_dask.job import job_to_text
from singa_dask.job.schedule import checkpoint_seconds, memory_checkpoint_seconds
from singa_dask.memory.owner import Saved
from singa_dask.memory.store import Store
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Checkpoint
from singa_dask.training.memory import format_nbytes, has_room, has_room_here

if TYPE_CHECKING:
    from singa_dask.training.rank_plan import RankServices, WorkerPlan
    from singa_dask.training.replica import Replica
    from singa_dask.training.reporter import Reporter

logger = logging.getLogger(__name__)

# Writing a large checkpoint takes minutes on a slow disk.
WRITING_TIMEOUT_S = 300.0
_COPIES = 2
# The first one in memory is made after so many seconds. Until then a lost group would go back to the start.
_FIRST_S = 1.0
# They take at most this share of the time, but come at least so often, unless the job wants them less often.
_SHARE = 0.02
AT_LEAST_EVERY_S = 300.0
# For so long a nanny is not asked again that has not answered, or its machine.
_SILENT_S = 300.0


class GroupCheckpoints:
    """Saves the checkpoints of a worker group, one at a time.

    Where the memory of any rank has no room for a copy, training waits until the checkpoint is written. All methods
    but `due` and `look` are collective.
    """

    def __init__(self, replica: Replica, plan: WorkerPlan, services: RankServices, reporter: Reporter) -> None:
        self._replica, self._plan, self._services, self._reporter = replica, plan, services, reporter
        self._job, self._comm = replica.job, replica.comm
        self._every_s, self._saved_at = checkpoint_seconds(replica.job), time.monotonic()
        self._memory = self._in_memory()
        self._told = False  # that none is kept in memory
        self._gathering: Communicator | None = None  # carries the arrays of checkpoints
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: tuple[Future[None], Callable[[], None], Callable[[str], None]] | None = None

    def _in_memory(self) -> MemoryCheckpoints | None:
        """What keeps the newest checkpoint in memory, on the first rank, if a loss may need it: of a machine, or of a
        process that leaves no shadow."""
        group, deposits, replica = self._plan.group, self._services.deposits, self._replica
        machines = {machine for machine, _ in group.nannies}
        wanted = len(machines) > 1 or (replica.in_process_servers and replica.shadow is None)
        every_s = memory_checkpoint_seconds(self._job) if wanted and group.leads and self._comm.rank == 0 else 0.0
        if not (every_s and deposits is not None and deposits.place[1]):
            return None
        room = partial(has_room_here, dask_limit=self._services.memory_limit)
        return MemoryCheckpoints(deposits, group.nannies, every_s, room)

    @property
    def due(self) -> tuple[bool, bool]:
        """Whether this rank wants one to be saved now: in a file, in memory."""
        in_file = self._comm.rank == 0 and time.monotonic() - self._saved_at >= self._every_s
        return in_file, self._memory is not None and self._memory.due and self._under_way is None

    def save_step(self, step: int, decisions: Mapping[str, Any]) -> None:
        """Begin to save one in a file, unless there is an intact one of this step and run.

        A restarted group may begin at a step that an earlier one saved, or failed to save.
        """
        self.wait()  # it may be this step's
        self._saved_at = time.monotonic()
        path = checkpoints.path_of(self._plan.checkpoints, step)
        there = step == 0 or (self._comm.rank == 0 and checkpoints.intact(path, self._plan.run))
        with self._comm.patiently(WRITING_TIMEOUT_S):
            there = broadcast_object(self._comm, there)
        if not there:
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
        """Begin to save one in a file. decisions: of evaluations. saved: is called by a later method, once it is
        written. own_values: as for GroupState.snapshot."""

        def put(checkpoint: Checkpoint) -> None:
            checkpoints.save(checkpoint, path)
            if self._job.keep:
                checkpoints.keep_newest(path.parent, self._job.keep, checkpoint.step)

        self._begin(put, step, decisions, saved, partial(self._reporter.unsaved, step), own_values=own_values)

    def keep(self, step: int, decisions: Mapping[str, Any]) -> None:
        """Begin to save one in memory."""

        def failed(why: str) -> None:
            if not self._told:
                self._reporter.unkept(step, why)
            self._told = True

        put = None if self._memory is None else self._memory.put
        self._begin(put, step, decisions, lambda: None, failed)

    def _begin(
        self,
        put: Callable[[Checkpoint], Any] | None,
        step: int,
        decisions: Mapping[str, Any],
        saved: Callable[[], None],
        failed: Callable[[str], None],
        *,
        own_values: bool = False,
    ) -> None:
        """Take the state, once the last checkpoint is written, and begin to write it. put: on the first rank. failed:
        is told why it could not be written."""
        self.wait()
        self._replica.drain()
        if self._gathering is None:
            self._gathering = self._comm.split(0)
            self._gathering.hurried = False
        plan, comm = self._plan, self._gathering
        text = job_to_text(self._job)
        found = self._replica.group_state.snapshot(step, text, plan.data, comm, own_values=own_values)
        found.described, found.code, found.decisions, found.run = plan.described, plan.code, decisions, plan.run
        beside = has_room(self._comm, found.own_nbytes, self._services.memory_limit)
        written = self._pool.submit(_write, found.taken() if beside else found, comm, put)
        self._under_way = written, saved, failed
        if not beside:
            self.wait()

    def look(self) -> None:
        """Report one that has been written since."""
        if self._under_way is not None and self._under_way[0].done():
            self._report()

    def wait(self, *, must: bool = False) -> None:
        """Return when everything is written. Raises CheckpointError on the first rank if the last one `must` be there
        and could not be written; ClusterError where another rank is lost."""
        fault = self._report(must=must) if self._under_way is not None else None
        with self._comm.patiently(WRITING_TIMEOUT_S):  # only the first rank has written
            self._comm.barrier()
        if fault is not None and must:
            raise fault

    def close(self, *, failed: bool) -> None:
        """End the thread. failed: whether other ranks may not take part any more."""
        if failed and self._gathering is not None:
            self._gathering.abort("the worker failed")
        self._pool.shutdown(wait=True)
        if self._gathering is not None:
            self._gathering.close()

    def _report(self, *, must: bool = False) -> CheckpointError | None:
        assert self._under_way is not None
        (written, saved, failed), self._under_way = self._under_way, None
        try:
            written.result()
        except CheckpointError as error:
            if not must:
                failed(str(error))
            return error
        saved()
        return None


def _write(checkpoint: Checkpoint, comm: Communicator, put: Callable[[Checkpoint], Any] | None) -> None:
    with comm.patiently(WRITING_TIMEOUT_S):
        try:
            if comm.rank == 0 and put is not None:
                put(checkpoint)
        finally:
            checkpoints.contribute(checkpoint)


class MemoryCheckpoints:
    """Keeps the newest checkpoint of a group in the memory of two nannies: the same file as on the disk.

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

    def put(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint into the memory of the nannies.

        Raises CheckpointError if this process has no memory for it, or if nannies of several machines should keep it
        and those of at most one do.
        """
        began, before = time.monotonic(), self.kept
        at_most_s = max(AT_LEAST_EVERY_S, self._every_s)
        self._next = began + at_most_s  # unless it succeeds
        nbytes = checkpoints.nbytes_of(checkpoint)
        if not self._room(nbytes):
            raise CheckpointError(f"there is no memory for a checkpoint of {format_nbytes(nbytes)}")
        try:
            with memory_file() as path:
                checkpoints.write(checkpoint, path)
                self.kept = self.keep(checkpoints.found(path).copies[0], path)
        except OSError as error:
            raise CheckpointError(str(error)) from error
        now = time.monotonic()
        # A nanny imports this package with its first one.
        took_s = now - began if self.kept == before else 0.0
        self._next = now + max(min(self._every_s, 2 * (now - self._began)), min(took_s / _SHARE, at_most_s))
        machines, wanted = set(self.kept.values()), {machine for machine, _ in self._nannies}
        if len(machines) < min(_COPIES, len(wanted)) and not self._store.leaves():
            kept = "only nannies of one machine keep" if machines else "no nanny keeps"
            raise CheckpointError(f"{kept} a checkpoint")

    def keep(self, saved: Saved, path: Path) -> dict[str, str]:
        """Have nannies keep a file, which `saved` describes: of as many machines as there are, at most two."""
        kept: dict[str, str] = {}
        for apart in (True, False):  # two nannies of one machine, if there is no other
            for machine, nanny in self._nannies:
                if len(kept) < _COPIES and nanny not in kept and not (apart and machine in kept.values()):
                    kept |= {nanny: machine} if self._asked(machine, nanny, saved, path) else {}
        return kept

    def _asked(self, machine: str, nanny: str, saved: Saved, path: Path) -> bool:
        now = time.monotonic()
        if self._store.leaves() or any(self._silent.get(each, now) > now for each in (machine, nanny)):
            return False
        try:
            return self._store.keep(nanny, saved, path)
        except (OSError, TimeoutError) as error:
            logger.info("the nanny %s keeps no checkpoint: %r", nanny, error)
            self._silent[machine if isinstance(error, TimeoutError) else nanny] = now + _SILENT_S
            return False


@contextmanager
def memory_file() -> Iterator[Path]:
    """A file in memory, which lives as long as somebody has it open."""
    descriptor = os.memfd_create("singa_dask-checkpoint")
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
