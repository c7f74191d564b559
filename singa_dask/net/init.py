"""Initial values of parameters.

NumPy draws them in float64 from a generator that depends on (seed, parameter name) alone. Device, data type, order of
layers and number of workers do not change them.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import ParamGenProto
from singa_dask.job.user_code import user_code
from singa_dask.layers.param import Param


def generator(seed: int, name: str) -> np.random.Generator:
    """The generator of one parameter's draws."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def initial_value(param: Param, seed: int) -> np.ndarray:
    """The initial value of `param` by its `init` block: float64, in the parameter's shape.

    kConstant: value.  kGaussian: value N(mean, std^2).  kUniform: value U(low, high).
    kGaussianSqrtFanIn: value N(mean, std^2) / sqrt(fan_in).
    kUniformSqrtFanIn: value U(low, high) sqrt(3 / fan_in).
    kUniformSqrtFanInOut: value U(low, high) sqrt(6 / (fan_in + fan_out))   (Glorot & Bengio 2010 with the defaults).
    kUserInit: function(param, rng), where `user_type` names the function.
    Without `init`: kUniformSqrtFanIn for arrays of two or more dimensions, zero for vectors (biases).

    `value` is 1 unless the job sets it. The rules are SINGA 0.3's, except that SINGA omits the 6.
    Raises ConfigError if kUserInit has no `user_type` or its function returns another shape.
    """
    rng = generator(seed, param.name)
    shape = param.shape
    if not param.proto.HasField("init"):
        if len(shape) < 2:
            return np.zeros(shape)
        return rng.uniform(-1.0, 1.0, shape) * _scale(param, 3, param.fan_in)
    init = param.proto.init
    match init.type:
        case ParamGenProto.kConstant:
            return np.full(shape, init.value)
        case ParamGenProto.kGaussian:
            return init.value * rng.normal(init.mean, init.std, shape)
        case ParamGenProto.kUniform:
            return init.value * rng.uniform(init.low, init.high, shape)
        case ParamGenProto.kGaussianSqrtFanIn:
            return init.value * rng.normal(init.mean, init.std, shape) * _scale(param, 1, param.fan_in)
        case ParamGenProto.kUniformSqrtFanIn:
            return init.value * rng.uniform(init.low, init.high, shape) * _scale(param, 3, param.fan_in)
        case ParamGenProto.kUniformSqrtFanInOut:
            fans = param.fan_in + param.fan_out
            return init.value * rng.uniform(init.low, init.high, shape) * _scale(param, 6, fans)
        case _:
            return _user_value(param, init, rng)


def _scale(param: Param, numerator: int, fan: int) -> float:
    if fan <= 0:
        message = "the initialiser divides by the fan-in, and this parameter has none"
        received, hint = f"fan_in={param.fan_in}, fan_out={param.fan_out}", "Use kConstant, kGaussian or kUniform."
        raise ConfigError(Problem(f"param {param.name!r}.init", message, received, hint))
    return math.sqrt(numerator / fan)


def _user_value(param: Param, init: ParamGenProto, rng: np.random.Generator) -> np.ndarray:
    key = f"param {param.name!r}.init"
    if not init.user_type:
        received = "kUserInit" if init.HasField("type") else "no type"
        hint = 'Write type: kGaussian (or another), or user_type: "module:function".'
        raise ConfigError(Problem(f"{key}.type", "kUserInit needs user_type", received, hint))
    value = np.asarray(user_code(init.user_type, f"{key}.user_type")(param, rng), dtype=np.float64)
    if value.shape != param.shape:
        raise ConfigError(
            Problem(f"{key}.user_type", f"{init.user_type} must return shape {param.shape}", str(value.shape))
        )
    return value
