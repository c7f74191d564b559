"""Every layer on GpuOps against the base: outputs, gradients and metrics of one step."""

from __future__ import annotations

import numpy as np
import pytest
from support.layer_cases import CASES, bench, step_results

from singa_dask.ops import Ops


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", CASES)
def test_gpu_layer_does_what_the_base_does(name, gpu):
    expected = step_results(bench(name, Ops(np.float64)), CASES[name].differentiable)
    received = step_results(bench(name, gpu), CASES[name].differentiable)
    tolerance = 2e-4 if gpu.dtype == np.float32 else 1e-9
    for got, want in zip(received, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
