"""Activations, element by element.   x: (B, ...) -> y: the same shape."""

from __future__ import annotations

from math import inf
from typing import Any, ClassVar

from singa_dask.functions import elementwise as functions
from singa_dask.job.job_pb2 import ActivationProto, GELUProto
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array


class _Elementwise(Layer):
    """Base of activations: same shape as x, and backward needs only y."""

    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        return shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.y = self._activate(ctx, x[0], ctx.buffer("y", x[0].shape))
        return ctx.y

    def _activate(self, ctx: Context, x: Array, y: Array) -> Array:
        raise NotImplementedError


class ReLU(_Elementwise):
    """y = x where x > 0, else negative_slope x; max_value where y would be larger.   relu_conf: negative_slope,
    max_value (6 for ReLU6)."""

    type: ClassVar[str] = "kReLU"
    conf_field: ClassVar[str | None] = "relu_conf"
    keeps_order = True  # exactly, unlike activations with an exponential

    def setup(self, *src: Shape) -> Shape:
        if self.conf.negative_slope < 0:
            raise self.problem(f"{self.conf_field}.negative_slope must not be negative", self.conf.negative_slope)
        if self.limit <= 0:
            raise self.problem(f"{self.conf_field}.max_value must be above 0", self.limit, "Leave it out for none.")
        return super().setup(*src)

    @property
    def limit(self) -> float:
        """max_value, or infinity."""
        return self.conf.max_value if self.conf.HasField("max_value") else inf

    def formula(self, x: Any) -> Any:
        y = functions.where(x > 0, x, self.conf.negative_slope * x)
        return y if self.limit == inf else functions.minimum(y, self.limit)

    def _activate(self, ctx: Context, x: Array, y: Array) -> Array:
        return ctx.ops.relu(x, self.conf.negative_slope, y, self.limit)

    def backward(self, ctx: Context, dy: Array) -> Array:
        return ctx.ops.relu_backward(ctx.y, dy, self.conf.negative_slope, out=dy, limit=self.limit)


class LeakyReLU(ReLU):
    """y = x where x > 0, else negative_slope x   (Maas, Hannun & Ng 2013): ReLU with another default.
    leakyrelu_conf: negative_slope."""

    type: ClassVar[str] = "kLeakyReLU"
    conf_field: ClassVar[str | None] = "leakyrelu_conf"
    limit = inf


class Sigmoid(_Elementwise):
    """y = 1 / (1 + exp(-x))."""

    type: ClassVar[str] = "kSigmoid"

    formula = staticmethod(functions.sigmoid)

    def _activate(self, ctx: Context, x: Array, y: Array) -> Array:
        return ctx.ops.sigmoid(x, y)

    def backward(self, ctx: Context, dy: Array) -> Array:
        return ctx.ops.sigmoid_backward(ctx.y, dy, out=dy)


class Tanh(_Elementwise):
    """y = tanh(x)."""

    type: ClassVar[str] = "kTanh"

    formula = staticmethod(functions.tanh)

    def _activate(self, ctx: Context, x: Array, y: Array) -> Array:
        return ctx.ops.tanh(x, y)

    def backward(self, ctx: Context, dy: Array) -> Array:
        return ctx.ops.tanh_backward(ctx.y, dy, out=dy)


class STanh(_Elementwise):
    """y = 1.7159047 tanh(0.6666667 x)  (LeCun et al. 1998)."""

    type: ClassVar[str] = "kSTanh"

    def _activate(self, ctx: Context, x: Array, y: Array) -> Array:
        return ctx.ops.stanh(x, y)

    def backward(self, ctx: Context, dy: Array) -> Array:
        return ctx.ops.stanh_backward(ctx.y, dy, out=dy)


class ELU(_Elementwise):
    """y = x where x > 0, else alpha (exp(x) - 1)   (Clevert, Unterthiner & Hochreiter 2016).   elu_conf: alpha."""

    type: ClassVar[str] = "kELU"
    conf_field: ClassVar[str | None] = "elu_conf"

    def setup(self, *src: Shape) -> Shape:
        if self.conf.alpha < 0:
            raise self.problem("elu_conf.alpha must not be negative", self.conf.alpha)
        return super().setup(*src)

    def _activate(self, ctx: Context, x: Array, y: Array) -> Array:
        return ctx.ops.elu(x, self.conf.alpha, y)

    def backward(self, ctx: Context, dy: Array) -> Array:
        return ctx.ops.elu_backward(ctx.y, dy, self.conf.alpha, out=dy)


class _WithSlope(_Elementwise):
    """Base of activations that are not monotonic: forward computes their slope, too."""

    def backward(self, ctx: Context, dy: Array) -> Array:
        dy *= ctx.slope
        return dy


class SiLU(_WithSlope):
    """y = x sigmoid(x)   (Elfwing, Uchibe & Doya 2018; also called swish)."""

    type: ClassVar[str] = "kSiLU"

    def formula(self, x: Any) -> Any:
        return x * functions.sigmoid(x)

    def _activate(self, ctx: Context, x: Array, y: Array) -> Array:
        ctx.slope = ctx.buffer("slope", x.shape)
        return ctx.ops.silu(x, y, ctx.slope)


class GELU(_WithSlope):
    """y = x F(x), F the distribution function of the normal distribution, (1 + erf(x / sqrt(2))) / 2   (Hendrycks &
    Gimpel 2016); with approximate TANH (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.   gelu_conf: approximate."""

    type: ClassVar[str] = "kGELU"
    conf_field: ClassVar[str | None] = "gelu_conf"

    def _activate(self, ctx: Context, x: Array, y: Array) -> Array:
        ctx.slope, ops = ctx.buffer("slope", x.shape), ctx.ops
        kernel = ops.gelu_tanh if self.conf.approximate == GELUProto.TANH else ops.gelu
        return kernel(x, y, ctx.slope)


_KINDS: dict[str, type[_Elementwise]] = {
    "RELU": ReLU,
    "SIGMOID": Sigmoid,
    "TANH": Tanh,
    "STANH": STanh,
    "LEAKYRELU": LeakyReLU,
    "ELU": ELU,
    "GELU": GELU,
    "SILU": SiLU,
}


class Activation(_Elementwise):
    """The activation of activation_conf.type: RELU, SIGMOID, TANH, STANH, LEAKYRELU, ELU, GELU or SILU."""

    type: ClassVar[str] = "kActivation"
    conf_field: ClassVar[str | None] = "activation_conf"

    def setup(self, *src: Shape) -> Shape:
        kind = ActivationProto.ActivationType.Name(self.conf.type)
        self.rule = _KINDS[kind].from_proto(self.proto)
        self.keeps_order = self.rule.keeps_order
        return super().setup(*src)

    def forward(self, ctx: Context, *x: Array) -> Array:
        return self.rule.forward(ctx, *x)

    def backward(self, ctx: Context, dy: Array) -> Array:
        return self.rule.backward(ctx, dy)
