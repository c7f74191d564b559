"""Layers and updaters against PyTorch, on random inputs; skipped where that is not installed (`make test-peers`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.layer_cases import Bench
from support.peers import assert_same_call, assert_same_loss

from singa_dask import updaters
from singa_dask.inference.model import Model
from singa_dask.layers import (
    ELU,
    GELU,
    LRN,
    Add,
    BatchNorm,
    BCELoss,
    Concate,
    Convolution,
    Div,
    EuclideanLoss,
    GlobalPooling,
    GroupNorm,
    HuberLoss,
    InnerProduct,
    LayerNorm,
    LeakyReLU,
    MAELoss,
    Max,
    MSELoss,
    Mul,
    Pooling,
    RecordInput,
    ReLU,
    Reshape,
    Sigmoid,
    SiLU,
    Softmax,
    SoftmaxLoss,
    STanh,
    Sub,
    Tanh,
    TransposedConvolution,
    Upsampling,
)
from singa_dask.loops.distopt import DistOpt
from singa_dask.net.flat import Entry
from singa_dask.ops import get_ops
from singa_dask.updaters import make_updater, schedules

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
    "reshape": (Reshape("n", "x", shape=[2, 27, 7]), as_images(lambda x: x.reshape(len(x), 2, 27, 7))),
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
    "max pooling of sequences": (
        Pooling("n", "x", kernel=3, stride=2, pad=1),
        (7, 3),
        lambda x: F.max_pool1d(x.permute(0, 2, 1), 3, 2, 1).permute(0, 2, 1),
    ),
    "average pooling of volumes": (
        Pooling("n", "x", pool="AVG", kernel=3, stride=2, pad=1),
        (4, 5, 6, 2),
        lambda x: F.avg_pool3d(x.permute(0, 4, 1, 2, 3), 3, 2, 1).permute(0, 2, 3, 4, 1),
    ),
    "max pooling of volumes": (
        Pooling("n", "x", kernel=2, stride=2),
        (4, 5, 6, 2),
        lambda x: F.max_pool3d(x.permute(0, 4, 1, 2, 3), 2, 2).permute(0, 2, 3, 4, 1),
    ),
    "upsampling between voxels": (
        Upsampling("n", "x", factor=2, method="BILINEAR"),
        (2, 3, 4, 2),
        lambda x: F.interpolate(x.permute(0, 4, 1, 2, 3), scale_factor=2, mode="trilinear").permute(0, 2, 3, 4, 1),
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
    assert_same_call(ours, peer(x, *params), [x], params)


COMBINED = {
    "sum": (Add("n", ["x", "y", "z"]), lambda x, y, z: x + y + z),
    "product": (Mul("n", ["x", "y", "z"]), lambda x, y, z: x * y * z),
    "difference": (Sub("n", ["x", "y"]), lambda x, y, z: x - y),
    "quotient": (Div("n", ["x", "y"]), lambda x, y, z: x / y),
    "maximum": (Max("n", ["x", "y", "z"]), lambda x, y, z: torch.maximum(torch.maximum(x, y), z)),
    "channels": (Concate("n", ["x", "y"], concate_dim=1), lambda x, y, z: torch.cat([x, y], -1)),
}


@pytest.mark.parametrize("name", COMBINED)
def test_outputs_and_gradients_of_a_layer_with_several_sources(name):
    layer, peer = COMBINED[name]
    shapes = (IMAGE, IMAGE, (1, 9, 1))[: len(layer.inputs)]
    ours = Bench(layer, shapes, get_ops("cpu", np.float32))
    theirs = [torch.tensor(x, requires_grad=True) for x in ours.inputs]
    assert_same_call(ours, peer(*theirs, *[None] * (3 - len(theirs))), theirs)


CLASS_WEIGHTS, ROW_WEIGHTS = [1.0, 0.0, 2.5, *[0.5] * 7], [1.0, 0.0, 2.0, 0.5, 1.0, 3.0]
CROSS_ENTROPIES = {
    "": (SoftmaxLoss("n", ["x", "data"]), F.cross_entropy),
    "label smoothing": (
        SoftmaxLoss("n", ["x", "data"], label_smoothing=0.1),
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
    ),
    # PyTorch divides by the sum of the weights of the rows, we divide by their number.
    "class weights": (
        SoftmaxLoss("n", ["x", "data"], class_weight=CLASS_WEIGHTS),
        lambda x, t: F.cross_entropy(x, t, torch.tensor(CLASS_WEIGHTS), reduction="none").mean(),
    ),
    "weights of samples": (
        SoftmaxLoss("n", ["x", "data", "w"]),
        lambda x, t: (F.cross_entropy(x, t, reduction="none") * torch.tensor(ROW_WEIGHTS)).mean(),
    ),
}


@pytest.mark.parametrize("name", CROSS_ENTROPIES)
def test_the_loss_of_a_classification(name):
    layer, peer = CROSS_ENTROPIES[name]
    draw = np.random.default_rng(0)
    logits, labels = draw.normal(size=(6, 10)).astype(np.float32), draw.integers(0, 10, 6)
    weighted = name == "weights of samples"
    ours = Bench(layer, ((10,), "labels", *[(1,)] * weighted), get_ops("cpu", np.float32), rows=6)
    ours.inputs = [logits, labels, *[np.array(ROW_WEIGHTS, np.float32)[:, None]] * weighted]
    x = torch.tensor(logits, requires_grad=True)
    assert_same_loss(ours, peer(x, torch.tensor(labels)), x)


POSITIVE = [1.0, 0.5, 3.0, 2.0]
LOSSES = {
    "euclidean": (EuclideanLoss("n", ["x", "t"]), lambda x, t: F.mse_loss(x, t, reduction="sum") / 2 / 6),
    "mse": (MSELoss("n", ["x", "t"]), F.mse_loss),
    "sum of squares": (MSELoss("n", ["x", "t"], reduction="SUM"), lambda x, t: F.mse_loss(x, t, reduction="sum") / 6),
    "mae": (MAELoss("n", ["x", "t"]), F.l1_loss),
    "huber": (HuberLoss("n", ["x", "t"], delta=0.6), lambda x, t: F.huber_loss(x, t, delta=0.6)),
    "sum of hubers": (
        HuberLoss("n", ["x", "t"], reduction="SUM"),
        lambda x, t: F.huber_loss(x, t, reduction="sum") / 6,
    ),
    "sum of absolute errors": (
        MAELoss("n", ["x", "t"], reduction="SUM"),
        lambda x, t: F.l1_loss(x, t, reduction="sum") / 6,
    ),
    "sum of bces": (
        BCELoss("n", ["x", "t"], reduction="SUM", scale=0.5),
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="sum") / 6 / 2,
    ),
    "sum over the mini-batch": (
        MAELoss("n", ["x", "t"], reduction="SUM", scale=6),
        lambda x, t: F.l1_loss(x, t, reduction="sum"),
    ),
    "bce": (BCELoss("n", ["x", "t"]), F.binary_cross_entropy_with_logits),
    "bce with factors": (
        BCELoss("n", ["x", "t"], pos_weight=POSITIVE),
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, pos_weight=torch.tensor(POSITIVE)),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_values(name):
    layer, peer = LOSSES[name]
    draw = np.random.default_rng(0)
    ours = Bench(layer, ((4,), (4,)), get_ops("cpu", np.float32), rows=6)
    ours.inputs = [draw.normal(size=(6, 4)).astype(np.float32), draw.random((6, 4), np.float32)]
    x, target = (torch.tensor(array) for array in ours.inputs)
    x.requires_grad_()
    assert_same_loss(ours, peer(x, target), x)


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
    "adamw": (
        updaters.AdamW(lr=0.01, beta1=0.9, beta2=0.99, weight_decay=0.3),
        lambda w: torch.optim.AdamW(w, 0.01, (0.9, 0.99), 1e-8, 0.3),
    ),
    # PyTorch adds eps to the root, SINGA's rule under it.
    "rmsprop": (updaters.RMSProp(lr=0.1, rho=0.9, delta=1e-14), lambda w: torch.optim.RMSprop(w, 0.1, 0.9, 1e-14)),
    "adadelta": (updaters.AdaDelta(lr=1, rho=0.9, delta=1e-4), lambda w: torch.optim.Adadelta(w, 1, 0.9, 1e-4)),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_twenty_steps_of_an_updater(name):
    updater, peer = OPTIMISERS[name]
    draw = np.random.default_rng(0)
    values = draw.normal(size=64).astype(np.float32)
    theirs = torch.nn.Parameter(torch.tensor(values))
    optimiser = peer([theirs])
    ours = make_updater(updater.proto, get_ops("cpu", np.float32))
    ours.bind([Entry("w", (64,), 0, 64)], 0, 64)
    for step in range(20):
        gradient = draw.normal(size=64).astype(np.float32)
        ours.update(step, values, gradient)
        theirs.grad = torch.tensor(gradient)
        optimiser.step()
    np.testing.assert_allclose(values, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


LR = torch.optim.lr_scheduler
SCHEDULES = {
    "cosine": (
        schedules.Cosine(base_lr=0.5, change_freq=25, final_lr=0.1),
        lambda optimiser: LR.CosineAnnealingLR(optimiser, 25, 0.1),
    ),
    "one cycle": (
        schedules.OneCycle(base_lr=0.5, change_freq=26, div_factor=10, final_div_factor=100),
        lambda optimiser: LR.OneCycleLR(optimiser, 0.5, total_steps=26, div_factor=10, final_div_factor=100),
    ),
    "warm-up, then cosine": (
        schedules.Cosine(base_lr=0.5, change_freq=15, warmup_steps=10, warmup_factor=0.2),
        lambda optimiser: LR.SequentialLR(
            optimiser, [LR.LinearLR(optimiser, 0.2, total_iters=10), LR.CosineAnnealingLR(optimiser, 15)], [10]
        ),
    ),
    "three in a sequence": (
        schedules.Sequential(
            schedule=[
                schedules.Fixed(0.05),
                schedules.Step(base_lr=0.5, gamma=0.5, change_freq=3),
                schedules.Linear(base_lr=0.5, change_freq=6, final_lr=0.1),
            ],
            steps=[7, 9],
        ),
        lambda optimiser: LR.SequentialLR(
            optimiser,
            [
                LR.ConstantLR(optimiser, 0.1, total_iters=100),
                LR.StepLR(optimiser, 3, 0.5),
                LR.LinearLR(optimiser, 1, 0.2, total_iters=6),
            ],
            [7, 16],
        ),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore:.*epoch parameter.*:UserWarning")
def test_the_rates_of_a_schedule(name):
    ours, peer = SCHEDULES[name]
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.5, momentum=0.9)
    theirs, rates = peer(optimiser), []
    for _ in range(26):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        if len(rates) < 26:
            theirs.step()
    np.testing.assert_allclose([ours.rate(t) for t in range(26)], rates, rtol=1e-5, atol=1e-9)


def test_twenty_steps_of_a_net_with_everything_at_once():
    """AdamW with groups, clipping by norm, warm-up and a cosine, label smoothing, and moving averages."""
    layers = [RecordInput(shape=[8]), InnerProduct("a", num_output=16), Tanh(), InnerProduct("b", num_output=5)]
    model = Model([*layers, SoftmaxLoss(label_smoothing=0.1)], seed=1)
    schedule = schedules.Cosine(base_lr=0.05, change_freq=15, warmup_steps=5, warmup_factor=0.2)
    groups = [{"match": "*_bias", "wd_scale": 0}, {"match": "a_*", "lr_scale": 0.5}]
    rule = updaters.AdamW(learning_rate=schedule, weight_decay=0.2, clip_norm=0.8, ema_decay=0.8, group=groups)
    opt = DistOpt(rule, model)
    theirs = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5))
    theirs.load_state_dict(as_theirs(model))
    first, second = theirs[0], theirs[2]
    optimiser = torch.optim.AdamW(
        [
            {"params": [first.weight], "lr": 0.025, "weight_decay": 0.2},
            {"params": [first.bias], "lr": 0.025, "weight_decay": 0.0},
            {"params": [second.weight], "lr": 0.05, "weight_decay": 0.2},
            {"params": [second.bias], "lr": 0.05, "weight_decay": 0.0},
        ]
    )
    warm_up, cosine = LR.LinearLR(optimiser, 0.2, total_iters=5), LR.CosineAnnealingLR(optimiser, 15)
    rates = LR.SequentialLR(optimiser, [warm_up, cosine], [5])
    average = torch.optim.swa_utils.AveragedModel(theirs, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
    average.update_parameters(theirs)  # the first one copies
    draw, norms = np.random.default_rng(2), []
    for _ in range(20):
        x, y = draw.normal(size=(12, 8)).astype(np.float32), draw.integers(0, 5, 12)
        opt.backward_and_update(model(x, y))
        optimiser.zero_grad()
        F.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y), label_smoothing=0.1).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.8).item())
        optimiser.step()
        rates.step()
        average.update_parameters(theirs)
    assert min(norms) < 0.8 < max(norms), "some are clipped"
    assert_same(model, theirs)
    with opt.averaged():
        assert_same(model, average.module)


def as_theirs(model):
    ours = model.state_dict()
    names = {"0.weight": "a_weight", "0.bias": "a_bias", "2.weight": "b_weight", "2.bias": "b_bias"}
    return {theirs: torch.tensor(np.ascontiguousarray(ours[name].T)) for theirs, name in names.items()}


def assert_same(model, theirs):
    expected = theirs.state_dict()
    for name, array in as_theirs(model).items():
        np.testing.assert_allclose(array.numpy(), expected[name].numpy(), rtol=1e-5, atol=1e-5, err_msg=name)


def test_twenty_steps_of_lamb():
    """By its formula in PyTorch, which has no LAMB."""
    draw = np.random.default_rng(0)
    values, rule = draw.normal(size=64).astype(np.float32), updaters.LAMB(lr=0.02, weight_decay=0.1)
    ours = make_updater(rule.proto, get_ops("cpu", np.float32))
    ours.bind([Entry("w", (64,), 0, 64)], 0, 64)
    w, m, v = torch.tensor(values.copy()), torch.zeros(64), torch.zeros(64)
    for step in range(20):
        gradient = draw.normal(size=64).astype(np.float32)
        ours.update(step, values, gradient)
        g = torch.tensor(gradient)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        r = m / (1 - 0.9 ** (step + 1)) / ((v / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8) + 0.1 * w
        w = w - 0.02 * w.norm() / r.norm() * r
    np.testing.assert_allclose(values, w.numpy(), rtol=1e-5, atol=1e-5)
