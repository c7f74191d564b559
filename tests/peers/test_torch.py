"""Layers and updaters against PyTorch, on random inputs; skipped where that is not installed (`make test-peers`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.layer_cases import Bench

from singa_dask import updaters
from singa_dask.layers import (
    ELU,
    GELU,
    LRN,
    Add,
    BatchNorm,
    Concate,
    Convolution,
    EuclideanLoss,
    GlobalPooling,
    GroupNorm,
    InnerProduct,
    LayerNorm,
    LeakyReLU,
    Max,
    Mul,
    Pooling,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    SoftmaxLoss,
    STanh,
    Tanh,
    TransposedConvolution,
    Upsampling,
)
from singa_dask.net.flat import Entry
from singa_dask.ops import get_ops
from singa_dask.updaters import make_updater

torch = pytest.importorskip("torch")
F = torch.nn.functional

Tensor = Any
IMAGE = (7, 9, 6)


def as_vectors(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, *params: function(x.reshape(len(x), -1), *params)


def as_images(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of (B, C, H, W) on our (B, H, W, C)."""
    return lambda x, *params: function(x.permute(0, 3, 1, 2), *params).permute(0, 2, 3, 1)


def convolution(**options: Any) -> Callable[..., Tensor]:
    return as_images(lambda x, w, b: F.conv2d(x, w.permute(3, 2, 0, 1), b, **options))


LAYERS = {
    "inner product": (InnerProduct("n", "x", num_output=11), as_vectors(lambda x, w, b: x @ w + b)),
    "convolution": (Convolution("n", "x", num_filters=5, kernel=3, pad=1), convolution(padding=1)),
    "strided convolution": (
        Convolution("n", "x", num_filters=5, kernel_x=5, kernel_y=3, pad_x=2, stride=2),
        convolution(padding=(0, 2), stride=2),
    ),
    "convolution in groups": (
        Convolution("n", "x", num_filters=4, groups=2, kernel=3, pad=2, dilation=2),
        convolution(padding=2, dilation=2, groups=2),
    ),
    "convolution by channel": (
        Convolution("n", "x", num_filters=6, groups=6, kernel=3, pad=1, stride=2),
        convolution(padding=1, stride=2, groups=6),
    ),
    "transposed convolution": (
        TransposedConvolution("n", "x", num_filters=4, groups=2, kernel=4, pad=1, stride=3, output_pad=2),
        as_images(
            lambda x, w, b: F.conv_transpose2d(
                x, w.permute(3, 2, 0, 1), b, stride=3, padding=1, output_padding=2, groups=2
            )
        ),
    ),
    "upsampling": (
        Upsampling("n", "x", factor=3),
        as_images(lambda x: F.interpolate(x, scale_factor=3, mode="nearest")),
    ),
    "upsampling between pixels": (
        Upsampling("n", "x", factor=3, method="BILINEAR"),
        as_images(lambda x: F.interpolate(x, scale_factor=3, mode="bilinear", align_corners=False)),
    ),
    "max pooling": (
        Pooling("n", "x", kernel=3, stride=2, pad=1),
        as_images(lambda x: F.max_pool2d(x, 3, 2, 1)),
    ),
    "average pooling": (
        Pooling("n", "x", pool="AVG", kernel=3, stride=2, pad=1),
        as_images(lambda x: F.avg_pool2d(x, 3, 2, 1)),
    ),
    "lrn": (
        LRN("n", "x", local_size=5, alpha=0.3, beta=0.75, knorm=2),
        as_images(lambda x: F.local_response_norm(x, 5, 0.3, 0.75, 2)),
    ),
    "batch norm": (
        BatchNorm("n", "x"),
        as_images(lambda x, scale, bias, *_: F.batch_norm(x, None, None, scale, bias, True)),
    ),
    "layer norm": (LayerNorm("n", "x"), lambda x, *p: F.layer_norm(x, x.shape[-1:], *p)),
    "group norm": (GroupNorm("n", "x", num_groups=3), as_images(lambda x, *p: F.group_norm(x, 3, *p))),
    "global average pooling": (
        GlobalPooling("n", "x"),
        as_images(lambda x: F.adaptive_avg_pool2d(x, 1)),
    ),
    "global max pooling": (
        GlobalPooling("n", "x", pool="MAX"),
        as_images(lambda x: F.adaptive_max_pool2d(x, 1)),
    ),
    "leaky relu": (LeakyReLU("n", "x"), F.leaky_relu),
    "elu": (ELU("n", "x", alpha=0.5), lambda x: F.elu(x, 0.5)),
    "gelu": (GELU("n", "x"), F.gelu),
    "silu": (SiLU("n", "x"), F.silu),
    "relu": (ReLU("n", "x", negative_slope=0.1), lambda x: F.leaky_relu(x, 0.1)),
    "sigmoid": (Sigmoid("n", "x"), torch.sigmoid),
    "tanh": (Tanh("n", "x"), torch.tanh),
    "stanh": (STanh("n", "x"), lambda x: 1.7159047 * torch.tanh(0.6666667 * x)),
    "softmax": (Softmax("n", "x"), lambda x: torch.softmax(x.flatten(1), -1).reshape(x.shape)),
}


