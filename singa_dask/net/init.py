"""Initial values of parameters.

They are drawn with NumPy in float64 from a generator that follows from (seed, parameter name) alone: the device, the
data type, the order of layers and the number of workers never change them.
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
    """Draw `param`'s initial value, float64, of its shape, as its `init` block says.

    kConstant: value.  kGaussian: N(mean, std^2).  kUniform: U(low, high).
    kGaussianSqrtFanIn: N(mean, std^2) / sqrt(fan_in).
    kUniformSqrtFanIn: U(low, high) sqrt(3 / fan_in).
    kUniformSqrtFanInOut: U(low, high) sqrt(6 / (fan_in + fan_out))   (Glorot & Bengio 2010 at the default low, high).
    kUserInit: the function named by `user_type`, called as function(param, rng).
    Without `init`: kUniformSqrtFanIn for arrays of two dimensions or more, zero for vectors (biases).

    Raises ConfigError for kUserInit without `user_type` and where a user's function returns another shape.
    Rules of SINGA 0.3, whose kUniformSqrtFanInOut forgets the 6.
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
            return rng.normal(init.mean, init.std, shape)
        case ParamGenProto.kUniform:
            return rng.uniform(init.low, init.high, shape)
        case ParamGenProto.kGaussianSqrtFanIn:
            return rng.normal(init.mean, init.std, shape) * _scale(param, 1, param.fan_in)
        case ParamGenProto.kUniformSqrtFanIn:
            return rng.uniform(init.low, init.high, shape) * _scale(param, 3, param.fan_in)
        case ParamGenProto.kUniformSqrtFanInOut:
            return rng.uniform(init.low, init.high, shape) * _scale(param, 6, param.fan_in + param.fan_out)
        case _:
            return _user_value(param, init, rng)


def _scale(param: Param, numerator: int, fan: int) -> float:
    if fan <= 0:
        raise ConfigError(
            Problem(
                f"param {param.name!r}.init",
                "the initialiser scales by the fan-in, which this parameter does not have",
                received=f"fan_in={param.fan_in}, fan_out={param.fan_out}",
                hint="Use kConstant, kGaussian or kUniform.",
            )
        )
    return math.sqrt(numerator / fan)


def _user_value(param: Param, init: ParamGenProto, rng: np.random.Generator) -> np.ndarray:
    key = f"param {param.name!r}.init"
    if not init.user_type:
        raise ConfigError(
            Problem(
                f"{key}.type",
                "kUserInit needs user_type",
                received="kUserInit" if init.HasField("type") else "no type",
                hint='Write type: kGaussian (or another), or user_type: "module:function".',
            )
        )
    value = np.asarray(user_code(init.user_type, f"{key}.user_type")(param, rng), dtype=np.float64)
    if value.shape != param.shape:
        raise ConfigError(
            Problem(f"{key}.user_type", f"{init.user_type} must return shape {param.shape}", str(value.shape))
        )
    return value
