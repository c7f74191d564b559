"""Layer and group normalisation: settings, workers, precision."""

import numpy as np
import pytest
from support.layer_cases import Bench

from singa_dask.errors import ConfigError
from singa_dask.layers import GroupNorm, LayerNorm
from singa_dask.layers.partition import Form, LayerPartition
from singa_dask.ops import get_ops


def test_groups_must_divide_the_channels():
    with pytest.raises(ConfigError, match=r"num_groups must divide the 6 channels.*4"):
        GroupNorm("n", "x", num_groups=4).setup((2, 2, 6))


def test_epsilon_must_be_above_zero():
    with pytest.raises(ConfigError, match=r"layernorm_conf.epsilon must be above 0"):
        LayerNorm("n", "x", epsilon=0).setup((6,))


@pytest.mark.parametrize(("groups", "workers", "columns"), [(4, 2, True), (4, 3, False), (6, 3, True), (1, 2, False)])
def test_workers_divide_whole_groups_only(groups, workers, columns):
    layer = GroupNorm("n", "x", num_groups=groups)
    layer.partition = LayerPartition(sources=((12,),), size=workers)
    assert (Form.COLUMNS in layer.takes) == columns


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
