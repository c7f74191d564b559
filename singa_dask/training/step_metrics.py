"""Metrics of training steps: the message by which all ranks know them, and their sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.layers.context import Metric
from singa_dask.server import ServerTraffic

# What every rank reports of a step, in the order of the message. wait, loading: seconds of waiting for ranks and data.
_PER_RANK = (
    "wait", "loading", "updates", "stall", "update_s", "staleness", "staleness_max", "nbytes", "reductions", "memory",
)  # fmt: skip


def sum_over_ranks(
    comm: Communicator,
    wishes: Sequence[bool],
    metrics: Mapping[str, Metric],
    wait_s: float,
    loading_s: float,
    sent: ServerTraffic,
    reductions: int = 0,
    memory: int = 0,
) -> tuple[list[bool], dict[str, Metric], np.ndarray]:
    """One small all-reduce after a step, so that all ranks know the same. Collective.

    wishes: what this rank wants of the group. sent: its traffic with servers. reductions: of the learning rate, as its
    servers told it. memory: bytes that it has taken on its GPU. Returns which wishes any rank has, the metrics of the
    group's mini-batch, and what each rank reports: (len(_PER_RANK), ranks).
    """
    names, first = list(metrics), len(wishes)
    last = first + 2 * len(names)
    message = np.zeros(last + len(_PER_RANK) * comm.size)
    message[:first] = wishes
    totals = message[first:last].reshape(-1, 2)
    for row, metric in zip(totals, metrics.values(), strict=True):
        row[:] = metric.total, metric.count
    ranks = message[last:].reshape(-1, comm.size)
    ranks[:, comm.rank] = (
        wait_s, loading_s, sent.updates, sent.stall_s, sent.update_s, sent.staleness, sent.staleness_max, sent.nbytes,
        reductions, memory,
    )  # fmt: skip
    comm.all_reduce(message)
    summed = {name: Metric(*row.tolist()) for name, row in zip(names, totals, strict=True)}
    return (message[:first] > 0).tolist(), summed, ranks


def most_reductions(ranks: np.ndarray) -> int:
    """How often the learning rate was reduced, as far as any rank knows. ranks: see `sum_over_ranks`."""
    return int(ranks[_PER_RANK.index("reductions")].max())


@dataclass
class StepMetrics:
    """Sums over steps. seconds: of this rank; ranks: what each rank reports, as `sum_over_ranks` returns it; memory:
    the most bytes that a rank has taken on its GPU."""

    steps: int = 0
    seconds: float = 0.0
    metrics: dict[str, Metric] = field(default_factory=dict)
    ranks: np.ndarray | float = 0.0
    staleness_max: int = 0
    memory: int = 0

    def add_step(self, seconds: float, metrics: Mapping[str, Metric], ranks: np.ndarray) -> None:
        """Add a step of so many seconds, from what `sum_over_ranks` has returned."""
        self.metrics = {name: self.metrics.get(name, Metric()) + metric for name, metric in metrics.items()}
        stalest, memory = (int(ranks[_PER_RANK.index(name)].max()) for name in ("staleness_max", "memory"))
        self.add(StepMetrics(1, seconds, ranks=ranks, staleness_max=stalest, memory=memory))

    def add(self, other: StepMetrics) -> None:
        """Add the steps of another one, but not its metrics."""
        self.steps += other.steps
        self.seconds += other.seconds
        self.ranks = self.ranks + other.ranks
        self.staleness_max = max(self.staleness_max, other.staleness_max)
        self.memory = max(self.memory, other.memory)

    def means(self) -> dict[str, float]:
        """The means of the metrics over all rows of all steps."""
        return {name: metric.mean for name, metric in self.metrics.items()}

    def waits(self) -> dict[str, list[float]]:
        """Shares of the time that each rank waits: for other ranks, and for data."""
        if not self.steps:
            return {"wait": [], "loading": []}
        # Waits overlap with computing and with each other.
        shares = {name: np.minimum(self._of(name) / max(self.seconds, 1e-9), 1.0) for name in ("wait", "loading")}
        return {name: share.tolist() for name, share in shares.items()}

    def servers(self) -> dict[str, float]:
        """Means of the traffic with servers."""
        updates = max(1.0, float(self._of("updates").sum()))
        return {
            "staleness": float(self._of("staleness").sum()) / updates,
            "staleness_max": self.staleness_max,
            "update_ms": 1e3 * float(self._of("update_s").sum()) / updates,
            "stall": float(self._of("stall").mean()) / max(self.seconds, 1e-9),
            "bytes": float(self._of("nbytes").sum()) / max(1, self.steps),
        }

    def _of(self, name: str) -> np.ndarray:
        """The sum of what each rank reports under this name."""
        return np.atleast_2d(self.ranks)[_PER_RANK.index(name)]
