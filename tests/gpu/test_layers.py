"""Every layer on GpuOps against the base: outputs, gradients and metrics of one step."""

import numpy as np
import pytest
from support.layer_cases import CASES, bench, step_results
from support.split_layers import CASES as SPLIT

from singa_dask import layers
from singa_dask.algorithms.bp import BP
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
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


def biased_layers(slope):
    return [
        layers.RecordInput("data", shape=[2, 8, 8], batchsize=3),
        layers.Convolution("conv", "data", num_filters=4, kernel=3, pad=1),
        layers.ReLU("conv_relu", "conv", negative_slope=slope),
        layers.Pooling("pool", "conv_relu", pool="MAX", kernel=2, stride=2),
        layers.TransposedConvolution("wide", "pool", num_filters=3, kernel=2, stride=2),
        layers.ReLU("wide_relu", "wide", max_value=0.3),
        layers.Convolution("next", "wide_relu", num_filters=3, kernel=3, pad=1),
        layers.ReLU("next_relu", "next"),
        layers.Convolution("unbiased", "next_relu", num_filters=3, kernel=3, bias_term=False),
        layers.ReLU("unbiased_relu", "unbiased"),
        layers.InnerProduct("ip", "unbiased_relu", num_output=128),
        layers.ReLU("ip_relu", "ip"),
        layers.EuclideanLoss("loss", ["ip_relu", "data"]),
    ]


@pytest.mark.parametrize(("slope", "rectified"), [(0, {"conv", "wide", "next", "ip"}), (0.1, {"wide", "next", "ip"})])
def test_a_bias_and_the_relu_behind_it_are_computed_together_or_left_to_the_reader(gpu, slope, rectified):
    """With a slope, the pooling comes before the ReLU."""
    made, draw, found = biased_layers(slope), np.random.default_rng(0), []
    x, proto = draw.normal(0, 2, (3, 8, 8, 2)), NetProto(layer=[layer.proto for layer in made])
    for ops in (Ops(np.float64), gpu):
        net = Net(proto, Phase.kTrain, ops)
        net.initialise(0)
        net.flat.values[...] += ops.asarray(np.random.default_rng(1).normal(0, 0.1, net.flat.size), ops.dtype)
        left = {name for name, layer in net.layers.items() if getattr(layer, "leaves_bias", False)}
        assert (net.routing.rectified, left) == ((rectified, {"conv", "next", "ip"}) if ops is gpu else (set(), set()))
        BP().train_one_batch(net, {"data": Batch(ops.asarray(x, ops.dtype))}, Step(total_rows=3))
        outputs = [net.output(layer.name) for layer in made[1:]]
        found.append([ops.to_host(array) for array in (net.flat.grads, *outputs)])
    tolerance = 2e-4 if gpu.dtype == np.float32 else 1e-9
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    assert all((found[1][i] < 0).any() for i in (1, 4, 6, 10)), "what ReLUs read"


@pytest.mark.parametrize(("limit", "kept"), [(512, True), (1, False)])
def test_columns_are_kept_where_they_take_a_sixteenth_of_the_limit(gpu, limit, kept):
    """256 x 9 columns of 8 images."""
    layer = layers.Convolution("conv", num_filters=4, kernel=3, pad=1, workspace_byte_limit=limit)
    layer.setup((16, 16, 1))
    assert layer.kept_size(gpu, 8) == (8 * 256 * 9 if kept else 0)
    assert layer.kept_size(gpu, 0) == layer.kept_size(Ops(), 8) == 0
