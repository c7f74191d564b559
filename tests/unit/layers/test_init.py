"""Initial values: their statistics, and that nothing but seed and name changes them, not even a partition."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import ParamGenProto, ParamProto
from singa_dask.layers import init as initialisers
from singa_dask.layers.param import Param
from singa_dask.layers.partition import ArrayShard, even_bounds
from singa_dask.net import initial_value

FAN_IN, FAN_OUT = 300, 200


def draw(name="w", seed=1, shape=(FAN_IN, FAN_OUT), fans=(FAN_IN, FAN_OUT), **init):
    proto = ParamProto(init=ParamGenProto(**init)) if init else ParamProto()
    return initial_value(Param(proto, name, shape, *fans), seed)


def uniform(bound):
    return (0.0, bound / math.sqrt(3), bound)


@pytest.mark.parametrize(
    ("init", "mean", "std", "bound"),
    [
        ({"type": ParamGenProto.kConstant, "value": 0.25}, 0.25, 0.0, 0.25),
        ({"type": ParamGenProto.kGaussian, "mean": 0.5, "std": 0.25}, 0.5, 0.25, math.inf),
        ({"type": ParamGenProto.kUniform, "low": -0.5, "high": 0.5}, *uniform(0.5)),
        ({"type": ParamGenProto.kGaussianSqrtFanIn}, 0.0, 1 / math.sqrt(FAN_IN), math.inf),
        ({"type": ParamGenProto.kUniformSqrtFanIn}, *uniform(math.sqrt(3 / FAN_IN))),
        ({"type": ParamGenProto.kUniformSqrtFanIn, "low": -2, "high": 2}, *uniform(2 * math.sqrt(3 / FAN_IN))),
        ({"type": ParamGenProto.kUniformSqrtFanInOut}, *uniform(math.sqrt(6 / (FAN_IN + FAN_OUT)))),
        ({}, *uniform(math.sqrt(3 / FAN_IN))),
    ],
)
def test_statistics(init, mean, std, bound):
    value = draw(**init)
    n = value.size
    assert value.shape == (FAN_IN, FAN_OUT)
    assert value.dtype == np.float64
    assert value.mean() == pytest.approx(mean, abs=5 * std / math.sqrt(n))
    assert value.std() == pytest.approx(std, rel=5 / math.sqrt(n))
    assert np.abs(value).max() <= bound
    if std > 0 and math.isfinite(bound):
        assert np.abs(value).max() > 0.999 * bound


RANDOM = ("kGaussian", "kUniform", "kGaussianSqrtFanIn", "kUniformSqrtFanIn", "kUniformSqrtFanInOut")


@pytest.mark.parametrize("name", RANDOM)
def test_value_scales_what_is_drawn(name):
    kind = ParamGenProto.InitType.Value(name)
    np.testing.assert_array_equal(draw(type=kind, value=1), draw(type=kind))
    np.testing.assert_array_equal(draw(type=kind, value=0.5), 0.5 * draw(type=kind))


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (2, 3, 4), (5, 5)])
def test_orthogonal_rows_or_columns(shape):
    given = draw(shape=shape, type=ParamGenProto.kOrthogonal, value=2)
    shard = ArrayShard(shape, 1, even_bounds(shape[1], 2), 1)
    proto = ParamProto(init=ParamGenProto(type=ParamGenProto.kOrthogonal, value=2))
    np.testing.assert_array_equal(initial_value(Param(proto, "w", shape, 1, 1, shard), 1), shard.of_whole(given))
    whole = given.reshape(-1, shape[-1])
    product = whole.T @ whole if len(whole) >= shape[-1] else whole @ whole.T
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-12)


def test_vectors_without_init_are_zero():
    np.testing.assert_array_equal(draw(shape=(7,), fans=(FAN_IN, 7)), np.zeros(7))


def test_seed_and_name_alone_decide():
    gaussian = {"type": ParamGenProto.kGaussian}
    np.testing.assert_array_equal(draw(**gaussian), draw(**gaussian))
    assert not np.array_equal(draw(seed=2, **gaussian), draw(**gaussian))
    assert not np.array_equal(draw(name="v", **gaussian), draw(**gaussian))
    assert abs(np.corrcoef(draw(name="v", **gaussian).ravel(), draw(**gaussian).ravel())[0, 1]) < 0.03


def eye(param, rng):
    """A user's initialiser."""
    return np.eye(*param.shape) + 0 * rng.uniform()


