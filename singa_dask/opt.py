"""Optimisers for training loops of one's own, under Apache SINGA's names: `from singa_dask import opt`.

    sgd = opt.SGD(lr=0.005, momentum=0.9, weight_decay=1e-5)
    sgd.backward_and_update(loss)                                # one process
    opt.DistOpt(sgd).backward_and_update(loss)                   # several

The rules and their settings are those of singa_dask.updaters.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from singa_dask import updaters
from singa_dask.comm import SoloCommunicator
from singa_dask.distopt import DistOpt, NcclIdHolder
from singa_dask.job.job_pb2 import UpdaterProto
from singa_dask.tensor import Tensor

__all__ = ["SGD", "AdaGrad", "Adam", "AdamW", "DistOpt", "NcclIdHolder", "RMSProp"]


class Optimizer:
    """An update rule that trains the layers of a loss in this process alone, or in all processes of a DistOpt.

    lr: the learning rate, a number or a schedule. proto: the message of the updater, so that a Job takes it too.
    """

    rule: ClassVar[type[updaters.Updater]]

    def __init__(self, lr: float | updaters.Schedule | None = None, **settings: Any) -> None:
        settings["learning_rate" if isinstance(lr, updaters.Schedule) else "lr"] = lr
        self.proto: UpdaterProto = self.rule(**settings).proto

    @cached_property
    def alone(self) -> DistOpt:
        """What updates in this process."""
        return DistOpt(self.proto, comm=SoloCommunicator())

    def update(self, p: Tensor, g: Tensor) -> None:
        """Update one parameter by its gradient; see DistOpt.update."""
        self.alone.update(p, g)

    def backward_and_update(self, loss: Any) -> None:
        """Update all parameters from which the loss was computed; see DistOpt.backward_and_update."""
        self.alone.backward_and_update(loss)

    __call__ = backward_and_update


class SGD(Optimizer):
    rule = updaters.SGD


class AdaGrad(Optimizer):
    rule = updaters.AdaGrad


class RMSProp(Optimizer):
    rule = updaters.RMSProp


class Adam(Optimizer):
    rule = updaters.Adam


class AdamW(Optimizer):
    rule = updaters.AdamW


for _optimizer in (SGD, AdaGrad, RMSProp, Adam, AdamW):
    _optimizer.__doc__ = _optimizer.rule.__doc__