OTHER_SHAPES = {
    "convolution of sequences": (
        Convolution("n", "x", num_filters=4, kernel=5, pad=2, stride=2),
        (11, 6),
        lambda x, w, b: F.conv1d(x.permute(0, 2, 1), w.permute(2, 1, 0), b, stride=2, padding=2).permute(0, 2, 1),
    ),
    "convolution of volumes": (
        Convolution("n", "x", num_filters=4, kernel=3, kernel_z=2, pad=1, groups=2),
        (4, 5, 6, 2),
        lambda x, w, b: F.conv3d(x.permute(0, 4, 1, 2, 3), w.permute(4, 3, 0, 1, 2), b, padding=1, groups=2).permute(
            0, 2, 3, 4, 1
        ),
    ),
    "transposed convolution of sequences": (
        TransposedConvolution("n", "x", num_filters=4, kernel=5, pad=1, stride=2, dilation=2),
        (7, 3),
        lambda x, w, b: F.conv_transpose1d(
            x.permute(0, 2, 1), w.permute(2, 1, 0), b, stride=2, padding=1, dilation=2
        ).permute(0, 2, 1),
    ),
    "transposed convolution of volumes": (
        TransposedConvolution("n", "x", num_filters=4, kernel=2, stride=2, output_pad=1),
        (2, 3, 2, 3),
        lambda x, w, b: F.conv_transpose3d(
            x.permute(0, 4, 1, 2, 3), w.permute(4, 3, 0, 1, 2), b, stride=2, output_padding=1
        ).permute(0, 2, 3, 4, 1),
    ),
}


@pytest.mark.parametrize("name", [*LAYERS, *OTHER_SHAPES])
def test_outputs_and_gradients_of_a_layer(name):
    layer, shape, peer = OTHER_SHAPES.get(name) or (LAYERS[name][0], IMAGE, LAYERS[name][1])
    ours = Bench(layer, (shape,), get_ops("cpu", np.float32))
    x = torch.tensor(ours.inputs[0], requires_grad=True)
    params = [torch.tensor(param.value, requires_grad=True) for param in ours.layer.params]
    y = peer(x, *params)
    np.testing.assert_allclose(ours.forward()[0], y.detach().numpy(), rtol=1e-5, atol=1e-5)
    (weights,) = ours.weights()
    ours.forward()
    (dx,) = ours.backward([weights])
    y.backward(torch.tensor(weights, dtype=torch.float32))
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-5, atol=2e-5)
    for param, theirs in zip(ours.layer.params, params, strict=True):
        if not param.statistic:
            np.testing.assert_allclose(param.grad, theirs.grad.numpy(), rtol=1e-5, atol=5e-5, err_msg=param.name)


COMBINED = {
    "sum": (Add("n", ["x", "y", "z"]), lambda x, y, z: x + y + z),
    "product": (Mul("n", ["x", "y", "z"]), lambda x, y, z: x * y * z),
    "maximum": (Max("n", ["x", "y", "z"]), lambda x, y, z: torch.maximum(torch.maximum(x, y), z)),
    "channels": (Concate("n", ["x", "y"], concate_dim=1), lambda x, y, z: torch.cat([x, y], -1)),
}


