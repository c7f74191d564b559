"""Functions against NumPy, and their first and second derivatives against differences, in float64."""

import numpy as np
import pytest

from singa_dask import autograd, device, tensor
from singa_dask import functions as F
from singa_dask.functions.elementwise import relu, sigmoid, tanh

INDEX = np.array([[2, 0], [1, 1]])
# Function, formula in NumPy, shapes of the operands; all elements lie in (0.2, 1) and differ by more than the step.
CASES = {
    "add": (lambda a, b: a + b, None, (3, 4), (4,)),
    "sub": (lambda a, b: 2 - a - b, None, (2, 3, 4), (3, 1)),
    "mul": (lambda a, b: a * b * a, None, (3, 1), (1, 4)),
    "div": (lambda a, b: a / b, None, (3, 4), ()),
    "power": (lambda a, b: a**b + a**3 + 2**a, None, (3, 4), (4,)),
    "negative": (lambda a: -a * a, None, (5,)),
    "abs": (lambda a: F.abs(a - 0.57) * a, lambda a: np.abs(a - 0.57) * a, (3, 4)),
    "operators": (lambda a, b: abs(a - 0.57) * +a - 2 / b + 2**-b, None, (3, 4), (4,)),
    "exp": (F.exp, np.exp, (3, 4)),
    "log": (F.log, np.log, (3, 4)),
    "sqrt": (F.sqrt, np.sqrt, (3, 4)),
    "sin": (F.sin, np.sin, (3, 4)),
    "cos": (F.cos, np.cos, (3, 4)),
    "tanh": (tanh, np.tanh, (3, 4)),
    "sigmoid": (lambda a: sigmoid(6 * a - 3), lambda a: 1 / (1 + np.exp(3 - 6 * a)), (3, 4)),
    "softplus": (lambda a: F.softplus(6 * a - 3), lambda a: np.log1p(np.exp(6 * a - 3)), (3, 4)),
    "relu": (lambda a: relu(a - 0.57) * a, lambda a: np.maximum(a - 0.57, 0) * a, (3, 4)),
    "clip": (lambda a: F.clip(a, 0.43, 0.83) * a, lambda a: np.clip(a, 0.43, 0.83) * a, (3, 4)),
    "maximum": (lambda a, b: F.maximum(a, b) * a, lambda a, b: np.maximum(a, b) * a, (3, 4), (4,)),
    "minimum": (lambda a, b: F.minimum(a, b) * a, lambda a, b: np.minimum(a, b) * a, (3, 4), (3, 1)),
    "where": (lambda a, b: F.where(a > b, a * a, b), lambda a, b: np.where(a > b, a * a, b), (3, 4), (4,)),
    "sum": (lambda a: F.sum(a * a, axis=(0, -1)), lambda a: (a * a).sum((0, 2)), (2, 3, 4)),
    "sum of all": (lambda a: F.sum(a * a), lambda a: (a * a).sum(), (2, 3)),
    "mean": (lambda a: F.mean(a * a, axis=1, keepdims=True), lambda a: (a * a).mean(1, keepdims=True), (2, 3, 4)),
    "var": (lambda a: F.var(a, axis=-1), lambda a: a.var(-1), (3, 4)),
    "max": (lambda a: F.max(a, axis=1) ** 2, lambda a: a.max(1) ** 2, (3, 4)),
    "min": (lambda a: F.min(a) ** 2, lambda a: a.min() ** 2, (3, 4)),
    "logsumexp": (lambda a: F.logsumexp(a, axis=0), lambda a: np.log(np.exp(a).sum(0)), (3, 4)),
    "softmax": (F.softmax, lambda a: np.exp(a) / np.exp(a).sum(-1, keepdims=True), (2, 3, 4)),
    "log_softmax": (
        lambda a: F.log_softmax(a, axis=1),
        lambda a: a - np.log(np.exp(a).sum(1, keepdims=True)),
        (2, 3, 4),
    ),
    "reshape": (lambda a: F.reshape(a * a, (4, -1)), lambda a: (a * a).reshape(4, -1), (2, 6)),
    "transpose": (lambda a: F.transpose(a * a, (1, 2, 0)), lambda a: (a * a).transpose(1, 2, 0), (2, 3, 4)),
    "swapaxes": (lambda a: F.swapaxes(a, 0, -1) ** 2, lambda a: a.swapaxes(0, -1) ** 2, (2, 3, 4)),
    "squeeze": (lambda a: F.squeeze(a, 1) * F.expand_dims(a[:, 0], -1)[..., 0], lambda a: a[:, 0] ** 2, (3, 1, 2)),
    "concatenate": (lambda a, b: F.concatenate([a, b, a], 1) ** 2, None, (3, 2), (3, 1)),
    "stack": (lambda a, b: F.stack([a, b], -1) ** 2, lambda a, b: np.stack([a, b], -1) ** 2, (3, 2), (3, 2)),
    "split": (lambda a: F.split(a * a, 1, [1, 3])[1], lambda a: (a * a)[:, 1:], (3, 4)),
    "pad": (lambda a: F.pad(a, [(0, 1), (2, 0)]) ** 2, lambda a: np.pad(a, [(0, 1), (2, 0)]) ** 2, (2, 3)),
    "expand": (lambda a: F.broadcast_to(a, (2, 3, 4)) ** 2, lambda a: np.broadcast_to(a, (2, 3, 4)) ** 2, (3, 1)),
    "slices": (lambda a: a[1:, ::-2, None] ** 2, lambda a: a[1:, ::-2, None] ** 2, (3, 4)),
    "indices": (lambda a: a[INDEX] ** 2, lambda a: a[INDEX] ** 2, (3, 4)),
    "indices and slices": (lambda a: a[:, INDEX[0], 1:] ** 2, lambda a: a[:, INDEX[0], 1:] ** 2, (2, 3, 4)),
    "take": (lambda a: F.take(a, INDEX, axis=1) ** 2, lambda a: np.take(a, INDEX, 1) ** 2, (2, 3, 4)),
    "take_along_axis": (
        lambda a: F.take_along_axis(a, INDEX, 1) ** 2,
        lambda a: np.take_along_axis(a, INDEX, 1) ** 2,
        (2, 3),
    ),
    "matmul": (lambda a, b: a @ b, None, (2, 3), (3, 4)),
    "matmul of batches": (lambda a, b: a @ b, None, (5, 1, 2, 3), (2, 3, 2)),
    "matmul by one": (lambda a, b: a @ b, None, (2, 4, 3), (3, 2)),
    "matmul of vectors": (lambda a, b: (a @ b) * (b @ b), None, (2, 3), (3,)),
    "einsum": (lambda a, b: F.einsum("bij,kj->bki", a, b), lambda a, b: b @ a.swapaxes(1, 2), (2, 3, 4), (5, 4)),
    "einsum that sums": (lambda a, b: F.einsum("ij,k", a, b * b), lambda a, b: a[..., None] * b * b, (2, 3), (2,)),
    "einsum of one": (lambda a: F.einsum("...ij->...i", a * a), lambda a: (a * a).sum(-1), (2, 3, 4)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def training(monkeypatch):
    monkeypatch.setattr(autograd, "training", True)


def drawn(shapes, seed=0):
    """Arrays whose elements all differ."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    places = np.random.default_rng(seed).permutation(sum(sizes)) / sum(sizes)
    return [x.reshape(s) for x, s in zip(np.split(0.2 + 0.8 * places, np.cumsum(sizes)[:-1]), shapes, strict=True)]


def tensors(arrays, dtype=np.float64):
    on = device.Device("cpu", dtype=dtype)
    made = [tensor.Tensor.of(x, on) for x in arrays]
    for each in made:
        each.requires_grad = True
    return made


def differences(value, arrays, step=1e-6):
    """The derivatives of a number."""
    found = []
    for x in arrays:
        dx = np.zeros_like(x)
        for place in np.ndindex(x.shape):
            kept, values = x[place], []
            for change in (step, -step):
                x[place] = kept + change
                values.append(value(*arrays))
            x[place] = kept
            dx[place] = (values[0] - values[1]) / (2 * step)
        found.append(dx)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_function_and_its_derivatives(name):
    function, formula, *shapes = CASES[name]
    arrays = [np.array(x) for x in drawn(shapes)]
    if name == "concatenate":
        formula = lambda a, b: np.concatenate([a, b, a], 1) ** 2  # noqa: E731
    expected = (formula or function)(*arrays)
    weights = np.random.default_rng(1).normal(size=expected.shape)
    for dtype, tolerance in ((np.float32, 1e-5), (np.float64, 1e-12)):
        y = function(*tensors(arrays, dtype))
        assert y.dtype == dtype
        np.testing.assert_allclose(y.to_numpy(), expected, rtol=tolerance)
        plain = function(*(x.astype(dtype) for x in arrays))
        np.testing.assert_allclose(plain, y.to_numpy(), rtol=tolerance)

    def first(*x):
        made = tensors(x)
        return autograd.grad(F.sum(function(*made) * weights), made, create_graph=True), made

    got, made = first(*arrays)
    expected = differences(lambda *x: float((function(*x) * weights).sum()), arrays)
    again = autograd.grad(F.sum(function(*made) * weights), made)
    for one, other, difference in zip(got, again, expected, strict=True):
        np.testing.assert_allclose(one.to_numpy(), difference, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(other.to_numpy(), one.to_numpy(), rtol=1e-12)

    factors = [np.random.default_rng(2).normal(size=x.shape) for x in arrays]

    def along(*x):  # the gradient in one direction
        gradients, made = first(*x)
        return sum(F.sum(g * f) + 0 * F.sum(x) for g, f, x in zip(gradients, factors, made, strict=True)), made

    total, made = along(*arrays)
    second = autograd.grad(total, made)
    for got, difference in zip(second, differences(lambda *x: along(*x)[0].item(), arrays), strict=True):
        np.testing.assert_allclose(got.to_numpy(), difference, rtol=1e-5, atol=1e-6)


def test_functions_of_extremes_stay_finite():
    x = np.array([-200.0, -40.0, -1e-8, 0.0, 40.0, 200.0], np.float32)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(sigmoid(x)[1:], (1 / (1 + np.exp(-exact)))[1:], rtol=4 * np.finfo(np.float32).eps)
    np.testing.assert_allclose(F.softplus(x), np.logaddexp(0, exact), rtol=1e-6, atol=1e-40)
    assert F.logsumexp(np.full((2, 3), -np.inf, np.float32), axis=1).tolist() == [-np.inf] * 2
    np.testing.assert_allclose(F.softmax(np.array([1e30, 1e30, 0], np.float32)), [0.5, 0.5, 0])


def test_comparisons_and_one_hot_have_no_gradient():
    (x,) = tensors([np.arange(3.0)])
    for y in (x > 1, x == 1, F.one_hot(tensor.Tensor.of(np.arange(3)), 4), x.detach(), F.sign(x)):
        assert not y.requires_grad and y.call is None
    np.testing.assert_array_equal(F.one_hot(np.array([1, 0]), 3), [[0, 1, 0], [1, 0, 0]])


def test_a_heat_equation_is_learned_from_second_derivatives():
    """u_t = u_xx, of a net of layers that are functions too: the residual has gradients for the parameters."""
    from singa_dask import layers

    autograd.set_seed(0)
    (x,) = tensors([np.random.default_rng(0).uniform(size=(8, 2))])
    first, second = layers.InnerProduct(num_output=6), layers.InnerProduct(num_output=1)

    def residual():
        u = second(autograd.tanh(first(x)))
        du = autograd.grad(u, x, create_graph=True)
        d2u = autograd.grad(du[:, 0], x, create_graph=True)
        return autograd.mean((du[:, 1] - d2u[:, 0]) ** 2)

    found = {p: g.to_numpy() for p, g in autograd.backward(residual())}
    assert len(found) == 3  # the bias of the last layer has none
    for parameter, gradient in found.items():
        (expected,) = differences(lambda _: residual().item(), [parameter.array], 1e-5)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8)
