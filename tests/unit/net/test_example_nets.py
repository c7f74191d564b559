"""Small nets of the kinds that people train: the loss falls, and two workers train as one."""

from functools import partial

import pytest

from singa_dask.algorithms import BP
from singa_dask.layers import (
    GELU,
    Add,
    BatchNorm,
    Concate,
    Convolution,
    GlobalPooling,
    GroupNorm,
    InnerProduct,
    LayerNorm,
    Mul,
    RecordInput,
    ReLU,
    Sigmoid,
    SoftmaxLoss,
)
from tests.support.partitioned import assert_equal_to_serial
from tests.unit.net.test_partition import batches, net_of


def trains(layers, given, sizes=(2,), falls=0.8, **settings):
    """Steps on the same mini-batch, which divide the loss by at least 1 / falls."""
    results = assert_equal_to_serial(net_of(layers, **settings), BP(), given * 8, sizes, rtol=1e-7)
    for result in results.values():
        losses = [metrics["loss"] for metrics in result["losses"]]
        assert losses[-1] < falls * losses[0]


def residual(norm=BatchNorm):
    """Two residual blocks, the second one with a gate per channel, and a dense connection."""
    layers = [RecordInput("data", shape=[3, 6, 6]), Convolution("stem", "data", num_filters=4, kernel=3, pad=1)]
    source = "stem"
    for block in ("a", "b"):
        layers += [
            norm(f"{block}_norm", source),
            ReLU(f"{block}_relu", f"{block}_norm"),
            Convolution(f"{block}_conv", f"{block}_relu", num_filters=4, kernel=3, pad=1),
            GlobalPooling(f"{block}_mean", f"{block}_conv"),
            InnerProduct(f"{block}_ip", f"{block}_mean", num_output=4),
            Sigmoid(f"{block}_gate", f"{block}_ip"),
            Mul(f"{block}_gated", [f"{block}_conv", f"{block}_gate"]),
            Add(f"{block}_sum", [f"{block}_gated", source]),
        ]
        source = f"{block}_sum"
    return [
        *layers,
        Concate("dense", ["stem", "a_sum", "b_sum"], concate_dim=1),
        GELU("gelu", "dense"),
        GlobalPooling("pool", "gelu"),
        InnerProduct("scores", "pool", num_output=5),
        SoftmaxLoss("loss", ["scores", "data"]),
    ]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("norm", [BatchNorm, partial(GroupNorm, num_groups=2), LayerNorm])
def test_residual_net(dim, norm):
    trains(residual(norm), batches((6, 6, 3), 5, count=1), falls=0.95, partition_dim=dim)
