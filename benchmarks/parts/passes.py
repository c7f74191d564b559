"""The time of each layer's passes within real training steps. As a program: those of a workload as JSON on standard
output, with the work that each cannot do without (counts.py).

{"held": bytes that a step goes through, "step_ms": ms, "between_ms": ms of it that no pass took,
 "passes": [{"layer", "pass", "ms", "flop", "near", "far"}]}
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from threadpoolctl import threadpool_limits
from tools.jobs import job_of
from tools.workloads import WARM_UP, WORKLOADS, data_of

from parts import counts
from singa_dask.comm import SoloCommunicator
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica

SECONDS, LEAST = 3.0, 15
UPDATE = ("update", "update")

Key = tuple[str, str]


class Clock:
    """Adds up what calls take. spent: seconds since the last `lap`, by layer and pass."""

    def __init__(self) -> None:
        self.spent: dict[Key, float] = defaultdict(float)

    def timed(self, key: Key, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, timed."""

        def run(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = call(*arguments)
            self.spent[key] += time.perf_counter() - began
            return result

        return run

    def lap(self) -> dict[Key, float]:
        """What was spent, forgotten from now on."""
        spent, self.spent = self.spent, defaultdict(float)
        return spent


def main(name: str) -> None:
    workload = WORKLOADS[name]
    features, labels = data_of(workload)
    ops, clock = get_ops("cpu", threads=1), Clock()
    replica = Replica.form(job_of(workload), SoloCommunicator(), ops)
    replica.group_state.initialise()
    net = replica.net
    net.wrap_calls(lambda layer, which, call: clock.timed((layer, which), call))
    ops.update = clock.timed(UPDATE, ops.update)
    feed = {net.input_layers[0]: Batch(features, None if workload.symbols else labels)}

    def step(number: int) -> tuple[float, dict[Key, float]]:
        began = time.perf_counter()
        replica.train_step(feed, Step(Phase.kTrain, number, total_rows=len(labels)))
        return time.perf_counter() - began, clock.lap()

    with threadpool_limits(1):
        seconds, _ = [step(number) for number in range(WARM_UP)][-1]
        laps = [step(number) for number in range(WARM_UP, WARM_UP + max(LEAST, round(SECONDS / seconds)))]

    work = {UPDATE: counts.update(net)}
    for layer, case in counts.cases(net, workload.batch).items():
        work[layer, "forward"], work[layer, "backward"] = counts.passes(case)
    rows = [
        {"layer": key[0], "pass": key[1], "ms": _ms(spent[key] for _, spent in laps), **asdict(work[key])}
        for key in laps[0][1]
        if key in work
    ]
    total_ms = _ms(total for total, _ in laps)
    between_ms = _ms(total - sum(spent.values()) for total, spent in laps)
    held = counts.held(net, workload.batch)
    print(json.dumps({"held": held, "step_ms": total_ms, "between_ms": between_ms, "passes": rows}))


def _ms(seconds: Iterable[float]) -> float:
    """The lower quartile: what a step takes while other programs leave the machine alone."""
    return 1e3 * statistics.quantiles(seconds, n=4)[0]


if __name__ == "__main__":
    main(sys.argv[1])
