"""An evaluation in a worker group: each rank measures its rows of every mini-batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from singa_dask.algorithms.evaluation import Evaluator
from singa_dask.algorithms.measured import Measured
from singa_dask.comm.communicator import Communicator
from singa_dask.training.feed import Feed
from singa_dask.training.replica import Replica

# How often ranks ask each other whether to stop.
ASK_EVERY_S = 0.2


def evaluate_group(replica: Replica, phase: int, feed: Feed, stop_requested: Callable[[], bool]) -> Measured | None:
    """What the group measures of all mini-batches of the feed, which ends; None where a rank was asked to stop before.
    Collective.

    The last mini-batch of a whole set may be short: some ranks then have no row of it, or of any.
    """
    comm, net, stopped = replica.comm, replica.nets[phase], False

    def numbers() -> Iterator[int]:
        """The numbers of the mini-batches; they end early, on all ranks at the same number, if a rank is to stop."""
        nonlocal stopped
        began, ask_at = time.perf_counter(), 0
        for number in range(feed.count):
            if number == ask_at:
                ahead = _mini_batches_ahead(comm, number, time.perf_counter() - began, stop_requested())
                stopped = not ahead
                if stopped:
                    return
                ask_at += ahead
            yield number

    net.forget()
    evaluator = Evaluator(net, replica.algorithm, replica.job.metric, rows=feed.rows)
    measured = evaluator.measure(feed.next(number) for number in numbers())
    if stopped:
        return None
    net.close()
    measured.share(comm.rank, lambda number: comm.all_gather_number(number).tolist())
    message = measured.sums
    comm.all_reduce(message)
    measured.sums = message
    return measured


def _mini_batches_ahead(comm: Communicator, done: int, seconds: float, stop: bool) -> int:
    """How many mini-batches the ranks evaluate before they ask again, 0 if a rank is to stop.

    `done` took `seconds` here. Asking at each one would make all ranks wait for the slowest at that one.
    """
    own = ASK_EVERY_S * done / max(seconds, 1e-6)
    message = np.array([float(stop), float(int(own))])  # integers: the sum is exact
    comm.all_reduce(message)
    return 0 if message[0] else max(1, int(message[1]) // comm.size)
