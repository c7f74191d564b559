"""What a step takes in a real run on a Dask worker that its parts do not, measured alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from singa_dask.algorithms import BP, TrainOneBatch
from singa_dask.algorithms.base import OnGradient
from singa_dask.comm.communicator import Communicator
from singa_dask.data.ingest.collections import shard
from singa_dask.data.loader import close_shards
from singa_dask.job import Job
from singa_dask.job.job_pb2 import AlgProto, JobProto
from singa_dask.layers import Convolution, InnerProduct, Pooling, RecordInput, ReLU, SoftmaxLoss
from singa_dask.layers.context import Metric, Step
from singa_dask.net import Net
from singa_dask.ops.blas import blas_threads
from singa_dask.planning.profile import Curve, Point
from singa_dask.profiling.kernels import LATEST_S
from singa_dask.profiling.layers import RATE, Trial, typical
from singa_dask.training.dask_task import train_on_dask_worker
from singa_dask.training.prepare import prepare
from singa_dask.training.rank_plan import GroupPlan, WorkerPlan
from singa_dask.updaters import SGD

ROWS = 16, 256
SAMPLES = 1024
WARM_UP = 20
_FEWEST_STEPS, _MOST_STEPS = 3 * WARM_UP, 2000
_QUIET_SHARE = 0.25  # of the time, for passes outside of a run
_TOPIC = "profile"


@dataclass(frozen=True)
class LoopPlan:
    """threads: of a worker. seconds: of measuring, about. start_at: when all begin, as of time.time."""

    threads: int
    seconds: float
    start_at: float


class TimedBP(BP):
    """Back-propagation that records when each of its steps begins and ends."""

    type: ClassVar[str] = TrainOneBatch.type
    began: ClassVar[list[float]] = []
    ended: ClassVar[list[float]] = []

    def train_one_batch(
        self, net: Net, feed: Mapping[str, Any], step: Step, on_gradient: OnGradient = None
    ) -> dict[str, Metric]:
        TimedBP.began.append(time.perf_counter())
        metrics = super().train_one_batch(net, feed, step, on_gradient)
        TimedBP.ended.append(time.perf_counter())
        return metrics


def measure_loop(comm: Communicator, plan: LoopPlan) -> Curve:
    """Of the only worker of a group: what a step takes besides its passes and its update, and by how much longer its
    passes take on average because loading, events and the processes of Dask interrupt them. Size: seconds of passes.
    """
    time.sleep(min(max(0.0, plan.start_at - time.time()), LATEST_S))
    return Curve.of(_point(comm, plan, rows) for rows in ROWS)


def _point(comm: Communicator, plan: LoopPlan, rows: int) -> Point:
    seconds = plan.seconds / len(ROWS)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(close_shards)
        prepared = prepare(_job(Path(folder), rows))
        with blas_threads(1):
            laps = Trial(prepared.job, plan.threads).laps(rows, seconds * _QUIET_SHARE)
        quiet = [lap.seconds for lap in laps]
        job = JobProto.FromString(prepared.job.SerializeToString())
        job.train_steps = int(np.clip(seconds * (1 - _QUIET_SHARE) / median(quiet), _FEWEST_STEPS, _MOST_STEPS))
        job.train_one_batch.CopyFrom(AlgProto(user_alg=f"{__name__}:{TimedBP.__name__}"))
        told = WorkerPlan(job.SerializeToString(), Path(folder) / "checkpoint", prepared.data)
        told.checkpoints.mkdir()
        TimedBP.began, TimedBP.ended = [], []
        train_on_dask_worker(comm, replace(told, group=GroupPlan(cores=(plan.threads,))), _TOPIC)
    began, ended = TimedBP.began[WARM_UP:], TimedBP.ended[WARM_UP:]
    passes = [end - begin for begin, end in zip(began, ended, strict=True)]
    gaps = [begin - end for end, begin in zip(ended[:-1], began[1:], strict=True)]
    usual = median(passes)
    # Undisturbed passes vary too, which the samples of layers have.
    interrupted = usual * max(0.0, typical(passes) / usual - typical(quiet) / median(quiet))
    taken = max(0.0, typical(gaps) - typical([lap.update for lap in laps])) + interrupted
    return Point(usual, taken, taken)


def _job(folder: Path, rows: int) -> Job:
    """A small convolutional net, which displaces what the loop needs from the caches, as others do."""
    x = np.random.default_rng(0).random((SAMPLES, 28, 28, 3), np.float32)
    shard(x, np.arange(len(x)) % 10, folder / "data", shuffle=False, durable=False, progress=False)
    chain = [
        RecordInput(path=f"{folder}/data", batchsize=rows, shape=[3, 28, 28]),
        Convolution(num_filters=16, kernel=5, pad=2),
        ReLU(),
        Pooling(pool="MAX", kernel=2, stride=2),
        InnerProduct(num_output=100),
        InnerProduct(num_output=10),
        SoftmaxLoss(),
    ]
    return Job(name="loop", train_steps=WARM_UP, layers=chain, updater=SGD(lr=RATE))
