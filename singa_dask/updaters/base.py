"""What an updater is.

As a description it wraps an UpdaterProto: job files and Python build the same message, and keyword arguments are its
fields and those of the updater's `*_conf`.

    SGD(lr=0.01, momentum=0.9, weight_decay=5e-4)
    SGD(learning_rate=schedules.Step(base_lr=0.1, gamma=0.5, change_freq=1000), momentum=0.9)
    updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.01 } }

Once bound, it updates one flat slice of a net's parameters, of which it alone keeps the state.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from singa_dask.errors import CheckpointError, ConfigError, Problem
from singa_dask.job.description import Description
from singa_dask.job.job_pb2 import UpdaterProto
from singa_dask.net.flat import Entry
from singa_dask.ops.arrays import Array
from singa_dask.ops.update import Where
from singa_dask.updaters.fields import as_written, numbers
from singa_dask.updaters.groups import check_groups, scaled
from singa_dask.updaters.mixing import Changes, Mixing
from singa_dask.updaters.schedules import Fixed, Schedule, learning_rate

if TYPE_CHECKING:
    from singa_dask.ops import Ops


EMA = "ema"
"""The state that holds the moving average of the parameters."""
_NO_KIND = 255


class Segment(NamedTuple):
    """A run of the slice whose parameters share their scales, of learning rate and weight decay; None: statistics.

    start, stop: within the slice. states: views. average: of the parameters, a view; None where none is kept. where:
    its elements in the run, None for all.
    """

    start: int
    stop: int
    scales: tuple[float, float] | None
    states: tuple[Array, ...]
    average: Array | None
    where: Where | None = None


def by_rule(apply: Callable[..., None]) -> Callable[..., None]:
    """Marks an `apply` that only calls `_run`, so that all runs of equal scales can be updated at once."""
    apply.by_rule = True  # type: ignore[attr-defined]
    return apply


class Updater(Description, ABC):
    """Base of every updater. A class of your own is named by `user_type: "module:Class"`.

    Every rule sees the gradient clipped to [clip_low, clip_high] (where they differ), plus
    weight_decay * wd_scale * w, and the learning rate times lr_scale. Before that, the gradient of all parameters is
    scaled to the norm clip_norm if its norm is larger (`exchange.clipping`). group: ParamGroupProto, or mappings.

    With ema_decay, the moving average of the parameters is part of the state:  a = ema_decay a + (1 - ema_decay) w
    after each update, and a = w in the beginning (Polyak & Juditsky 1992, with weights that decay). Of running
    statistics it is the value.

    states: names of the arrays, as long as the slice, that the rule keeps between updates. whole_parameters: whether
    the rule needs each parameter as a whole, so that slices must not cut it. ops: set by make_updater. numbers: those
    in the `*_conf`, by name.
    """

    ops: Ops

    type: ClassVar[str] = "kUserUpdater"
    states: ClassVar[tuple[str, ...]] = ()
    whole_parameters: ClassVar[bool] = False

    def __init__(self, *, lr: float | None = None, learning_rate: Schedule | None = None, **settings: Any):
        self._adopt(self._with(UpdaterProto(), lr, learning_rate, **settings))

    def with_settings(self, **settings: Any) -> Self:
        """Another one, with these settings in place of its own. Raises ConfigError as the class does."""
        proto = UpdaterProto()
        proto.CopyFrom(self.proto)
        if "group" in settings:
            proto.ClearField("group")
        self._with(proto, **settings)
        if proto.user_conf:
            proto.user_conf = json.dumps(self.user_conf | json.loads(proto.user_conf))
        return type(self).from_proto(proto)

    def _with(
        self, proto: UpdaterProto, lr: float | None = None, learning_rate: Schedule | None = None, **settings: Any
    ) -> UpdaterProto:
        """The description with these settings in place of those that it has. Raises ConfigError."""
        if lr is not None and learning_rate is not None:
            raise ConfigError(Problem("updater.lr", "give lr or learning_rate, not both", f"lr={lr}"))
        if learning_rate is not None and not isinstance(learning_rate, Schedule):
            hint = "Write lr= for a number that stays."
            raise ConfigError(Problem("updater.learning_rate", "must be a schedule", repr(learning_rate), hint))
        if lr is not None:
            learning_rate = Fixed(base_lr=lr)
        if learning_rate is not None:
            proto.learning_rate.CopyFrom(learning_rate.proto)
        self._describe(proto, Updater, "updater", settings, _COMMON, (*_COMMON, "lr", "learning_rate"))
        return proto

    def _adopt(self, proto: UpdaterProto) -> None:
        super()._adopt(proto)
        self._check_fields("updater")
        self._state: dict[str, Array] = {}
        self._segments: list[Segment] = []
        self._where: Where | None = None
        self.prepare()

    def prepare(self) -> None:
        """Read and check the settings; updaters with settings of their own read them here too."""
        proto = self.proto
        self.momentum = as_written(proto.momentum)
        self.weight_decay = as_written(proto.weight_decay)
        self.delta = as_written(proto.delta)
        self.clip_low, self.clip_high = _clip_range(proto)
        self.ema_decay = as_written(proto.ema_decay)
        if self.ema_decay and EMA in self.states:
            message = f"{type(self).__name__} has a state of the name of the moving average"
            raise self.problem("user_type", message, EMA, "Give it another name.")
        if self.conf_field is not None:
            self.numbers = numbers(self.conf)
        if not proto.HasField("learning_rate"):
            hint = "Write learning_rate { type: kFixed base_lr: 0.01 }, in Python lr=0.01."
            raise ConfigError(Problem("updater.learning_rate", f"{type(self).__name__} needs it", hint=hint))
        self.schedule = learning_rate(proto.learning_rate)

    def problem(self, field: str, message: str, received: Any, hint: str | None = None) -> ConfigError:
        """An error that names a field of the updater."""
        return ConfigError(Problem(f"updater.{field}", message, str(received), hint))

    def check_fits(self, names: Collection[str], split: Collection[str]) -> None:
        """Raise ConfigError if a group matches none of the parameters, or if the rule needs whole parameters, but some
        are split over workers. names: of all parameters; split: of those."""
        check_groups(self.proto.group, names)
        if self.whole_parameters and split:
            name = type(self).__name__
            message = f"{name} needs the norms of whole parameters, but partition_dim splits some over the workers"
            hint = "Leave out partition_dim: 1, or use kAdamW."
            raise self.problem("type", message, ", ".join(split), hint)

    def bind(self, entries: Sequence[Entry], start: int, stop: int) -> None:
        """Take charge of the flat range [start, stop) of parameters laid out as `entries`; all states become zero."""
        self._state = {name: self.ops.zeros((stop - start,)) for name in state_names(type(self), self.proto)}
        scaled_entries = [scaled(entry, self.proto) for entry in entries]
        runs = segments(scaled_entries, start, stop, apart=self.whole_parameters)
        different = list(dict.fromkeys(scales for _, _, scales in runs))
        merges = self.ops.merges_runs and not self.ema_decay and getattr(type(self).apply, "by_rule", False)
        if merges and len(different) < min(len(runs), _NO_KIND):
            kinds = np.full(stop - start, _NO_KIND, np.uint8)
            for a, b, scales in runs:
                kinds[a:b] = different.index(scales)
            of, states = self.ops.asarray(kinds), tuple(self._state[name] for name in self.states)
            self._segments = [Segment(0, len(of), scales, states, None, (of, k)) for k, scales in enumerate(different)]
            return
        self._segments = [
            Segment(
                a,
                b,
                scales,
                tuple(self._state[name][a:b] for name in self.states),
                self._state[EMA][a:b] if self.ema_decay else None,
            )
            for a, b, scales in runs
        ]

    def start(self, w: Array) -> None:
        """Begin with these values of the slice, which are their moving average."""
        if self.ema_decay:
            self._state[EMA][...] = w

    def stale_factor(self, staleness: int) -> float:
        """The factor on the learning rate of an update; 1 unless a class overrides it.

        staleness: updates by other groups between reading the parameters and applying the gradient; 0 for synchronous
        jobs. 1 / max(1, staleness) is the rule of Zhang et al. (2016).
        """
        return 1.0

    def mix(self, exchange: int, left: Changes, right: Changes) -> Mixing:
        """How two neighbouring server groups mix their changes of a slice: the sum unless a class overrides it.

        exchange: the number of the exchange between the two, from 1. Called once per exchange, by the right group.
        """
        return Mixing()

    def update(
        self, step: int, w: Array, g: Array, made: int | None = None, *, reductions: int = 0, staleness: int = 0
    ) -> None:
        """Update the slice `w` in place from the gradients `g`.

        step: training step, by which the learning rate goes; reductions: how often it was reduced. made: updates made
        before this one, by which moments are corrected; other than `step` where several worker groups update the same
        parameters. staleness: see `stale_factor`.
        """
        lr = self.schedule.rate(step, reductions) * self.stale_factor(staleness)
        made = step if made is None else made
        for start, stop, scales, states, average, where in self._segments:
            values, self._where = w[start:stop], where
            if scales is None and where is not None:
                self.ops.subtract_where(where, values, g[start:stop])
            elif scales is None:
                values -= g[start:stop]
            else:
                rates = lr * scales[0], self.weight_decay * scales[1]
                self.apply(made, *rates, values, g[start:stop], *states)
            if average is not None:
                self.ops.moving_average(average, values, 0.0 if scales is None else self.ema_decay)

    @abstractmethod
    def apply(self, step: int, lr: float, weight_decay: float, w: Array, g: Array, *states: Array) -> None:
        """One application of the rule, in place, to parameters of equal scales. w, g, every state: (n,).

        With `whole_parameters`, to one parameter and the zeros behind it. step: how many updates were made before this
        one.
        """

    def _run(
        self, rule: str, w: Array, g: Array, states: Sequence[Array], weight_decay: float, **hyperparameters: float
    ) -> None:
        """Run a rule of singa_dask.ops.update with this updater's clipping."""
        clip = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        given = {"weight_decay": weight_decay, **clip, **hyperparameters}
        if self._where is None:
            self.ops.update(rule, w, g, states, **given)
        else:
            self.ops.update_where(self._where, rule, w, g, states, **given)

    @property
    def state(self) -> dict[str, Array]:
        """The arrays, as long as the slice, that the rule keeps between updates; for checkpoints."""
        return dict(self._state)

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from saved arrays. Raises CheckpointError where names or lengths differ."""
        if set(state) != set(self._state):
            raise CheckpointError(
                f"{type(self).__name__} keeps {', '.join(self._state) or 'no state'}, "
                f"but the checkpoint has {', '.join(state) or 'none'}"
            )
        for name, array in self._state.items():
            if state[name].shape != array.shape:
                raise CheckpointError(
                    f"updater state {name!r} is {array.shape} here, but {state[name].shape} as saved"
                )
            array[...] = self.ops.asarray(state[name])


_COMMON = ("momentum", "weight_decay", "delta", "clip_low", "clip_high", "clip_norm", "ema_decay", "group")


def state_names(kind: type[Updater], proto: UpdaterProto) -> tuple[str, ...]:
    """The names of the arrays that an updater of this class and these settings keeps between updates."""
    return (*kind.states, EMA) if proto.ema_decay else tuple(kind.states)


def segments(
    entries: Sequence[Entry], start: int, stop: int, *, apart: bool = False
) -> list[tuple[int, int, tuple[float, float] | None]]:
    """Cut [start, stop) where the scales change: (start, stop, (lr_scale, wd_scale)), counted from the slice's start;
    None in place of the scales of a statistic.

    The padding behind a parameter goes with it, so that equal neighbours are one run. apart: every parameter is a run
    of its own, and must lie in [start, stop) as a whole.
    """
    runs: list[tuple[int, int, tuple[float, float] | None]] = []
    for i, entry in enumerate(entries):
        end = entries[i + 1].start if i + 1 < len(entries) else max(stop, entry.stop)
        a, b = max(entry.start, start) - start, min(end, stop) - start
        if a >= b:
            continue
        scales = None if entry.statistic else (as_written(entry.lr_scale), as_written(entry.wd_scale))
        if apart and not (start <= entry.start and entry.stop <= stop):
            raise ValueError(f"[{start}, {stop}) cuts parameter {entry.name!r} at [{entry.start}, {entry.stop})")
        if runs and runs[-1][2] == scales and not apart:
            a = runs.pop()[0]
        runs.append((a, b, scales))
    return runs


def _clip_range(proto: UpdaterProto) -> tuple[float, float]:
    """The range that gradients are clipped to, infinite where clipping is off."""
    low, high = as_written(proto.clip_low), as_written(proto.clip_high)
    if high == low:
        return -math.inf, math.inf
    if not low < 0 < high:  # one that is not given is 0
        message = "must be below 0, and clip_high above it: other ranges leave out half of all gradients"
        raise ConfigError(Problem("updater.clip_low", message, f"{low} to {high}"))
    return low, high
