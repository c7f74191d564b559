"""Program: singa_dask trains a language model on given mini-batches. The plan is that of published.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits
from tools.contest import serve

from singa_dask.algorithms.evaluation import Evaluator
from singa_dask.comm import SoloCommunicator
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica

FIRST = 5


def main(plan: dict[str, Any]) -> None:
    job = JobProto.FromString(Path(plan["job"]).read_bytes())
    train, validation = (np.load(plan[name]).astype(np.float32) for name in ("train", "validation"))
    with threadpool_limits(1):
        replica = Replica.form(job, SoloCommunicator(), get_ops("cpu", threads=plan["threads"]))
        replica.group_state.initialise()
        net = replica.nets[Phase.kVal]
        number = 0

        def step() -> float:
            nonlocal number
            feed = {"data": Batch(train[number], None)}
            place = Step(Phase.kTrain, number, job.seed, total_rows=len(train[number]))
            number += 1
            return replica.train_step(feed, place)["loss"].mean

        def result() -> dict[str, float]:
            batches = (
                ({"data": Batch(rows, None)}, Step(Phase.kVal, i, job.seed, total_rows=len(rows)))
                for i, rows in enumerate(validation)
            )
            evaluator = Evaluator(net, replica.algorithm, [], rows=validation.shape[0] * validation.shape[1])
            return {"loss": evaluator.measure(batches).numbers["loss"]}

        serve(step, [step() for _ in range(FIRST)], result)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
