"""Parameters: trainable arrays of layers."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from singa_dask.errors import ConfigError, Problem, TrainingError
from singa_dask.job.fields import assign_all
from singa_dask.job.job_pb2 import ParamGenProto, ParamProto
from singa_dask.job.user_code import code_name
from singa_dask.layers.partition import ArrayShard, Shape
from singa_dask.ops.arrays import Array


class Param:
    """One parameter. Value and gradient are views into the net's flat buffers, bound by `net.flat`.

    A parameter that shares (`share_from`) has an `owner`; it reads and writes the owner's arrays.

    name: unique in the net; role: in its layer. shape: of the worker's array; shard: which shard of the whole
    array that is, None if the worker has all of it; whole_shape: of the whole array. fan_in, fan_out: for initialisers
    that scale by them. given: the initial value, where `init` does not say it. frozen: the value stays. statistic: the
    gradient is subtracted as it is, without an updater. touched: whether this step read `grad`.
    """

    def __init__(
        self,
        proto: ParamProto,
        name: str,
        whole_shape: Shape,
        fan_in: int,
        fan_out: int,
        shard: ArrayShard | None = None,
        role: str = "",
    ):
        self.proto = proto
        self.name, self.role = name, role
        self.whole_shape = whole_shape
        self.shard = shard
        self.shape = whole_shape if shard is None else shard.local_shape
        self.fan_in = fan_in
        self.fan_out = fan_out
        self.owner: Param = self
        self.given: Any = None
        self.frozen = False
        self.statistic = False
        self._value: Array = None
        self._grad: Array = None
        self._contributions = 0
        self._versions = [0]
        self.touched = False

    @property
    def versions(self) -> list[int]:
        return self.owner._versions

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def value(self) -> Array:
        return self.owner._value

    @property
    def grad(self) -> Array:
        self.owner.touched = True
        return self.owner._grad

    @grad.setter
    def grad(self, array: Array) -> None:
        # `param.grad += x` works in place and then assigns the same array.
        if array is not self.owner._grad:
            raise ValueError(f"{self.name}.grad is a view into the flat gradients: write grad[...] = array")

    def bind(self, value: Array, grad: Array) -> None:
        """Move value and gradient to these arrays."""
        self._value, self._grad = value, grad

    def claim(self) -> bool:
        """False for the first contribution to this step's gradient (write it), True for later ones (add to it).

        Makes zeroing the gradients before every step unnecessary:
            ops.gemm(x.T, dy, out=p.grad, accumulate=p.claim())
        """
        self.owner._contributions += 1
        return self.owner._contributions > 1

    @property
    def contributions(self) -> int:
        """How many this step's gradient has so far."""
        return self.owner._contributions

    def start_step(self) -> bool:
        """Forget this step's contributions. Returns whether there were any."""
        had, self._contributions, self.touched = self._contributions > 0, 0, False
        return had

    def complete(self) -> None:
        """End this step's contributions; without any, the gradient is zero. Raises TrainingError if one was written
        without `claim`."""
        touched = self.touched
        if self.start_step():
            return
        if touched:
            raise TrainingError(
                f"parameter {self.name!r}: backward wrote its gradient without calling claim(), and it would be "
                "lost. Write param.grad[...] = g + (param.grad if param.claim() else 0)."
            )
        self.grad[...] = 0

    def __repr__(self) -> str:
        return f"Param({self.name!r}, shape={self.shape})"


def param_message(given: ParamProto | Mapping[str, Any], key: str) -> ParamProto:
    """The message of these settings. `init` may be a function(param, rng) or a mapping.

    Raises ConfigError that names `key` for unknown settings and wrong values.
    """
    if isinstance(given, ParamProto):
        return given
    if not isinstance(given, Mapping):
        hint = "For example {'lr_scale': 2}."
        raise ConfigError(Problem(key, "expected a mapping of settings or their message", repr(given), hint))
    proto, given = ParamProto(), {name: value for name, value in given.items() if value is not None}
    assign_all(proto, {name: value for name, value in given.items() if name != "init"}, key, "a parameter")
    if "init" in given:
        proto.init.CopyFrom(_init_message(given["init"], f"{key}.init"))
    return proto


def _init_message(given: Any, key: str) -> ParamGenProto:
    if isinstance(given, ParamGenProto):
        return given
    if callable(given):
        given = {"type": "kUserInit", "user_type": code_name(given)}
    if not isinstance(given, Mapping):
        raise ConfigError(Problem(key, "expected a function, a mapping of settings or their message", repr(given)))
    proto = ParamGenProto()
    assign_all(proto, given, key, "an initial value")
    return proto
