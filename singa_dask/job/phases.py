"""Which layers run in which phase."""

from __future__ import annotations

from singa_dask.job.job_pb2 import JobProto, LayerProto, Phase


def runs_in(layer: LayerProto, phase: int) -> bool:
    """Whether the layer runs in this phase: it is in `include` if given, else not in `exclude`."""
    if layer.include:
        return phase in layer.include
    return phase not in layer.exclude


def active_phases(job: JobProto) -> list[int]:
    """The phases of the job: training, and each evaluation with both a frequency and steps."""
    phases: list[int] = [Phase.kTrain]
    if job.validate_freq > 0 and job.validate_steps > 0:
        phases.append(Phase.kVal)
    if job.test_freq > 0 and job.test_steps > 0:
        phases.append(Phase.kTest)
    return phases
