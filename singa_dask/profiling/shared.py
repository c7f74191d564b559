"""What workers of one machine lose and do when they exchange through memory that they share."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.comm.shared_memory import form_shared_flat
from singa_dask.exchange import Bucket, SharedExchange
from singa_dask.net.flat import ALIGNMENT, Entry
from singa_dask.ops import get_ops
from singa_dask.planning.profile import Curve, Point
from singa_dask.server.slices import even_cuts
from singa_dask.updaters import SGD, Updater, make_updater

# Elements of all parameters.
SIZES = tuple(ALIGNMENT * (1 << power) for power in (8, 11, 14, 16, 18))
# Each size is measured so often, with all others in between.
ROUNDS = 3
_STEPS, _WARM = 9, 3
_RATE, _MOMENTUM = 1e-6, 0.9


def measure_shared(comm: Communicator) -> dict[str, Curve]:
    """The curves "shared N" and "reread N" of N ranks, by elements, the same on every rank. Collective.

    shared: seconds from the meeting of all ranks, through the sum and the update of each rank's part by SGD with
    momentum, to the next meeting. reread: by how much longer it then takes to read all values than values that the
    rank has updated alone: they lie in the caches of other cores. Empty where ranks cannot share memory.
    """
    measured = [(size, _measured(comm, size)) for size in SIZES * ROUNDS]
    found = [(size, *seconds) for size, seconds in measured if seconds is not None]
    if not found:
        return {}
    shared, reread = (Curve.medians(Point(each[0], each[i]) for each in found) for i in (1, 2))
    return {f"shared {comm.size}": shared, f"reread {comm.size}": reread}


def _measured(comm: Communicator, size: int) -> tuple[float, float] | None:
    memory = form_shared_flat(comm, size, np.float32)
    if memory is None:
        return None
    values, gradients = memory
    exchange = SharedExchange(comm, [Bucket(0, size, tuple(even_cuts(size, comm.size)))], gradients)
    part, own = exchange.parts[0], gradients[comm.rank]
    updater = _updater(size, part.start, part.stop)

    def together(step: int) -> None:
        exchange.reduce_scatter(0, own, own)
        updater.update(step, values[part], own[part])
        exchange.all_gather(0, values, values)

    exchanging, reading = _timed(comm, together, values, own)
    alone, mine, gradient = _updater(size, 0, size), np.zeros(size, np.float32), np.zeros(size, np.float32)
    _, rereading = _timed(comm, lambda step: alone.update(step, mine, gradient), mine, gradient)
    found = np.array([exchanging, max(0.0, reading - rereading)])
    comm.all_reduce(found)
    seconds, reread = (found / comm.size).tolist()
    return seconds, reread


def _updater(size: int, start: int, stop: int) -> Updater:
    updater = make_updater(SGD(lr=_RATE, momentum=_MOMENTUM).proto, get_ops("cpu"))
    updater.bind([Entry("all", (size,), 0, size)], start, stop)
    return updater


def _timed(
    comm: Communicator, update: Callable[[int], None], values: np.ndarray, gradient: np.ndarray
) -> tuple[float, float]:
    """Seconds of an update, and of reading the values after it. In every step gradients are written first."""
    updating, reading = [], []
    for step in range(_STEPS):
        gradient.fill(1e-3)
        comm.barrier()
        began = time.perf_counter()
        update(step)
        updated = time.perf_counter()
        values.sum()
        updating.append(updated - began)
        reading.append(time.perf_counter() - updated)
    return median(updating[_WARM:]), median(reading[_WARM:])
