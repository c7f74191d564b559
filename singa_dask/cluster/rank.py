"""One rank of a group: what runs inside the Dask worker, from joining the group to leaving it."""

from __future__ import annotations

import atexit
import gc
import logging
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from distributed import get_worker, secede
from distributed.core import Status

from singa_dask.cluster import leases
from singa_dask.cluster.bootstrap import retire_process, spend_world
from singa_dask.cluster.departure import CLOSING_S, OTHERS_S, Departure
from singa_dask.cluster.join import RankPlan, join_group
from singa_dask.cluster.segments import unlink_orphans, unlink_segments
from singa_dask.cluster.whereabouts import place_of
from singa_dask.cluster.workers import WorkerInfo, describe
from singa_dask.comm import Communicator
from singa_dask.errors import ClusterError, DriverUnreachable, MpiUnusable, TrainingError
from singa_dask.ops.gpu.faults import gpu_is_lost

logger = logging.getLogger(__name__)

# A rank that was told to abort and has not left after this time is in code that cannot be interrupted.
GRACE_S = 3.0
# For so long a rank whose task was cancelled waits for its driver's word: whoever cancelled it may not be the driver.
_UNHEARD_S = 5.0
# By when a task that has ended is forgotten.
_SETTLED_S = 0.5
EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h


class JoinFailed(ClusterError):
    """A rank could not join its group: others did not come, or it became another rank."""


@dataclass(frozen=True)
class Looks:
    """How a rank looks for a stop, which it does after every step.

    ago_s: since the last look; longest_s: the longest time between two of them, 0 before the second. where: its code
    is; waits: whether that waits for other processes, for data or the disk, or compiles. asked: whether it was asked
    to stop, and has not looked since.
    """

    ago_s: float
    longest_s: float
    where: str = ""
    waits: bool = False
    asked: bool = False


class RankTask:
    """A rank as the code inside it, the watchdog and the driver's calls see it.

    abort_event: set when the rank must leave at once; abort_reason: why.
    told: what the driver has told the rank so far (Group.tell), by name. heard_at: when the driver last asked for it.
    """

    def __init__(self, plan: RankPlan) -> None:
        self.plan = plan
        self.rank = plan.rank
        self.abort_event = threading.Event()
        self.abort_reason = ""
        self.told: dict[str, Any] = {}
        self.heard_at = -math.inf
        self._comm: Communicator | None = None
        self.formed = False
        self._thread = threading.get_ident()
        self._looked_at, self._longest_s, self._looked = time.monotonic(), 0.0, False
        self._hears_stop = False

    @property
    def stop_requested(self) -> bool:
        """Whether the rank should finish its step, save what it has, and return. For the rank's own thread."""
        now = time.monotonic()
        if self._looked:
            self._longest_s = max(self._longest_s, now - self._looked_at)
        self._looked_at, self._looked = now, True
        self._hears_stop = self.stop_told
        return self._hears_stop

    @property
    def stop_told(self) -> bool:
        """Whether the driver has asked for a stop."""
        return bool(self.told.get("stop"))

    def looks(self) -> Looks:
        """How the rank looks for a stop. From any thread."""
        stack = traceback.walk_stack(sys._current_frames().get(self._thread))
        where, waits = place_of((frame.f_code.co_name, frame.f_code.co_filename, line) for frame, line in stack)
        asked = self.stop_told and not self._hears_stop
        return Looks(time.monotonic() - self._looked_at, self._longest_s, where, waits, asked)

    def wait_told(self, name: str, timeout_s: float) -> Any:
        """What the driver tells under this name, once it does. Raises ClusterError when it has not in time."""
        deadline = time.monotonic() + timeout_s
        while name not in self.told:
            if self.abort_event.wait(0.01):
                raise ClusterError(f"rank {self.rank} was aborted: {self.abort_reason}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"rank {self.rank}: the driver has not told the {name} within {timeout_s:g} s: it is lost, "
                    "stopped or busy. Look at its output and its machine."
                )
        return self.told[name]

    def abort(self, reason: str) -> None:
        """Make the rank's collectives raise ClusterError. The first reason counts."""
        self.abort_reason = self.abort_reason or reason
        self.abort_event.set()
        if self._comm is not None:
            self._comm.abort(self.abort_reason)

    def joined(self, comm: Communicator) -> None:
        """The rank has met the others on this communicator."""
        self._comm, self.formed = comm, True
        if self.abort_event.is_set():
            comm.abort(self.abort_reason)


