"""What an algorithm is."""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import AlgProto
from singa_dask.job.user_code import check_own_type, code_name
from singa_dask.layers.context import Metric, Step
from singa_dask.layers.param import Param
from singa_dask.net import Net

KEY = "train_one_batch"


class TrainOneBatch(ABC):
    """Computes the gradients of one mini-batch.

    As a description it wraps an AlgProto: `BP().proto`. A class of your own is named by the job's `user_alg`; it may
    have keyword arguments, numbers and text, which reach the workers as `user_conf`.

    type: the AlgType name. carries: whether recurrent layers start a mini-batch from the state that the last one left
    (`Net.carries`).
    """

    type: ClassVar[str] = "kUserAlg"
    carries: ClassVar[bool] = False

    def __init__(self, **settings: Any) -> None:
        cls = type(self)
        check_own_type(cls, TrainOneBatch, f"{KEY} {cls.__name__}")
        proto = AlgProto(alg=AlgProto.AlgType.Value(cls.type))
        if cls.type == "kUserAlg":
            ours = cls.__init__.__module__.startswith("singa_dask.")  # CD's have a field of their own
            every = [] if ours else inspect.signature(cls).parameters.values()
            lost = [
                p.name for p in every if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in settings
            ]
            if lost:
                hint = "Hand them to super().__init__ as keyword arguments, and read self.conf in prepare()."
                message = "settings that it keeps to itself do not reach the workers"
                raise ConfigError(Problem(f"{KEY} {cls.__name__}", message, ", ".join(lost), hint))
            proto.user_alg = code_name(cls)
            if settings:
                proto.user_conf = json.dumps(settings)
        elif settings:
            received = ", ".join(f"{key}={value!r}" for key, value in settings.items())
            hint = "Leave it out: keyword arguments are for algorithms of your own."
            raise ConfigError(Problem(KEY, f"{cls.__name__} has no such setting", received, hint))
        self._adopt(proto)

    @classmethod
    def from_proto(cls, proto: AlgProto) -> TrainOneBatch:
        """The algorithm that this message describes."""
        found = cls(**json.loads(proto.user_conf)) if proto.user_conf else cls()
        found._adopt(proto)
        return found

    def _adopt(self, proto: AlgProto) -> None:
        self.proto = proto
        self.prepare()

    @property
    def conf(self) -> dict[str, Any]:
        """The keyword arguments of an algorithm of one's own."""
        return json.loads(self.proto.user_conf) if self.proto.user_conf else {}

    def prepare(self) -> None:  # noqa: B027 - most have nothing to read
        """Read and check the settings, where an algorithm of one's own has any."""

    def check(self, net: Net) -> None:  # noqa: B027 - most train any net
        """Raise ConfigError where this net is none that it can train; before a job starts."""

    @abstractmethod
    def train_one_batch(
        self,
        net: Net,
        feed: Mapping[str, Any],
        step: Step,
        on_gradient: Callable[[Param], None] | None = None,
    ) -> dict[str, Metric]:
        """Fill `net.flat.grads` from the rows in `feed`; returns what was measured on the way.

        on_gradient: called once with each parameter as soon as its gradient is complete, so that sending it can start;
        from then on its value may become the next step's.
        """

    def test_one_batch(self, net: Net, feed: Mapping[str, Any], step: Step) -> dict[str, Metric]:
        """Measure the rows in `feed`; gradients stay as they are."""
        net.carries = self.carries
        net.forward(feed, step)
        return net.metrics()
