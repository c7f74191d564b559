"""The time loop of a recurrent layer whose units are divided over the workers of a group.

Every step needs the whole state before it: the workers gather it. Backward, the sums of their gradients for it are
divided again.   T time steps of B rows, H units of all workers, h of this worker. Rows are ordered by time step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from singa_dask.layers.context import Context
from singa_dask.ops.arrays import Array


class SplitSteps:
    """The steps of one forward call and its backward call.

    bounds: where each worker's units begin, and H. rows: T B. before: (T B, H), the whole state before each step,
    which `forward` fills from the second step on.
    """

    def __init__(self, ctx: Context, bounds: Sequence[int], batch: int, rows: int) -> None:
        self._ctx, self._batch = ctx, batch
        self._units = [slice(start, stop) for start, stop in pairwise(bounds)]
        self._counts = [batch * (stop - start) for start, stop in pairwise(bounds)]
        places = pairwise(accumulate(self._counts, initial=0))
        self._places = [slice(first, last) for first, last in places]
        self._packed = ctx.buffer("packed", (batch * bounds[-1],))
        self.before = ctx.buffer("before", (rows, bounds[-1]))
        self.own = self._units[ctx.group.rank]

    def begin(self, own: Array, given: Array | None) -> None:
        """Fill the first block of `before`: the state before the first step, (B, h) of this worker, or as given."""
        if given is None:
            self._gather(own, self.before[: self._batch])
        else:
            self.before[: self._batch] = given

    def forward(self, h: Array, begun: bool, sums: list[Array], w: list[Array], cell: Callable[..., None]) -> None:
        """Compute all states: cell(rows of a step, rows of the state after it), after sums += before w.

        h: ((T + 1) B, h), the states, the first block being that before the first step. begun: False if that is zero.
        sums, w: of each product, (T B, N) and (H, N); the first sums hold the inputs' part.
        """
        for array in sums[1:]:
            array[...] = 0
        for now, after in self._blocks():
            if now.start:
                self._gather(h[now], self.before[now])
            if now.start or begun:
                for array, weights in zip(sums, w, strict=True):
                    array[now] += self._ctx.ops.gemm(self.before[now], weights)
            cell(now, after)

    def backward(
        self, dh: Array, given: bool, sums: list[Array], w: list[Array], cell: Callable[..., None], dbefore: Array
    ) -> None:
        """cell(rows of a step, rows of the state after it, gradient (B, h) for the state before it, to be added to),
        which turns `sums` into their gradients; the last step first.

        dh: (T B, h), the gradient for the states. w: (N, H) of each product. dbefore: (B, H); if the first state is
        `given`, becomes this worker's contribution to its gradient.
        """
        ops, first = self._ctx.ops, self._ctx.buffer("dfirst", (self._batch, dh.shape[1]))
        first[...] = 0
        for now, after in reversed(self._blocks()):
            own = dh[now.start - self._batch : now.start] if now.start else first
            cell(now, after, own)
            if now.start or given:
                for n, (array, weights) in enumerate(zip(sums, w, strict=True)):
                    ops.gemm(array[now], weights, out=dbefore, accumulate=n > 0)
            if now.start:
                own += self._scattered(dbefore)
        if given:
            dbefore[:, self.own] += first

    def _blocks(self) -> list[tuple[slice, slice]]:
        """The rows of each step and of the state after it."""
        starts = range(0, len(self.before), self._batch)
        return [(slice(t, t + self._batch), slice(t + self._batch, t + 2 * self._batch)) for t in starts]

    def _parts(self, whole: Array) -> list[tuple[Array, Array]]:
        """Every worker's columns of (B, H), and where `_packed` has them."""
        parts = zip(self._units, self._places, strict=True)
        return [(whole[:, units], self._packed[place].reshape(self._batch, -1)) for units, place in parts]

    def _gather(self, own: Array, whole: Array) -> None:
        parts = self._parts(whole)
        parts[self._ctx.group.rank][1][...] = own
        self._ctx.group.all_gather(self._packed, self._counts)
        for columns, packed in parts:
            columns[...] = packed

    def _scattered(self, whole: Array) -> Array:
        """The own columns of the sum of all workers' arrays."""
        for columns, packed in self._parts(whole):
            packed[...] = columns
        own = self._ctx.buffer("scattered", (self._batch, self.own.stop - self.own.start))
        self._ctx.group.reduce_scatter(self._packed, own.reshape(-1), self._counts)
        return own
