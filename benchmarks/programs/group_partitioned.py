"""Program: one rank of a group that trains one mini-batch, with a replica per partition of the net.

The first line on standard input is the plan; then lines {"run": PARTITION, "steps": N}, answered by what a step took:
seconds, and the bytes that this rank sent: by transition, and for the parameters. Ready, it says by partition how many
values it sends by the formula, and what memory it needs by the formula.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits
from tools.jobs import job_of
from tools.workloads import PARTITIONED, TINY_RATE, data_of

from programs.group_ours import join
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.job.overrides import apply_overrides
from singa_dask.layers.context import Step
from singa_dask.layers.partition import even_bounds
from singa_dask.layers.transition import Transition
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.memory import need_of
from singa_dask.training.replica import Replica

NARROW = 64


class Rank:
    """The replicas of one rank, by partition. sent: bytes by call of a transition."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.comm = join(plan)
        self.before = 0
        self.numbers: Counter[str] = Counter()  # of the next step, by partition
        self.sent: Counter[str] = Counter()
        self.replicas: dict[str, Replica] = {}
        self.workload = PARTITIONED[plan["net"]]
        for name, overrides in plan["partitions"].items():  # compile before the memory is measured
            self._form(name, _narrow(job_of(self.workload)), overrides)
            self.run(name, 1)
        while self.replicas:
            self.replicas.popitem()[1].close()
        self.numbers.clear()
        gc.collect()
        self.before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        self.ready = {
            name: self._form(name, job_of(self.workload), overrides) for name, overrides in plan["partitions"].items()
        }

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """A turn: per step seconds and bytes; the peak of the memory so far."""
        replica = self.replicas[name]
        bounds = even_bounds(self.workload.batch, self.comm.size)
        first, last = bounds[self.comm.rank], bounds[self.comm.rank + 1]
        features, labels = (array[first:last] for array in data_of(self.workload))
        feed = {replica.net.input_layers[0]: Batch(features, labels)}
        counts = tuple(last - first for first, last in pairwise(bounds))
        self.comm.barrier()
        self.sent.clear()
        exchanged, began = sum(self.comm.nbytes.values()), time.perf_counter()
        for _ in range(steps):
            step = Step(Phase.kTrain, self.numbers[name], 0, first, self.workload.batch, counts)
            replica.train_step(feed, step)
            self.numbers[name] += 1
        seconds = (time.perf_counter() - began) / steps
        exchanged = sum(self.comm.nbytes.values()) - exchanged
        return {
            "seconds": seconds,
            "transitions": {call: nbytes / steps for call, nbytes in self.sent.items()},
            "exchange": exchanged / steps,
            "peak": memory("VmHWM") - self.before,
        }

    def _form(self, name: str, job: JobProto, overrides: Sequence[str]) -> dict[str, Any]:
        apply_overrides(job, overrides)
        job.updater.learning_rate.base_lr = TINY_RATE
        job.test_freq = job.validate_freq = 0
        job.cluster.nworkers_per_group = job.cluster.nservers_per_group = self.comm.size
        replica = self.replicas[name] = Replica.form(job, self.comm, get_ops("cpu"))
        replica.group_state.initialise()
        replica.group_state.fetch()
        replica.net.wrap_calls(self._counting(replica))
        need = need_of(replica.nets, job, self.comm.size, in_process_servers=True, shares=False)
        batch = max(store_batch(job), 1)
        transitions = {}
        for row in replica.net.describe():
            for direction, values in zip(("forward", "backward"), row.sent, strict=True):
                if values:
                    transitions[f"{row.layer} {direction}"] = 4 * values * batch * row.steps
        replicated = sum(param.size for param in replica.net.params if param.shard is None)
        exchange = 4 * 2 * (self.comm.size - 1) / self.comm.size * replicated
        parts = {**asdict(need), "total": need.total}
        del parts["reserved"]
        return {"transitions": transitions, "exchange": exchange, "need": parts}

    def _counting(self, replica: Replica) -> Callable[[str, str, Callable[..., Any]], Callable[..., Any]]:
        comm, net = replica.group.comm, replica.net

        def around(layer: str, direction: str, call: Callable[..., Any]) -> Callable[..., Any]:
            source = next(iter(net.layers[layer].proto.srclayers), "")
            if direction == "backward" and isinstance(net.layers.get(source), Transition):
                layer = source  # a split layer may send the gradient for its source itself

            def counted(*arguments: Any) -> Any:
                before = sum(comm.nbytes.values())
                result = call(*arguments)
                if sum(comm.nbytes.values()) > before:
                    self.sent[f"{layer} {direction}"] += sum(comm.nbytes.values()) - before
                return result

            return counted

        return around


def _narrow(job: JobProto) -> JobProto:
    for layer in job.neuralnet.layer:
        if layer.innerproduct_conf.num_output > NARROW:
            layer.innerproduct_conf.num_output = NARROW
    return job


def store_batch(job: JobProto) -> int:
    return next(layer.store_conf.batchsize[0] for layer in job.neuralnet.layer if layer.HasField("store_conf"))


def memory(name: str) -> int:
    """Bytes of this process by a line of its status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))


def main() -> None:
    plan = json.loads(sys.stdin.readline())
    with threadpool_limits(1):
        rank = Rank(plan)
        print(json.dumps(rank.ready), flush=True)
        for line in sys.stdin:
            told = json.loads(line)
            print(json.dumps(rank.run(told["run"], told["steps"])), flush=True)


if __name__ == "__main__":
    main()
