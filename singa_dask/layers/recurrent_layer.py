"""The base of user-defined recurrent layers, which implement a single time step."""

from __future__ import annotations

from typing import Any, ClassVar

from singa_dask.errors import DataError
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array


class RecurrentLayer(Layer):
    """h_t = cell(x_t, h_(t-1)).   x: (T B, ...) -> y: (T B, ...), T time steps of B rows; T is 1 in an unrolled net.

    The initial state is the second source if there is one, else the final state of the last mini-batch if the
    algorithm carries it over (kBPTT), else zero. The output is the state.
    """

    num_sources: ClassVar[tuple[int, int | None]] = (1, 2)
    rowwise: ClassVar[bool] = True
    step_axes: ClassVar[int] = 2
    recurrent: ClassVar[bool] = True

    # What a subclass implements:

    def setup_cell(self, x: Shape) -> Shape:
        """Declare parameters. x: sample shape of the source. Returns the sample shape of the state."""
        raise NotImplementedError

    def cell(self, ctx: Context, x: Array, before: Array) -> Array:
        """The state after one time step, from the source (B, ...) and the previous state."""
        raise NotImplementedError

    def cell_backward(self, ctx: Context, dy: Array, x: Array, before: Array, y: Array) -> tuple[Array, Array]:
        """Add to the parameters' gradients and return the gradients for x and before. y: the result of `cell`.

        Called in reverse order of time. The callee may overwrite `dy`.
        """
        raise NotImplementedError

    # How it is used:

    def setup(self, *src: Shape) -> Shape:
        x, *state = self.sources(src)
        self._shape = self.setup_cell(x)
        if state and state[0] != self._shape:
            raise self.problem(f"the second source, the initial state, must have shape {self._shape}", state[0])
        return self._shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        rows = x[0].shape[0]
        batch = rows // self.steps
        ctx.x, ctx.given = x[0], len(x) > 1
        # One block more than steps: block t is the state before step t, block t + 1 the state after it.
        states = ctx.states = ctx.buffer("states", (rows + batch, *self._shape))
        before = x[1] if ctx.given else ctx.memory.state[0] if ctx.memory.state else None
        check_rows(self, before, batch)
        states[:batch] = 0 if before is None else before
        for start in range(0, rows, batch):
            end = start + batch
            states[end : end + batch] = self.cell(ctx, ctx.x[start:end], states[start:end])
        ctx.memory.state = [states[rows:]]
        return states[batch:]

    def backward(self, ctx: Context, dy: Array) -> Any:
        rows = dy.shape[0]
        batch = rows // self.steps
        dx, dbefore = ctx.buffer("dx", ctx.x.shape), None
        for start in range(rows - batch, -1, -batch):
            end = start + batch
            if dbefore is not None:
                dy[start:end] += dbefore
            dx[start:end], dbefore = self.cell_backward(
                ctx, dy[start:end], ctx.x[start:end], ctx.states[start:end], ctx.states[end : end + batch]
            )
        return (dx, dbefore) if ctx.given else dx


def check_rows(layer: Layer, state: Array, rows: int) -> None:
    """Raises DataError if the carried state and the mini-batch differ in rows."""
    if state is not None and state.shape[0] != rows:
        raise DataError(
            f"layer {layer.name!r}: the mini-batch has {rows} rows, but the state carried over has "
            f"{state.shape[0]}. Give all mini-batches of this phase the same size."
        )
