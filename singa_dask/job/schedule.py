"""When a run saves by the clock."""

from __future__ import annotations

import math

from singa_dask.job.job_pb2 import JobProto


def checkpoint_seconds(job: JobProto) -> float:
    """Seconds between two checkpoints, infinity where the job does not say; NaN where it says no time."""
    if not job.checkpoint_every:
        return math.inf
    from dask.utils import parse_timedelta  # takes longer than reading a job

    try:
        return float(parse_timedelta(job.checkpoint_every, default=False))
    except (ValueError, KeyError, IndexError):
        return math.nan
