"""The work that `make bench BENCH=limits` holds kernels against, counted by hand for two small nets."""

import pytest
from support.programs import program

from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import Convolution, Dummy, InnerProduct
from singa_dask.net import Net
from singa_dask.ops import get_ops

ROWS = 5
counts = program("counts", "benchmarks/parts")


@pytest.fixture(scope="module")
def net():
    """4 x 4 images of 2 channels; 3 filters of 3 x 3 with a border of one; 10 scores, and their sum."""
    layers = [
        Dummy("data", input=True, output=True, shape=[ROWS, 2, 4, 4]),
        Convolution("conv", "data", num_filters=3, kernel=3, pad=1, stride=1),
        InnerProduct("scores", "conv", num_output=10),
        InnerProduct("top", "scores", num_output=1, bias_term=False),
    ]
    return Net(NetProto(layer=[layer.proto for layer in layers]), Phase.kTrain, get_ops())


def test_a_dense_layer(counts, net):
    case = counts.cases(net, ROWS)["scores"]
    forward, backward = counts.passes(case)
    # 48 values of a row go into 10 sums, a bias into each: 490 products and additions.
    assert forward == counts.Work(flop=2 * 490 * ROWS, near=4 * (48 + 10) * ROWS, far=4 * 490)
    # Twice that for the gradients of parameters and input. Read: gradient of the output, input, parameters; written:
    # gradients of input and parameters.
    assert backward == counts.Work(flop=4 * 490 * ROWS, near=4 * (10 + 48) * ROWS, far=4 * (48 * ROWS + 2 * 490))


def test_a_convolution_does_nothing_on_its_padding_and_nothing_for_the_data_below(counts, net):
    case = counts.cases(net, ROWS)["conv"]
    forward, backward = counts.passes(case)
    # Of the 4 positions along an axis the first and the last offset of the kernel meet 3, the middle one 4.
    products = (3 + 4 + 3) ** 2 * 2 * 3 * ROWS
    assert forward == counts.Work(flop=2 * products, near=4 * (32 + 48) * ROWS, far=4 * (54 + 3))
    assert backward == counts.Work(flop=2 * products, near=4 * 48 * ROWS, far=4 * (32 * ROWS + 54 + 3))


def test_an_update_reads_three_arrays_and_writes_two(counts, net):
    size = net.flat.size
    assert counts.update(net) == counts.Work(flop=4 * size, near=0, far=20 * size)
    outputs = (48 + 10 + 1) * ROWS
    assert counts.held(net, ROWS) == 4 * (3 * size + 2 * outputs)