_current: ContextVar[RankTask | None] = ContextVar("singa_dask_rank", default=None)


def current_task() -> RankTask:
    """The rank that the calling code is. Raises ClusterError outside of a group."""
    task = _current.get()
    if task is None:
        raise ClusterError("this code does not run as a rank of a group; see form_group")
    return task


def reserve_worker(group: str, run: str, lease_s: float, dask_worker: Any = None) -> WorkerInfo | str:
    """Reserve this worker for a group; returns what it is, or who has it: another group, or another run's server."""
    others = [key for key in leases.servers(dask_worker.state.actors) if not key.endswith(f"@{run}")]
    return next(iter(others), "") or leases.reserve(dask_worker.address, group, lease_s, run) or describe(dask_worker)


def release_worker(group: str, dask_worker: Any = None) -> None:
    """Give up a reservation that has no task yet."""
    leases.release(dask_worker.address, group)


def rank_formed(group: str, dask_worker: Any = None) -> bool:
    """Whether this worker's rank has joined the group."""
    task = leases.task_of(dask_worker.address, group)
    return task is not None and task.formed


def abort_rank(group: str, reason: str, dask_worker: Any = None) -> None:
    """Tell this worker's rank of the group, if it is still there, to leave at once."""
    task = leases.task_of(dask_worker.address, group)
    if task is not None:
        task.abort(reason)


def tell_rank(group: str, name: str, value: Any, dask_worker: Any = None) -> None:
    """Tell this worker's rank of the group something."""
    task = leases.task_of(dask_worker.address, group)
    if task is not None:
        task.told[name] = value


def keep_rank(group: str, dask_worker: Any = None) -> bool:
    """Whether this worker's rank of the group is still there. A rank whose task was cancelled stays as long as its
    driver asks."""
    task = leases.task_of(dask_worker.address, group)
    if task is not None:
        task.heard_at = time.monotonic()
    return task is not None


def rank_looks(group: str, dask_worker: Any = None) -> Looks | None:
    """How this worker's rank of the group looks for a stop; None if it has left."""
    task = leases.task_of(dask_worker.address, group)
    return None if task is None else task.looks()


def clean_segments(kvsname: str) -> None:
    """Remove the shared memory of a world that did not form, on this worker's machine."""
    unlink_segments(kvsname)
    unlink_orphans()


def rank_task(plan: RankPlan, fn: Callable[..., Any], args: tuple) -> Any:
    """Join the group, then fn(comm, *args). The Dask task of a rank."""
    _end_quickly()
    worker = get_worker()
    task = RankTask(plan)
    if not leases.take_up(worker.address, plan.group, task):
        raise ClusterError(
            f"rank {plan.rank}: the process at {worker.address} is not the one that was chosen for {plan.group}: its "
            "nanny has replaced it meanwhile, or another run has taken it. Start the run again."
        )
    watchdog = _Watchdog(task, worker)
    departure = Departure(f"{plan.group}-{plan.rank}", worker, partial(_ask_to_leave, task))
    token = _current.set(task)
    comm: Communicator | None = None
    try:
        # The worker's thread pool stays free for loading tasks, even with one thread.
        secede()
        comm = _joined(task)
        result = fn(comm, *args)
        comm.close()
        return result
    except BaseException as error:
        if plan.size > 1:
            spend_world(comm)
        if gpu_is_lost(error):
            retire_process()
        if isinstance(error, ClusterError) and task.abort_reason:
            raise ClusterError(f"rank {plan.rank} was aborted: {task.abort_reason}") from error
        if not isinstance(error, Exception):  # Dask would end the worker's event loop
            stack = reversed(traceback.extract_tb(error.__traceback__))
            where, _ = place_of((line.name, line.filename, line.lineno or 0) for line in stack)
            what = f"rank {plan.rank}: {error!r} was raised in {where}"
            raise TrainingError(f"{what}. Raise an exception that does not end a process.") from error
        raise
    finally:
        _current.reset(token)
        watchdog.stop()
        departure.done()
        leases.end(worker.address)
        _collect_soon(worker)


