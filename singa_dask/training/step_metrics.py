"""Figures of the training loop: what all ranks of a group tell each other after a step, and their sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.layers.context import Metric
from singa_dask.server import ServerTraffic

# What every rank adds to a step, in the order of the message. The seconds: for the others of its group, for data.
_OF_RANKS = ("wait", "loading", "updates", "stall", "update_s", "staleness", "staleness_max", "nbytes")


def of_all_ranks(
    comm: Communicator, stop: bool, metrics: Mapping[str, Metric], wait_s: float, loading_s: float, sent: ServerTraffic
) -> tuple[bool, dict[str, Metric], np.ndarray]:
    """What all ranks say of one step, so that all of them know the same, by one small all-reduce.

    stop: whether this rank was asked to. sent: what it has exchanged with servers.
    Returns whether any rank was asked to stop, the metrics of the group's mini-batch, and the figures of every rank,
    (figures, ranks), for `Window.add_step`.
    """
    names = list(metrics)
    message = np.zeros(1 + 2 * len(names) + len(_OF_RANKS) * comm.size)
    message[0] = stop
    totals = message[1 : 1 + 2 * len(names)].reshape(-1, 2)
    for row, metric in zip(totals, metrics.values(), strict=True):
        row[:] = metric.total, metric.count
    ranks = message[1 + 2 * len(names) :].reshape(-1, comm.size)
    ranks[:, comm.rank] = (
        wait_s, loading_s, sent.updates, sent.stall_s, sent.update_s, sent.staleness, sent.staleness_max, sent.nbytes
    )  # fmt: skip
    comm.all_reduce(message)
    return bool(message[0]), {name: Metric(*row.tolist()) for name, row in zip(names, totals, strict=True)}, ranks


@dataclass
class Window:
    """Figures since they were last shown. ranks: as `of_all_ranks` has them, summed over the steps."""

    steps: int = 0
    seconds: float = 0.0
    metrics: dict[str, Metric] = field(default_factory=dict)
    ranks: np.ndarray | float = 0.0
    staleness_max: int = 0

    def add_step(self, metrics: Mapping[str, Metric], ranks: np.ndarray) -> None:
        """Take in what all ranks have said of a step."""
        self.metrics = {name: self.metrics.get(name, Metric()) + metric for name, metric in metrics.items()}
        self.ranks = self.ranks + ranks
        self.staleness_max = max(self.staleness_max, int(ranks[_OF_RANKS.index("staleness_max")].max()))

    def add(self, other: Window) -> None:
        """Take over the figures of another window; metrics stay."""
        self.steps += other.steps
        self.seconds += other.seconds
        self.ranks = self.ranks + other.ranks
        self.staleness_max = max(self.staleness_max, other.staleness_max)

    def means(self) -> dict[str, float]:
        """The metrics, over all rows of all steps."""
        return {name: metric.mean for name, metric in self.metrics.items()}

    def waits(self) -> dict[str, list[float]]:
        """Shares of the time, per rank: waiting for other ranks, and for data."""
        if not self.steps:
            return {"wait": [], "loading": []}
        # Buckets are waited for side by side with what is computed, and with each other.
        shares = {name: np.minimum(self._of(name) / max(self.seconds, 1e-9), 1.0) for name in ("wait", "loading")}
        return {name: share.tolist() for name, share in shares.items()}

    def servers(self) -> dict[str, float]:
        """The exchange with the servers."""
        updates = max(1.0, float(self._of("updates").sum()))
        return {
            "staleness": float(self._of("staleness").sum()) / updates,
            "staleness_max": self.staleness_max,
            "update_ms": 1e3 * float(self._of("update_s").sum()) / updates,
            "stall": float(self._of("stall").mean()) / max(self.seconds, 1e-9),
            "bytes": float(self._of("nbytes").sum()) / max(1, self.steps),
        }

    def _of(self, name: str) -> np.ndarray:
        """A figure's sum, per rank."""
        return np.atleast_2d(self.ranks)[_OF_RANKS.index(name)]
