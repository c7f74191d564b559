"""Program: one rank of a group of singa_dask, with a replica per variant of the exchange.

The first line on standard input is the plan; then lines {"run": NAME, "steps": N}, answered by {"seconds": per step}.
Runs: "compute", a step of this rank without the others; VARIANT, a step of the group; "VARIANT beside", the same with
overlap, whether it pays or not; "VARIANT after", without: one bucket after another, when the backward pass is over, in
the thread that computes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from threadpoolctl import threadpool_limits
from tools.jobs import job_of
from tools.workloads import TINY_RATE, WORKLOADS, data_of

from singa_dask.cluster.join import join_world
from singa_dask.cluster.pmi_server import PmiEndpoint
from singa_dask.cluster.segments import unlink_segments
from singa_dask.comm import Communicator, MpiCommunicator, SoloCommunicator
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.pipeline import GradientPipeline
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica

TIMEOUT_S = 300.0


class Rank:
    """The replicas of one rank, all of them ready to run.

    exchange_s: seconds of the exchange; of use where nothing overlaps.
    """

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.workload = WORKLOADS[plan["net"]]
        self.size = plan["size"]
        self.comm = join(plan)
        self.features, self.labels = data_of(self.workload)
        self.runs: dict[str, Callable[[], None]] = {}
        self.exchange_s = 0.0
        self._add("compute", self._replica(SoloCommunicator(), {}), 1)
        for name, variant in plan["variants"].items():
            replica = self._replica(self.comm, variant)
            self._note_spent(replica)
            self._add(name, replica, self.size)
            self._add(f"{name} beside", replica, self.size, CollectiveExecutor(self.comm, threaded=True))
            self._add(f"{name} after", replica, self.size, CollectiveExecutor(self.comm, threaded=False), ahead=False)

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Per step, after the ranks have met: seconds, and exchange_s."""
        self.exchange_s = 0.0
        self.comm.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            self.runs[name]()
        return {"seconds": (time.perf_counter() - began) / steps, "exchange_s": self.exchange_s / steps}

    def _note_spent(self, replica: Replica) -> None:
        for part in ("prepare", "start", "update", "gather"):
            setattr(replica.stages, part, self._timed(getattr(replica.stages, part)))

    def _timed(self, part: Callable[..., None]) -> Callable[..., None]:
        def timed(bucket: int) -> None:
            began = time.perf_counter()
            part(bucket)
            self.exchange_s += time.perf_counter() - began

        return timed

    def _replica(self, comm: Communicator, variant: Mapping[str, Any]) -> Replica:
        job = job_of(self.workload)
        job.updater.learning_rate.base_lr = TINY_RATE
        job.cluster.nworkers_per_group = job.cluster.nservers_per_group = comm.size
        for field, value in variant.items():
            if field == "codec":
                value = job.cluster.Codec.Value(value)
            setattr(job.cluster, field, value)
        replica = Replica.form(job, comm, get_ops("cpu"))
        replica.group_state.initialise()
        replica.group_state.fetch()
        return replica

    def _add(
        self,
        name: str,
        replica: Replica,
        size: int,
        executor: CollectiveExecutor | None = None,
        *,
        ahead: bool = True,
    ) -> None:
        feed = {replica.net.input_layers[0]: Batch(self.features, self.labels)}
        pipeline, number = replica.pipeline, 0
        if executor is not None:
            ahead = ahead and self.comm.goes_on
            pipeline = GradientPipeline(executor, replica.exchange.buckets, replica.net.flat.entries, ahead=ahead)

        def step() -> None:
            nonlocal number
            replica.pipeline = pipeline
            replica.train_step(feed, Step(Phase.kTrain, number, total_rows=size * self.workload.batch))
            number += 1

        self.runs[name] = step


def join(plan: Mapping[str, Any]) -> Communicator:
    """The communicator of a group's ranks."""
    if plan["size"] == 1:
        return SoloCommunicator()
    endpoint = PmiEndpoint(**plan["endpoint"])
    join_world(endpoint, plan["rank"], plan["size"], plan["host"], time.monotonic() + 60)
    from mpi4py import MPI

    comm = MpiCommunicator(MPI.COMM_WORLD, TIMEOUT_S)
    comm.barrier()
    unlink_segments()  # the benchmark ends with this process killed
    return comm


def main() -> None:
    plan = json.loads(sys.stdin.readline())
    with threadpool_limits(1):
        rank = Rank(plan)
        print(json.dumps({}), flush=True)
        for line in sys.stdin:
            told = json.loads(line)
            print(json.dumps(rank.run(told["run"], told["steps"])), flush=True)


if __name__ == "__main__":
    main()
