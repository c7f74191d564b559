"""A few threads that run kernels on shares of a batch, and sleep in between: the cores are free for BLAS."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from weakref import finalize

Task = Callable[[int], None]
Done = SimpleQueue[BaseException | None]
Job = tuple[Context, Task, Done]


class Team:
    """`size` threads, one of which is the caller; the others start with the first task and end with the team.

    They run in the caller's context (NumPy's errstate). A forked process starts its own threads.
    """

    def __init__(self, size: int = 1):
        if size < 1:
            raise ValueError(f"a team has at least one member. Received: size={size}.")
        self.size = size
        self._disband()

    def _disband(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[SimpleQueue[Job | None]] = []
        self._process = os.getpid()

    def run(self, count: int, task: Task) -> None:
        """Run task(0), ..., task(count - 1) in parallel, count <= size; afterwards raise the first error of any.

        A second caller runs its tasks alone while the team is busy.
        """
        if count == 1:
            task(0)
            return
        if self._process != os.getpid():
            self._disband()
        if not self._lock.acquire(blocking=False):
            for number in range(count):
                task(number)
            return
        try:
            self._run(count, task)
        finally:
            self._lock.release()

    def share(self, size: int, count: int, task: Callable[[slice], None]) -> None:
        """Run task(share) on `count` equal shares of 0 ... size in parallel, as `run` does."""
        self.run(count, lambda t: task(slice(size * t // count, size * (t + 1) // count)))

    def _run(self, count: int, task: Task) -> None:
        if not self._jobs:
            self._start()
        done: Done = SimpleQueue()  # one per call: an interrupted caller leaves results in it
        for number in range(1, count):
            self._jobs[number - 1].put((copy_context(), task, done))
        errors = []
        try:
            task(0)
        except BaseException as error:
            errors.append(error)
        errors += filter(None, [done.get() for _ in range(1, count)])
        if errors:
            raise errors[0]

    def _start(self) -> None:
        jobs: list[SimpleQueue[Job | None]] = [SimpleQueue() for _ in range(1, self.size)]
        ending = finalize(self, _end, jobs)
        try:
            for number, queue in enumerate(jobs, 1):
                name = f"singa-dask-kernels-{number}"
                threading.Thread(target=_work, args=(number, queue), name=name, daemon=True).start()
        except BaseException:
            ending()
            raise
        self._jobs = jobs


def _work(number: int, jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        context, task, done = job
        try:
            context.run(task, number)
        except BaseException as error:
            done.put(error)
        else:
            done.put(None)
        finally:
            del job, context, task, done


def _end(jobs: list[SimpleQueue[Job | None]]) -> None:
    for queue in jobs:
        queue.put(None)
