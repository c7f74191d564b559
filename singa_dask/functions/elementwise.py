"""Functions of each element, with NumPy's broadcasting.   dy: the gradient of y."""

from __future__ import annotations

from typing import Any

from singa_dask.functions.primitive import Primitive, function

add: Primitive = Primitive("add", "a + b.", lambda xp, a, b: a + b, lambda dy, y, a, b: dy, lambda dy, y, a, b: dy)
sub: Primitive = Primitive(
    "sub", "a - b.", lambda xp, a, b: a - b, lambda dy, y, a, b: dy, lambda dy, y, a, b: negative(dy)
)
mul: Primitive = Primitive(
    "mul", "a b.", lambda xp, a, b: a * b, lambda dy, y, a, b: mul(dy, b), lambda dy, y, a, b: mul(dy, a)
)
div: Primitive = Primitive(
    "div",
    "a / b.",
    lambda xp, a, b: a / b,
    lambda dy, y, a, b: div(dy, b),
    lambda dy, y, a, b: negative(div(mul(dy, y), b)),
)
power: Primitive = Primitive(
    "power",
    "a to the power b. Where a is not above 0, b gets no gradient.",
    lambda xp, a, b: a**b,
    lambda dy, y, a, b: mul(dy, mul(b, power(a, sub(b, 1)))),
    lambda dy, y, a, b: mul(dy, mul(y, log(where(greater(a, 0), a, 1)))),
)
negative: Primitive = Primitive("negative", "-x.", lambda xp, x: -x, lambda dy, y, x: negative(dy))
exp: Primitive = Primitive("exp", "e to the power x.", lambda xp, x: xp.exp(x), lambda dy, y, x: mul(dy, y))
log: Primitive = Primitive("log", "The natural logarithm.", lambda xp, x: xp.log(x), lambda dy, y, x: div(dy, x))
sqrt: Primitive = Primitive("sqrt", "The square root.", lambda xp, x: xp.sqrt(x), lambda dy, y, x: div(dy, mul(2, y)))
sign: Primitive = Primitive("sign", "-1, 0 or 1; it has no gradient.", lambda xp, x: xp.sign(x))
abs: Primitive = Primitive(
    "abs", "The absolute value; at 0, its gradient is 0.", lambda xp, x: xp.abs(x), lambda dy, y, x: mul(dy, sign(x))
)
sin: Primitive = Primitive("sin", "The sine.", lambda xp, x: xp.sin(x), lambda dy, y, x: mul(dy, cos(x)))
cos: Primitive = Primitive("cos", "The cosine.", lambda xp, x: xp.cos(x), lambda dy, y, x: negative(mul(dy, sin(x))))
tanh: Primitive = Primitive(
    "tanh", "The hyperbolic tangent.", lambda xp, x: xp.tanh(x), lambda dy, y, x: mul(dy, sub(1, mul(y, y)))
)


def _sigmoid(xp: Any, x: Any) -> Any:
    small = xp.exp(-xp.abs(x))  # does not overflow, and is as exact relative to y below 0 as above
    return xp.where(x >= 0, 1, small) / (1 + small)


sigmoid: Primitive = Primitive("sigmoid", "1 / (1 + exp(-x)).", _sigmoid, lambda dy, y, x: mul(dy, mul(y, sub(1, y))))
softplus: Primitive = Primitive(
    "softplus",
    "log(1 + exp(x)).",
    lambda xp, x: xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x))),
    lambda dy, y, x: mul(dy, sigmoid(x)),
)
clip: Primitive = Primitive(
    "clip",
    "x, within [low, high]; outside, its gradient is 0.",
    lambda xp, x, low, high: xp.clip(x, low, high),
    lambda dy, y, x, low, high: mul(dy, equal(x, y)),
)
maximum: Primitive = Primitive(
    "maximum",
    "The larger of a and b; where they are equal, each gets half of the gradient.",
    lambda xp, a, b: xp.maximum(a, b),
    lambda dy, y, a, b: _share(dy, a, b),
    lambda dy, y, a, b: _share(dy, b, a),
)
minimum: Primitive = Primitive(
    "minimum",
    "The smaller of a and b; where they are equal, each gets half of the gradient.",
    lambda xp, a, b: xp.minimum(a, b),
    lambda dy, y, a, b: _share(dy, b, a),
    lambda dy, y, a, b: _share(dy, a, b),
)
where: Primitive = Primitive(
    "where",
    "a where the condition is true, else b.",
    lambda xp, condition, a, b: xp.where(condition, a, b),
    None,
    lambda dy, y, condition, a, b: where(condition, dy, 0),
    lambda dy, y, condition, a, b: where(condition, 0, dy),
    real=False,
)
ones_like: Primitive = Primitive("ones_like", "Ones of the shape of x.", lambda xp, x: xp.ones_like(x))
zeros_like: Primitive = Primitive("zeros_like", "Zeros of the shape of x.", lambda xp, x: xp.zeros_like(x))
detach: Primitive = Primitive("detach", "x, through which no gradient goes.", lambda xp, x: x, real=False)
greater: Primitive = Primitive("greater", "Whether a > b.", lambda xp, a, b: a > b, real=False)
greater_equal: Primitive = Primitive("greater_equal", "Whether a >= b.", lambda xp, a, b: a >= b, real=False)
less: Primitive = Primitive("less", "Whether a < b.", lambda xp, a, b: a < b, real=False)
less_equal: Primitive = Primitive("less_equal", "Whether a <= b.", lambda xp, a, b: a <= b, real=False)
equal: Primitive = Primitive("equal", "Whether a = b.", lambda xp, a, b: a == b, real=False)
not_equal: Primitive = Primitive("not_equal", "Whether a and b differ.", lambda xp, a, b: a != b, real=False)


def _share(dy: Any, a: Any, b: Any) -> Any:
    """What a gets of the gradient of the larger one."""
    return where(greater(a, b), dy, where(equal(a, b), mul(0.5, dy), 0))


@function
def relu(x: Any) -> Any:
    """max(x, 0)."""
    return mul(x, greater(x, 0))
