"""Where a model computes, in whatever process it is, and with which net a thread does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from singa_dask.algorithms import BP
from singa_dask.algorithms.evaluation import Evaluator
from singa_dask.inference.feeding import mini_batches
from singa_dask.job.gpus import CPUS
from singa_dask.job.job_pb2 import JobProto
from singa_dask.net import Batch, Net
from singa_dask.ops import Ops
from singa_dask.ops.gpu.turns import in_turns, own_gpu, places_here

if TYPE_CHECKING:
    from singa_dask.inference.model import Model


@dataclass(frozen=True)
class Where:
    """What says on which device a model computes; the device is that of the process.

    gpu: as in JobProto: from which GPUs a process takes its own; it takes the CPU where it sees none of them.
    compute: of JobProto, on GPUs.
    """

    gpu: tuple[int, ...] = ()
    compute: str = "kFloat32"

    @classmethod
    def of(cls, job: JobProto) -> Self:
        return cls(tuple(job.gpu), JobProto.Compute.Name(job.compute))

    def here(self, dtype: Any = np.float32) -> dict[str, Any]:
        """The device of this process, as get_ops takes it."""
        if not places_here(self.gpu):
            return {}
        compute = self.compute if np.dtype(dtype) == np.float32 else "kFloat32"
        return {"device": "gpu", "device_id": own_gpu(self.gpu), "compute": compute}


ON_CPU = Where((CPUS,))


class Passes:
    """How a model evaluates and predicts. Each thread that does so has a test net of its own, since nets have buffers,
    and waits for its turn on the GPU."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._idle: list[tuple[Net, Evaluator]] = []

    @contextmanager
    def of(self, feed: Mapping[str, Batch], rows: int, batchsize: int) -> Iterator[Iterable[Any]]:
        """Mini-batches of test data, each in a turn; see `mini_batches`. The ranks of a partitioned model, which wait
        for each other, do not wait for turns."""
        model = self._model
        model.ops.use()
        batches = mini_batches(model.known, model.ranks, model.seed, feed, rows, batchsize)
        gpu = None if model.partitioned else on_gpu(model.ops)
        with closing(in_turns(batches, gpu, model.where.gpu)) as turns:
            yield turns

    @contextmanager
    def evaluator(self, metrics: Sequence[str] = ()) -> Iterator[Evaluator]:
        """With a net that no other thread uses meanwhile."""
        try:
            net, evaluator = self._idle.pop()
        except IndexError:
            net = self._model.own_test_net()
            evaluator = Evaluator(net, BP())
        try:
            yield Evaluator(net, BP(), metrics) if metrics else evaluator
        finally:
            self._idle.append((net, evaluator))


def on_gpu(ops: Ops) -> int | None:
    """The GPU on which these compute, by number; None for the CPU."""
    return None if ops.device == "cpu" else ops.device_id
