"""Program: one training step of singa_dask on one worker."""

from __future__ import annotations

import sys

from threadpoolctl import threadpool_limits
from tools.contest import serve
from tools.jobs import job_of
from tools.workloads import WARM_UP, WORKLOADS, data_of

from singa_dask.comm import SoloCommunicator
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica


def main(name: str, threads: int) -> None:
    workload = WORKLOADS[name]
    features, labels = data_of(workload)
    with threadpool_limits(1):
        replica = Replica.form(job_of(workload), SoloCommunicator(), get_ops("cpu", threads=threads))
        replica.group_state.initialise()
        feed = {replica.net.input_layers[0]: Batch(features, None if workload.symbols else labels)}
        number = 0

        def step() -> float:
            nonlocal number
            metrics = replica.train_step(feed, Step(Phase.kTrain, number, total_rows=len(labels)))
            number += 1
            return metrics["loss"].mean

        serve(step, [step() for _ in range(WARM_UP)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
