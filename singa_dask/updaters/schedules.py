"""Learning rates as functions of the step number t, counted from 0.

    Inverse(base_lr=0.01, gamma=1e-4, pow=0.75)                                             # Python
    learning_rate { type: kInverse base_lr: 0.01 inverse_conf { gamma: 1e-4 pow: 0.75 } }   # job file

Rules of SINGA 0.3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.job.check_fields import check_numbers
from singa_dask.job.fields import assign
from singa_dask.job.job_pb2 import LRGenProto
from singa_dask.job.user_code import check_own_type, code_name, user_code
from singa_dask.updaters.fields import as_written

KEY = "updater.learning_rate"


class Schedule(ABC):
    """A learning rate that is a pure function of the step.

    Keyword arguments are `base_lr` [0.01] and the fields of the schedule's `*_conf`. A class of your own is named by
    `user_type: "module:Class"` and has `base_lr` only.

    type: the ChangeMethod name; conf_field: the LRGenProto field with the settings, or None.
    """

    type: ClassVar[str] = "kUserChange"
    conf_field: ClassVar[str | None] = None

    def __init__(self, base_lr: float | None = None, **conf: Any):
        cls = type(self)
        check_own_type(cls, Schedule, f"{KEY} {cls.__name__}")
        proto = LRGenProto(type=LRGenProto.ChangeMethod.Value(cls.type))
        if base_lr is not None:
            assign(proto, "base_lr", base_lr, f"{KEY}.base_lr")
        if cls.type == "kUserChange":
            proto.user_type = code_name(cls)
        message = getattr(proto, cls.conf_field) if cls.conf_field is not None else None
        fields = message.DESCRIPTOR.fields_by_name if message is not None else {}
        for key, value in conf.items():
            if key not in fields:
                hint = nearest(key, ["base_lr", *fields])
                raise ConfigError(
                    Problem(f"{KEY}.{key}", f"{cls.__name__} has no such setting", f"{key}={value!r}", hint)
                )
            assign(message, key, value, f"{KEY}.{cls.conf_field}.{key}")
        if message is not None:
            message.SetInParent()
        self._adopt(proto)

    @classmethod
    def from_proto(cls, proto: LRGenProto) -> Schedule:
        """The schedule that this message describes. Raises ConfigError for settings out of range."""
        schedule = cls.__new__(cls)
        schedule._adopt(proto)
        return schedule

    def _adopt(self, proto: LRGenProto) -> None:
        self.proto = proto
        if not proto.IsInitialized():
            missing = proto.FindInitializationErrors()
            raise ConfigError([Problem(f"{KEY}.{field}", f"{type(self).__name__} needs it") for field in missing])
        check_numbers(proto, KEY)
        self.prepare()

    @property
    def conf(self) -> Any:
        """The `*_conf` message."""
        return getattr(self.proto, self.conf_field) if self.conf_field is not None else None

    def prepare(self) -> None:
        """Read and check the settings; schedules with settings of their own read them here too."""
        self.base_lr = as_written(self.proto.base_lr)

    def problem(self, field: str, message: str, received: Any) -> ConfigError:
        """An error that names a field of this schedule's settings."""
        return ConfigError(Problem(f"{KEY}.{self.conf_field}.{field}", message, str(received)))

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The learning rate at this step."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.proto).strip()!r})"


class Fixed(Schedule):
    """lr(t) = base_lr."""

    type: ClassVar[str] = "kFixed"

    def __call__(self, step: int) -> float:
        return self.base_lr


class Step(Schedule):
    """lr(t) = base_lr gamma^floor(t / change_freq).   gamma [1], change_freq."""

    type: ClassVar[str] = "kStep"
    conf_field: ClassVar[str | None] = "step_conf"

    def prepare(self) -> None:
        super().prepare()
        self.change_freq = self.conf.change_freq
        self.gamma = as_written(self.conf.gamma)

    def __call__(self, step: int) -> float:
        return self.base_lr * self.gamma ** (step // self.change_freq)


class Linear(Schedule):
    """lr(t) = (1 - r) base_lr + r final_lr,  r = min(t / change_freq, 1).   change_freq, final_lr.

    SINGA lets r grow past 1, and with it the rate fall below final_lr and below zero; here it stays at final_lr.
    """

    type: ClassVar[str] = "kLinear"
    conf_field: ClassVar[str | None] = "linear_conf"

    def prepare(self) -> None:
        super().prepare()
        self.change_freq = self.conf.change_freq
        self.final_lr = as_written(self.conf.final_lr)

    def __call__(self, step: int) -> float:
        r = min(step / self.change_freq, 1.0)
        return (1 - r) * self.base_lr + r * self.final_lr


class Exponential(Schedule):
    """lr(t) = base_lr / 2^(t / change_freq).   change_freq."""

    type: ClassVar[str] = "kExponential"
    conf_field: ClassVar[str | None] = "exponential_conf"

    def prepare(self) -> None:
        super().prepare()
        self.change_freq = self.conf.change_freq

    def __call__(self, step: int) -> float:
        return self.base_lr * 2.0 ** (-step / self.change_freq)


class Inverse(Schedule):
    """lr(t) = base_lr (1 + gamma t)^-pow.   gamma [1], pow [0]."""

    type: ClassVar[str] = "kInverse"
    conf_field: ClassVar[str | None] = "inverse_conf"

    def prepare(self) -> None:
        super().prepare()
        self.gamma = as_written(self.conf.gamma)
        self.pow = as_written(self.conf.pow)

    def __call__(self, step: int) -> float:
        return self.base_lr * (1 + self.gamma * step) ** -self.pow


class InverseT(Schedule):
    """lr(t) = base_lr / (1 + t / final_lr).   final_lr."""

    type: ClassVar[str] = "kInverseT"
    conf_field: ClassVar[str | None] = "inverset_conf"

    def prepare(self) -> None:
        super().prepare()
        self.final_lr = as_written(self.conf.final_lr)

    def __call__(self, step: int) -> float:
        return self.base_lr / (1 + step / self.final_lr)


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


BY_TYPE = {
    LRGenProto.ChangeMethod.Value(cls.type): cls
    for cls in (Fixed, Step, Linear, Exponential, Inverse, InverseT, FixedStep)
}


def learning_rate(proto: LRGenProto) -> Schedule:
    """The schedule that a job's `learning_rate` block describes.

    kUserChange imports the Schedule subclass that `user_type` names as "module:Class".
    Raises ConfigError where it names none, and for settings out of range.
    """
    cls = BY_TYPE.get(proto.type)
    if cls is not None:
        return cls.from_proto(proto)
    if not proto.user_type:
        raise ConfigError(
            Problem(
                f"{KEY}.type",
                "kUserChange needs user_type",
                received="kUserChange" if proto.HasField("type") else "no type",
                hint='Write type: kFixed (or another), or user_type: "module:Class".',
            )
        )
    found = user_code(proto.user_type, f"{KEY}.user_type")
    if not (isinstance(found, type) and issubclass(found, Schedule)):
        raise ConfigError(Problem(f"{KEY}.user_type", "must name a subclass of Schedule", repr(proto.user_type)))
    return found.from_proto(proto)