def _ask_to_leave(task: RankTask, waited_s: float) -> bool:
    """Of a rank whose Dask worker closes: it finishes its step, saves and returns."""
    task.told["stop"] = True
    if waited_s > OTHERS_S:  # the driver may be unable to say it
        task.told["others ended"] = True
    return False


def _collect_soon(worker: Any) -> None:
    """Have Python look for what refers to itself, nets and the memory that ranks share among it, once the task and the
    traceback of its error are gone. By itself it may not for many runs."""
    loop = worker.loop.asyncio_loop
    with suppress(RuntimeError):  # it is closed: so is the process in a moment
        loop.call_soon_threadsafe(loop.call_later, _SETTLED_S, gc.collect)


@cache
def _end_quickly() -> None:
    """Have Python not search everything imported for garbage at the end of this process: on a busy machine that takes
    longer than the four seconds after which a nanny warns."""
    atexit.register(gc.freeze)


def _joined(task: RankTask) -> Communicator:
    """The communicator of the group. Raises MpiUnusable, DriverUnreachable, or JoinFailed for any other error."""
    try:
        comm = join_group(task.plan, task.abort_event)
    except (MpiUnusable, DriverUnreachable):
        raise
    except Exception as error:
        raise JoinFailed(str(error)) from error
    task.joined(comm)
    return comm


class _Watchdog(threading.Thread):
    """Sees to it that a rank leaves: when its driver is gone, when the group does not form, when it was told to.

    It reads the worker's state and never waits for its event loop.
    """

    def __init__(self, task: RankTask, worker: Any) -> None:
        super().__init__(name=f"singa-watchdog-{task.rank}", daemon=True)
        self._task, self._worker = task, worker
        self._key = worker.get_current_task()
        self._forming_until = time.monotonic() + task.plan.forming_s
        self._cancelled_at = self._closing_at = math.inf
        self._left = threading.Event()
        self.start()

    def stop(self) -> None:
        """The rank has left."""
        self._left.set()

    def run(self) -> None:
        aborted_at: float | None = None
        while not self._left.wait(0.2):
            reason = self._reason_to_leave()
            if reason:
                self._task.abort(reason)
            if self._task.abort_event.is_set():
                aborted_at = aborted_at or time.monotonic()
                if time.monotonic() - aborted_at > GRACE_S:
                    return self._end_process()

    def _reason_to_leave(self) -> str:
        if self._worker.status not in (Status.init, Status.starting, Status.running, Status.paused):
            self._closing_at = min(self._closing_at, time.monotonic())
            late = time.monotonic() - self._closing_at > CLOSING_S
            return f"the Dask worker is {self._worker.status.name}" if late else ""
        state = self._worker.state.tasks.get(self._key)
        if state is None or state.state not in ("executing", "long-running"):
            self._cancelled_at = min(self._cancelled_at, time.monotonic())
            if time.monotonic() - max(self._cancelled_at, self._task.heard_at) > _UNHEARD_S:
                return "the task was cancelled; the driver or its Dask client is gone"
        if not self._task.formed and time.monotonic() > self._forming_until:
            return f"the group did not form within {self._task.plan.forming_s:g} s"
        return ""

    def _end_process(self) -> None:
        task = self._task
        if self._worker.address.startswith("inproc://"):
            logger.error(
                "rank %d does not leave (%s), and shares its process with the client", task.rank, task.abort_reason
            )
            return
        logger.error("rank %d does not leave: its process ends. %s", task.rank, task.abort_reason)
        if task.plan.endpoint is not None:
            unlink_segments(task.plan.endpoint.kvsname)
        os._exit(EXIT_CODE)
