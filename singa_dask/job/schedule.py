"""The times in a job: "60s", "10m"."""

from __future__ import annotations

import math

from singa_dask.job.job_pb2 import JobProto


def checkpoint_seconds(job: JobProto) -> float:
    """Seconds between two checkpoints on the disk, infinity where the job does not say."""
    return seconds_in(job.checkpoint_every) if job.checkpoint_every else math.inf


def memory_checkpoint_seconds(job: JobProto) -> float:
    """Seconds between two checkpoints in memory, 0 for none."""
    return seconds_in(job.memory_checkpoint_every)


def orphan_seconds(job: JobProto) -> float:
    """For how long the memory of a run outlives its driver."""
    return seconds_in(job.orphan_timeout)


def seconds_in(time: str) -> float:
    """Seconds; NaN for anything but a number with a unit."""
    from dask.utils import parse_timedelta  # takes longer than reading a job

    try:
        return float(parse_timedelta(time, default=False))
    except (ValueError, KeyError, IndexError):
        return math.nan
