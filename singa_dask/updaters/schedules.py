"""Learning rates as functions of the step number t, counted from 0.

    Inverse(base_lr=0.01, gamma=1e-4, pow=0.75)                                             # Python
    learning_rate { type: kInverse base_lr: 0.01 inverse_conf { gamma: 1e-4 pow: 0.75 } }   # job file

Rules of SINGA 0.3, except ReduceOnPlateau, Cosine, OneCycle and Sequential. Any of them may have a warm-up in front.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import accumulate
from typing import Any, ClassVar

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.description import Description, class_of
from singa_dask.job.job_pb2 import LRGenProto
from singa_dask.updaters.fields import as_written, numbers

KEY = "updater.learning_rate"


class Schedule(Description, ABC):
    """A learning rate that is a pure function of the step, and of how often evaluations have reduced it.

    Keyword arguments are `base_lr` [0.01], `warmup_steps` [0], `warmup_factor` [0] and the fields of the schedule's
    `*_conf`, or whatever a class of your own, named by `user_type: "module:Class"`, finds in `self.conf`.

    numbers: those in the `*_conf`, by name.
    """

    type: ClassVar[str] = "kUserChange"

    def __init__(self, base_lr: float | None = None, **conf: Any):
        proto = LRGenProto()
        if self.conf_field is not None and self.type != Schedule.type:
            getattr(proto, self.conf_field).SetInParent()  # what it must have is missed, though none is given
        given = {"base_lr": base_lr} if base_lr is not None else {}
        self._describe(proto, Schedule, KEY, {**given, **conf}, _COMMON, _COMMON)
        self._adopt(proto)

    def _adopt(self, proto: LRGenProto) -> None:
        super()._adopt(proto)
        self._check_fields(KEY)
        self.prepare()

    def prepare(self) -> None:
        """Read and check the settings; schedules with settings of their own read them here too."""
        self.base_lr = as_written(self.proto.base_lr)
        self.warmup_steps, self.warmup_factor = self.proto.warmup_steps, as_written(self.proto.warmup_factor)
        if self.conf_field is not None:
            self.numbers = numbers(self.conf)

    def problem(self, field: str, message: str, received: Any) -> ConfigError:
        """An error that names a field of this schedule's settings."""
        return ConfigError(Problem(f"{KEY}.{self.conf_field}.{field}", message, str(received)))

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The learning rate at this step, counted from the end of the warm-up."""

    def reduced(self, step: int, reductions: int) -> float:
        """As a call, after so many reductions: only ReduceOnPlateau is reduced."""
        return self(step)

    def rate(self, step: int, reductions: int = 0) -> float:
        """The learning rate at this step of training, after so many reductions.

        f = warmup_factor, n = warmup_steps: (f + (1 - f) t / n) reduced(0) while t < n, then reduced(t - n)
        (gradual warm-up, Goyal et al. 2017).
        """
        if step >= self.warmup_steps:
            return self.reduced(step - self.warmup_steps, reductions)
        warmth = self.warmup_factor + (1 - self.warmup_factor) * step / self.warmup_steps
        return warmth * self.reduced(0, reductions)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.proto).strip()!r})"


_COMMON = ("base_lr", "warmup_steps", "warmup_factor")


class Fixed(Schedule):
    """lr(t) = base_lr."""

    type: ClassVar[str] = "kFixed"

    def __call__(self, step: int) -> float:
        return self.base_lr


class Step(Schedule):
    """lr(t) = base_lr gamma^floor(t / change_freq).   gamma [1], change_freq."""

    type: ClassVar[str] = "kStep"
    conf_field: ClassVar[str | None] = "step_conf"

    def __call__(self, step: int) -> float:
        return self.base_lr * self.numbers.gamma ** (step // self.numbers.change_freq)


class Linear(Schedule):
    """lr(t) = (1 - r) base_lr + r final_lr,  r = min(t / change_freq, 1).   change_freq, final_lr.

    SINGA lets r grow past 1, and with it the rate fall below final_lr and below zero; here it stays at final_lr.
    """

    type: ClassVar[str] = "kLinear"
    conf_field: ClassVar[str | None] = "linear_conf"

    def __call__(self, step: int) -> float:
        r = min(step / self.numbers.change_freq, 1.0)
        return (1 - r) * self.base_lr + r * self.numbers.final_lr


class Exponential(Schedule):
    """lr(t) = base_lr / 2^(t / change_freq).   change_freq."""

    type: ClassVar[str] = "kExponential"
    conf_field: ClassVar[str | None] = "exponential_conf"

    def __call__(self, step: int) -> float:
        return self.base_lr * 2.0 ** (-step / self.numbers.change_freq)


class Inverse(Schedule):
    """lr(t) = base_lr (1 + gamma t)^-pow.   gamma [1], pow [0]."""

    type: ClassVar[str] = "kInverse"
    conf_field: ClassVar[str | None] = "inverse_conf"

    def __call__(self, step: int) -> float:
        return self.base_lr * (1 + self.numbers.gamma * step) ** -self.numbers.pow


class InverseT(Schedule):
    """lr(t) = base_lr / (1 + t / final_lr).   final_lr."""

    type: ClassVar[str] = "kInverseT"
    conf_field: ClassVar[str | None] = "inverset_conf"

    def __call__(self, step: int) -> float:
        return self.base_lr / (1 + step / self.numbers.final_lr)


class FixedStep(Schedule):
    """lr(t) = step_lr[i] for the last i with step[i] <= t; step_lr[0] before step[0].   step, step_lr: lists.

    As in SINGA, `base_lr` is not used.
    """

    type: ClassVar[str] = "kFixedStep"
    conf_field: ClassVar[str | None] = "fixedstep_conf"

    def prepare(self) -> None:
        super().prepare()
        self.steps = list(self.conf.step)
        self.rates = [as_written(rate) for rate in self.conf.step_lr]
        if not self.steps or len(self.steps) != len(self.rates):
            received = f"{len(self.steps)} step, {len(self.rates)} step_lr"
            raise self.problem("step", "needs one step_lr per step, and at least one", received)
        if self.steps != sorted(set(self.steps)):
            raise self.problem("step", "must increase", self.steps)

    def __call__(self, step: int) -> float:
        passed = sum(start <= step for start in self.steps)
        return self.rates[max(passed - 1, 0)]


class ReduceOnPlateau(Schedule):
    """lr = max(base_lr factor^n, min_lr) after n reductions: one whenever `patience` evaluations in a row bring no
    improvement of more than `min_delta`.   metric, factor [0.1], patience [3], min_delta [0], min_lr [0].

    metric: of an evaluation, "validate.loss"; by default the loss of the validation, or of the test without one.
    Called with a step alone, it is the rate before any reduction.
    """

    type: ClassVar[str] = "kReduceOnPlateau"
    conf_field: ClassVar[str | None] = "reduceonplateau_conf"

    def prepare(self) -> None:
        super().prepare()
        if self.numbers.factor <= 0:
            raise self.problem("factor", "must be above 0", self.numbers.factor)
        if self.numbers.min_lr > self.base_lr:
            raise self.problem("min_lr", f"must be at most base_lr, {self.base_lr}", self.numbers.min_lr)

    def __call__(self, step: int) -> float:
        return self.base_lr

    def reduced(self, step: int, reductions: int) -> float:
        return max(self.base_lr * self.numbers.factor**reductions, self.numbers.min_lr)


class Cosine(Schedule):
    """lr(t) = final_lr + (base_lr - final_lr) (1 + cos(pi r)) / 2,  r = min(t / change_freq, 1).
    change_freq, final_lr [0].   (Loshchilov & Hutter 2017, without restarts.)
    """

    type: ClassVar[str] = "kCosine"
    conf_field: ClassVar[str | None] = "cosine_conf"

    def __call__(self, step: int) -> float:
        return _half_cosine(self.base_lr, self.numbers.final_lr, step / self.numbers.change_freq)


class OneCycle(Schedule):
    """Half a cosine from base_lr / div_factor to base_lr, which it reaches at u = rise change_freq - 1; then half a
    cosine to base_lr / div_factor / final_div_factor at change_freq - 1, where it stays.
    change_freq, rise [0.3], div_factor [25], final_div_factor [1e4].   (Smith & Topin 2018.)

    Momentum stays as it is.
    """

    type: ClassVar[str] = "kOneCycle"
    conf_field: ClassVar[str | None] = "onecycle_conf"

    def prepare(self) -> None:
        super().prepare()
        self._top = self.numbers.rise * self.numbers.change_freq - 1
        if self._top <= 0:
            raise self.problem("rise", "must be more than 1 / change_freq", self.numbers.rise)

    def __call__(self, step: int) -> float:
        first = self.base_lr / self.numbers.div_factor
        if step <= self._top:
            return _half_cosine(first, self.base_lr, step / self._top)
        fall = (step - self._top) / (self.numbers.change_freq - 1 - self._top)
        return _half_cosine(self.base_lr, first / self.numbers.final_div_factor, fall)


class Sequential(Schedule):
    """One schedule after the other; each counts its own steps, its warm-up first, and the last has no end.
    schedule, steps: lists; steps[i] is how many steps schedule[i] lasts, of each but the last.

    `base_lr` is not used.
    """

    type: ClassVar[str] = "kSequential"
    conf_field: ClassVar[str | None] = "sequential_conf"

    def prepare(self) -> None:
        super().prepare()
        self.schedules = [learning_rate(proto) for proto in self.conf.schedule]
        self._starts = [0, *accumulate(self.conf.steps)]
        if not self.schedules or len(self._starts) != len(self.schedules):
            received = f"{len(self.schedules)} schedule, {len(self.conf.steps)} steps"
            raise self.problem("steps", "must be one less than the schedules", received)

    def __call__(self, step: int) -> float:
        return self.reduced(step, 0)

    def reduced(self, step: int, reductions: int) -> float:
        i = sum(start <= step for start in self._starts) - 1
        return self.schedules[i].rate(step - self._starts[i], reductions)


def _half_cosine(first: float, last: float, r: float) -> float:
    """From `first` at r = 0 to `last` at r = 1 and beyond."""
    return last + (first - last) * (1 + math.cos(math.pi * min(r, 1.0))) / 2


BY_TYPE: dict[str, type[Schedule]] = {
    cls.type: cls
    for cls in (
        Fixed,
        Step,
        Linear,
        Exponential,
        Inverse,
        InverseT,
        FixedStep,
        ReduceOnPlateau,
        Cosine,
        OneCycle,
        Sequential,
    )
}


def learning_rate(proto: LRGenProto) -> Schedule:
    """The schedule that a job's `learning_rate` block describes.

    kUserChange imports the Schedule subclass that `user_type` names as "module:Class".
    Raises ConfigError where it names none, and for settings out of range.
    """
    return class_of(proto, BY_TYPE, Schedule, KEY).from_proto(proto)
