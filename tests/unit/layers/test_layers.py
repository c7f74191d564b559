"""Every layer: its formula, its gradients, its two spellings."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format
from support.layer_cases import CASES, Bench, Counts, Marks, Symbols, bench, sample_shapes, step_results

from singa_dask.job.job_pb2 import LayerProto
from singa_dask.layers import LossLayer, layer_class
from singa_dask.ops import Ops, get_ops

BACKENDS = {"base": Ops(np.float64), "cpu": get_ops("cpu", np.float64)}
GRADIENTS = [name for name, case in CASES.items() if case.differentiable]


@pytest.fixture(params=BACKENDS)
def ops(request) -> Ops:
    return BACKENDS[request.param]


@pytest.mark.parametrize("name", CASES)
def test_forward_is_the_formula(name, ops):
    set_up = bench(name, ops)
    before = [x.copy() for x in set_up.inputs]
    received = set_up.forward()
    expected = CASES[name].formula(*before, *[param.value for param in set_up.layer.params])
    for got, want in zip(received, expected if isinstance(expected, list) else [expected], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
        assert got.flags.c_contiguous
    assert [y.shape[1:] for y in received] == list(set_up.shape if set_up.layer.multiple_outputs else [set_up.shape])
    for x, copy in zip(set_up.inputs, before, strict=True):
        np.testing.assert_array_equal(x, copy, "forward modified its input")


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_finite_differences(name, ops):
    set_up = bench(name, ops)
    weights = set_up.weights()
    set_up.forward()
    gradients = [None if dx is None else dx.copy() for dx in set_up.backward(weights)]
    for i, (x, dx) in enumerate(zip(set_up.inputs, gradients, strict=True)):
        if dx is None:
            no_number = isinstance(set_up.sources[i], Counts | Marks | Symbols)
            assert no_number or (isinstance(set_up.layer, LossLayer) and i >= 1), "no gradient flows back"
            continue
        assert dx.shape == x.shape
        np.testing.assert_allclose(dx, differences(set_up, x, weights), rtol=1e-5, atol=1e-7, err_msg=f"source {i}")
    for param in set_up.layer.params:
        if param.statistic:
            continue  # it is not learned by its gradient
        expected = differences(set_up, param.value, weights)
        np.testing.assert_allclose(param.grad, expected, rtol=1e-5, atol=1e-7, err_msg=param.name)


def differences(set_up: Bench, x: np.ndarray, weights: list[np.ndarray], step: float = 1e-5) -> np.ndarray:
    """Central differences of the objective for every element of x."""
    result = np.empty_like(x)
    flat, out = x.reshape(-1), result.reshape(-1)
    for k in range(flat.size):
        value = flat[k]
        flat[k] = value + step
        above = set_up.objective(weights)
        flat[k] = value - step
        below = set_up.objective(weights)
        flat[k] = value
        out[k] = (above - below) / (2 * step)
    return result


@pytest.mark.parametrize("name", GRADIENTS)
def test_float32_agrees_with_float64(name):
    expected = step_results(bench(name, BACKENDS["base"]))
    single = get_ops("cpu", np.float32)
    received = step_results(bench(name, single))
    for got, want in zip(received, expected, strict=True):
        assert got.dtype == np.float32 or got.ndim == 0
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", [name for name in GRADIENTS if bench(name, BACKENDS["base"]).layer.params])
def test_a_second_contribution_adds_to_the_gradient(name, ops):
    set_up = bench(name, ops)
    weights = set_up.weights()
    set_up.backward(weights)
    once = [param.grad.copy() for param in set_up.layer.params]
    set_up.forward()
    set_up.layer.backward(set_up.ctx, weights[0].copy())
    for param, grad in zip(set_up.layer.params, once, strict=True):
        # Running statistics follow one call after the other.
        times = 1 + set_up.layer.conf.factor if param.statistic else 2
        np.testing.assert_allclose(param.grad, times * grad, atol=1e-14)


@pytest.mark.parametrize("name", ["InnerProduct", "Convolution"])
def test_the_gradient_for_an_input_that_needs_none_is_left_out(name):
    set_up = bench(name, BACKENDS["base"])
    weights = set_up.weights()
    set_up.ctx.needs_input_grad = False
    assert set_up.backward(weights) == [None]
    assert set_up.layer.params[0].grad.any()


@pytest.mark.parametrize("name", CASES)
def test_job_text_and_python_build_the_same_layer(name):
    case = CASES[name]
    proto = text_format.Parse(case.text, LayerProto())
    assert proto == case.layer.proto
    layer = layer_class(proto).from_proto(proto)
    assert type(layer) is type(case.layer)
    assert layer.setup(*sample_shapes(case.sources)) == bench(name, Ops()).shape


MEASURING = ["Accuracy", *(name for name, case in CASES.items() if isinstance(case.layer, LossLayer))]


@pytest.mark.parametrize("name", MEASURING)
def test_metrics_and_gradients_of_shares_are_those_of_the_batch(name):
    whole, *shares = (bench(name, BACKENDS["base"]) for _ in range(3))
    for share, rows in zip(shares, (slice(0, 1), slice(1, None)), strict=True):
        share.inputs = [x[rows] for x in whole.inputs]
    for each in (whole, *shares):
        each.forward()
    totals, first, second = (each.layer.metrics(each.ctx) for each in (whole, *shares))
    assert totals.keys() == first.keys()
    for key, metric in totals.items():
        assert (first[key] + second[key]).total == pytest.approx(metric.total)
        assert (first[key] + second[key]).count == metric.count
    if CASES[name].differentiable:
        expected, *gradients = (each.backward([])[0] for each in (whole, *shares))
        np.testing.assert_allclose(np.concatenate(gradients), expected, rtol=1e-12, atol=1e-15)
