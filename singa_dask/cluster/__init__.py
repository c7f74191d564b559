"""Where Dask workers come from, and how they become groups that train together."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from singa_dask.cluster.formation import form_group
    from singa_dask.cluster.group import Group, GroupFailed, RankFailure
    from singa_dask.cluster.local_dask import local_cluster
    from singa_dask.cluster.rank import current_task
    from singa_dask.cluster.workers import WorkerInfo, wait_workers

# Loaded when first used: processes that form their world without Dask (`launch`) must not wait for it.
_HOMES = {
    "Group": "group",
    "GroupFailed": "group",
    "RankFailure": "group",
    "WorkerInfo": "workers",
    "current_task": "rank",
    "form_group": "formation",
    "local_cluster": "local_dask",
    "wait_workers": "workers",
}

__all__ = [
    "Group",
    "GroupFailed",
    "RankFailure",
    "WorkerInfo",
    "current_task",
    "form_group",
    "local_cluster",
    "wait_workers",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"singa_dask.cluster.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'singa_dask.cluster' has no attribute {name!r}")