@pytest.mark.parametrize("name", COMBINED)
def test_outputs_and_gradients_of_a_layer_with_several_sources(name):
    layer, peer = COMBINED[name]
    shapes = (IMAGE, IMAGE, (1, 9, 1))[: len(layer.inputs)]
    ours = Bench(layer, shapes, get_ops("cpu", np.float32))
    theirs = [torch.tensor(x, requires_grad=True) for x in ours.inputs]
    y = peer(*theirs, *[None] * (3 - len(theirs)))
    np.testing.assert_allclose(ours.forward()[0], y.detach().numpy(), rtol=1e-5, atol=1e-5)
    (weights,) = ours.weights()
    ours.forward()
    gradients = ours.backward([weights])
    y.backward(torch.tensor(weights, dtype=torch.float32))
    for dx, x in zip(gradients, theirs, strict=True):
        np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-5, atol=2e-5)


def test_the_loss():
    draw = np.random.default_rng(0)
    logits, labels = draw.normal(size=(6, 10)).astype(np.float32), draw.integers(0, 10, 6)
    ours = Bench(SoftmaxLoss("n", ["x", "data"]), ((10,), "labels"), get_ops("cpu", np.float32))
    ours.inputs = [logits, labels]
    ours.ctx.step = type(ours.ctx.step)(total_rows=6)
    x = torch.tensor(logits, requires_grad=True)
    loss = F.cross_entropy(x, torch.tensor(labels))
    loss.backward()
    ours.forward()
    assert ours.layer.metrics(ours.ctx)["loss"].mean == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(ours.backward([np.zeros((6, 10))])[0], x.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_the_loss_of_a_regression():
    ours = Bench(EuclideanLoss("n", ["x", "data"]), ((4, 3, 2), (4, 3, 2)), get_ops("cpu", np.float32), rows=6)
    ours.ctx.step = type(ours.ctx.step)(total_rows=6)
    x, target = (torch.tensor(array) for array in ours.inputs)
    x.requires_grad_()
    loss = F.mse_loss(x, target, reduction="sum") / 2 / 6
    loss.backward()
    ours.forward()
    assert ours.layer.metrics(ours.ctx)["loss"].mean == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(ours.backward([np.zeros((6, 4, 3, 2))])[0], x.grad.numpy(), rtol=1e-5, atol=1e-6)


OPTIMISERS = {
    "sgd": (updaters.SGD(lr=0.1), lambda w: torch.optim.SGD(w, 0.1)),
    "momentum": (
        updaters.SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda w: torch.optim.SGD(w, 0.1, momentum=0.9, weight_decay=0.01),
    ),
    "nesterov": (
        updaters.Nesterov(lr=0.1, momentum=0.9),
        lambda w: torch.optim.SGD(w, 0.1, momentum=0.9, nesterov=True),
    ),
    "adagrad": (updaters.AdaGrad(lr=0.1, delta=1e-8), lambda w: torch.optim.Adagrad(w, 0.1, eps=1e-8)),
    "adam": (
        updaters.Adam(lr=0.1, beta1=0.9, beta2=0.999, delta=1e-8),
        lambda w: torch.optim.Adam(w, 0.1, (0.9, 0.999), 1e-8),
    ),
    "adamax": (
        updaters.AdamMax(lr=0.1, beta1=0.9, beta2=0.99, delta=1e-8),
        lambda w: torch.optim.Adamax(w, 0.1, (0.9, 0.99), 1e-8),
    ),
    # PyTorch adds eps to the root, SINGA's rule under it.
    "rmsprop": (updaters.RMSProp(lr=0.1, rho=0.9, delta=1e-14), lambda w: torch.optim.RMSprop(w, 0.1, 0.9, 1e-14)),
    "adadelta": (updaters.AdaDelta(lr=1, rho=0.9, delta=1e-4), lambda w: torch.optim.Adadelta(w, 1, 0.9, 1e-4)),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_ten_steps_of_an_updater(name):
    updater, peer = OPTIMISERS[name]
    draw = np.random.default_rng(0)
    values = draw.normal(size=64).astype(np.float32)
    theirs = torch.nn.Parameter(torch.tensor(values))
    optimiser = peer([theirs])
    ours = make_updater(updater.proto, get_ops("cpu", np.float32))
    ours.bind([Entry("w", (64,), 0, 64)], 0, 64)
    for step in range(10):
        gradient = draw.normal(size=64).astype(np.float32)
        ours.update(step, values, gradient)
        theirs.grad = torch.tensor(gradient)
        optimiser.step()
    np.testing.assert_allclose(values, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)
