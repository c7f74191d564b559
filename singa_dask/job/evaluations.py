"""What a job measures outside of training: its evaluations, and the metrics on which decisions rest."""

from __future__ import annotations

from collections.abc import Iterator

from singa_dask.job.job_pb2 import JobProto, LRGenProto, Phase, ReduceOnPlateauProto
from singa_dask.job.paths import Path
from singa_dask.job.phases import active_phases

PHASE_NAMES: dict[int, str] = {Phase.kTrain: "train", Phase.kVal: "validate", Phase.kTest: "test"}
EARLY_STOPPING: Path = ("early_stopping", "metric")
KEEP_BEST: Path = ("keep_best",)
_RATE: Path = ("updater", "learning_rate")

# Other metrics are maximised.
_MINIMISED = {"loss", "mae", "mape", "mse", "msle", "rmse", "error", "perplexity"}


def watched_metrics(job: JobProto) -> dict[Path, str]:
    """The metrics of evaluations that the job's decisions rest on ("validate.loss"), by field.

    A field that is not set stands for the loss of the validation, or of the test if the job does not validate.
    """
    default = "validate.loss" if Phase.kVal in active_phases(job) else "test.loss"
    found = {}
    if job.HasField("early_stopping"):
        found[EARLY_STOPPING] = job.early_stopping.metric or default
    if job.HasField("keep_best"):
        found[KEEP_BEST] = job.keep_best
    for path, conf in plateaus(job.updater.learning_rate):
        found[(*path, "metric")] = conf.metric or default
    return found


def plateaus(rate: LRGenProto, path: Path = _RATE) -> Iterator[tuple[Path, ReduceOnPlateauProto]]:
    """The settings of every ReduceOnPlateau in a learning rate, with their paths: its own, or those of a sequence."""
    if rate.type == LRGenProto.kReduceOnPlateau:
        yield (*path, "reduceonplateau_conf"), rate.reduceonplateau_conf
    elif rate.type == LRGenProto.kSequential:
        for i, each in enumerate(rate.sequential_conf.schedule):
            yield from plateaus(each, (*path, "sequential_conf", "schedule", i))


def is_minimised(metric: str) -> bool:
    """Whether lower values of a metric are better, by its name: losses and errors; all others are maximised.

    >>> is_minimised("validate.loss"), is_minimised("test.head.rmse"), is_minimised("validate.accuracy")
    (True, True, False)
    """
    name = metric.rpartition(".")[2]
    return name in _MINIMISED or name.endswith(("_loss", "_error"))
