"""Which layers run in which phase."""

from __future__ import annotations

from collections.abc import Iterable

from singa_dask.job.job_pb2 import JobProto, LayerProto, LayerType, Phase


def runs_in(layer: LayerProto, phase: int) -> bool:
    """Whether the layer runs in this phase: it is in `include` if given, else not in `exclude`."""
    if layer.include:
        return phase in layer.include
    return phase not in layer.exclude


def reads_data(layer: LayerProto) -> bool:
    """Whether the layer is an input of the net."""
    return not layer.srclayers and layer.type != LayerType.kDummy


def graph_phase(layers: Iterable[LayerProto], phase: int) -> int:
    """The phase whose layers make up the net of `phase`: its own, unless this is kTest and no input runs there.

    Then they are those of kVal, or of kTrain if no input runs in kVal either: a net that was only trained has a test
    net too, the same layers without dropout and the like.
    """
    inputs = [layer for layer in layers if reads_data(layer)]
    if phase != Phase.kTest or any(runs_in(layer, phase) for layer in inputs):
        return phase
    return Phase.kVal if any(runs_in(layer, Phase.kVal) for layer in inputs) else Phase.kTrain


def active_phases(job: JobProto) -> list[int]:
    """The phases of the job: training, and each evaluation with a frequency."""
    phases: list[int] = [Phase.kTrain]
    if job.validate_freq > 0:
        phases.append(Phase.kVal)
    if job.test_freq > 0:
        phases.append(Phase.kTest)
    return phases
