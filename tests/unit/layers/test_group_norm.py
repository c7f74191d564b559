"""Layer and group normalisation: settings, workers, precision."""

import numpy as np
import pytest
from support.layer_cases import Bench

from singa_dask.layers import LayerNorm
from singa_dask.ops import get_ops


@pytest.mark.parametrize("threads", [1, 3])
def test_variances_far_from_zero_keep_their_precision(threads):
    ours = Bench(LayerNorm("n", "x"), ((4096,),), get_ops("cpu", np.float32, threads=threads), rows=64)
    ours.inputs[0] += 1000
    x, scale, bias = ours.inputs[0].astype(float), *(param.value for param in ours.layer.params)
    expected = (x - x.mean(axis=1)[:, None]) / np.sqrt(x.var(axis=1)[:, None] + 1e-5) * scale + bias
    np.testing.assert_allclose(ours.forward()[0], expected, atol=2e-3)
    ours.backward([np.ones((64, 4096))])
    first = ours.layer.params[0].grad.copy()
    ours.forward()
    ours.backward([np.ones((64, 4096))])
    np.testing.assert_array_equal(ours.layer.params[0].grad, first)
