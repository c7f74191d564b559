"""The forward and backward passes of a net."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from singa_dask.errors import DataError, SingaError, TrainingError
from singa_dask.layers.checks import by_source, checked_gradient, checked_output, contiguous, failure
from singa_dask.layers.context import Step
from singa_dask.layers.input import InputLayer
from singa_dask.layers.param import Param
from singa_dask.net.plan import LayerPlan, NetPlan
from singa_dask.ops import Ops
from singa_dask.ops.arrays import Array, address_of


@dataclass
class Batch:
    """One worker's rows of a mini-batch, on the host or the device. features: (B, ...).

    labels: class labels (B,), targets (B, ...), or None.
    """

    features: Array
    labels: Array = None


class Passes:
    """Runs a NetPlan: calls the layers, routes arrays, and sums the gradients of outputs with several destinations."""

    def __init__(
        self,
        plan: NetPlan,
        params: Sequence[Param],
        shapes: Mapping[str, Any],
        phase: int,
        ops: Ops,
        *,
        partitioned: bool = False,
    ):
        self._plan = plan
        # The rows that each output has, by slot; in a net that is not partitioned those of the step.
        self._steps: dict[int, Step] | None = {} if partitioned else None
        self._params = params
        # A layer that runs after its pooling outputs the pooled shape.
        self._shapes = {**shapes, **{name: shapes[step.layer.name] for name, step in plan.pooled_first.items()}}
        self._phase = phase
        self._ops = ops
        self.values: list[Any] = [None] * plan.values
        self._gradients: list[Any] = [None] * plan.gradients
        self._read = {slot for step in plan.forward for slot in step.arguments}
        self._to_go_back = False  # whether forward ran without a backward since

    def wrap(self, around: Callable[[str, str, Callable[..., Any]], Callable[..., Any]]) -> None:
        """Wrap every layer's calls; see Net.wrap_calls."""
        for plan in self._plan.forward:
            plan.forward = around(plan.layer.name, "forward", plan.forward)
        for plan in self._plan.backward:
            plan.backward = around(plan.layer.name, "backward", plan.backward)

    def forward(self, feed: Mapping[str, Any], step: Step) -> None:
        """Run every layer once; see Net.forward."""
        values, self._to_go_back = self.values, False
        try:
            for plan in self._plan.forward:
                ctx = plan.ctx
                ctx.step = step if self._steps is None else self._steps.get(plan.step_source, step)
                if plan.feed:
                    out = self._fed(plan, feed)
                else:
                    if plan.label_source >= 0:
                        ctx.labels = values[plan.label_source]
                    out = plan.forward(ctx, *[values[slot] for slot in plan.arguments])
                if plan.layer.multiple_outputs:
                    self._spread(plan, out)
                else:
                    out = self._checked(plan, out)
                values[plan.output] = out
                values[plan.labels] = ctx.labels
                if self._steps is not None:
                    self._steps[plan.output] = ctx.output_step or ctx.step
        except SingaError:
            raise
        except Exception as error:
            fed = [getattr(feed[plan.layer.name], "features", None)] if plan.feed else []
            inputs = fed or [values[slot] for slot in plan.arguments]
            raise failure(plan.layer, self._phase, "forward", inputs, error) from error
        self._to_go_back = True

    def backward(self, on_gradient: Callable[[Param], None] | None = None) -> None:
        """Run the layers below the losses in reverse order; see Net.backward."""
        if not self._to_go_back:
            raise TrainingError(
                "net.backward needs a forward pass: layers overwrite its arrays. "
                "Call net.forward before each backward."
            )
        self._gradients[:] = [None] * len(self._gradients)
        self.start()
        for plan in self._plan.backward:
            try:
                dy = None if plan.is_loss else self._take(plan)
                if plan.is_loss or dy is not None:
                    if self._ops.launches:
                        plan.ctx.onto = self._gradients[plan.dx[plan.wanted[0]]] if len(plan.wanted) == 1 else None
                    dx = plan.backward(plan.ctx, dy)
                    if plan.ctx.needs_input_grad:
                        self._collect(plan, dx)
            except SingaError:
                raise
            except Exception as error:
                inputs = [self.values[slot] for slot in plan.arguments]
                raise failure(plan.layer, self._phase, "backward", inputs, error) from error
            for owner in plan.completes:
                _complete(owner, on_gradient)
        for owner in self._plan.idle:
            _complete(owner, on_gradient)

    def read_by(self, name: str) -> list[Any]:
        """The arrays that a layer read in the last forward pass."""
        plan = next(plan for plan in self._plan.forward if plan.layer.name == name)
        return [self.values[slot] for slot in plan.arguments]

    def start(self) -> None:
        """Forget all gradients; the results of the forward pass are consumed."""
        self._to_go_back = False
        for owner in self._params:
            owner.start_step()

    def complete(self, on_gradient: Callable[[Param], None] | None) -> None:
        """Zero the gradients without a contribution."""
        for owner in self._params:
            _complete(owner, on_gradient)

    def _fed(self, plan: LayerPlan, feed: Mapping[str, Any]) -> Array:
        name, declared = plan.layer.name, self._shapes[plan.layer.name]
        if name not in feed:
            raise DataError(f"input layer {name!r} was not fed. Fed: {', '.join(feed) or 'nothing'}.")
        batch = feed[name]
        assert isinstance(plan.layer, InputLayer)
        plan.ctx.labels = None if batch.labels is None else plan.layer.labels(self._ops, batch.labels)
        out = plan.forward(plan.ctx, batch.features)
        if out.shape[1:] != declared:
            raise DataError(
                f"input layer {name!r} declares samples of shape {declared}, but was fed {batch.features.shape[1:]}"
            )
        return out

    def _checked(self, plan: LayerPlan, out: Array) -> Array:
        if out is None:
            if plan.output in self._read:
                raise ValueError("forward returned None, but other layers read its output")
            return None
        return checked_output(out, self._shapes[plan.layer.name], self._ops.xp)

    def _spread(self, plan: LayerPlan, outputs: Sequence[Array]) -> None:
        if len(outputs) != len(plan.pieces):
            raise ValueError(f"forward returned {len(outputs)} arrays for {len(plan.pieces)} destinations")
        for slot, piece in zip(plan.pieces, outputs, strict=True):
            self.values[slot] = contiguous(piece, self._ops.xp)

    def _take(self, plan: LayerPlan) -> Any:
        """The gradient of the layer's output, or a tuple of them; None if no destination returned one."""
        if not plan.layer.multiple_outputs:
            return self._gradients[plan.dy[0]]
        pieces = [self._gradients[slot] for slot in plan.dy]
        if all(piece is None for piece in pieces):
            return None
        for i, value in enumerate(plan.pieces):
            if pieces[i] is None:
                pieces[i] = plan.ctx.buffer(f"net.dy{i}", self.values[value].shape)
                pieces[i][...] = 0
        return tuple(pieces)

    def _collect(self, plan: LayerPlan, dx: Any) -> None:
        """Add the result of a layer's backward call to the gradients of its sources."""
        dx = by_source(dx, len(plan.dx), plan.wanted)
        seen: set[int] = set()
        for i in plan.wanted:
            array = dx[i]
            if len(plan.wanted) > 1 and array is not None:
                # A backward call may overwrite its dy, so no two sources may share memory.
                address = address_of(array)
                if address in seen:
                    copy = plan.ctx.buffer(f"net.dx{i}", array.shape, array.dtype)
                    copy[...] = array
                    array = copy
                seen.add(address)
            self._add(plan, i, array)

    def _add(self, plan: LayerPlan, i: int, array: Array) -> None:
        if array is None:
            return
        slot, shape = plan.dx[i], self.values[plan.arguments[i]].shape
        array = checked_gradient(array, shape, self._ops.xp)
        if self._gradients[slot] is None:
            self._gradients[slot] = array
        elif array is not plan.ctx.onto:  # else the layer has added to it
            self._gradients[slot] += array  # not to `array`, which may be that of the next source too


def _complete(owner: Param, on_gradient: Callable[[Param], None] | None) -> None:
    owner.complete()
    if on_gradient is not None:
        on_gradient(owner)
