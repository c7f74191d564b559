"""Every layer on GpuOps against the base: outputs, gradients and metrics of one step."""

import numpy as np
import pytest
from support.layer_cases import CASES, bench, step_results
from support.split_layers import CASES as SPLIT

from singa_dask.ops import Ops


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", CASES)
def test_gpu_layer_does_what_the_base_does(name, gpu):
    expected = step_results(bench(name, Ops(np.float64)), CASES[name].differentiable)
    received = step_results(bench(name, gpu), CASES[name].differentiable)
    tolerance = 2e-4 if gpu.dtype == np.float32 else 1e-9
    for got, want in zip(received, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", SPLIT)
def test_split_gpu_layer_does_what_the_base_does(name, gpu):
    case = SPLIT[name]()
    expected = case.run(1)
    case.ops = gpu
    received = case.run(2)
    tolerance = 2e-4 if gpu.dtype == np.float32 else 1e-9
    ours, theirs = ([x.y, *x.grads, *(dx for dx in x.dx if dx is not None)] for x in (received, expected))
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    assert received.metrics[1] == pytest.approx(expected.metrics[0], rel=1e-5)
