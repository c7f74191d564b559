"""Clipping by the norm of a whole gradient, of which every rank has a part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.job.job_pb2 import UpdaterProto
from singa_dask.net.flat import Entry, FlatParams
from singa_dask.ops.update import squared_norm
from singa_dask.updaters.fields import as_written
from singa_dask.updaters.groups import scaled

Array = Any


class NormClip:
    """g *= min(1, limit / |g|), with the norm over all parameters of the group (Pascanu et al. 2013).

    Running statistics and parameters that do not learn are left out. The norm depends on the number of ranks, and on
    how the parameters are cut, only by rounding.
    """

    def __init__(self, limit: float, entries: Sequence[Entry], updater: UpdaterProto) -> None:
        learn = [entry for entry in entries if not entry.statistic and scaled(entry, updater).lr_scale]
        self._limit, self._ranges = limit, [(entry.start, entry.stop) for entry in learn]

    def squares(self, gradients: Array, part: slice) -> Array:
        """The sum of the squares of these elements of flat gradients, which lie as the entries do."""
        return sum((squared_norm(gradients[elements]) for elements in self._learning(part)), 0.0)

    def scale(self, comm: Communicator, own: Array, common: Array = 0.0) -> float:
        """The factor of the gradient, with the same bits on all ranks. Collective.

        own: the squares of what only this rank has; common: of what every rank has.
        """
        squares = np.zeros(comm.size)
        squares[comm.rank] = float(own)
        comm.all_reduce(squares)  # of one number each: nothing is rounded
        norm = math.sqrt(float(common) + float(squares.sum()))
        return self._limit / norm if norm > self._limit else 1.0

    def apply(self, scale: float, gradients: Array, part: slice) -> None:
        """Multiply these elements by the factor, in place."""
        for elements in self._learning(part) if scale != 1 else ():
            gradients[elements][...] *= scale

    def _learning(self, part: slice) -> Iterator[slice]:
        for first, last in self._ranges:
            start, stop = max(first, part.start), min(last, part.stop)
            if start < stop:
                yield slice(start, stop)


def norm_clip(updater: UpdaterProto, flat: FlatParams, own: FlatParams) -> NormClip | None:
    """As the updater's `clip_norm` asks for, of gradients of `flat` followed by those of `own`; None where it is 0."""
    if not updater.clip_norm:
        return None
    entries = [*flat.entries, *(entry.moved(flat.size) for entry in own.entries)]
    return NormClip(as_written(updater.clip_norm), entries, updater)
