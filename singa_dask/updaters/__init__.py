"""Update rules and learning-rate schedules."""

from __future__ import annotations

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import UpdaterProto
from singa_dask.job.user_code import user_code
from singa_dask.ops import Ops
from singa_dask.updaters import schedules
from singa_dask.updaters.base import Updater
from singa_dask.updaters.rules import SGD, AdaDelta, AdaGrad, Adam, AdamMax, Nesterov, RMSProp
from singa_dask.updaters.schedules import Schedule, learning_rate

__all__ = [
    "SGD",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "AdamMax",
    "Nesterov",
    "RMSProp",
    "Schedule",
    "Updater",
    "learning_rate",
    "make_updater",
    "schedules",
    "updater_class",
]

BY_TYPE: dict[int, type[Updater]] = {
    UpdaterProto.UpdaterType.Value(cls.type): cls for cls in (SGD, Nesterov, AdaGrad, RMSProp, AdaDelta, Adam, AdamMax)
}


def updater_class(proto: UpdaterProto) -> type[Updater]:
    """The class that the message's `type`, or `user_type` spelled "module:Class", names; ConfigError if none."""
    if proto.type in BY_TYPE:
        return BY_TYPE[proto.type]
    if not proto.user_type:
        raise ConfigError(
            Problem(
                "updater.type",
                "kUserUpdater needs user_type",
                received="kUserUpdater" if proto.HasField("type") else "no type",
                hint='Write type: kSGD (or another), or user_type: "module:Class".',
            )
        )
    found = user_code(proto.user_type, "updater.user_type")
    if not (isinstance(found, type) and issubclass(found, Updater)):
        raise ConfigError(Problem("updater.user_type", "must name a subclass of Updater", repr(proto.user_type)))
    return found


def make_updater(proto: UpdaterProto, ops: Ops) -> Updater:
    """The updater that a job's `updater` block describes, computing on `ops`. Raises ConfigError where it cannot."""
    updater = updater_class(proto).from_proto(proto)
    updater.ops = ops
    return updater
