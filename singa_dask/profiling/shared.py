"""What workers of one machine lose and do when they exchange through memory that they share."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.comm.shared_memory import form_shared_flat
from singa_dask.exchange import Bucket, SharedExchange
from singa_dask.net.flat import ALIGNMENT, Entry
from singa_dask.ops import get_ops
from singa_dask.planning.profile import Curve, Point
from singa_dask.server.slices import even_cuts
from singa_dask.updaters import SGD, make_updater

# Elements of all parameters.
SIZES = tuple(ALIGNMENT * (1 << power) for power in (8, 11, 14, 16, 18))
# Each size is measured so often, with all others in between.
ROUNDS = 3
_STEPS, _WARM = 9, 3
_RATE, _MOMENTUM = 1e-6, 0.9


def measure_shared(comm: Communicator) -> dict[str, Curve]:
    """The curve "shared N" of N ranks, by elements, the same on every rank: seconds from the meeting of all ranks,
    through the sum and the update of each rank's part by SGD with momentum, to the next meeting. Collective.

    Empty where ranks cannot share memory.
    """
    measured = [(size, _measured(comm, size)) for size in SIZES * ROUNDS]
    points = [Point(size, seconds) for size, seconds in measured if seconds is not None]
    return {f"shared {comm.size}": Curve.medians(points)} if points else {}


def _measured(comm: Communicator, size: int) -> float | None:
    memory = form_shared_flat(comm, size, np.float32)
    if memory is None:
        return None
    values, gradients = memory
    exchange = SharedExchange(comm, [Bucket(0, size, tuple(even_cuts(size, comm.size)))], gradients)
    part, own = exchange.parts[0], gradients[comm.rank]
    updater = make_updater(SGD(lr=_RATE, momentum=_MOMENTUM).proto, get_ops("cpu"))
    updater.bind([Entry("all", (size,), 0, size)], part.start, part.stop)
    times = []
    for step in range(_STEPS):
        own.fill(1e-3)
        comm.barrier()
        began = time.perf_counter()
        exchange.reduce_scatter(0, own, own)
        updater.update(step, values[part], own[part])
        exchange.all_gather(0, values, values)
        times.append(time.perf_counter() - began)
        values.sum()  # as the next pass reads them
    found = np.array([median(times[_WARM:])])
    comm.all_reduce(found)
    return float(found[0]) / comm.size
