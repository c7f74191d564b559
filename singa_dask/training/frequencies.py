"""When a run displays, tests, validates and saves. `step` is the number of completed training steps."""

from __future__ import annotations

from singa_dask.job import active_phases
from singa_dask.job.job_pb2 import JobProto, Phase


def due(step: int, freq: int, after: int) -> bool:
    """SINGA's rule: freq > 0 and step >= after and (step - after) % freq == 0."""
    return freq > 0 and step >= after and (step - after) % freq == 0


def evaluations_due(job: JobProto, step: int) -> list[int]:
    """The phases (kVal, kTest) to evaluate after `step` steps; at the end, all phases of the job."""
    rules = {Phase.kVal: (job.validate_freq, job.validate_after), Phase.kTest: (job.test_freq, job.test_after)}
    last = step >= job.train_steps
    return [phase for phase, rule in rules.items() if phase in active_phases(job) and (last or due(step, *rule))]


def batches_of(job: JobProto, phase: int) -> int:
    """The number of mini-batches in one evaluation of this phase; 0 for the whole set."""
    return job.test_steps if phase == Phase.kTest else job.validate_steps
