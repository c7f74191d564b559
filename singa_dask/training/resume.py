"""How a worker group begins, and the checkpoints that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from singa_dask.errors import CheckpointError
from singa_dask.job import job_to_text
from singa_dask.job.code_bundle import CodeBundle
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.replica import Replica

# Compiling kernels takes seconds, longer where workers share a core; so does writing a large checkpoint.
MEETING_TIMEOUT_S = 300.0


def put_parameters(replica: Replica, resume: Path | None, *, carry: bool, servers_are_new: bool) -> None:
    """Give the servers the checkpoint `resume`, else the initial parameters. Collective.

    carry: see GroupState.restore. A restarted group whose servers are not new needs no checkpoint: they have the
    parameters. Raises CheckpointError where a new group's checkpoint is missing or damaged.
    """
    state, comm = replica.group_state, replica.comm
    if resume is None:
        state.initialise(checkpoints.load_parameters(replica.job.checkpoint_path) if comm.rank == 0 else {})
        return
    checkpoint, found = None, np.ones(1)
    if comm.rank == 0:
        try:
            checkpoint = checkpoints.load(resume)
        except CheckpointError:
            if replica.in_process_servers or servers_are_new:
                raise
            found[0] = 0  # it may have been removed since
    comm.broadcast(found)
    if found[0]:
        state.restore(checkpoint, carry=carry)


def save_checkpoint(
    replica: Replica,
    folder: Path,
    step: int,
    data: Mapping[str, str],
    saved: Callable[[Path, int], None],
    *,
    described: Mapping[str, str],
    code: CodeBundle | None,
) -> None:
    """Save the group's state, unless there is an intact checkpoint of this step. Collective.

    A restarted group may begin at a step that an earlier one saved, or failed to save. data, described, code: as
    `Prepared` has them. saved: called with path and step on the first rank, if the checkpoint was written.
    """
    comm, path = replica.comm, checkpoints.path_of(folder, step)
    there = np.array([float(step == 0 or (comm.rank == 0 and checkpoints.intact(path)))])
    with comm.patiently(MEETING_TIMEOUT_S):
        comm.broadcast(there)
    if there[0]:
        return
    replica.drain()
    snapshot = replica.group_state.snapshot(step, job_to_text(replica.job), data)
    snapshot.described, snapshot.code = described, code
    with comm.patiently(MEETING_TIMEOUT_S):
        if comm.rank == 0:
            saved(checkpoints.save(snapshot, path), step)
        else:
            checkpoints.contribute(snapshot)
        comm.barrier()
