"""When a run saves by the clock."""

from __future__ import annotations

import math

from singa_dask.job.job_pb2 import JobProto


def checkpoint_seconds(job: JobProto) -> float:
    """Seconds between two checkpoints on the disk, infinity where the job does not say; NaN where it says no time."""
    return _seconds(job.checkpoint_every) if job.checkpoint_every else math.inf


def memory_checkpoint_seconds(job: JobProto) -> float:
    """Seconds between two checkpoints in memory, 0 for none; NaN where the job says no time."""
    return _seconds(job.memory_checkpoint_every)


def _seconds(text: str) -> float:
    from dask.utils import parse_timedelta  # takes longer than reading a job

    try:
        return float(parse_timedelta(text, default=False))
    except (ValueError, KeyError, IndexError):
        return math.nan
