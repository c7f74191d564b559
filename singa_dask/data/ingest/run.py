"""Runs the tasks of a pass, in threads of this process or on Dask workers."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any

from singa_dask.data.containers import is_table
from singa_dask.data.rows import in_rows, index_of
from singa_dask.data.sources.files import Block
from singa_dask.errors import ClusterError, DataError

MAX_THREADS = 8
# How often a waiting driver looks whether there are workers at all.
STATUS_SECONDS = 30.0

Report = Callable[[int, Any], None]


@dataclass(frozen=True)
class ReadBlock(Block):
    """A block whose columns have been read."""

    key: str
    columns: Mapping[str, Any]

    def read(self) -> Mapping[str, Any]:
        return self.columns


@dataclass(frozen=True)
class DaskBlock(Block):
    """Partitions of Dask collections that lie side by side. parts: Delayed objects; names: the raw column of each; of
    a DataFrame, its columns and their raw columns; of a tuple, those of all that it holds. place: for messages.

    Computed by the task that needs it, together with all others in one graph: what several blocks need is computed
    once.
    """

    key: str
    parts: tuple[Any, ...]
    names: tuple[Any, ...]
    place: str = ""
    numbered: bool = False

    def read(self) -> Mapping[str, Any]:
        import dask

        return _columns(self.names, self.place, dask.compute(*self.parts, scheduler="threads"))

    def task(self, function: Callable[[ReadBlock], Any], report: Callable[[Any], None] | None = None) -> Any:
        """Calls a function of the block when it is computed."""
        import dask

        call = partial(_call_computed, function, self.key, self.names, self.place, report)
        return dask.delayed(call, pure=False, traverse=False)(*self.parts)


def _call_computed(
    function: Callable[[ReadBlock], Any],
    key: str,
    names: tuple[Any, ...],
    place: str,
    report: Callable[[Any], None] | None,
    *computed: Any,
) -> Any:
    result = function(ReadBlock(key, _columns(names, place, computed)))
    if report is not None:
        report(result)
    return result


def _columns(names: Sequence[Any], place: str, computed: Sequence[Any]) -> dict[str, Any]:
    """By raw column. Raises DataError if partitions have other rows than the first one."""
    pairs = list(_pairs(names, computed))
    (first, whole), like = pairs[0], next((each for _, each in pairs if index_of(each) is not None), None)
    raw: dict[str, Any] = {}
    for name, value in pairs:
        what = _first(name)
        if place and value.shape[0] != whole.shape[0]:
            rows = f"{place} has {value.shape[0]:,} rows, but {whole.shape[0]:,} of {_first(first)}"
            raise DataError(
                f"{what}: {rows}. Give both the same divisions or chunks, or take both from one DataFrame."
            )
        value = in_rows(like, value, what, place)
        if isinstance(name, str):
            raw[name] = value.to_numpy() if is_table(value) else value
        else:
            raw |= {own: value[column] for column, own in name.items()}
    return raw


def _first(name: Any) -> str:
    return name if isinstance(name, str) else next(iter(name.values()))


def _pairs(names: Sequence[Any], computed: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    for name, value in zip(names, computed, strict=True):
        yield from _pairs(name, value) if isinstance(name, tuple) else [(name, value)]


def run_all(
    function: Callable[..., Any],
    tasks: Mapping[int, tuple[Any, ...]],
    client: Any,
    report: Report,
    names: Mapping[int, str],
    shared: Sequence[Any] = (),
) -> dict[int, Any]:
    """The results of function(*shared, *task) by index, from threads of this process or from a cluster, whose workers
    get what is shared once. A last argument that is a block of Dask is computed; one in the memory of this process
    stays there."""
    lazy = {index: task[-1] for index, task in tasks.items() if isinstance(task[-1], DaskBlock)}
    near = [index for index, task in tasks.items() if client is None or getattr(task[-1], "local", False)]
    here = {index: partial(function, *shared, *tasks[index]) for index in near if index not in lazy}
    done: dict[int, Any] = {}
    if client is not None:
        sent = client.scatter([*shared], broadcast=True, hash=False) if shared else []

        def submit(indices: Sequence[int]) -> list[Any]:
            own = {i: lazy[i].task(partial(function, *tasks[i][:-1])) for i in indices if i in lazy}
            computed = iter(client.compute([*own.values()]))
            there = (client.submit(function, *sent, *tasks[i], pure=False) for i in indices if i not in lazy)
            return [next(computed if i in lazy else there) for i in indices]

        done |= gather(client, submit, report, {index: names[index] for index in tasks if index not in here})
    elif lazy:
        import dask

        own = [block.task(partial(function, *tasks[i][:-1]), partial(report, i)) for i, block in lazy.items()]
        done |= dict(zip(lazy, dask.compute(*own, scheduler="threads", num_workers=threads()), strict=True))
    return done | run_here(here, report)


def threads() -> int:
    """How many blocks this process reads at a time."""
    return min(len(os.sched_getaffinity(0)), MAX_THREADS)


def run_here(tasks: Mapping[int, Callable[[], Any]], report: Report) -> dict[int, Any]:
    """Call these functions in threads, and report each result."""
    done: dict[int, Any] = {}
    if len(tasks) == 1 or threads() == 1:
        for index, task in tasks.items():
            done[index] = task()
            report(index, done[index])
        return done
    with ThreadPoolExecutor(threads()) as pool:
        running = {pool.submit(task): index for index, task in tasks.items()}
        try:
            for future in as_completed(running):
                index = running[future]
                done[index] = future.result()
                report(index, done[index])
        finally:
            for future in running:
                future.cancel()
    return done


def gather(
    client: Any, submit: Callable[[Sequence[int]], list[Any]], report: Report, names: Mapping[int, str]
) -> dict[int, Any]:
    """The results of tasks on a cluster by index, reported as they come. Those that wait for a worker that has paused
    are submitted again. submit: returns futures of the tasks with these indices. names: of all tasks.

    Raises what a task raised first, and ClusterError if workers died or none are left.
    """
    from distributed.scheduler import KilledWorker

    finished: Any = queue.Queue()
    futures: dict[int, Any] = {}

    def begin(indices: Sequence[int]) -> None:
        for index, future in zip(indices, submit(indices), strict=True):
            futures[index] = future
            future.add_done_callback(lambda future, index=index: finished.put((index, future)))

    done: dict[int, Any] = {}
    begin([*names])
    try:
        while len(done) < len(futures):
            try:
                index, future = finished.get(timeout=STATUS_SECONDS)
            except queue.Empty:
                check_workers(client, f"{len(done)} of {len(futures)} tasks are done, and kept")
                waiting = waiting_for_paused(client)
                stuck = [i for i, future in futures.items() if i not in done and future.key in waiting]
                client.cancel([futures.pop(i) for i in stuck])
                begin(stuck)
                continue
            if index in futures and futures[index] is future:  # else it was submitted again
                done[index] = future.result()
                report(index, done[index])
    except KilledWorker as error:
        raise ClusterError(
            f"Dask workers died while they worked on {names[index]}, probably for lack of memory ({error}). "
            "Use smaller chunks or partitions, fewer threads per worker, or more memory; what is done is kept."
        ) from error
    finally:
        client.cancel([future for index, future in futures.items() if index not in done])
    return done


def waiting_for_paused(client: Any) -> set[Any]:
    """The keys of tasks that workers have taken, and will not begin while they are paused for their memory. A worker
    that is at one still has its own to end."""
    workers = client.scheduler_info(n_workers=-1)["workers"].items()
    paused = [a for a, w in workers if w["status"] == "paused" and not w["metrics"]["task_counts"].get("executing")]
    try:
        return {key for keys in client.processing(paused).values() for key in keys} if paused else set()
    except KeyError:  # one of them has just left, and its tasks go to others
        return set()


def check_workers(client: Any, done: str) -> None:
    """Raises ClusterError if no worker can work on."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    if not workers:
        raise ClusterError(f"no Dask workers are left; {done}. Start workers and call again.")
    if all(worker["status"] == "paused" for worker in workers):
        used, limit = max((worker["metrics"]["memory"], worker["memory_limit"]) for worker in workers)
        raise ClusterError(
            f"all Dask workers have paused, because their memory is full ({used >> 20:,} of {limit >> 20:,} MiB); "
            f"{done}. Use smaller chunks or partitions, fewer threads per worker, or more memory, and call again."
        )
