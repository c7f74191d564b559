"""Which group a Dask worker belongs to. Leases live in the workers and expire, unless a task has taken them up.

Servers hold a worker too, until they are closed or Dask releases their actors, as when their client is gone.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class _Lease:
    """Until `expires`, or for as long as there is a task. run: that the group is of, "" for none. gpu: the identity of
    that on which the task computes, "" for none."""

    group: str
    expires: float
    run: str = ""
    task: Any = None
    gpu: str = ""

    @property
    def holds(self) -> bool:
        return self.task is not None or self.expires > time.monotonic()


_leases: dict[str, _Lease] = {}  # by address, as a process may hold several Dask workers
_lock = threading.Lock()


def run_key(job: str, workspace: str, run: str = "") -> str:
    """A unique name for a start of a run, from which parts_of_run reads job and workspace (an absolute path).

    run: its id, which all its starts have (Workspace.id).
    """
    return f"{job}{workspace}#{run}.{uuid.uuid4().hex[:12]}"


def parts_of_run(key: str) -> tuple[str, str]:
    """The job and the workspace that a run key names; empty where it is none.

    >>> parts_of_run("digits/home/me/runs/digits#5e6f.1a2b")
    ('digits', '/home/me/runs/digits')
    """
    job, slash, rest = key.partition("/")  # no name of a job holds a slash
    return (job, slash + rest.rpartition("#")[0]) if slash else ("", "")


def server_key(name: str, run: str) -> str:
    """The Dask key of a server's actor. run: what all groups and servers of a run have in common."""
    return f"server-{name}@{run}"


def servers(actors: Mapping[Any, Any]) -> list[str]:
    """The keys of the servers among the actors of a worker, by key. Those that are not made yet are None."""
    named = [key for key in actors if isinstance(key, str) and key.startswith("server-") and "@" in key]
    return [key for key in named if not getattr(actors[key], "closed", False)]


def holder(address: str) -> str:
    """The group that has this worker, "" for none."""
    with _lock:
        held = _leases.get(address)
        return held.group if held and held.holds else ""


def run_of(address: str) -> str:
    """The run of the group that has this worker, "" for none."""
    with _lock:
        held = _leases.get(address)
        return held.run if held and held.holds else ""


def reserve(address: str, group: str, lease_s: float, run: str = "") -> str:
    """Reserve the worker for a group of a run; returns the name of another one that has it, "" where it worked."""
    with _lock:
        held = _leases.get(address)
        if held and held.group != group and held.holds:
            return held.group
        _leases[address] = _Lease(group, time.monotonic() + lease_s, run)
        return ""


def release(address: str, group: str) -> None:
    """Give up a reservation that has no task yet."""
    with _lock:
        held = _leases.get(address)
        if held and held.group == group and held.task is None:
            del _leases[address]


def take_up(address: str, group: str, task: Any) -> bool:
    """Turn the reservation into a task. False where there is none: this process replaced the reserved one."""
    with _lock:
        held = _leases.get(address)
        if held is None or held.group != group or held.task is not None:
            return False
        held.task = task
        return True


def task_of(address: str, group: str) -> Any:
    """The group's task on this worker, None where it has none."""
    with _lock:
        held = _leases.get(address)
        return held.task if held and held.group == group else None


def use_gpu(address: str, gpu: str) -> None:
    """The task of this worker computes on a GPU with this identity."""
    with _lock:
        if address in _leases:
            _leases[address].gpu = gpu


def gpu_of(address: str) -> str:
    """The identity of the GPU on which the task of this worker computes, "" for none."""
    with _lock:
        held = _leases.get(address)
        return held.gpu if held else ""


def end(address: str) -> None:
    """The task is over: the worker is free."""
    with _lock:
        _leases.pop(address, None)
