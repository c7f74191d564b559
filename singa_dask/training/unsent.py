"""What codecs have kept back, across a checkpoint: of every rank's gradients, of pushes to servers, of new values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.full import BucketExchange
from singa_dask.net.flat import FlatParams
from singa_dask.server import Stub

_RANK = "rank {}"


@dataclass
class ResidualState:
    """Of one rank, as flat arrays. step: training steps done then. residual: of its gradients; values: which all ranks
    had; pushes: residuals of the group's pushes to servers."""

    step: int
    residual: np.ndarray
    values: np.ndarray
    pushes: np.ndarray


def gather_unsent(
    comm: Communicator, exchange: BucketExchange, stub: Stub, flat: FlatParams, values: np.ndarray
) -> dict[str, dict[str, np.ndarray]]:
    """What a checkpoint keeps of it; whole on the first rank, empty on the others. Every rank must call it."""
    residual = exchange.residual.astype(values.dtype)
    pushes = np.zeros_like(residual)
    for i, part in stub.residual.items():
        pushes[stub.slices[i].start : stub.slices[i].stop] = part
    for bucket in range(len(exchange.buckets)):
        exchange.gather_exactly(bucket, pushes, pushes)
    every = np.empty(comm.size * flat.size, residual.dtype) if comm.rank == 0 else None
    comm.gather(residual, every, [flat.size] * comm.size)
    if every is None:
        return {}
    found = {_RANK.format(rank): part for rank, part in enumerate(every.reshape(comm.size, flat.size))}
    return {key: flat.named(part) for key, part in (found | {"values": values, "pushes": pushes}).items()}


def share_unsent(
    comm: Communicator, unsent: Mapping[str, Mapping[str, np.ndarray]], step: int, flat: FlatParams
) -> ResidualState | None:
    """Every rank's part of what the first one's checkpoint has; None where it has nothing. Every rank must call it.

    On as many ranks each has its own again; on another number the first takes over all.
    """
    there = np.array([float(len(unsent)), float(step)])
    comm.broadcast(there)
    count = int(there[0]) - 2
    if count < 0:
        return None
    residuals = np.empty((count if unsent else 0, flat.size), flat.values.dtype)
    for rank, residual in enumerate(residuals):
        residual[...] = flat.flattened(unsent[_RANK.format(rank)])
    own = _scattered(comm, residuals) if count == comm.size else residuals.sum(axis=0)
    others = {}
    for key in ("values", "pushes"):
        others[key] = flat.flattened(unsent[key]) if unsent else np.empty_like(own)
        comm.broadcast(others[key])
    return ResidualState(int(there[1]), own, **others)


def _scattered(comm: Communicator, rows: np.ndarray) -> np.ndarray:
    """The own one of the rows (ranks, n) that the first rank has; the others have none."""
    own = np.empty(rows.shape[1], rows.dtype)
    comm.all_to_all(rows.reshape(-1), [rows.size // comm.size] * comm.size, own, [own.size, *[0] * (comm.size - 1)])
    return own
