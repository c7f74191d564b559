"""How a worker group begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from singa_dask.errors import CheckpointError, ClusterError
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Checkpoint
from singa_dask.training.replica import Replica

# Compiling kernels takes seconds, longer where workers share a core; so does writing a large checkpoint.
MEETING_TIMEOUT_S = 300.0


def put_parameters(
    replica: Replica, load: Callable[[], Checkpoint] | None, *, carry: bool, servers_are_new: bool
) -> Checkpoint | None:
    """Give the servers a checkpoint, else the initial parameters. Collective. Returns it on the first rank.

    load: reads the checkpoint, on the first rank. carry: see GroupState.restore. A restarted group whose servers are
    not new needs no checkpoint: they have the parameters. Raises CheckpointError where a new group's checkpoint is
    missing or damaged, ClusterError where it was in memory.
    """
    state, comm = replica.group_state, replica.comm
    if load is None:
        paths = replica.job.checkpoint_path if comm.rank == 0 else []
        state.initialise(checkpoints.load_parameters(paths, replica.net))
        return None
    checkpoint, found = None, np.ones(1)
    if comm.rank == 0:
        try:
            checkpoint = load()
        except (CheckpointError, ClusterError):
            if replica.in_process_servers or servers_are_new:
                raise
            found[0] = 0  # it may have been removed since
    with comm.patiently(MEETING_TIMEOUT_S):
        comm.broadcast(found)
    if found[0]:
        state.restore(checkpoint, carry=carry)
    return checkpoint


def must_save(replica: Replica, path: Path, step: int, run: str) -> bool:
    """Whether a checkpoint of this step is to be saved: there is no intact one of this run. Collective.

    A restarted group may begin at a step that an earlier one saved, or failed to save.
    """
    comm = replica.comm
    there = np.array([float(step == 0 or (comm.rank == 0 and checkpoints.intact(path, run)))])
    with comm.patiently(MEETING_TIMEOUT_S):
        comm.broadcast(there)
    return not there[0]
