"""Initial values of parameters.

NumPy draws them in float64 from a generator that depends on (seed, parameter name) alone. Device, data type, order of
layers, number of workers and partition do not change them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import ParamGenProto
from singa_dask.job.user_code import user_code
from singa_dask.layers.param import Param
from singa_dask.layers.partition import ArrayShard

# Elements that are drawn at a time for a shard of an array: few enough for the cache.
BLOCK = 1 << 16


def generator(seed: int, name: str) -> np.random.Generator:
    """The generator of one parameter's draws."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def initial_value(param: Param, seed: int, out: np.ndarray | None = None) -> np.ndarray:
    """The initial value of `param` by its `init` block, in the parameter's shape: `out`, or a new array of float64.

    kConstant: value.  kGaussian: value N(mean, std^2).  kUniform: value U(low, high).
    kGaussianSqrtFanIn: value N(mean, std^2) / sqrt(fan_in).
    kUniformSqrtFanIn: value U(low, high) sqrt(3 / fan_in).
    kUniformSqrtFanInOut: value U(low, high) sqrt(6 / (fan_in + fan_out))   (Glorot & Bengio 2010 with the defaults).
    kOrthogonal: value Q, of which either the rows or the columns are orthonormal; its columns lie along the last axis
    (Saxe, McClelland & Ganguli 2014).
    kUserInit: function(param, rng), where `user_type` names the function. It returns the whole array.
    Without `init`: kUniformSqrtFanIn for arrays of two or more dimensions, zero for vectors (biases).

    `value` is 1 unless the job sets it. The rules are SINGA 0.3's, except that SINGA omits the 6.
    A parameter with a `shard` gets that shard of the whole array. Only kUserInit and kOrthogonal need memory for
    more than `out`.
    Raises ConfigError if kUserInit names no function, or one that returns another shape.
    """
    rng = generator(seed, param.name)
    out = np.empty(param.shape) if out is None else out
    if param.given is not None:
        out[...] = param.given
        return out
    if not param.proto.HasField("init"):
        if len(param.shape) < 2:
            out[...] = 0
        else:
            _uniform(param, out, rng, 1.0, -1.0, 1.0, _scale(param, 3, param.fan_in))
        return out
    init = param.proto.init
    match init.type:
        case ParamGenProto.kConstant:
            out[...] = init.value
        case ParamGenProto.kGaussian:
            _gaussian(param, out, rng, init)
        case ParamGenProto.kUniform:
            _uniform(param, out, rng, init.value, init.low, init.high)
        case ParamGenProto.kGaussianSqrtFanIn:
            _gaussian(param, out, rng, init, _scale(param, 1, param.fan_in))
        case ParamGenProto.kUniformSqrtFanIn:
            _uniform(param, out, rng, init.value, init.low, init.high, _scale(param, 3, param.fan_in))
        case ParamGenProto.kUniformSqrtFanInOut:
            fans = param.fan_in + param.fan_out
            _uniform(param, out, rng, init.value, init.low, init.high, _scale(param, 6, fans))
        case ParamGenProto.kOrthogonal:
            out[...] = _orthogonal(param, init, rng)
        case _:
            out[...] = _user_value(param, init, rng)
    return out


def check_initial_value(param: Param, seed: int) -> None:
    """Raise ConfigError if the `init` block of `param` is wrong. Only a user function draws the whole array."""
    user = param.proto.HasField("init") and param.proto.init.type == ParamGenProto.kUserInit
    shape = param.whole_shape if user else (1,) * len(param.whole_shape)
    initial_value(Param(param.proto, param.name, shape, param.fan_in, param.fan_out), seed)


def _uniform(
    param: Param, out: np.ndarray, rng: np.random.Generator, value: float, low: float, high: float, scale: float = 1.0
) -> None:
    bits = rng.bit_generator
    assert isinstance(bits, np.random.PCG64)
    # A uniform number takes one output of the bit generator.
    _draw(param, out, lambda count: value * rng.uniform(low, high, count) * scale, bits.advance)


