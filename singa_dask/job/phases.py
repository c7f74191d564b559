"""Which layers run in which phase."""

from __future__ import annotations

from singa_dask.job.job_pb2 import JobProto, LayerProto, NetProto, Phase
from singa_dask.job.unroll import plain

# Fields of store_conf that are taken from the data.
_FROM_DATA = ("shape", "target_shape", "mean", "std", "target_mean", "target_std")


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


def missing_inputs(net: NetProto, phase: int) -> list[str]:
    """The input layers that layers read in a phase in which they do not run."""
    running = [layer for layer in net.layer if runs_in(layer, phase)]
    inputs = {layer.name for layer in net.layer if not layer.srclayers} - {layer.name for layer in running}
    return list(dict.fromkeys(name for layer in running for name in layer.srclayers if name in inputs))


def for_predicting(net: NetProto) -> NetProto:
    """The net with what a prediction needs in phase kTest, also of a job that has no test data or has not prepared it.

    An input layer that does not run in kTest does, as it is in kVal or kTrain. One without a shape has the shapes and
    the normalisation of its namesake in kTrain.
    """
    result = plain(net)
    inputs: dict[str, list[LayerProto]] = {}
    for layer in result.layer:
        if not layer.srclayers:
            inputs.setdefault(layer.name, []).append(layer)
    missing = missing_inputs(result, Phase.kTest)
    for name, layers in inputs.items():
        tested, validated, trained = (
            next((layer for layer in layers if runs_in(layer, phase)), None)
            for phase in (Phase.kTest, Phase.kVal, Phase.kTrain)
        )
        if name in missing:
            _let_run(validated or trained or layers[0])
        elif tested is not None and trained is not None and not tested.store_conf.shape and trained.store_conf.shape:
            tested.store_conf.ClearField("normalise")
            tested.store_conf.ClearField("normalise_target")
            for field in _FROM_DATA:
                getattr(tested.store_conf, field)[:] = getattr(trained.store_conf, field)
    return result


def _let_run(layer: LayerProto) -> None:
    """Let the layer run in kTest too."""
    if layer.include:
        layer.include.append(Phase.kTest)
    else:
        layer.exclude[:] = [phase for phase in layer.exclude if phase != Phase.kTest]