def vector(param, rng):
    """A user's initialiser of the wrong shape."""
    return rng.uniform(size=3)


def test_user_initialiser_by_name():
    np.testing.assert_array_equal(draw(shape=(4, 3), user_type=f"{__name__}:eye"), np.eye(4, 3))


@pytest.mark.parametrize(
    ("init", "words"),
    [
        ({"value": 1}, ["param 'w'.init.type", "needs user_type", "no type", "kGaussian"]),
        ({"user_type": f"{__name__}:vector"}, ["param 'w'.init.user_type", "(300, 200)", "Received: (3,)"]),
        ({"user_type": f"{__name__}:vectro"}, ["Did you mean vector?"]),
        ({"user_type": "vector"}, ["module:Class", "'vector'"]),
        ({"shape": (5,), "fans": (0, 5), "type": ParamGenProto.kUniformSqrtFanIn}, ["fan_in=0"]),
        ({"shape": (5,), "type": ParamGenProto.kOrthogonal}, ["kOrthogonal needs two axes", "(5,)"]),
        ({"user_type": "singa_dask.layers:ReLU"}, ["param 'w'.init.user_type", "must name a function"]),
    ],
)
def test_errors_name_key_value_and_way_out(init, words):
    with pytest.raises(ConfigError) as caught:
        draw(**init)
    assert all(word in str(caught.value) for word in words), str(caught.value)


KINDS = [
    *({"type": ParamGenProto.InitType.Value(name), "value": 0.5} for name in (*RANDOM, "kConstant")),
    {"user_type": f"{__name__}:ramp"},
    {},
]


def ramp(param, rng):
    """A user's initialiser that depends on the position."""
    return np.arange(math.prod(param.shape)).reshape(param.shape) + rng.uniform(size=param.shape)


@st.composite
def shards(draw):
    """The shards of all workers of an array of one to four dimensions."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    axis, outer = draw(st.integers(0, len(shape) - 1)), draw(st.integers(1, 3))
    size, shape[axis] = draw(st.integers(1, 4)), shape[axis] * outer
    bounds = even_bounds(shape[axis] // outer, size)
    return [ArrayShard(tuple(shape), axis, bounds, rank, outer) for rank in range(size)]


@given(shards(), st.sampled_from(KINDS), st.integers(1, 40))
def test_a_shard_is_cut_from_the_same_array(shards, init, block):
    proto = ParamProto(init=ParamGenProto(**init)) if init else ParamProto()
    shape = shards[0].shape
    whole = initial_value(Param(proto, "w", shape, FAN_IN, FAN_OUT), 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(initialisers, "BLOCK", block)
        for shard in shards:
            value = initial_value(Param(proto, "w", shape, FAN_IN, FAN_OUT, shard), 1)
            np.testing.assert_array_equal(value, shard.of_whole(whole))


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("axis", [0, 1])
def test_a_shard_takes_no_memory_for_the_whole_array(name, axis):
    shape = (2000, 3000)
    shard = ArrayShard(shape, axis, even_bounds(shape[axis], 10), 7)
    param = Param(ParamProto(init=ParamGenProto(type=ParamGenProto.InitType.Value(name))), "w", shape, 3, 2, shard)
    tracemalloc.start()
    value = initial_value(param, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < value.nbytes + 4 * 8 * initialisers.BLOCK
