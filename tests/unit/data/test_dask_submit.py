"""Loading as Dask tasks, with a Dask whose tasks run when the test says so."""

from __future__ import annotations

import sys
import threading
from typing import Any

import dask
import pytest
from distributed.core import Status

from singa_dask.data import dask_submit
from singa_dask.data.dask_submit import EXECUTOR


class Task:
    """A task that Dask was given. settings: of the submission; annotations: that held then."""

    def __init__(self, function: Any, args: tuple, settings: dict[str, Any]) -> None:
        self.function, self.args, self.settings = function, args, settings
        self.annotations = dask.get_annotations()
        self.status = "pending"

    def run(self) -> None:
        assert self.function(*self.args) is None, "results do not travel"
        self.status = "finished"

    def done(self) -> bool:
        return self.status == "finished"

    def result(self, timeout: float) -> None:
        raise RuntimeError(f"Dask says {self.status}")


class Dask:
    """A client and a worker in one."""

    name, address, status = "first", "tcp://here:1", Status.running

    def __init__(self) -> None:
        self.executors: dict[str, Any] = {}
        self.tasks: list[Task] = []

    def submit(self, function: Any, *args: Any, **settings: Any) -> Task:
        self.tasks.append(Task(function, args, settings))
        return self.tasks[-1]


@pytest.fixture
def there() -> Dask:
    return Dask()


def test_work_is_done_on_the_worker_itself_in_threads_of_its_own(there):
    submit = dask_submit(there, there, threads=3)
    assert dask_submit(there, there) is not submit and list(there.executors) == [EXECUTOR]
    executor = there.executors[EXECUTOR]
    assert executor._max_workers == 3
    assert executor.submit(lambda: threading.current_thread().name).result(5).startswith("Dask-Loader-Threads-first")
    executor.shutdown()
    arrival = submit(divmod, 7, 2)
    (task,) = there.tasks
    key = task.settings.pop("key")
    assert key.startswith("divmod-") and task.annotations == {"executor": EXECUTOR}
    assert task.settings == {"workers": [there.address], "allow_other_workers": False, "pure": False}
    with pytest.raises(TimeoutError):
        arrival.result(0.01)
    task.run()
    assert arrival.result(1) == (3, 1) == arrival.result()


@pytest.mark.parametrize("threads", [1, 2])
def test_as_many_tasks_as_threads_do_what_there_is_to_do(there, threads):
    submit = dask_submit(there, there, threads=threads)
    for tasks in (threads, 2 * threads):  # those that are done do not come back
        arrivals = [submit(str, i) for i in range(5)]
        assert len(there.tasks) == tasks
        assert submit.__self__._tasks == there.tasks[-threads:], "Dask gives up what nobody holds"
        for task in there.tasks[-threads:]:
            task.run()
        assert [arrival.result(1) for arrival in arrivals] == ["0", "1", "2", "3", "4"]


def test_what_the_work_raises_is_raised_where_it_is_awaited(there):
    submit = dask_submit(there, there)
    failing, timing, good = submit(int, "x"), submit(_late), submit(int, "3")
    there.tasks[0].run()
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(1)
    with pytest.raises(TimeoutError, match="the file system"):
        timing.result(60)
    assert good.result(1) == 3


def _late() -> None:
    raise TimeoutError("the file system")


def test_cancelled_work_is_not_begun(there):
    submit, begun = dask_submit(there, there), []
    first, second = submit(begun.append, 1), submit(begun.append, 2)
    first.cancel()
    there.tasks[0].run()
    second.result(1)
    assert begun == [2]


@pytest.mark.parametrize("status", ["error", "cancelled", "lost"])
def test_a_task_that_dask_has_given_up_is_an_error(there, status, monkeypatch):
    monkeypatch.setattr(sys.modules[dask_submit.__module__], "LOOK_S", 0.01)
    submit = dask_submit(there, there)
    arrival = submit(str, 1)
    there.tasks[0].status = status
    with pytest.raises(RuntimeError, match=f"Dask says {status}"):
        arrival.result(60)


def test_tasks_of_a_loader_that_is_gone_do_nothing(there):
    submit = dask_submit(there, there)
    submit(str, 1)
    (task,) = there.tasks
    del submit
    task.run()


def test_a_paused_worker_starts_no_task_and_the_thread_that_waits_loads(there, monkeypatch):
    monkeypatch.setattr(sys.modules[dask_submit.__module__], "LOOK_S", 0.01)
    submit = dask_submit(there, there)
    arrivals = [submit(str, i) for i in range(3)]
    there.status = Status.paused
    assert [arrival.result(60) for arrival in arrivals] == ["0", "1", "2"]
    there.tasks[0].run()  # it has nothing left to do
    assert submit(str, 3) is not None and len(there.tasks) == 2
