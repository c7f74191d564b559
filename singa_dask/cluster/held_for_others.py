"""What Dask workers hold for others, tasks and data, when their processes must be replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from distributed.core import Status
from distributed.utils import key_split

from singa_dask.cluster import leases
from singa_dask.cluster.remote import alive, ask_scheduler, run_each
from singa_dask.errors import SchedulerLost

_ANSWER_S = 2.0
# In which other workers have taken over the data of one.
_MOVED_S = 60.0
_NAMED = 3


def without_tasks_and_data(client: Any, addresses: Collection[str]) -> tuple[set[str], str]:
    """Those of these workers that hold nothing for others and take no more tasks, so that their processes can be
    replaced: none as long as others have tasks on one of them. And what is in the way, in words.

    Other workers take over the data, of one worker at a time. A worker with servers, which are those of the run that
    has reserved it, is not waited for. Raises SchedulerLost.
    """
    here = alive(client, addresses)
    tasks, data = _listed(client, "processing", here), _listed(client, "has_what", here)
    serving = {address for address in here if leases.servers(dict.fromkeys(data[address]))}
    gone, others = set(addresses) - here, here - serving
    for address, actors in run_each(client, _actors, dict.fromkeys(others, ()), _ANSWER_S).items():
        tasks[address] += actors if isinstance(actors, list) else []
    if busy := [_in_words(address, "runs", tasks[address]) for address in sorted(others) if tasks[address]]:
        return set(), "; ".join(busy)
    chosen = [address for address in others if not data[address]] or sorted(others)[:1]
    try:
        left = _retired(client, chosen)
        late = {address for address, keys in _listed(client, "processing", left).items() if keys}
    except BaseException:
        take_tasks(client, chosen)
        raise
    take_tasks(client, late)
    held = [_in_words(address, "holds", data[address]) for address in sorted(others) if data[address]]
    return gone | serving | left - late, "; ".join(held)


def without_a_thread(client: Any, addresses: Iterable[str]) -> str:
    """Those of these workers whose threads all have tasks, in words: a rank would wait for one."""
    taken = run_each(client, _running, dict.fromkeys(addresses, ()), _ANSWER_S).items()
    return "; ".join(
        _in_words(address, "runs", tasks) for address, tasks in taken if isinstance(tasks, list) and tasks
    )


def _running(dask_worker: Any = None) -> list[str]:
    """The tasks that have the threads of a worker, if no thread is free."""
    running = [task.key for task in (*dask_worker.state.executing, *dask_worker.state.ready)]
    return list(map(str, running)) if len(running) >= dask_worker.state.nthreads else []


def _listed(client: Any, what: str, addresses: Collection[str]) -> dict[str, list[str]]:
    """The keys of each worker's tasks ("processing") or data ("has_what")."""
    wanted = list(addresses)
    if not wanted:
        return {}
    try:
        found = ask_scheduler(client, lambda: getattr(client.scheduler, what)(workers=wanted))
    except KeyError:  # one of them has just left: nothing is known of the others
        found = dict.fromkeys(wanted, ("a task",))
    return {address: list(map(str, found[address])) for address in wanted}


def _retired(client: Any, addresses: list[str]) -> set[str]:
    """Have these workers take no more tasks and others take over their data. Returns those of which this is done."""
    if not addresses:
        return set()
    options = {"workers": addresses, "close_workers": False, "remove": False}
    try:
        return set(ask_scheduler(client, lambda: client.scheduler.retire_workers(**options), _MOVED_S))
    except SchedulerLost:  # or the data are many
        take_tasks(client, addresses)
        return set()


def take_tasks(client: Any, addresses: Iterable[str]) -> None:
    """Have workers that were given up take tasks again."""
    run_each(client, _take_tasks, dict.fromkeys(addresses, ()), _ANSWER_S)


def _actors(dask_worker: Any = None) -> list[str]:
    return list(map(str, dask_worker.state.actors))


def _take_tasks(dask_worker: Any = None) -> None:
    if dask_worker.status == Status.closing_gracefully:
        dask_worker.status = Status.running


def _in_words(address: str, verb: str, keys: Iterable[str]) -> str:
    names = list(dict.fromkeys(map(key_split, keys)))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{address} {verb} {', '.join(names[:_NAMED])}{more}"
