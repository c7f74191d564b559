"""CpuOps and GpuOps against their base: the same signatures, the same numbers."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np
import pytest
from support.op_cases import CASES, compare
from threadpoolctl import threadpool_limits

from singa_dask.errors import ConfigError
from singa_dask.ops import Ops, get_ops
from singa_dask.ops.cpu.elementwise import update_kernels
from singa_dask.ops.cpu.ops import CpuOps
from singa_dask.ops.gpu import kernels as gpu_kernels
from singa_dask.ops.gpu.ops import GpuOps
from singa_dask.ops.update import RULES


def overrides(cls: type) -> list[Any]:
    return [
        pytest.param(cls, name, id=f"{cls.__name__}.{name}")
        for base in cls.__mro__[: cls.__mro__.index(Ops)]
        for name, member in vars(base).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]


@pytest.mark.parametrize(("cls", "name"), overrides(CpuOps) + overrides(GpuOps))
def test_override_has_the_signature_of_its_base(cls, name):
    assert hasattr(Ops, name), "a kernel that only one device has cannot be used by a layer"
    assert inspect.signature(getattr(cls, name)) == inspect.signature(getattr(Ops, name))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_cpu_computes_what_the_base_computes(name, dtype):
    compare(name, get_ops("cpu", dtype))


@pytest.mark.parametrize(
    "name", ["products", "time-zero", "time-given", "time-symbols", "sgd_update", "adam_update", "lamb_update"]
)
def test_threads_share_the_work(name, monkeypatch):
    monkeypatch.setattr(CpuOps, "_product_worth_a_thread", 1)
    monkeypatch.setattr(CpuOps, "_update_worth_a_thread", 1)
    with threadpool_limits(2, "blas"):  # which CpuOps changes
        compare(name, get_ops("cpu", threads=3))


@pytest.mark.parametrize("rule", RULES)
def test_update_kernels_take_hyperparameters_in_the_order_of_their_rule(rule):
    numbers = dict.fromkeys(inspect.signature(RULES[rule]).parameters, 0.5)
    names = list(inspect.signature(getattr(update_kernels, rule).py_func).parameters)
    states = names[2 : names.index("lr")]
    expected = [name for name in numbers if name not in ("xp", "w", "g", *states)]
    assert names == ["w", "g", *states, *expected, "weight_decay", "clip_low", "clip_high"]
    inputs = gpu_kernels.KERNELS[rule][0].split(",")
    given = gpu_kernels.update_numbers(rule, *(0.5 for _ in [*expected, "weight_decay", "clip_low", "clip_high"]))
    assert inputs[0] == "T g" and len(inputs) == 1 + len(given)


@pytest.mark.parametrize("ops", [Ops(), CpuOps()], ids=repr)
def test_an_unknown_update_rule_and_unknown_hyperparameters_are_refused(ops):
    w, g, v = np.ones(3, np.float32), np.ones(3, np.float32), np.zeros(3, np.float32)
    clip = {"weight_decay": 0.0, "clip_low": -1.0, "clip_high": 1.0}
    with pytest.raises(ValueError, match=r"one of sgd, .*Received: 'sdg'"):
        ops.update("sdg", w, g, [v], lr=0.1, **clip)
    with pytest.raises(ValueError, match=r"'sgd' takes lr, momentum, weight_decay, .*Received: lr, weight_decay"):
        ops.update("sgd", w, g, [v], lr=0.1, **clip)
    assert (w == 1).all() and (v == 0).all()


def test_unknown_device_is_named():
    with pytest.raises(ConfigError, match=r"'gpus'.*Did you mean gpu"):
        get_ops("gpus")


def test_gpu_without_cupy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ConfigError, match=r"needs CuPy on .*pip install '\.\[gpu\]'.* in a job gpu=\[\]"):
        get_ops("gpu")


@pytest.mark.parametrize("make", ["empty", "zeros"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int64])
@pytest.mark.parametrize("shape", [(), (0, 4), (3, 5), (1000,)])
def test_arrays_on_the_cpu_begin_with_a_line_of_the_cache(make, dtype, shape):
    for _ in range(3):
        array = getattr(CpuOps(), make)(shape, dtype)
        assert (array.shape, array.dtype) == (shape, dtype) and array.flags.c_contiguous
        assert array.ctypes.data % 64 == 0 or array.size == 0
        assert make == "empty" or not array.any()
