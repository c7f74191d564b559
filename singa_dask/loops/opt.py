"""Optimisers for training loops of one's own, under Apache SINGA's names: `from singa_dask import opt`.

    sgd = opt.SGD(lr=0.005, momentum=0.9, weight_decay=1e-5)
    sgd.backward_and_update(loss)                                # one process
    opt.DistOpt(sgd).backward_and_update(loss)                   # several

The rules and their settings are those of singa_dask.updaters.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from singa_dask import updaters
from singa_dask.comm import SoloCommunicator
from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import UpdaterProto
from singa_dask.loops.distopt import DistOpt, NcclIdHolder
from singa_dask.tensors.device import float_type
from singa_dask.tensors.tensor import Tensor

__all__ = ["LAMB", "SGD", "AdaGrad", "Adam", "AdamW", "DistOpt", "NcclIdHolder", "RMSProp"]

# SINGA 3.x's names of settings, and those of singa_dask.updaters.
_NAMES = {"beta_1": "beta1", "beta_2": "beta2", "epsilon": "delta"}


class Optimizer:
    """An update rule that trains the layers of a loss in this process alone, or in all processes of a DistOpt.

    lr: the learning rate, a number or a schedule. dtype: it computes in the type of the parameters; 16 bits are
    refused. proto: the message of the updater, so that a Job takes it too.
    """

    rule: type[updaters.Updater]

    def __init__(self, lr: float | updaters.Schedule | None = None, *, dtype: Any = None, **settings: Any) -> None:
        if dtype is not None:
            float_type(dtype)
        named = {_NAMES.get(name, name): value for name, value in settings.items()}
        if len(named) < len(settings):
            raise ConfigError(Problem("updater", "one setting is given twice", ", ".join(settings)))
        if lr is not None:
            named["learning_rate" if isinstance(lr, updaters.Schedule) else "lr"] = lr
        self.proto: UpdaterProto = self.rule(**named).proto

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

    def state_dict(self) -> dict[str, Any]:
        """The step and the state of the rule, by parameter name; see DistOpt.state_dict."""
        return self.alone.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from this state; see DistOpt.load_state_dict."""
        self.alone.load_state_dict(state)


class SGD(Optimizer):
    """v = momentum v - lr (1 - dampening) g;  w += v, or with nesterov the rule of updaters.Nesterov.   lr [0.1].

    Raises ConfigError for a dampening with nesterov or a schedule, and for nesterov without momentum.
    """

    rule: type[updaters.Updater] = updaters.SGD

    def __init__(
        self,
        lr: float | updaters.Schedule | None = None,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        **settings: Any,
    ) -> None:
        if nesterov and not momentum:
            raise ConfigError(Problem("updater.nesterov", "needs momentum", hint="For example momentum=0.9."))
        if nesterov:
            self.rule = updaters.Nesterov
        if lr is None and "learning_rate" not in settings:
            lr = 0.1
        if dampening and momentum:
            if nesterov or not isinstance(lr, float | int):
                hint = "Multiply the rates of the schedule by 1 - dampening, and leave nesterov out."
                raise ConfigError(
                    Problem("updater.dampening", "needs a number as lr, and no nesterov", str(dampening), hint)
                )
            lr *= 1 - dampening
        settings |= {name: value for name, value in (("momentum", momentum), ("weight_decay", weight_decay)) if value}
        super().__init__(lr, **settings)


class AdaGrad(Optimizer):
    rule = updaters.AdaGrad


class RMSProp(Optimizer):
    rule = updaters.RMSProp

    def __init__(self, lr: float | updaters.Schedule | None = None, rho: float = 0.9, **settings: Any) -> None:
        super().__init__(lr, rho=rho, **settings)


class Adam(Optimizer):
    rule = updaters.Adam


class AdamW(Optimizer):
    rule = updaters.AdamW


class LAMB(Optimizer):
    rule = updaters.LAMB


for _optimizer in (AdaGrad, RMSProp, Adam, AdamW, LAMB):
    _optimizer.__doc__ = _optimizer.rule.__doc__
