"""Which layers run in which phase."""

from __future__ import annotations

from singa_dask.job.job_pb2 import JobProto, LayerProto, Phase


def runs_in(layer: LayerProto, phase: int) -> bool:
    """Whether the layer exists in this phase: one of `include` if given, else none of `exclude`."""
    if layer.include:
        return phase in layer.include
    return phase not in layer.exclude


def active_phases(job: JobProto) -> list[int]:
    """The phases that the job goes through: training, and the evaluations that have both a frequency and steps."""
    phases: list[int] = [Phase.kTrain]
    if job.validate_freq > 0 and job.validate_steps > 0:
        phases.append(Phase.kVal)
    if job.test_freq > 0 and job.test_steps > 0:
        phases.append(Phase.kTest)
    return phases
