"""The Dask client of a simulated driver, and the futures of its tasks and actors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from simulation.clock import SimulatedFuture
from simulation.cluster import Process
from singa_dask.errors import ClusterError

if TYPE_CHECKING:
    from simulation.ranks import Rank

FORGOTTEN_S = 0.1  # until actors are released


class Task:
    """The future of a Dask task, at the client. status: as Dask's."""

    def __init__(self, key: str) -> None:
        self.key, self.status = key, "pending"
        self.rank: Rank | None = None
        self._result = SimulatedFuture()

    def settle(self, status: str, result: Any = None, error: BaseException | None = None) -> None:
        if self.status == "pending":
            self.status = status
            self._result.settle(result, error)

    def result(self, timeout: float | None = None) -> Any:
        return self._result.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._result.exception(0)

    def traceback(self, timeout: float | None = None) -> None:
        return None

    def release(self) -> None:
        pass


class _Actor(Task):
    """The future of an actor. process: where it is."""

    def release(self) -> None:
        self.process.cluster.loop.call_later(FORGOTTEN_S, self.process.drop, self.key)


class _Proxy:
    """An actor as the driver has it."""

    def __init__(self, client: Client, process: Process, key: str) -> None:
        self._client, self._process, self._key = client, process, key

    def __getattr__(self, method: str) -> Callable[..., SimulatedFuture]:
        def call(*args: Any) -> SimulatedFuture:
            future, process = SimulatedFuture(), self._process

            async def handle() -> Any:
                function = getattr(process.state.actors[self._key], method)
                if iscoroutinefunction(function):
                    return await function(*args)
                done = process.cluster.loop.create_future()  # in a thread, as Dask does
                process.start(lambda: done.set_result(function(*args)))
                return await done

            process.cluster.network.ask(self._client.process, process, handle, future.settle)
            return future

        return call


class Client:
    """The Dask client of a driver. start_rank, make_server: what its tasks do, at their process."""

    def __init__(
        self,
        process: Process,
        start_rank: Callable[[Process, Task, tuple], None],
        make_server: Callable[[Process, str, Any, tuple], None],
    ) -> None:
        self.process, self.cluster = process, process.cluster
        self._start_rank, self._make_server = start_rank, make_server
        self.tasks: list[Task] = []
        self.actors: list[_Actor] = []

    def submit(self, function: Any, *args: Any, key: str, workers: list[str], actor: bool = False, **_: Any) -> Task:
        process = self.cluster.processes[workers[0]]
        if actor:
            task: Task = self._submit_actor(process, key, function, args)
        else:
            task = Task(key)
            self.tasks.append(task)
            lost = lambda: task.settle("lost", error=ClusterError("lost"))  # noqa: E731
            start = lambda: self._start_rank(process, task, args)  # noqa: E731
            self.cluster.network.send(self.process, process, start, lost, stream=True)
        return task

    def cancel(self, futures: Iterable[Task], force: bool = False) -> None:
        for task in futures:
            task.settle("cancelled", error=ClusterError("cancelled"))
            if task.rank is not None:
                self.cluster.network.send(self.process, task.rank.process, task.rank.cancelled, stream=True)

    def _submit_actor(self, process: Process, key: str, kind: Any, args: tuple) -> _Actor:
        task = _Actor(key)
        task.process = process
        self.actors.append(task)

        def make() -> None:
            error = None
            try:
                self._make_server(process, key, kind, args)
            except ClusterError as caught:
                error = caught
            settle = partial(task.settle, "finished", _Proxy(self, process, key), error)
            self.cluster.network.send(process, self.process, settle, stream=True)

        self.cluster.network.send(self.process, process, lambda: process.start(make), stream=True)
        return task

    def gone(self) -> None:
        """The scheduler misses this client: it cancels its tasks and releases its actors."""
        for task in self.tasks:
            if task.rank is not None:
                task.rank.cancelled()
        for actor in self.actors:
            actor.release()
