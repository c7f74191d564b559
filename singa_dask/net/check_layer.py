"""Whether a layer of one's own keeps the rules of layers: shapes, types, claims and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import LayerProto
from singa_dask.layers.base import Layer, LossLayer
from singa_dask.layers.context import Context, Step
from singa_dask.layers.init import initial_value
from singa_dask.layers.param import Param
from singa_dask.layers.partition import Sharding
from singa_dask.net.flat import FlatParams
from singa_dask.net.rows import mixes
from singa_dask.ops import get_ops

_ELEMENTS = 100
_EPSILON = 1e-5
_CLAIM = "Write param.grad[...] = g + (param.grad if param.claim() else 0)."


def check_layer(layer: Layer, inputs: Any) -> None:
    """Compare the gradients of a layer or a loss with numeric ones, and check what else a net needs of it.

    layer: a layer or a loss.
    inputs: an array of rows, or a tuple with one for each source. Labels are integers.

    The layer computes in float32 and in float64. Its gradients in float64 are compared with central differences, at
    up to 100 elements of each array, with every index along axes of up to 100. Parameters have their initial values,
    slightly changed. Choose inputs at which the layer is differentiable. The metric `loss` of a loss must be the sum
    over the rows.

    Raises ConfigError that names the layer and its first fault: an output or a gradient of a wrong shape or type, an
    input that forward overwrites, outputs that differ from call to call, a gradient written without `claim()`, a wrong
    gradient, a gradient of a loss that is not divided by `ctx.step.total_rows`.
    """
    if not isinstance(layer, Layer) or layer.num_sources == (0, 0):
        raise ConfigError(
            Problem("check_layer", "expected a layer that reads others", repr(layer), "Create one first.")
        )
    arrays = [np.asarray(x) for x in (inputs if isinstance(inputs, tuple | list) else (inputs,))]
    counts = [len(x) if x.ndim else 0 for x in arrays]
    if len(set(counts)) != 1 or not counts[0] or counts[0] % layer.steps:
        hint = "Give an array of rows, or a tuple with one for each source, all of equally many rows"
        hint += f": {layer.steps} time steps of them." if layer.steps > 1 else "."
        shapes = ", ".join(str(x.shape) for x in arrays)
        raise layer.problem("check_layer needs the rows of each source", shapes or "nothing", hint)
    _Checked(layer, arrays, np.float32).rules()
    checked = _Checked(layer, arrays, np.float64)
    checked.rules()
    checked.gradients()


class _Checked:
    """The layer, set up for these inputs, computing in `dtype`."""

    def __init__(self, layer: Layer, inputs: Sequence[np.ndarray], dtype: Any) -> None:
        proto = LayerProto()
        proto.CopyFrom(layer.proto)
        proto.name = proto.name or type(layer).__name__
        proto.srclayers[:] = [f"source{i}" for i in range(len(inputs))]
        self.layer = made = type(layer).from_proto(proto)
        self.dtype, self.rng = np.dtype(dtype), np.random.default_rng(0)
        numbers = [x.dtype.kind == "f" for x in inputs]
        self.x = [x.astype(dtype if number else np.int64) for x, number in zip(inputs, numbers, strict=True)]
        targets = (i for i in made.target_positions if numbers[i] or self.x[i].ndim > 1)  # numbers, or labels of maps
        made.targets = {i: self.x[i].shape[1:] for i in targets}
        self.shape = made.setup(*made.sources(tuple(x.shape[1:] for x in self.x)))
        ops = get_ops("cpu", dtype)
        FlatParams.of(made.params, ops)
        for param in made.params:
            param.value[...] = initial_value(param, 0) + 0.1 * self.rng.standard_normal(param.shape)
        rows = len(self.x[0]) // made.steps
        # A loss divides by the rows of the whole mini-batch, of which other workers have some.
        self.total_rows = 3 * rows + 1 if isinstance(made, LossLayer) else rows
        self.rows = rows
        self.ctx = Context(ops, step=Step(total_rows=self.total_rows))
        learns = set() if made.stops_gradient else made.output_positions - made.counted_positions
        self.trains = [i for i in sorted(learns) if numbers[i]]
        self.dy = [self.rng.standard_normal(y.shape).astype(dtype) for y in self.forward(self.x)]

    def forward(self, x: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for copies of x."""
        self.ctx.memory.state = None
        y = self.layer.forward(self.ctx, *x)
        outputs = y if self.layer.multiple_outputs else (y,)
        return [np.array(each) for each in outputs if each is not None]

    def backward(self) -> list[Any]:
        """Copies of the gradients for the sources."""
        dy: Any = [each.copy() for each in self.dy]
        dy = None if isinstance(self.layer, LossLayer) else tuple(dy) if self.layer.multiple_outputs else dy[0]
        dx = self.layer.backward(self.ctx, dy)
        if len(self.x) > 1 and not isinstance(dx, tuple):
            hint = "Return a tuple with one for each source, None for one that needs none."
            self.fail(f"backward returned one gradient for {len(self.x)} sources", None, hint)
        given = dx if isinstance(dx, tuple) else (dx,)
        if len(given) != len(self.x):
            self.fail(f"backward returned {len(given)} gradients for {len(self.x)} sources")
        return [None if each is None else np.array(each) for each in given]

    def fail(self, message: str, received: Any = None, hint: str | None = None) -> NoReturn:
        raise self.layer.problem(message, received, hint)

    def rules(self) -> None:
        """What needs no numeric gradients."""
        before = [x.copy() for x in self.x]
        rowwise = self.layer.rowwise and Sharding.BATCH in self.layer.takes and not self.layer.recurrent
        lies = rowwise and self.layer.steps == 1 and mixes(self.forward, self.x)
        y, again = self.forward(self.x), self.forward(self.x)
        for i, (x, was) in enumerate(zip(self.x, before, strict=True)):
            if not np.array_equal(x, was, equal_nan=True):
                self.fail(f"forward overwrites the output of source {i}", None, "Other layers read it: copy it first.")
        shapes = [self.shape] if not self.layer.multiple_outputs else [each.shape[1:] for each in y]
        for each, second, shape in zip(y, again, shapes, strict=False):
            if each.shape[1:] != tuple(shape):
                self.fail(f"forward returned rows of shape {each.shape[1:]}, but setup returned {tuple(shape)}")
            if self.trains and each.dtype != self.dtype:
                self.fail(f"forward returned {each.dtype} for sources of {self.dtype}", None, self._cast)
            if not np.array_equal(each, second, equal_nan=True):
                hint = "Draw from a generator that is seeded with ctx.step.seed and ctx.step.number."
                self.fail("forward returned other values for the same sources and step", None, hint)
        if lies:
            hint = "Leave out `rowwise`: it then gets the rows of all workers."
            self.fail("is rowwise, but a row of its output depends on other rows", None, hint)
        if self.layer.stops_gradient:
            return
        for param in self.layer.params:
            param.start_step()
            param.grad[...] = np.nan  # what a step before has left
            param.touched = False
        for i, dx in enumerate(self.backward()):
            if dx is not None and dx.shape != self.x[i].shape:
                self.fail(f"backward returned shape {dx.shape} for source {i}, whose output is {self.x[i].shape}")
            if dx is not None and i in self.trains and dx.dtype != self.dtype:
                self.fail(f"backward returned {dx.dtype} for source {i} of {self.dtype}", None, self._cast)
        first = {param: self._claimed(param) for param in self.layer.params}
        self.forward(self.x)
        self.backward()
        for param, gradient in first.items():
            if not (param.statistic or np.allclose(param.grad, 2 * gradient, rtol=1e-4, atol=1e-6)):
                message = f"parameter {param.name!r}: backward does not add to the gradient where claim() is True"
                self.fail(message, None, _CLAIM)

    @property
    def _cast(self) -> str:
        return "Compute in the type of the sources, ctx.ops.dtype."

    def _claimed(self, param: Param) -> np.ndarray:
        """Its gradient of the first backward pass; 0 if backward has not written one."""
        if not param.contributions:
            if param.touched:
                self.fail(
                    f"parameter {param.name!r}: backward wrote its gradient without calling claim()", None, _CLAIM
                )
            param.grad[...] = 0
        if np.isnan(param.grad).any():
            message = (
                f"parameter {param.name!r}: backward adds to the gradient of the step before, or leaves a part of it"
            )
            self.fail(message, None, f"claim() was False. {_CLAIM}")
        return np.array(param.grad)

    def objective(self) -> float:
        """The number whose gradient `backward` gives."""
        y = self.forward(self.x)
        if not isinstance(self.layer, LossLayer):
            return float(sum(np.vdot(dy, each) for dy, each in zip(self.dy, y, strict=True)))
        metric = self.layer.metrics(self.ctx).get("loss")
        if metric is None:
            hint = 'Return {"loss": Metric(the sum over the rows, the number of rows)}.'
            self.fail("`metrics` has no `loss`, so that no run shows one", None, hint)
        return metric.total / self.total_rows

    def gradients(self) -> None:
        """Compare with central differences."""
        if self.layer.stops_gradient:
            return
        for param in self.layer.params:
            param.start_step()
        self.objective()
        got = self.backward()
        for i in self.trains:
            if isinstance(self.layer, LossLayer) and i > 0 and got[i] is None:
                continue
            dx = np.zeros_like(self.x[i]) if got[i] is None else got[i]
            self._compare(f"source {i}", dx, self.x[i])
        for param in self.layer.params:
            if not param.statistic:
                self._compare(f"parameter {param.name!r}", np.array(param.grad), param.value)

    def _compare(self, name: str, gradient: np.ndarray, of: np.ndarray) -> None:
        places = self._places(of.shape)
        got = np.array([gradient[at] for at in places])
        expected = np.array([self._difference(of, at) for at in places])
        wrong = ~(abs(got - expected) <= 1e-5 * abs(expected).max(initial=0) + 1e-8)
        if not wrong.any():
            return
        at = places[int(wrong.argmax())]
        message = f"wrong gradient of {name}: at {list(at)}, backward gives {got[wrong][0]:.6g}"
        message += f" and differences give {expected[wrong][0]:.6g} ({wrong.sum()} of {len(places)} elements differ)"
        self.fail(message, None, self._hint(got, expected))

    def _places(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """All elements of an array, or about _ELEMENTS: with every index along each axis that is not longer."""
        if np.prod(shape) <= _ELEMENTS:
            return list(np.ndindex(shape))
        turns = [[self.rng.permutation(size) for _ in range(-(-_ELEMENTS // size))] for size in shape]
        axes = [np.concatenate(turn)[:_ELEMENTS].tolist() for turn in turns]
        return list(dict.fromkeys(zip(*axes, strict=True)))

    def _difference(self, of: np.ndarray, at: tuple[int, ...]) -> float:
        was = of[at]
        step = _EPSILON * max(1.0, abs(float(was)))
        values = []
        for sign in (1, -1):
            of[at] = was + sign * step
            values.append(self.objective())
        of[at] = was
        return (values[0] - values[1]) / (2 * step)

    def _hint(self, got: np.ndarray, expected: np.ndarray) -> str | None:
        """What a loss forgot, if its gradient is too large by one factor everywhere."""
        if not isinstance(self.layer, LossLayer):
            return None
        hint = "Divide it by ctx.step.total_rows, the rows of the whole mini-batch."

        def is_off_by(factor: float) -> bool:
            return bool(np.allclose(got, factor * expected, rtol=1e-4, atol=1e-7))

        if is_off_by(self.total_rows):
            return f"It is not divided by the number of rows. {hint}"
        if is_off_by(self.total_rows / self.rows):
            return f"It is divided by the rows of this worker. {hint}"
        return "It must be that of (the sum of the metric `loss` over the rows) / ctx.step.total_rows."
