"""The base class of training algorithms."""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.description import Description
from singa_dask.job.job_pb2 import AlgProto
from singa_dask.layers.context import Metric, Step
from singa_dask.layers.param import Param
from singa_dask.net import Net

KEY = "train_one_batch"
# Called with each parameter when its gradient is complete.
OnGradient = Callable[[Param], None] | None


class TrainOneBatch(Description, ABC):
    """Computes the gradients of one mini-batch.

    As a description it wraps an AlgProto: `BP().proto`. A job names a user class in `user_alg`. Its keyword arguments,
    numbers and text, reach the workers as `user_conf`.

    carries: whether recurrent layers start a mini-batch from the final state of the last one (`Net.carries`).
    """

    type: ClassVar[str] = "kUserAlg"
    type_field: ClassVar[str] = "alg"
    user_field: ClassVar[str] = "user_alg"
    carries: ClassVar[bool] = False

    def __init__(self, **settings: Any) -> None:
        proto = AlgProto()
        self._describe(proto, TrainOneBatch, KEY, settings)
        _check_kept(type(self), settings)
        self._adopt(proto)

    @classmethod
    def from_proto(cls, proto: AlgProto) -> Self:
        # A user class may set attributes in __init__.
        made = cls(**json.loads(proto.user_conf)) if proto.user_conf else cls()
        made._adopt(proto)
        return made

    def _adopt(self, proto: AlgProto) -> None:
        super()._adopt(proto)
        self.prepare()

    def prepare(self) -> None:
        """Read and check the settings of a user class."""

    def check(self, net: Net) -> None:
        """Raise ConfigError if it cannot train this net. Called before a job starts."""

    @abstractmethod
    def train_one_batch(
        self, net: Net, feed: Mapping[str, Any], step: Step, on_gradient: OnGradient = None
    ) -> dict[str, Metric]:
        """Fill `net.flat.grads` from the rows in `feed`. Returns the metrics.

        on_gradient: called once with each parameter when its gradient is complete. The exchange may then send the
        gradient and update the value.
        """

    def test_one_batch(self, net: Net, feed: Mapping[str, Any], step: Step) -> dict[str, Metric]:
        """Measure the rows in `feed` without changing gradients."""
        net.carries = self.carries
        net.forward(feed, step)
        return net.metrics()


def _check_kept(cls: type[TrainOneBatch], settings: Mapping[str, Any]) -> None:
    """Raise ConfigError if a user class has constructor arguments that the job would not record."""
    if cls.__init__ is TrainOneBatch.__init__:
        return
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    lost = [
        p.name for p in inspect.signature(cls).parameters.values() if p.kind not in kinds and p.name not in settings
    ]
    if lost:
        hint = "Pass them to super().__init__ as keyword arguments, and read self.user_conf in prepare()."
        message = "its constructor arguments do not reach the workers"
        raise ConfigError(Problem(f"{KEY} {cls.__name__}", message, ", ".join(lost), hint))