def _gaussian(
    param: Param, out: np.ndarray, rng: np.random.Generator, init: ParamGenProto, scale: float = 1.0
) -> None:
    def draw(count: int) -> np.ndarray:
        return init.value * rng.normal(init.mean, init.std, count) * scale

    _draw(param, out, draw, draw)  # a normal number takes one output or more


def _draw(param: Param, out: np.ndarray, draw: Callable[[int], np.ndarray], skip: Callable[[int], object]) -> None:
    """Set `out` to the parameter's shard of the whole array, whose elements draw(count) draws and skip(count) skips
    in order.

    In the whole array, rows of `length` elements; elements `first` to `last` of each belong to the shard.
    """
    if not out.size:
        return
    shard = param.shard or ArrayShard((param.size,), 0, (0, param.size), 0)
    after = math.prod(shard.shape[shard.axis + 1 :])
    first, last, length = shard.start * after, shard.stop * after, shard.bounds[-1] * after
    shards = out.reshape(math.prod(shard.shape) // length, last - first)
    together = max(1, BLOCK // length)
    for row in range(0, len(shards), together):
        rows = shards[row : row + together]
        for begin in range(0, length, BLOCK):  # more than one block only if rows is one row
            width = min(BLOCK, length - begin)
            left, right = (min(max(0, end - begin), width) for end in (first, last))
            if left < right:
                block = draw(len(rows) * width).reshape(-1, width)
                rows[:, begin + left - first : begin + right - first] = block[:, left:right]
            elif begin < first or row + together < len(shards):
                skip(len(rows) * width)


def _scale(param: Param, numerator: int, fan: int) -> float:
    if fan <= 0:
        message = "the initialiser divides by the fan-in, and this parameter has none"
        received, hint = f"fan_in={param.fan_in}, fan_out={param.fan_out}", "Use kConstant, kGaussian or kUniform."
        raise ConfigError(Problem(f"param {param.name!r}.init", message, received, hint))
    return math.sqrt(numerator / fan)


def _orthogonal(param: Param, init: ParamGenProto, rng: np.random.Generator) -> np.ndarray:
    shape = param.whole_shape
    if len(shape) < 2:
        hint = "Use kConstant, kGaussian or kUniform for a vector."
        raise ConfigError(
            Problem(f"param {param.name!r}.init", "kOrthogonal needs two axes or more", str(shape), hint)
        )
    rows, columns = math.prod(shape[:-1]), shape[-1]
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q *= np.sign(np.diag(r))  # so that all orthogonal matrices are equally probable
    value = init.value * (q if rows >= columns else q.T).reshape(shape)
    return value if param.shard is None else param.shard.of_whole(value)


def _user_value(param: Param, init: ParamGenProto, rng: np.random.Generator) -> np.ndarray:
    key = f"param {param.name!r}.init"
    if not init.user_type:
        received = "kUserInit" if init.HasField("type") else "no type"
        hint = 'Write type: kGaussian (or another), or user_type: "module:function".'
        raise ConfigError(Problem(f"{key}.type", "kUserInit needs user_type", received, hint))
    whole = Param(param.proto, param.name, param.whole_shape, param.fan_in, param.fan_out)
    function = user_code(init.user_type, f"{key}.user_type")
    if isinstance(function, type) or not callable(function):
        hint = "Write def my_init(param, rng), which returns an array of the shape param.shape."
        raise ConfigError(Problem(f"{key}.user_type", "must name a function", repr(init.user_type), hint))
    value = np.asarray(function(whole, rng), dtype=np.float64)
    if value.shape != whole.shape:
        raise ConfigError(
            Problem(f"{key}.user_type", f"{init.user_type} must return shape {whole.shape}", str(value.shape))
        )
    return value if param.shard is None else param.shard.of_whole(value)
