"""Program: the same training step in PyTorch, from the same initial parameters, in one of VARIANTS."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tools.contest import absent, serve
from tools.workloads import LEARNING_RATE, MOMENTUM, WARM_UP, WORKLOADS, PlainLayer, Workload, data_of, plain_net
from torch import nn

from programs.gpt_torch import Gpt

# Their order of the gates, by the numbers of ours.
GATES = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 1, 3, 2)}

CONVOLUTIONS = {2: nn.Conv1d, 3: nn.Conv2d, 4: nn.Conv3d}  # by the axes of a sample


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


class Sum(nn.Module):
    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        return sum(x[1:], x[0])


class Channels(nn.Module):
    """The channels of several layers side by side."""

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        return torch.cat(x, dim=1)


class Graph(nn.Module):
    """A net whose layers read one or more others; the first ones read the input."""

    def __init__(self, layers: Sequence[PlainLayer]):
        super().__init__()
        self.sources = {layer.name: layer.sources for layer in layers}
        self.layers = nn.ModuleDict({layer.name: _together(torch_layers(layer)) for layer in layers})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: dict[str, torch.Tensor] = {}
        for name, module in self.layers.items():
            outputs[name] = module(*(outputs.get(source, x) for source in self.sources[name]))
        return outputs[name]


def _together(modules: list[nn.Module]) -> nn.Module:
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules)


def torch_layers(layer: PlainLayer) -> list[nn.Module]:
    """The PyTorch modules that compute what `layer` computes, with its parameters."""
    values = [torch.from_numpy(value) for value in layer.values]
    conf, source = layer.conf, layer.source
    match layer.kind:
        case "Convolution":
            window, biased = (conf["kernel"], conf["stride"], conf["pad"]), conf["bias_term"]
            module = CONVOLUTIONS[len(source)](source[-1], conf["num_filters"], *window, bias=biased)
            weight = values[0].movedim((-1, -2), (0, 1))
            return [_with(module, **dict(zip(("weight", "bias"), (weight, *values[1:]), strict=False)))]
        case "TransposedConvolution":
            wide = nn.ConvTranspose2d(source[-1], conf["num_filters"], conf["kernel"], conf["stride"], conf["pad"])
            return [_with(wide, weight=values[0].permute(3, 2, 0, 1), bias=values[1])]
        case "BatchNorm":
            norm = nn.BatchNorm2d(source[-1], momentum=1 - conf["factor"])
            return [_with(norm, weight=values[0], bias=values[1])]
        case "GlobalPooling":
            return [nn.AdaptiveAvgPool2d(1)]
        case "Add":
            return [Sum()]
        case "Concate":
            return [Channels()]
        case "InnerProduct":
            weight = values[0]
            flatten: list[nn.Module] = []
            if len(source) > 1:  # our rows have the channels last, PyTorch's have them first
                weight = weight.reshape(*source, -1).movedim(-2, 0).reshape(weight.shape)
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


def model_of(workload: Workload) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The workload's net in PyTorch with its initial parameters, and a mini-batch: inputs and labels or targets."""
    layers = plain_net(workload)
    features, labels = map(torch.from_numpy, data_of(workload))
    if workload.cell:
        return Graph(layers), features[:, :-1].T.long().contiguous(), labels
    if workload.symbols:
        values = {name: value for layer in layers for name, value in zip(layer.params, layer.values, strict=True)}
        heads = next(layer.conf["num_heads"] for layer in layers if layer.kind == "Attention")
        symbols = features.long()
        return Gpt(values, heads), symbols[:, :-1].contiguous(), symbols[:, 1:].flatten()
    x = features.movedim(-1, 1).clone(memory_format=torch.contiguous_format)
    if workload.sequence:
        return Graph(layers), x, labels[:, -1].contiguous()
    return Graph(layers), x, labels.unsqueeze(1) if workload.field else labels


def step_of(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, rate: float, settings: dict[str, Any] | None = None
) -> Callable[[], float]:
    """A training step, which returns the loss. settings: of the optimizer, beyond the rule."""
    criterion = nn.MSELoss() if y.is_floating_point() else nn.CrossEntropyLoss()
    return step_by(lambda: criterion(model(x), y), model, rate, settings)


def step_by(
    forward: Callable[[], torch.Tensor], model: nn.Module, rate: float, settings: dict[str, Any] | None = None
) -> Callable[[], float]:
    """As `step_of`, for what computes the loss."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=rate, momentum=MOMENTUM, **(settings or {}))

    def step() -> float:
        optimizer.zero_grad()
        loss = forward()
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


class Autocast(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(x).float()


def bfloat16(entry: Entry) -> None:
    """Products of bfloat16, where the CPU has instructions for them."""
    if not re.search(r"\b(?:avx512_bf16|amx_bf16|avx_ne_convert|bf16)\b", Path("/proc/cpuinfo").read_text()):
        absent("this CPU has no instructions for bfloat16")
    entry.model = Autocast(entry.model)


VARIANTS = {f.__name__: f for f in (eager, channels_last, fused, foreach, compiled, bfloat16)}


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
