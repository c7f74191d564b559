"""Neighbouring channels of other workers.   C channels, divided over n workers by `bounds`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from singa_dask.layers.context import Context
from singa_dask.ops.arrays import Array


class Halo:
    """Widens a worker's own channels by up to `reach` channels on both sides, whichever workers have them.

    own: where the worker's own channels are among the widened ones. channels_sent: to other workers.
    """

    def __init__(self, bounds: Sequence[int], rank: int, reach: int) -> None:
        shares, first = list(pairwise(bounds)), bounds[rank]
        # Channels to every worker, counted from the first own one; numbers of channels from every worker.
        to = [_overlap(shares[rank], share, reach) for share in shares]
        self._to = [slice(start - first, stop - first) for start, stop in to]
        self._to[rank] = slice(0)
        self.channels_sent = sum(stop - start for start, stop in to) - (to[rank][1] - to[rank][0])
        self._from = [stop - start for start, stop in (_overlap(share, shares[rank], reach) for share in shares)]
        start = sum(self._from[:rank])
        self.own = slice(start, start + self._from[rank])
        self._from[rank] = 0

    def widen(self, ctx: Context, key: str, x: Array) -> Array:
        """x with its neighbouring channels.   x: (..., own channels), of any worker alike but for these. Collective.

        The result is a buffer of ctx.
        """
        leading = x.shape[:-1]
        pieces = [x[..., channels] for channels in self._to]
        send = ctx.ops.xp.concatenate([piece.reshape(-1) for piece in pieces])
        counts = [prod(leading) * width for width in self._from]
        received = ctx.buffer(f"{key}.received", (sum(counts),), x.dtype)
        ctx.group.all_to_all(send, [piece.size for piece in pieces], received, counts)
        wide = ctx.buffer(key, (*leading, sum(self._from) + x.shape[-1]), x.dtype)
        wide[..., self.own] = x
        start = channel = 0
        for rank, (count, width) in enumerate(zip(counts, self._from, strict=True)):
            if rank == ctx.group.rank:
                channel = self.own.stop
                continue
            wide[..., channel : channel + width] = received[start : start + count].reshape(*leading, width)
            start, channel = start + count, channel + width
        return wide


def _overlap(share: tuple[int, int], other: tuple[int, int], reach: int) -> tuple[int, int]:
    """The channels [first, last) of one share that lie within `reach` of another; all of them if the shares are the
    same."""
    first = max(share[0], other[0] - reach)
    return first, max(first, min(share[1], other[1] + reach))
