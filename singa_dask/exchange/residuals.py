"""What codecs have kept back, across a checkpoint: of gradients, of pushes to servers, and of new values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.base import BucketExchange
from singa_dask.exchange.sharded import Gathered, Holding, held_by, read_all, send_shards
from singa_dask.net.flat import FlatParams
from singa_dask.ops.arrays import on_host

RANK = "rank {}"


@dataclass
class ResidualState:
    """The residuals of one rank, as flat arrays.

    residual: of its gradients of replicated parameters; values: those that all ranks had of these, which differ from
    the servers'; pushes: of its holdings, of the group's pushes to servers; owed: of all ranks' gradients of its own
    shards, which are split now and were not.
    """

    residual: np.ndarray
    values: np.ndarray
    pushes: np.ndarray
    owed: np.ndarray


def gather_residuals(
    exchange: BucketExchange,
    comm: Communicator,
    flat: FlatParams,
    held: Sequence[Holding],
    values: np.ndarray,
    pushes: np.ndarray,
) -> dict[str, dict[str, Gathered]]:
    """The residuals for a checkpoint, by parameter.

    held: see `holdings`. values: of this rank. pushes: with the residuals of this rank's slices in their places.
    """
    residual = np.zeros(flat.size, values.dtype) if exchange.residual is None else on_host(exchange.residual)

    def kept(rank: int, array: np.ndarray) -> dict[str, Gathered]:
        found = {}
        for entry in flat.entries:
            shard, own = held_by(rank, entry.size, comm.size), array[entry.start : entry.stop]
            found[entry.name] = Gathered.of_array(comm, shard, entry.shape, own)
        return found

    found = {RANK.format(rank): kept(rank, residual) for rank in range(comm.size)}
    found["values"] = kept(0, values)
    found["pushes"] = {h.name: Gathered.of_array(comm, h.shard, h.shape, pushes[h.elements]) for h in held}
    return found


def share_residuals(
    comm: Communicator,
    saved: Mapping[str, Mapping[str, Any]],
    parameters: Mapping[str, Any],
    flat: FlatParams,
    own: FlatParams,
    held: Sequence[Holding],
) -> ResidualState | None:
    """Every rank's residuals from the first rank's checkpoint; None where that has none. Collective.

    The same number of ranks get their own back; in a group of another size the first rank takes over all.
    parameters: of the checkpoint, in place of values that it lacks: those of parameters that were split.
    """
    ranks = [kept for key, kept in saved.items() if key.startswith(RANK.format(""))]
    found = np.array([float(len(saved)), float(len(ranks))])
    comm.broadcast(found)
    if not found[0]:
        return None
    sizes = flat.size, flat.size, flat.size + own.size, own.size
    residual, values, pushes, owed = (np.zeros(size, flat.values.dtype) for size in sizes)
    shared = {**parameters, **saved["values"]} if saved else {}
    for entry in flat.entries:
        elements = slice(entry.start, entry.stop)
        if int(found[1]) == comm.size:
            for rank in range(comm.size):
                array = saved[RANK.format(rank)].get(entry.name) if saved else None
                out = residual[elements] if rank == comm.rank else residual[:0]
                send_shards(comm, held_by(rank, entry.size, comm.size), array, out)
        else:
            read_all(_Sum(ranks, entry.name), residual[elements])
        if saved:
            read_all(shared[entry.name], values[elements])
    comm.broadcast(values)
    for h in held:
        send_shards(comm, h.shard, saved.get("pushes", {}).get(h.name), pushes[h.elements])
        if h.split:
            send_shards(comm, h.shard, _Sum(ranks, h.name), owed[h.start - flat.size :][: h.shard.size])
    return ResidualState(residual, values, pushes, owed)


class _Sum:
    """The sum of what all ranks have kept back of a parameter; zero where they have none of it."""

    def __init__(self, ranks: Sequence[Mapping[str, Any]], name: str) -> None:
        self._arrays = [kept[name] for kept in ranks if name in kept]

    @property
    def flat(self) -> _Sum:
        return self

    def __getitem__(self, where: slice) -> np.ndarray:
        return sum((array.flat[where] for array in self._arrays), np.zeros(where.stop - where.start))
