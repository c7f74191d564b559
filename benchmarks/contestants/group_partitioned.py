"""Contestant: one rank of a group that trains one mini-batch, with a replica per partition of the net.

The first line on standard input is the plan; then lines {"run": PARTITION, "steps": N}, answered by {"seconds",
"layers", "exchange"}: per step, the seconds and the bytes that this rank handed to its communicators, by call of a
layer and for all parameters together. Ready, it says what it predicts of them (`parts/predicted.py` reads it).
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits
from tools.jobs import job_of
from tools.workloads import PARTITIONED, TINY_RATE, data_of

from contestants.group_ours import join
from singa_dask.data.plan import share_rows
from singa_dask.job.job_pb2 import Phase
from singa_dask.job.overrides import apply_overrides
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica


class Rank:
    """The replicas of one rank, by partition."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.workload = PARTITIONED[plan["net"]]
        self.comm = join(plan)
        rank, size, batch = self.comm.rank, self.comm.size, self.workload.batch
        bounds = [share_rows(batch, each, size) for each in range(size)]
        self.first, last = bounds[rank]
        self.counts = tuple(end - begin for begin, end in bounds)
        self.features, self.labels = (array[self.first : last] for array in data_of(self.workload))
        self.before_mb = memory_mb("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of the replicas
        self.sent: Counter[str] = Counter()
        self.replicas = {name: self._replica(overrides) for name, overrides in plan["partitions"].items()}
        self.number = 0

    def ready(self) -> dict[str, Any]:
        return {name: {"rows": self.counts[0]} for name in self.replicas}

    def run(self, name: str, steps: int) -> dict[str, Any]:
        replica, step = self.replicas[name], None
        feed = {replica.net.input_layers[0]: Batch(self.features, self.labels)}
        self.sent.clear()
        self.comm.barrier()
        before, began = sent_by(replica), time.perf_counter()
        for _ in range(steps):
            step = Step(Phase.kTrain, self.number, 0, self.first, self.workload.batch, self.counts)
            replica.train_step(feed, step)
            self.number += 1
        seconds = (time.perf_counter() - began) / steps
        layers = {call: nbytes / steps for call, nbytes in self.sent.items()}
        exchange = (sent_by(replica) - before) / steps - sum(layers.values())
        peak_mb = memory_mb("VmHWM") - self.before_mb
        return {"seconds": seconds, "layers": layers, "exchange": exchange, "peak_mb": peak_mb}

    def _replica(self, overrides: list[str]) -> Replica:
        job = apply_overrides(job_of(self.workload), overrides)
        job.updater.learning_rate.base_lr = TINY_RATE
        job.cluster.nworkers_per_group = job.cluster.nservers_per_group = self.comm.size
        replica = Replica.form(job, self.comm, get_ops("cpu"))
        replica.group_state.initialise()
        replica.group_state.fetch()
        self._count_calls(replica.net)
        return replica

    def _count_calls(self, net: Net) -> None:
        def around(layer: str, direction: str, call: Callable[..., Any]) -> Callable[..., Any]:
            group = net.contexts[layer].group

            def counted(*arguments: Any) -> Any:
                before = total_of(group.comm)
                result = call(*arguments)
                self.sent[f"{layer} {direction}"] += total_of(group.comm) - before
                return result

            return counted

        net.wrap_calls(around)


def total_of(comm: Any) -> int:
    return sum(comm.nbytes.values())


def sent_by(replica: Replica) -> float:
    return sum(done["bytes"] for done in replica.operations.values())


def memory_mb(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def main() -> None:
    plan = json.loads(sys.stdin.readline())
    with threadpool_limits(1):
        rank = Rank(plan)
        print(json.dumps(rank.ready()), flush=True)
        for line in sys.stdin:
            told = json.loads(line)
            print(json.dumps(rank.run(told["run"], told["steps"])), flush=True)


if __name__ == "__main__":
    main()
