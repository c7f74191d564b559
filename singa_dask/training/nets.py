"""The nets of a job."""

from __future__ import annotations

from collections.abc import Iterable

from singa_dask.job import active_phases
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.net import Net
from singa_dask.ops import Ops


def make_nets(
    job: JobProto, ops: Ops, rank: int, size: int, *, phases: Iterable[int] | None = None, allocate: bool = True
) -> dict[int, Net]:
    """A worker's net of kTrain and of the other `phases`, by phase, all with the parameters of the training net.

    rank, size: of the worker in its group. phases: by default those that the job evaluates. allocate: see Net.
    """
    train = Net(job.neuralnet, Phase.kTrain, ops, rank=rank, size=size, allocate=allocate)
    nets: dict[int, Net] = {Phase.kTrain: train}
    for phase in active_phases(job) if phases is None else phases:
        if phase != Phase.kTrain:
            nets[phase] = Net(job.neuralnet, phase, ops, train, rank=rank, size=size)
    return nets
