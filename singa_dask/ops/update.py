"""Update rules on flat slices of values w, gradients g and the rule's states, all in place.

A rule is a function (xp, w, g, *states, *, hyperparameters). `UpdateOps.update` passes it the gradient after clipping
and weight decay; devices have a kernel of the same name, with the hyperparameters in the order of `hyperparameters`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from inspect import getfullargspec
from typing import Any, ClassVar

from singa_dask.ops.arrays import Array

Where = tuple[Array, int]
"""The kind of each element, (n,) of uint8, and the one that is chosen."""


def sgd(xp: Any, w: Array, g: Array, v: Array, *, lr: float, momentum: float) -> None:
    """v = momentum v - lr g;  w += v."""
    v *= momentum
    v -= lr * g
    w += v


def nesterov(xp: Any, w: Array, g: Array, v: Array, *, lr: float, momentum: float) -> None:
    """v' = momentum v + lr g;  w -= (1 + momentum) v' - momentum v."""
    previous = v.copy()
    v *= momentum
    v += lr * g
    w -= (1 + momentum) * v - momentum * previous


def adagrad(xp: Any, w: Array, g: Array, h: Array, *, lr: float, delta: float) -> None:
    """h += g^2;  w -= lr g / sqrt(h + delta)  (Duchi et al. 2011)."""
    h += g * g
    w -= lr * g / xp.sqrt(h + delta)


def rmsprop(xp: Any, w: Array, g: Array, h: Array, *, lr: float, rho: float, delta: float) -> None:
    """h = rho h + (1 - rho) g^2;  w -= lr g / sqrt(h + delta)  (Tieleman and Hinton 2012)."""
    h *= rho
    h += (1 - rho) * g * g
    w -= lr * g / xp.sqrt(h + delta)


def adadelta(xp: Any, w: Array, g: Array, h: Array, u: Array, *, lr: float, rho: float, delta: float) -> None:
    """h = rho h + (1 - rho) g^2;  d = g sqrt(u + delta) / sqrt(h + delta);  u = rho u + (1 - rho) d^2;
    w -= lr d  (Zeiler 2012, whose rule has lr = 1)."""
    h *= rho
    h += (1 - rho) * g * g
    d = g * xp.sqrt(u + delta) / xp.sqrt(h + delta)
    u *= rho
    u += (1 - rho) * d * d
    w -= lr * d


def adam(
    xp: Any, w: Array, g: Array, m: Array, v: Array, *,
    lr: float, beta1: float, beta2: float, correction1: float, correction2: float, delta: float,
) -> None:  # fmt: skip
    """m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
    w -= lr (m / correction1) / (sqrt(v / correction2) + delta)  (Kingma and Ba 2015).

    correction1, correction2: 1 - beta1^t and 1 - beta2^t, t counted from 1.
    """
    m *= beta1
    m += (1 - beta1) * g
    v *= beta2
    v += (1 - beta2) * g * g
    w -= (lr / correction1) * m / (xp.sqrt(v / correction2) + delta)


def adamw(
    xp: Any, w: Array, g: Array, m: Array, v: Array, *,
    lr: float, shrinkage: float, beta1: float, beta2: float, correction1: float, correction2: float, delta: float,
) -> None:  # fmt: skip
    """w -= shrinkage w, then as adam (Loshchilov and Hutter 2019). shrinkage: lr times the weight decay."""
    w *= 1 - shrinkage
    adam(
        xp, w, g, m, v,
        lr=lr, beta1=beta1, beta2=beta2, correction1=correction1, correction2=correction2, delta=delta,
    )  # fmt: skip


def adamax(
    xp: Any, w: Array, g: Array, m: Array, u: Array, *,
    lr: float, beta1: float, beta2: float, correction1: float, delta: float,
) -> None:  # fmt: skip
    """m = beta1 m + (1 - beta1) g;  u = max(beta2 u, |g|);  w -= (lr / correction1) m / (u + delta)
    (Kingma and Ba 2015, section 7.1). correction1: 1 - beta1^t, t counted from 1."""
    m *= beta1
    m += (1 - beta1) * g
    u *= beta2
    xp.maximum(u, xp.abs(g), out=u)
    w -= (lr / correction1) * m / (u + delta)


RULES: dict[str, Callable[..., None]] = {
    rule.__name__: rule for rule in (sgd, nesterov, adagrad, rmsprop, adadelta, adam, adamw, adamax)
}


_HYPERPARAMETERS = {
    name: (*getfullargspec(rule).kwonlyargs, "weight_decay", "clip_low", "clip_high") for name, rule in RULES.items()
}


def hyperparameters(rule: str, given: dict[str, float]) -> tuple[float, ...]:
    """The hyperparameters of a rule in the order in which every kernel of it takes them.

    Raises ValueError for an unknown rule, and where some are missing or unknown.
    """
    if rule not in RULES:
        raise ValueError(f"an update rule must be one of {', '.join(RULES)}. Received: {rule!r}.")
    names = _HYPERPARAMETERS[rule]
    if given.keys() != set(names):
        raise ValueError(f"the update rule {rule!r} takes {', '.join(names)}. Received: {', '.join(given) or 'none'}.")
    return tuple(given[name] for name in names)


# Elements that become float64 at once.
_BLOCK = 1 << 16


class UpdateOps:
    """Update rules over `self.xp`."""

    merges_runs: ClassVar[bool] = False  # whether `update_where` is faster than several calls of `update`
    xp: Any

    def update(self, rule: str, w: Array, g: Array, states: Sequence[Array], **given: float) -> None:
        """Update w and the states in place by the rule of this name in RULES, with the gradient

            clip(g, clip_low, clip_high) + weight_decay w

        given: the rule's hyperparameters by name, weight_decay, clip_low and clip_high (-inf and inf for no clipping).
        Raises ValueError for an unknown rule, and where hyperparameters are missing or unknown.
        """
        *own, weight_decay, clip_low, clip_high = hyperparameters(rule, given)
        g = self.xp.clip(g, clip_low, clip_high) + weight_decay * w
        RULES[rule](self.xp, w, g, *states, **dict(zip(_HYPERPARAMETERS[rule], own, strict=False)))

    def update_where(
        self, where: Where, rule: str, w: Array, g: Array, states: Sequence[Array], **given: float
    ) -> None:
        """`update` of the elements that `where` chooses."""
        kinds, kind = where
        chosen = kinds == kind
        parts = [array[chosen] for array in (w, *states)]
        self.update(rule, parts[0], g[chosen], parts[1:], **given)
        for array, part in zip((w, *states), parts, strict=True):
            array[chosen] = part

    def subtract_where(self, where: Where, w: Array, g: Array) -> None:
        """w -= g for the elements that `where` chooses."""
        kinds, kind = where
        w[kinds == kind] -= g[kinds == kind]

    def moving_average(self, average: Array, w: Array, decay: float) -> None:
        """average = decay average + (1 - decay) w, in place."""
        average *= decay
        average += (1 - decay) * w

    def squared_norm(self, x: Array) -> Array:
        """The sum of the squares of a flat array, in float64."""
        return squared_norm(x)

    def squared_norm_where(self, where: Where, x: Array) -> Array:
        """`squared_norm` of the elements that `where` chooses."""
        kinds, kind = where
        return squared_norm(x[kinds == kind])

    def norm_factor(self, squares: Array, limit: float) -> Array:
        """min(1, limit / norm), of a squared norm; 1 where that is NaN."""
        norm = self.xp.sqrt(squares)
        return self.xp.where(norm > limit, limit / norm, 1.0)

    def scale_where(self, where: Where, x: Array, factor: Array) -> None:
        """Multiply the elements that `where` chooses by a number, in place."""
        kinds, kind = where
        x[kinds == kind] *= self.xp.asarray(factor, x.dtype)

    def lamb(
        self, w: Array, g: Array, m: Array, v: Array, *,
        lr: float, beta1: float, beta2: float, correction1: float, correction2: float, delta: float,
        weight_decay: float, clip_low: float, clip_high: float,
    ) -> None:  # fmt: skip
        """Update a whole parameter w and the moments m and v in place (You et al. 2020):

            g = clip(g, clip_low, clip_high);  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
            r = (m / correction1) / (sqrt(v / correction2) + delta) + weight_decay w
            w -= lr (|w| / |r|) r

        The ratio of the norms is 1 where either is 0. correction1, correction2: as of adam. g stays as it is.
        """
        xp = self.xp
        g = xp.clip(g, clip_low, clip_high)
        m *= beta1
        m += (1 - beta1) * g
        v *= beta2
        v += (1 - beta2) * g * g
        r = (m / correction1) / (xp.sqrt(v / correction2) + delta) + weight_decay * w
        w -= lr * trust_ratio(float(squared_norm(w)), float(squared_norm(r))) * r


def squared_norm(x: Array) -> Array:
    """sum x^2 in float64, of a flat array: a scalar where the array is."""
    total: Array = 0.0
    for start in range(0, x.size, _BLOCK):
        block = x[start : start + _BLOCK].astype("float64")
        total = total + block @ block
    return total


def trust_ratio(squared_w: float, squared_r: float) -> float:
    """|w| / |r| from their squares; 1 where either is 0."""
    return math.sqrt(squared_w / squared_r) if squared_w > 0 and squared_r > 0 else 1.0
