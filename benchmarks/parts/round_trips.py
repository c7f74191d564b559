"""An update's round trip to a server against the raw Dask actor with the same payload, call by call in one task."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from distributed import Client, get_worker, secede

from singa_dask.cluster import local_cluster, wait_workers
from singa_dask.net.flat import ALIGNMENT, Entry
from singa_dask.server import ActorLink, Address, Partition, ServerActor, ServerPlan, Stub, partition
from singa_dask.updaters import SGD

PAIRS = {0.1: 300, 4: 60, 40: 20}  # pairs of calls in one round, by MB
WARM_UP = 3
TIMEOUT_S = 60.0
ROUND_S = 300.0


class RawActor:
    """Takes an array, and returns one as large from its own memory."""

    def __init__(self, size: int) -> None:
        self.values = np.full(size, 0.5, np.float32)  # zeros would have no memory of their own yet

    def swap(self, array: np.ndarray) -> np.ndarray:
        return self.values


def measure(sizes: Sequence[float], rounds: int) -> list[dict[str, Any]]:
    """One row per size in MB: median milliseconds of both, and the median of the paired ratios."""
    with local_cluster(2) as client:
        there, here = (worker.address for worker in wait_workers(client, 2))
        return [_row(client, there, here, mb, rounds) for mb in sizes]


def _row(client: Client, there: str, here: str, mb: float, rounds: int) -> dict[str, Any]:
    size = ALIGNMENT * round(1e6 * mb / 4 / ALIGNMENT)
    raw = client.submit(RawActor, size, actor=True, workers=[there], pure=False)
    ours: list[float] = []
    peers: list[float] = []
    ratios: list[float] = []
    first = 0.0
    for number in range(rounds):
        cut = partition(size, 1, 1, beside=False)
        plan = _plan(cut)
        server = client.submit(ServerActor, plan, actor=True, key=plan.key, workers=[there], pure=False)
        actor = server.result(timeout=TIMEOUT_S)
        address = Address(there, plan.key)
        arguments = (raw.result(timeout=TIMEOUT_S), address, cut, PAIRS.get(mb, 20), number)
        task = client.submit(take_turns, *arguments, workers=[here], pure=False)
        began, pairs = task.result(timeout=ROUND_S)
        first = first or began
        ours += [own for own, _ in pairs]
        peers += [peer for _, peer in pairs]
        ratios += [own / peer for own, peer in pairs]
        actor.close().result(timeout=TIMEOUT_S)
        server.release()
    seconds = statistics.median(ours)
    return {
        "mb": mb,
        "pairs": len(ratios),
        "ms": round(1e3 * seconds, 3),
        "raw_ms": round(1e3 * statistics.median(peers), 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_quartiles": [round(cut, 3) for cut in statistics.quantiles(ratios, n=4)[::2]],
        "per_s": round(1 / seconds, 1),
        "mb_per_s": round(2 * mb / seconds, 1),
        "first_ms": round(1e3 * first, 1),
    }


def _plan(cut: Partition) -> ServerPlan:
    entries = (Entry("w", (cut.size,), 0, cut.size),)
    updater = SGD(lr=0.01, momentum=0.9).proto.SerializeToString()
    return ServerPlan(updater, entries, cut.slices, key=f"server-{uuid4().hex}")


def take_turns(
    raw: Any, address: Address, cut: Partition, pairs: int, odd: int
) -> tuple[float, list[tuple[float, float]]]:
    """On the client's worker: seconds of the very first update, and of `pairs` pairs (an update, a raw call)."""
    secede()
    stub = Stub(cut.slices, {0: ActorLink(address, get_worker(), TIMEOUT_S)})
    values, gradient = np.zeros(cut.size, np.float32), np.full(cut.size, 0.5, np.float32)
    stub.put(values, {}, 0)
    stub.begin(stub.get(values, 0))
    step = 0

    def update() -> float:
        nonlocal step
        began = time.perf_counter()
        stub.push(step, gradient, values)
        stub.pull(values)
        step += 1
        return time.perf_counter() - began

    def swap() -> float:
        began = time.perf_counter()
        raw.swap(gradient).result(timeout=TIMEOUT_S)
        return time.perf_counter() - began

    first = update()
    for _ in range(WARM_UP):
        update(), swap()
    times = []
    for number in range(odd, odd + pairs):
        if number % 2:
            own = update()
            times.append((own, swap()))
        else:
            peer = swap()
            times.append((update(), peer))
    return first, times
