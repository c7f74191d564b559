"""A few threads that run kernels on shares of a batch; they sleep in between, so they leave the cores to BLAS."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from weakref import finalize

Task = Callable[[int], None]


class Team:
    """`size` threads, the caller among them; the others start with the first task and end with the team."""

    def __init__(self, size: int = 1):
        if size < 1:
            raise ValueError(f"a team has at least one member. Received: size={size}.")
        self.size = size
        self._tasks: list[SimpleQueue[Task | None]] = []
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()

    def run(self, count: int, task: Task) -> None:
        """task(0), ..., task(count - 1) at once, count <= size; raises what one of them raised when all have ended."""
        if count == 1:
            task(0)
            return
        if not self._tasks:
            self._start()
        for number in range(1, count):
            self._tasks[number - 1].put(task)
        errors = []
        try:
            task(0)
        except BaseException as error:
            errors.append(error)
        errors += filter(None, [self._done.get() for _ in range(1, count)])
        if errors:
            raise errors[0]

    def share(self, total: int, task: Callable[[int, int], None]) -> None:
        """task(first, stop) on shares of range(total), at once."""
        count = max(1, min(self.size, total))
        self.run(count, lambda number: task(total * number // count, total * (number + 1) // count))

    def _start(self) -> None:
        self._tasks = [SimpleQueue() for _ in range(1, self.size)]
        for number, tasks in enumerate(self._tasks, 1):
            arguments = number, tasks, self._done
            threading.Thread(target=_work, args=arguments, name=f"singa-dask-kernels-{number}", daemon=True).start()
        finalize(self, _end, self._tasks)


def _work(number: int, tasks: SimpleQueue[Task | None], done: SimpleQueue[BaseException | None]) -> None:
    while (task := tasks.get()) is not None:
        try:
            task(number)
        except BaseException as error:
            done.put(error)
        else:
            done.put(None)
        finally:
            del task


def _end(tasks: list[SimpleQueue[Task | None]]) -> None:
    for queue in tasks:
        queue.put(None)
