"""Layers on tensors of a GPU, against the same on the CPU."""

import numpy as np
import pytest

from singa_dask import autograd, device, opt, tensor

X = np.random.default_rng(0).normal(size=(6, 2, 8, 8)).astype(np.float32)
ONE_HOT = np.eye(3, dtype=np.int32)[[0, 1, 2, 0, 1, 2]]


def trained(dev):
    """The losses of three steps, and the parameters after them, as SINGA's tutorial computes them."""
    dev.SetRandSeed(0)
    conv, norm, linear = autograd.Conv2d(2, 4, 3), autograd.BatchNorm2d(4), autograd.Linear(36, 3)
    pooling, sgd, losses = autograd.MaxPool2d(2, 2), opt.DistOpt(opt.SGD(lr=0.1, momentum=0.9)), []
    own, bias = tensor.Tensor((3, 3), stores_grad=True), tensor.Tensor((3,), dev, stores_grad=True)
    own.gaussian(0, 1)
    own.to_device(dev)
    x, y = tensor.Tensor(X.shape, dev), tensor.Tensor(ONE_HOT.shape, dev, tensor.int32)
    x.copy_from_numpy(X)
    y.copy_from_numpy(ONE_HOT)
    for step in range(4):
        z = autograd.flatten(pooling(autograd.relu(norm(conv(x)))))
        loss = autograd.softmax_cross_entropy(autograd.add_bias(linear(z) @ own, bias), y)
        losses.append(float(loss))
        if step:
            sgd.backward_and_update(loss)
        else:
            for p, _ in autograd.backward(loss):
                sgd.all_reduce(p.data)
                p /= sgd.world_size
    dev.Sync()
    return losses, [p.to_numpy() for p in (*autograd.parameters_of([conv, norm, linear]), own, bias)]


def test_a_loop_on_a_gpu_equals_the_loop_on_the_cpu(cupy, monkeypatch):
    monkeypatch.setattr(autograd, "training", True)
    (losses, params), (expected, expected_params) = trained(device.Device("gpu")), trained(device.Device("cpu"))
    assert losses == pytest.approx(expected, rel=1e-4) and losses[-1] < losses[0]
    for param, value in zip(params, expected_params, strict=True):
        np.testing.assert_allclose(param, value, rtol=1e-3, atol=1e-5)
