"""Update rules: one pass over flat slices of values `w`, gradients `g` and the rule's states, all in place.

Every rule sees g' = clip(g, clip_low, clip_high) + weight_decay * w; clip_low and clip_high are -inf and inf where
clipping is off.
"""

from __future__ import annotations

from typing import Any

from singa_dask.ops.arrays import Array


class UpdateOps:
    """Update rules over `self.xp`."""

    xp: Any

    def _regularised(self, w: Array, g: Array, weight_decay: float, clip_low: float, clip_high: float) -> Array:
        return self.xp.clip(g, clip_low, clip_high) + weight_decay * w

    def sgd_update(
        self,
        w: Array,
        g: Array,
        v: Array,
        lr: float,
        momentum: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        """v = momentum v - lr g';  w += v."""
        v *= momentum
        v -= lr * self._regularised(w, g, weight_decay, clip_low, clip_high)
        w += v

    def nesterov_update(
        self,
        w: Array,
        g: Array,
        v: Array,
        lr: float,
        momentum: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        """v' = momentum v + lr g';  w -= (1 + momentum) v' - momentum v."""
        previous = v.copy()
        v *= momentum
        v += lr * self._regularised(w, g, weight_decay, clip_low, clip_high)
        w -= (1 + momentum) * v - momentum * previous

    def adagrad_update(
        self,
        w: Array,
        g: Array,
        h: Array,
        lr: float,
        delta: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        """h += g'^2;  w -= lr g' / sqrt(h + delta)  (Duchi et al. 2011)."""
        g = self._regularised(w, g, weight_decay, clip_low, clip_high)
        h += g * g
        w -= lr * g / self.xp.sqrt(h + delta)

    def rmsprop_update(
        self,
        w: Array,
        g: Array,
        h: Array,
        lr: float,
        rho: float,
        delta: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        """h = rho h + (1 - rho) g'^2;  w -= lr g' / sqrt(h + delta)  (Tieleman and Hinton 2012)."""
        g = self._regularised(w, g, weight_decay, clip_low, clip_high)
        h *= rho
        h += (1 - rho) * g * g
        w -= lr * g / self.xp.sqrt(h + delta)

    def adadelta_update(
        self,
        w: Array,
        g: Array,
        h: Array,
        u: Array,
        lr: float,
        rho: float,
        delta: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        """h = rho h + (1 - rho) g'^2;  d = g' sqrt(u + delta) / sqrt(h + delta);  u = rho u + (1 - rho) d^2;
        w -= lr d  (Zeiler 2012, whose rule has lr = 1)."""
        xp = self.xp
        g = self._regularised(w, g, weight_decay, clip_low, clip_high)
        h *= rho
        h += (1 - rho) * g * g
        d = g * xp.sqrt(u + delta) / xp.sqrt(h + delta)
        u *= rho
        u += (1 - rho) * d * d
        w -= lr * d

    def adam_update(
        self,
        w: Array,
        g: Array,
        m: Array,
        v: Array,
        lr: float,
        beta1: float,
        beta2: float,
        correction1: float,
        correction2: float,
        delta: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        """m = beta1 m + (1 - beta1) g';  v = beta2 v + (1 - beta2) g'^2;
        w -= lr (m / correction1) / (sqrt(v / correction2) + delta)  (Kingma and Ba 2015).

        correction1, correction2: 1 - beta1^t and 1 - beta2^t, t counted from 1.
        """
        g = self._regularised(w, g, weight_decay, clip_low, clip_high)
        m *= beta1
        m += (1 - beta1) * g
        v *= beta2
        v += (1 - beta2) * g * g
        w -= (lr / correction1) * m / (self.xp.sqrt(v / correction2) + delta)

    def adamax_update(
        self,
        w: Array,
        g: Array,
        m: Array,
        u: Array,
        lr: float,
        beta1: float,
        beta2: float,
        correction1: float,
        delta: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        """m = beta1 m + (1 - beta1) g';  u = max(beta2 u, |g'|);  w -= (lr / correction1) m / (u + delta)
        (Kingma and Ba 2015, section 7.1). correction1: 1 - beta1^t, t counted from 1."""
        xp = self.xp
        g = self._regularised(w, g, weight_decay, clip_low, clip_high)
        m *= beta1
        m += (1 - beta1) * g
        u *= beta2
        xp.maximum(u, xp.abs(g), out=u)
        w -= (lr / correction1) * m / (u + delta)
