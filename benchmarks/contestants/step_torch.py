"""Contestant: the same training step in PyTorch, from the same initial parameters, in one of VARIANTS."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tools.contest import absent, serve
from tools.workloads import LEARNING_RATE, MOMENTUM, WARM_UP, WORKLOADS, PlainLayer, Workload, data_of, plain_net
from torch import nn

# Their order of the gates, by the numbers of ours.
GATES = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 1, 3, 2)}


class STanh(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1.7159047 * torch.tanh(0.6666667 * x)


class OneHot(nn.Module):
    def __init__(self, symbols: int):
        super().__init__()
        self.symbols = symbols

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(x, self.symbols).float()


class OverTime(nn.Module):
    """A recurrent layer; its outputs as rows, one time step after another."""

    def __init__(self, cell: nn.RNNBase):
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x)[0].flatten(0, 1)


def torch_layers(layer: PlainLayer) -> list[nn.Module]:
    """The PyTorch modules that compute what `layer` computes, with its parameters."""
    values = [torch.from_numpy(value) for value in layer.values]
    conf, source = layer.conf, layer.source
    match layer.kind:
        case "Convolution":
            module = nn.Conv2d(source[-1], conf["num_filters"], conf["kernel"], conf["stride"], conf["pad"])
            return [_with(module, weight=values[0].permute(3, 2, 0, 1), bias=values[1])]
        case "InnerProduct":
            weight = values[0]
            flatten: list[nn.Module] = []
            if len(source) == 3:  # our rows are in (height, width, channels) order, PyTorch's in channels first
                h, w, c = source
                weight = weight.reshape(h, w, c, -1).permute(2, 0, 1, 3).reshape(h * w * c, -1)
                flatten = [nn.Flatten()]
            return [*flatten, _with(nn.Linear(*weight.shape), weight=weight.T, bias=values[1])]
        case "Pooling":
            return [(nn.AvgPool2d if conf["pool"] else nn.MaxPool2d)(conf["kernel"], conf["stride"])]
        case "LRN":
            return [nn.LocalResponseNorm(conf["local_size"], conf["alpha"], conf["beta"], conf["knorm"])]
        case "RNN" | "GRU" | "LSTM":
            return [OverTime(_recurrent(layer.kind, values))]
        case "OneHot":
            return [OneHot(conf["vocab_size"])]
    return [{"ReLU": nn.ReLU, "STanh": STanh}[layer.kind]()]


def _recurrent(kind: str, values: list[torch.Tensor]) -> nn.RNNBase:
    order = GATES[kind]
    cell = getattr(nn, kind)(values[0].shape[1], values[0].shape[0])
    stacked = [torch.cat([values[start + gate] for gate in order]) for start in range(0, len(values), len(order))]
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0")
    _with(cell, **dict(zip(names, stacked, strict=True)), bias_hh_l0=torch.zeros_like(stacked[-1]))
    cell.bias_hh_l0.requires_grad_(False)  # we have one bias a gate
    return cell


def _with(module: nn.Module, **values: torch.Tensor) -> nn.Module:
    for name, value in values.items():
        getattr(module, name).data = value.contiguous()
    return module


def model_of(workload: Workload) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """The workload's net in PyTorch with its initial parameters, and a mini-batch: inputs and labels."""
    model = nn.Sequential(*(module for layer in plain_net(workload) for module in torch_layers(layer)))
    features, labels = map(torch.from_numpy, data_of(workload))
    if workload.cell:
        return model, features[:, :-1].T.long().contiguous(), labels
    return model, features.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format), labels


def step_of(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, rate: float, settings: dict[str, Any] | None = None
) -> Callable[[], float]:
    """A training step, which returns the loss. settings: of the optimizer, beyond the rule."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=rate, momentum=MOMENTUM, **(settings or {}))
    criterion = nn.CrossEntropyLoss()

    def step() -> float:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


@dataclass
class Entry:
    """What a variant may change before the first step."""

    model: nn.Module
    x: torch.Tensor
    settings: dict[str, Any] = field(default_factory=dict)


def eager(entry: Entry) -> None:
    """PyTorch as it comes."""


def channels_last(entry: Entry) -> None:
    entry.model = entry.model.to(memory_format=torch.channels_last)
    entry.x = entry.x.to(memory_format=torch.channels_last)


def fused(entry: Entry) -> None:
    entry.settings["fused"] = True


def foreach(entry: Entry) -> None:
    entry.settings["foreach"] = True


def compiled(entry: Entry) -> None:
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        absent("torch.compile needs a C++ compiler")
    entry.model = torch.compile(entry.model)


VARIANTS = {f.__name__: f for f in (eager, channels_last, fused, foreach, compiled)}


def main(name: str, threads: int, variant: str) -> None:
    """variant: names of VARIANTS, joined by "+"."""
    torch.set_num_threads(threads)
    model, x, y = model_of(WORKLOADS[name])
    entry = Entry(model, x)
    for part in variant.split("+"):
        VARIANTS[part](entry)
    step = step_of(entry.model, entry.x, y, LEARNING_RATE, entry.settings)
    serve(step, [step() for _ in range(WARM_UP)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
