"""Clipping by the norm of a whole gradient, of which every rank has a part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.job.job_pb2 import UpdaterProto
from singa_dask.net.flat import Entry, FlatParams
from singa_dask.ops import Ops
from singa_dask.ops.update import Where, squared_norm
from singa_dask.updaters.fields import as_written
from singa_dask.updaters.groups import scaled

Array = Any


class NormClip:
    """g *= min(1, limit / |g|), with the norm over all parameters of the group (Pascanu et al. 2013).

    Running statistics and parameters that do not learn are left out. The norm depends on the number of ranks, and on
    how the parameters are cut, only by rounding. ops: of gradients that are not on the host. Their norm stays on the
    device of a worker on its own, which the host need not wait for.
    """

    def __init__(self, limit: float, entries: Sequence[Entry], updater: UpdaterProto, ops: Ops) -> None:
        learn = [entry for entry in entries if not entry.statistic and scaled(entry, updater).lr_scale]
        self._limit, self._ranges, self._ops = limit, [(entry.start, entry.stop) for entry in learn], ops

    def squares(self, gradients: Array, part: slice) -> Array:
        """The sum of the squares of these elements of flat gradients, which lie as the entries do."""
        if self._on_device(gradients, part):
            return self._ops.squared_norm_where(*self._chosen(gradients, part))
        return sum((squared_norm(gradients[elements]) for elements in self._learning(part)), 0.0)

    def scale(self, comm: Communicator, own: Array, common: Array = 0.0) -> Array:
        """The factor of the gradient, with the same bits on all ranks; on the device where `own` is. Collective.

        own: the squares of what only this rank has; common: of what every rank has.
        """
        if comm.size == 1 and isinstance(own + common, self._ops.xp.ndarray):
            return self._ops.norm_factor(own + common, self._limit)
        squares = np.zeros(comm.size)
        squares[comm.rank] = float(own)
        comm.all_reduce(squares)  # of one number each: nothing is rounded
        norm = math.sqrt(float(common) + float(squares.sum()))
        return self._limit / norm if norm > self._limit else 1.0

    def apply(self, scale: Array, gradients: Array, part: slice) -> None:
        """Multiply these elements by the factor, in place."""
        if self._on_device(gradients, part):
            self._ops.scale_where(*self._chosen(gradients, part), scale)
            return
        for elements in self._learning(part):
            if scale != 1:
                gradients[elements][...] *= scale

    def _on_device(self, gradients: Array, part: slice) -> bool:
        learns = any(True for _ in self._learning(part))
        return learns and not isinstance(gradients[part], np.ndarray)

    def _chosen(self, gradients: Array, part: slice) -> tuple[Where, Array]:
        """Which elements learn, and the gradients, up to the last that does."""
        kinds = self._kinds[part]
        return (kinds, 1), gradients[part][: len(kinds)]

    @cached_property
    def _kinds(self) -> Array:
        """1 for each element that learns, on the device."""
        kinds = np.zeros(max((stop for _, stop in self._ranges), default=0), np.uint8)
        for start, stop in self._ranges:
            kinds[start:stop] = 1
        return self._ops.asarray(kinds)

    def _learning(self, part: slice) -> Iterator[slice]:
        for first, last in self._ranges:
            start, stop = max(first, part.start), min(last, part.stop)
            if start < stop:
                yield slice(start, stop)


def norm_clip(updater: UpdaterProto, flat: FlatParams, own: FlatParams, ops: Ops) -> NormClip | None:
    """As the updater's `clip_norm` asks for, of gradients of `flat` followed by those of `own`; None where it is 0."""
    if not updater.clip_norm:
        return None
    entries = [*flat.entries, *(entry.moved(flat.size) for entry in own.entries)]
    return NormClip(as_written(updater.clip_norm), entries, updater, ops)
