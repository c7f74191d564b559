"""Update rules and learning-rate schedules."""

from __future__ import annotations

from singa_dask.job.description import class_of
from singa_dask.job.job_pb2 import UpdaterProto
from singa_dask.ops import Ops
from singa_dask.updaters import schedules
from singa_dask.updaters.base import EMA, Updater, state_names
from singa_dask.updaters.mixing import Changes, Mixing
from singa_dask.updaters.rules import LAMB, SGD, AdaDelta, AdaGrad, Adam, AdamMax, AdamW, Nesterov, RMSProp
from singa_dask.updaters.schedules import Schedule, learning_rate

__all__ = [
    "EMA",
    "LAMB",
    "SGD",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "AdamMax",
    "AdamW",
    "Changes",
    "Mixing",
    "Nesterov",
    "RMSProp",
    "Schedule",
    "Updater",
    "learning_rate",
    "make_updater",
    "schedules",
    "states_of",
    "updater_class",
]

BY_TYPE: dict[str, type[Updater]] = {
    cls.type: cls for cls in (SGD, Nesterov, AdaGrad, RMSProp, AdaDelta, Adam, AdamMax, AdamW, LAMB)
}


def updater_class(proto: UpdaterProto) -> type[Updater]:
    """The class that the message's `type`, or `user_type` spelled "module:Class", names; ConfigError if none."""
    return class_of(proto, BY_TYPE, Updater, "updater")


def states_of(proto: UpdaterProto) -> tuple[str, ...]:
    """The names of the arrays that the updater of this message keeps between updates."""
    return state_names(updater_class(proto), proto)


def make_updater(proto: UpdaterProto, ops: Ops) -> Updater:
    """The updater that a job's `updater` block describes, computing on `ops`. Raises ConfigError where it cannot."""
    updater = updater_class(proto).from_proto(proto)
    updater.ops = ops
    return updater
