"""Waiting for Dask workers that other runs use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from singa_dask.cluster.leases import parts_of_run
from singa_dask.cluster.workers import wait_workers
from singa_dask.errors import ClusterError
from singa_dask.supervision import events as ev
from singa_dask.supervision.control import active_runs, listening

if TYPE_CHECKING:
    from distributed import Client

    from singa_dask.cluster import WorkerInfo

_LOOK_S = 0.25
_ASK_S = 5.0
_COMING_S = 1.0  # without another worker: then all have come
_LEAVING_S = 10.0  # in which the workers of a run whose driver was lost have left


class Queue:
    """A run in the queue for `count` Dask workers that nobody uses.

    patience_s: for too few workers, free or not, and for the runs that use them when these give no sign of life.
    max_queue_s: how long to wait for them to end; None for as long as they live. lacking: how many workers with a GPU
    it waits for, of those that others use. there: all workers that have answered last.
    """

    def __init__(
        self,
        count: int,
        note: Callable[[str], None],
        patience_s: float,
        max_queue_s: float | None,
        lacking: Callable[[Sequence[WorkerInfo]], int] = lambda workers: 0,
    ) -> None:
        self.count, self._note, self._lacking = count, note, lacking
        self.there: Sequence[WorkerInfo] = ()
        self.patience_s, self.max_queue_s = patience_s, max_queue_s
        self._began = self._alive_at = self._asked_at = 0.0
        self._said = ""

    def wait(self, client: Client, name: str, workspace: str) -> list[WorkerInfo]:
        """The free workers, once there are enough. Answers requests to the run (name, workspace) meanwhile.

        If the run has workers already, its former driver was lost: they end soon, and have its state in memory.
        Raises ClusterError if workers do not come in time, or the run is asked to stop.
        """
        inbox: SimpleQueue[Any] = SimpleQueue()
        leave_by = time.monotonic() + _LEAVING_S
        with listening(client, name, workspace, inbox.put):
            while True:
                workers = self.there = wait_workers(client, self.count, self.patience_s)
                free = [info for info in workers if not info.group]
                lack = max(self.count - len(free), self._lacking(workers))
                leaving = any(parts_of_run(info.run) == (name, workspace) for info in workers)
                if lack > 0:
                    self._look(workers, lack, lambda: active_runs(client))
                elif not leaving or time.monotonic() > leave_by:
                    return free
                _answer(inbox)
                time.sleep(_LOOK_S)

    def _look(self, workers: Sequence[WorkerInfo], lack: int, active: Callable[[], set[str]]) -> None:
        """Tell the user who is in the way. lack: how many workers are missing. active: asks for the workspaces
        of the active runs."""
        now = time.monotonic()
        taken = [info for info in workers if info.group]
        using = _in_words({info.run or info.group for info in taken})
        if not self._said:
            self._began = now
        if using != self._said:
            self._said, self._alive_at = using, now
            self._note(f"waiting for {lack} worker{'s' * (lack > 1)}: {using} using {'them' if lack > 1 else 'it'}")
        if self.max_queue_s is not None and now - self._began >= self.max_queue_s:
            raise ClusterError(
                f"gave up after {self.max_queue_s:g} s: {using} still using {lack} of the workers. Wait longer "
                "(--max-queue), or start more Dask workers."
            )
        if now - self._asked_at > _ASK_S:
            if {parts_of_run(info.run)[1] for info in taken} & active():
                self._alive_at = time.monotonic()
            self._asked_at = time.monotonic()
        if now - self._alive_at > self.patience_s:
            raise ClusterError(
                f"{using} using {lack} of the workers, without a sign of life for {self.patience_s:g} s. "
                "End its process, or start more Dask workers."
            )


def wait_all(
    client: Client,
    name: str,
    workspace: str,
    note: Callable[[str], None],
    patience_s: float,
    max_queue_s: float | None,
) -> None:
    """Wait until all workers of the cluster have come and nobody uses any of them; see Queue."""
    count, there = 0, 1
    while there > count:
        count = there
        Queue(count, note, patience_s, max_queue_s).wait(client, name, workspace)
        time.sleep(_COMING_S)
        there = len(wait_workers(client, count, patience_s))


def _answer(inbox: SimpleQueue[Any]) -> None:
    """Answer what the run was asked meanwhile."""
    while True:
        try:
            item = inbox.get_nowait()
        except Empty:
            return
        if isinstance(item, ev.StopAsked):
            _answer(inbox)
            raise ClusterError(f"stopped while it waited for workers, by {item.by}.")
        if isinstance(item, ev.JoinAsked | ev.LeaveAsked):
            item.asker("refused: the run waits for workers")
        else:
            item()


def _in_words(runs: Iterable[str]) -> str:
    """The runs that have these keys: "'digits' (runs/digits-allreduce) is"."""
    names = []
    for key in sorted(runs):
        job, workspace = parts_of_run(key)
        names.append(f"{job!r} ({_short(workspace)})" if workspace else key)
    return f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'}"


def _short(folder: str) -> str:
    """The folder relative to the working directory if it lies below."""
    here = Path.cwd()
    return os.path.relpath(folder, here) if here in Path(folder).parents else folder
