"""What an algorithm is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from singa_dask.job.job_pb2 import AlgProto
from singa_dask.job.user_code import code_name
from singa_dask.layers.context import Metric, Step
from singa_dask.layers.param import Param
from singa_dask.net import Net


class TrainOneBatch(ABC):
    """Computes the gradients of one mini-batch.

    As a description it wraps an AlgProto: `BP().proto`. A class of your own is named by the job's `user_alg`.

    type: the AlgType name. carries: whether recurrent layers start a mini-batch from the state that the last one left
    (`Net.carries`).
    """

    type: ClassVar[str] = "kUserAlg"
    carries: ClassVar[bool] = False

    def __init__(self) -> None:
        self.proto = AlgProto(alg=AlgProto.AlgType.Value(self.type))
        if self.type == "kUserAlg":
            self.proto.user_alg = code_name(type(self))

    @classmethod
    def from_proto(cls, proto: AlgProto) -> TrainOneBatch:
        """The algorithm that this message describes."""
        found = cls()
        found.proto = proto
        return found

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
