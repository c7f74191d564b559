"""Random nets under random partitions train as the serial net."""

import numpy as np
import pytest
from support.partitioned import assert_equal_to_serial, net_of
from support.random_nets import CLASSES, RandomNet

from singa_dask.algorithms import BP


@pytest.mark.parametrize("seed", range(40))
def test_random_net(seed):
    made = RandomNet(seed)
    net = net_of(made.layers, partition_dim=made.random.choice([0, 1]))
    draw, rows = np.random.default_rng(seed), made.random.randint(4, 9)
    batches = [{"l0": (draw.standard_normal((rows, *made.shape)), draw.integers(0, CLASSES, rows))} for _ in range(2)]
    assert_equal_to_serial(net, BP(), batches, (made.random.choice([2, 3, 4]),), rtol=1e-7, atol=1e-9)
