"""Contestant: the same training step in PyTorch (eager), from the same initial parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from contest import serve
from torch import nn
from workloads import LEARNING_RATE, MOMENTUM, WARM_UP, WORKLOADS, Workload, data_of, job_of, reference_net

from singa_dask.layers import Layer


class STanh(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1.7159047 * torch.tanh(0.6666667 * x)


def torch_layers(layer: Layer, source: tuple[int, ...]) -> list[nn.Module]:
    """The PyTorch modules that compute what `layer` computes, with its parameters. source: its input's shape."""
    values = [torch.tensor(np.array(param.value)) for param in layer.params]
    kind = type(layer).__name__
    if kind == "Convolution":
        conf = layer.proto.convolution_conf
        module = nn.Conv2d(source[-1], conf.num_filters, conf.kernel, conf.stride, conf.pad)
        return [_with(module, values[0].permute(3, 2, 0, 1), values[1])]
    if kind == "InnerProduct":
        weight = values[0]
        flatten: list[nn.Module] = []
        if len(source) == 3:  # rows of our weight are in (height, width, channels) order, PyTorch's in channels first
            h, w, c = source
            weight = weight.reshape(h, w, c, -1).permute(2, 0, 1, 3).reshape(h * w * c, -1)
            flatten = [nn.Flatten()]
        return [*flatten, _with(nn.Linear(*weight.shape), weight.T, values[1])]
    if kind == "Pooling":
        conf = layer.proto.pooling_conf
        return [(nn.AvgPool2d if conf.pool else nn.MaxPool2d)(conf.kernel, conf.stride)]
    if kind == "LRN":
        conf = layer.proto.lrn_conf
        return [nn.LocalResponseNorm(conf.local_size, conf.alpha, conf.beta, conf.knorm)]
    return [{"ReLU": nn.ReLU, "STanh": STanh}[kind]()]


def _with(module: nn.Module, weight: torch.Tensor, bias: torch.Tensor) -> nn.Module:
    module.weight.data = weight.contiguous()
    module.bias.data = bias.contiguous()
    return module


def model_of(workload: Workload) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """The workload's net in PyTorch with its initial parameters, and a mini-batch: inputs and labels."""
    net = reference_net(job_of(workload))
    modules = []
    for layer in net.layers.values():
        if layer.proto.srclayers and layer.name != "loss":
            modules += torch_layers(layer, net.shapes[layer.proto.srclayers[0]])
    model = nn.Sequential(*modules)
    features, labels = data_of(workload)
    x = torch.tensor(features).permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)
    return model, x, torch.tensor(labels)


def step_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor, rate: float) -> Callable[[], float]:
    """A training step, which returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
    criterion = nn.CrossEntropyLoss()

    def step() -> float:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def main(name: str, threads: int) -> None:
    torch.set_num_threads(threads)
    model, x, y = model_of(WORKLOADS[name])
    step = step_of(model, x, y, LEARNING_RATE)
    serve(step, [step() for _ in range(WARM_UP)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
