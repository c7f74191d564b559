"""Where Dask workers come from, and how they become groups that train together."""

from singa_dask.cluster.forming import form_group, restart_workers
from singa_dask.cluster.group import Group, GroupFailed, RankFailure
from singa_dask.cluster.library import mpi_library
from singa_dask.cluster.local import local_cluster
from singa_dask.cluster.rank import current_task
from singa_dask.cluster.workers import Placement, WorkerInfo, place, probe, wait_workers

__all__ = [
    "Group",
    "GroupFailed",
    "Placement",
    "RankFailure",
    "WorkerInfo",
    "current_task",
    "form_group",
    "local_cluster",
    "mpi_library",
    "place",
    "probe",
    "restart_workers",
    "wait_workers",
]
