"""What a worker group begins with: what lost ranks have left in memory, a checkpoint, or the initial parameters."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singa_dask.comm.objects import broadcast_object
from singa_dask.errors import CheckpointError, ClusterError
from singa_dask.memory.owner import Saved
from singa_dask.memory.store import Store
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Checkpoint
from singa_dask.training.group_checkpoints import memory_file
from singa_dask.training.initial_parameters import load_parameters

if TYPE_CHECKING:
    from singa_dask.training.rank_plan import WorkerPlan
    from singa_dask.training.replica import Replica

logger = logging.getLogger(__name__)

# Compiling kernels takes seconds, longer where workers share a core; so does reading a large checkpoint.
MEETING_TIMEOUT_S = 300.0


def begin(replica: Replica, plan: WorkerPlan, deposits: Store | None) -> tuple[Mapping[str, Any], bool]:
    """Put the state on the servers with which the group begins. Collective.

    Returns what evaluations had decided by then, on the first rank, and whether lost ranks have left what this group
    cannot read. Raises CheckpointError or ClusterError where a new group's checkpoint is missing or damaged.
    """
    state, comm, group, unread = replica.group_state, replica.comm, plan.group, False
    if group.left:
        decisions = state.recover(group.left, group.first)
        if decisions is not None:
            return decisions, False
        unread = not state.outdated
    if not group.resume:
        paths = replica.job.checkpoint_path if comm.rank == 0 else []
        state.initialise(load_parameters(paths, replica.net))
        return {}, unread
    checkpoint = None
    if comm.rank == 0:
        try:
            # Servers that are not new may have been given this one already, and no other.
            checkpoint = load(group.resume, deposits, plan.checkpoints if group.fresh else None)
        except (CheckpointError, ClusterError):
            if replica.in_process_servers or group.fresh:
                raise  # else it may have been removed since: servers that are not new have the parameters
    with comm.patiently(MEETING_TIMEOUT_S):
        there = broadcast_object(comm, checkpoint is not None)
    if there:
        state.restore(checkpoint, carry=group.leads)
    return checkpoint.decisions if checkpoint else {}, unread


def load(copies: Sequence[Saved], store: Store | None, folder: Path | None) -> Checkpoint:
    """The checkpoint of which these are copies, in files or in the memory of nannies, the own one first. If none can
    be read, the newest in the folder, if one is given. Raises CheckpointError or ClusterError if nothing is left."""
    fault: Exception | None = None
    for copy in sorted(copies, key=lambda copy: store is not None and copy.holder != store.place[1]):
        try:
            return _read(copy, store)
        except (ClusterError, CheckpointError, OSError) as error:
            logger.warning("the checkpoint at %s cannot be read: %s", copy.holder, error)
            fault = error
    found = None if folder is None else checkpoints.newest(folder)[0]
    if found is None:
        raise ClusterError("the checkpoint in memory is gone") if fault is None or copies[0].regions else fault
    return checkpoints.load(found.path)


def _read(copy: Saved, store: Store | None) -> Checkpoint:
    if not copy.regions:
        return checkpoints.load(Path(copy.holder))
    assert store is not None
    with memory_file() as path:
        with path.open("wb") as file:
            store.read(copy, file.write)
        return checkpoints.load(path)  # its arrays hold the file open
