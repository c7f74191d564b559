"""What a worker group begins with: what lost ranks have left in memory, a checkpoint, or the initial parameters."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.errors import CheckpointError, ClusterError
from singa_dask.memory.owner import Saved
from singa_dask.memory.store import Store
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Checkpoint
from singa_dask.training.group_checkpoints import memory_file

if TYPE_CHECKING:
    from singa_dask.training.replica import Replica
    from singa_dask.training.worker import WorkerPlan

logger = logging.getLogger(__name__)

# Compiling kernels takes seconds, longer where workers share a core; so does reading a large checkpoint.
MEETING_TIMEOUT_S = 300.0


def begin(replica: Replica, plan: WorkerPlan, deposits: Store | None) -> tuple[Mapping[str, Any], bool]:
    """Put the state on the servers with which the group begins. Collective.

    Returns what evaluations had decided by then, on the first rank, and whether lost ranks have left what this group
    cannot read. Raises CheckpointError where a new group's checkpoint is missing or damaged, ClusterError where it was
    in memory.
    """
    state, comm, group, unread = replica.group_state, replica.comm, plan.group, False
    if group.left:
        decisions = state.recover(group.left, group.first)
        if decisions is not None:
            return decisions, False
        unread = not state.outdated
    if not group.resume:
        paths = replica.job.checkpoint_path if comm.rank == 0 else []
        state.initialise(checkpoints.load_parameters(paths, replica.net))
        return {}, unread
    checkpoint, found = None, np.ones(1)
    if comm.rank == 0:
        try:
            # Servers that are not new may have been given this one already, and no other.
            checkpoint = load(group.resume, deposits, plan.checkpoints if group.fresh else None)
        except (CheckpointError, ClusterError):
            if replica.in_process_servers or group.fresh:
                raise
            found[0] = 0  # it may have been removed since; servers that are not new have the parameters
    with comm.patiently(MEETING_TIMEOUT_S):
        comm.broadcast(found)
    if found[0]:
        state.restore(checkpoint, carry=group.leads)
    return checkpoint.decisions if checkpoint else {}, unread


def load(source: Path | Sequence[Saved], deposits: Store | None, folder: Path | None) -> Checkpoint:
    """The checkpoint in a file, or in the memory of nannies; if those do not have it any more, the newest in the
    folder, if one is given. Raises CheckpointError if the file is missing or damaged, ClusterError if nothing is left.
    """
    if isinstance(source, Path):
        return checkpoints.load(source)
    assert deposits is not None
    for copy in sorted(source, key=lambda copy: copy.holder != deposits.place[1]):
        try:
            with memory_file() as path:
                with path.open("wb") as file:
                    deposits.read(copy, file.write)
                return checkpoints.load(path)  # its arrays hold the file open
        except (ClusterError, CheckpointError, OSError) as error:
            logger.warning("a checkpoint in the memory of the nanny %s cannot be read: %s", copy.holder, error)
    found = None if folder is None else checkpoints.newest(folder)[0]
    if found is None:
        raise ClusterError("the checkpoint in memory is gone")
    return checkpoints.load(found.path)
