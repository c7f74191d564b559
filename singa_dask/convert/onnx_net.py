"""Nets that were read from ONNX models, and layers that only these need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from singa_dask.functions.primitive import Primitive
from singa_dask.layers import Context, Embedding, InnerProduct, Layer, Reshape
from singa_dask.layers.module import Module
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array

# A call: a function, or the name of a layer; places of operands, lists of them, and numbers as they are; settings.
Step = tuple[Callable[..., Any] | str, Sequence[Any], Mapping[str, Any]]


whole = Primitive("whole", "", lambda xp, x: xp.trunc(x), real=False)  # what an integer keeps of a number


def all_steps(y: Any, steps: int, units: int) -> Any:
    """What a recurrent layer gives, as samples (T, H): a layer of a net gives a row for each step."""
    return Reshape(shape=[units, steps], unroll_conn_type=["kUnrollAllToOne"])(y) if isinstance(y, Layer) else y


class ResultIndex(int):
    """Of a result among the inputs and those of all steps."""


class ImportedNet(Module):
    """The net of an ONNX model.

    It reads the inputs of the model in their order: images (B, channels, height, width), as tensors are.
    channels_first: so are flattened images.
    """

    channels_first = True

    def __init__(self, steps: Sequence[Step], outputs: Sequence[int], layers: Mapping[str, Layer]) -> None:
        self._steps, self._outputs = list(steps), list(outputs)
        vars(self).update(layers)

    def forward(self, *x: Any) -> Any:
        results = list(x)
        for of, operands, settings in self._steps:
            of = vars(self)[of] if isinstance(of, str) else of
            results.append(of(*(_at(results, each) for each in operands), **settings))
        outputs = [results[place] for place in self._outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _at(results: Sequence[Any], operand: Any) -> Any:
    if isinstance(operand, list):
        return [results[place] for place in operand]
    return results[operand] if isinstance(operand, ResultIndex) else operand


class Constant(Layer):
    """y = value, for every row of x.   x: (B, ...) -> y: (B, *shape).   user_conf: shape, of images channels first.

    Parameter: value, drawn as zeros.
    """

    @property
    def torch_axes(self) -> dict[str, str]:
        """In PyTorch, images have their channels first."""
        names = [f"a{i}" for i in range(len(self.conf["shape"]))]
        return {"value": f"{' '.join(names)} -> {' '.join(self._channels_last(names))}"}

    def _channels_last(self, axes: Any) -> Any:
        return [*axes[1:], axes[0]] if len(axes) in (3, 4) else axes

    def setup(self, *src: Shape) -> Shape:
        self.sources(src)
        shape = tuple(self._channels_last(self.conf["shape"]))
        self.value = self.declare("value", shape, 0, 0, 0.0)
        return shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.x = x[0]
        y = ctx.buffer("y", (len(x[0]), *self.value.shape))
        y[...] = self.value.value
        return y

    def backward(self, ctx: Context, dy: Array) -> Array:
        gradient = dy.sum(axis=0)
        if self.value.claim():
            self.value.grad += gradient
        else:
            self.value.grad[...] = gradient
        return ctx.ops.zeros(ctx.x.shape) if ctx.needs_input_grad else None


class TableOfSymbols(Embedding):
    """y = W[x] at every position.   x: (B, ...) symbols in [0, V), W: (V, D) -> y: (B, ..., D)."""

    type: ClassVar[str] = "kUserLayer"
    step_axes: ClassVar[int] = 0

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        return *shape, *super().setup((1,))

    def forward(self, ctx: Context, *x: Array) -> Array:
        y = super().forward(ctx, x[0].reshape(-1, 1))
        return y.reshape(*x[0].shape, y.shape[-1])

    def backward(self, ctx: Context, dy: Array) -> Any:
        return super().backward(ctx, dy.reshape(-1, dy.shape[-1]))


class ProductWithTable(InnerProduct):
    """y = x W^T + b along the last axis, W the table of an Embedding.   x: (B, ..., I) -> y: (B, ..., O)."""

    type: ClassVar[str] = "kUserLayer"
    torch_axes: ClassVar[Mapping[str, str]] = {"weight": "O I -> O I", "bias": "O -> O"}

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        return *shape[:-1], *super().setup(shape[-1:])

    def forward(self, ctx: Context, *x: Array) -> Array:
        y = super().forward(ctx, x[0].reshape(-1, x[0].shape[-1]))
        return y.reshape(*x[0].shape[:-1], y.shape[-1])

    def backward(self, ctx: Context, dy: Array) -> Array:
        dx = super().backward(ctx, dy.reshape(-1, dy.shape[-1]))
        return None if dx is None else dx.reshape(*dy.shape[:-1], dx.shape[-1])
