"""The update rules. In each, g is the gradient after clipping and weight decay, lr the rate after lr_scale."""

from __future__ import annotations

from typing import ClassVar

from singa_dask.ops.arrays import Array
from singa_dask.updaters.base import Updater, by_rule


class SGD(Updater):
    """v = momentum v - lr g;  w += v.   momentum [0]."""

    type: ClassVar[str] = "kSGD"
    states: ClassVar[tuple[str, ...]] = ("velocity",)

    @by_rule
    def apply(self, step: int, lr: float, weight_decay: float, w: Array, g: Array, *states: Array) -> None:
        self._run("sgd", w, g, states, weight_decay, lr=lr, momentum=self.momentum)


class Nesterov(Updater):
    """v' = momentum v + lr g;  w -= (1 + momentum) v' - momentum v.   momentum [0].

    Nesterov's accelerated gradient in the form of Sutskever et al. 2013, as SINGA has it.
    """

    type: ClassVar[str] = "kNesterov"
    states: ClassVar[tuple[str, ...]] = ("velocity",)

    @by_rule
    def apply(self, step: int, lr: float, weight_decay: float, w: Array, g: Array, *states: Array) -> None:
        self._run("nesterov", w, g, states, weight_decay, lr=lr, momentum=self.momentum)


class _Dividing(Updater):
    """Rules that divide by the size of past gradients, which `delta` keeps away from zero."""

    def prepare(self) -> None:
        super().prepare()
        if self.delta <= 0:
            raise self.problem("delta", "must be positive", self.delta, "Leave it out for 1e-8.")


class AdaGrad(_Dividing):
    """h += g^2;  w -= lr g / sqrt(h + delta).   delta [1e-8].  (Duchi, Hazan & Singer 2011.)"""

    type: ClassVar[str] = "kAdaGrad"
    states: ClassVar[tuple[str, ...]] = ("squares",)

    @by_rule
    def apply(self, step: int, lr: float, weight_decay: float, w: Array, g: Array, *states: Array) -> None:
        self._run("adagrad", w, g, states, weight_decay, lr=lr, delta=self.delta)


class RMSProp(_Dividing):
    """h = rho h + (1 - rho) g^2;  w -= lr g / sqrt(h + delta).   rho, delta [1e-8].  (Tieleman & Hinton 2012.)"""

    type: ClassVar[str] = "kRMSProp"
    conf_field: ClassVar[str | None] = "rmsprop_conf"
    states: ClassVar[tuple[str, ...]] = ("squares",)

    def prepare(self) -> None:
        super().prepare()
        if not self.conf.HasField("rho"):
            raise self.problem("rmsprop_conf.rho", "RMSProp needs it", "nothing", "Usual values are 0.9 to 0.99.")

    @by_rule
    def apply(self, step: int, lr: float, weight_decay: float, w: Array, g: Array, *states: Array) -> None:
        self._run("rmsprop", w, g, states, weight_decay, lr=lr, rho=self.numbers.rho, delta=self.delta)


class AdaDelta(_Dividing):
    """h = rho h + (1 - rho) g^2;  d = g sqrt(u + delta) / sqrt(h + delta);  u = rho u + (1 - rho) d^2;  w -= lr d.

    rho [0.9], delta [1e-8].  (Zeiler 2012, whose rule has lr = 1.)
    """

    type: ClassVar[str] = "kAdaDelta"
    conf_field: ClassVar[str | None] = "adadelta_conf"
    states: ClassVar[tuple[str, ...]] = ("squares", "squared_updates")

    @by_rule
    def apply(self, step: int, lr: float, weight_decay: float, w: Array, g: Array, *states: Array) -> None:
        self._run("adadelta", w, g, states, weight_decay, lr=lr, rho=self.numbers.rho, delta=self.delta)


class Adam(_Dividing):
    """m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
    w -= lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + delta),  t the number of updates with this one.

    beta1 [0.9], beta2 [0.999], delta [1e-8].  (Kingma & Ba 2015.)
    """

    type: ClassVar[str] = "kAdam"
    conf_field: ClassVar[str | None] = "adam_conf"
    states: ClassVar[tuple[str, ...]] = ("mean", "squares")

    @by_rule
    def apply(self, step: int, lr: float, weight_decay: float, w: Array, g: Array, *states: Array) -> None:
        self._run(
            "adam", w, g, states, weight_decay, lr=lr, **vars(self.numbers), delta=self.delta,
            correction1=1 - self.numbers.beta1 ** (step + 1), correction2=1 - self.numbers.beta2 ** (step + 1),
        )  # fmt: skip


class AdamW(_Dividing):
    """w -= lr weight_decay w, then as Adam, whose gradient has no weight decay.

    beta1 [0.9], beta2 [0.999], delta [1e-8].  (Loshchilov & Hutter 2019.)
    """

    type: ClassVar[str] = "kAdamW"
    conf_field: ClassVar[str | None] = "adamw_conf"
    states: ClassVar[tuple[str, ...]] = ("mean", "squares")

    @by_rule
    def apply(self, step: int, lr: float, weight_decay: float, w: Array, g: Array, *states: Array) -> None:
        self._run(
            "adamw", w, g, states, 0.0, lr=lr, shrinkage=lr * weight_decay, **vars(self.numbers), delta=self.delta,
            correction1=1 - self.numbers.beta1 ** (step + 1), correction2=1 - self.numbers.beta2 ** (step + 1),
        )  # fmt: skip


class LAMB(_Dividing):
    """m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
    r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + delta) + weight_decay w,  t the number of updates with this one;
    w -= lr (|w| / |r|) r,  with the norms of each whole parameter, and 1 for their ratio where either is 0.

    beta1 [0.9], beta2 [0.999], delta [1e-8].  (You et al. 2020, algorithm 2.)
    """

    type: ClassVar[str] = "kLAMB"
    conf_field: ClassVar[str | None] = "lamb_conf"
    states: ClassVar[tuple[str, ...]] = ("mean", "squares")
    whole_parameters: ClassVar[bool] = True

    def apply(self, step: int, lr: float, weight_decay: float, w: Array, g: Array, *states: Array) -> None:
        self.ops.lamb(
            w, g, *states, lr=lr, **vars(self.numbers), delta=self.delta, weight_decay=weight_decay,
            correction1=1 - self.numbers.beta1 ** (step + 1), correction2=1 - self.numbers.beta2 ** (step + 1),
            clip_low=self.clip_low, clip_high=self.clip_high,
        )  # fmt: skip


class AdamMax(_Dividing):
    """m = beta1 m + (1 - beta1) g;  u = max(beta2 u, |g|);  w -= lr m / (1 - beta1^t) / (u + delta),
    t the number of updates with this one.

    beta1 [0.9], beta2 [0.999], delta [1e-8].  (AdaMax, Kingma & Ba 2015, section 7.1; SINGA spells it AdamMax.)
    """

    type: ClassVar[str] = "kAdamMax"
    conf_field: ClassVar[str | None] = "adammax_conf"
    states: ClassVar[tuple[str, ...]] = ("mean", "largest")

    @by_rule
    def apply(self, step: int, lr: float, weight_decay: float, w: Array, g: Array, *states: Array) -> None:
        self._run(
            "adamax", w, g, states, weight_decay, lr=lr, **vars(self.numbers), delta=self.delta,
            correction1=1 - self.numbers.beta1 ** (step + 1),
        )  # fmt: skip
