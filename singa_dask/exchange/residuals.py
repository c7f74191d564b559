"""What codecs have kept back, across a checkpoint: of gradients, of pushes to servers, and of new values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.base import BucketExchange
from singa_dask.net.flat import FlatParams

_RANK = "rank {}"


@dataclass
class ResidualState:
    """The residuals of one rank, as flat arrays. residual: of its gradients; values: those that all ranks had, which
    differ from the servers'; pushes: of the group's pushes to servers."""

    residual: np.ndarray
    values: np.ndarray
    pushes: np.ndarray


def gather_residuals(
    exchange: BucketExchange, comm: Communicator, flat: FlatParams, values: np.ndarray, pushes: np.ndarray
) -> dict[str, dict[str, np.ndarray]]:
    """The residuals for a checkpoint, by parameter; complete on the first rank, empty on the others. Collective.

    pushes: with the residuals of this rank's slices in their places; completed here.
    """
    residual = np.zeros(flat.size, values.dtype)
    if exchange.residual is not None:
        residual[...] = exchange.residual
    for bucket in range(len(exchange.buckets)):
        exchange.gather_exactly(bucket, pushes, pushes)
    every = np.empty(comm.size * flat.size, residual.dtype) if comm.rank == 0 else None
    comm.gather(residual, every, [flat.size] * comm.size)
    if every is None:
        return {}
    found = {_RANK.format(rank): part for rank, part in enumerate(every.reshape(comm.size, flat.size))}
    return {key: flat.named(part) for key, part in (found | {"values": values, "pushes": pushes}).items()}


def share_residuals(
    comm: Communicator, saved: Mapping[str, Mapping[str, np.ndarray]], flat: FlatParams
) -> ResidualState | None:
    """Every rank's residuals from the first rank's checkpoint; None where that has none. Collective.

    The same number of ranks get their own back; in a group of another size the first rank takes over all.
    """
    found = np.array([float(len(saved))])
    comm.broadcast(found)
    count = int(found[0]) - 2
    if count < 0:
        return None
    residuals = np.empty((count if saved else 0, flat.size), flat.values.dtype)
    for rank, residual in enumerate(residuals):
        residual[...] = flat.flattened(saved[_RANK.format(rank)])
    own = _scattered(comm, residuals) if count == comm.size else residuals.sum(axis=0)
    others = {}
    for key in ("values", "pushes"):
        others[key] = flat.flattened(saved[key]) if saved else np.empty_like(own)
        comm.broadcast(others[key])
    return ResidualState(own, **others)


def _scattered(comm: Communicator, rows: np.ndarray) -> np.ndarray:
    """This rank's row of the first rank's (ranks, n); the other ranks have (0, n)."""
    own = np.empty(rows.shape[1], rows.dtype)
    comm.all_to_all(rows.reshape(-1), [rows.size // comm.size] * comm.size, own, [own.size, *[0] * (comm.size - 1)])
    return own
