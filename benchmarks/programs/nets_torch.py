"""One training step of a net of tools/nets.py in PyTorch, from our initial parameters, in a variant of
step_torch.py. `forward` gives the loss."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from tools.contest import FOLDER, serve
from tools.nets import CASES, CLASSES, STAGES, UNITS
from tools.workloads import LEARNING_RATE, WARM_UP
from torch import Tensor, nn
from torch.nn import functional as F

from programs.step_torch import VARIANTS, Entry, step_by


def plain(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False, groups=groups)


class Short(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv, self.norm = plain(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Basic(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = plain(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = plain(outputs, outputs), nn.BatchNorm2d(outputs)
        self.short = Short(inputs, outputs, stride) if stride > 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)), inplace=True)))
        return F.relu(y + (self.short(x) if self.short else x), inplace=True)


class ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.blocks = plain(3, 64), nn.BatchNorm2d(64), nn.ModuleList()
        inputs = 64
        for stage in range(4):
            for i in range(2):
                self.blocks.append(Basic(inputs, 64 << stage, 2 if stage and not i else 1))
                inputs = 64 << stage
        self.scores = nn.Linear(inputs, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)), inplace=True)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.scores(F.adaptive_avg_pool2d(x, 1).flatten(1)), y)


class Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = factor * inputs
        if factor > 1:
            self.expand, self.norm1 = plain(inputs, wide, 1), nn.BatchNorm2d(wide)
        self.depthwise, self.norm2 = plain(wide, wide, 3, stride, groups=wide), nn.BatchNorm2d(wide)
        self.project, self.norm3 = plain(wide, outputs, 1), nn.BatchNorm2d(outputs)
        self.expands, self.residual = factor > 1, stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.norm1(self.expand(x)), inplace=True) if self.expands else x
        y = self.norm3(self.project(F.relu6(self.norm2(self.depthwise(y)), inplace=True)))
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.blocks = plain(3, 32), nn.BatchNorm2d(32), nn.ModuleList()
        inputs = 32
        for factor, outputs, count, stride in STAGES:
            for i in range(count):
                self.blocks.append(Inverted(inputs, outputs, 1 if i else stride, factor))
                inputs = outputs
        self.last, self.norm2 = plain(inputs, 1280, 1), nn.BatchNorm2d(1280)
        self.scores = nn.Linear(1280, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.relu6(self.norm(self.conv(x)), inplace=True)
        for block in self.blocks:
            x = block(x)
        x = F.relu6(self.norm2(self.last(x)), inplace=True)
        return F.cross_entropy(self.scores(F.adaptive_avg_pool2d(x, 1).flatten(1)), y)


class Dense(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), plain(inputs, 4 * growth, 1)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), plain(4 * growth, growth)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x), inplace=True))
        return torch.cat([x, self.conv2(F.relu(self.norm2(y), inplace=True))], 1)


class DenseNetBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.block = plain(3, 24), nn.ModuleList([Dense(24 + 12 * i, 12) for i in range(12)])
        self.norm, self.scores = nn.BatchNorm2d(168), nn.Linear(168, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.conv(x)
        for layer in self.block:
            x = layer(x)
        x = F.relu(self.norm(x), inplace=True)
        return F.cross_entropy(self.scores(F.adaptive_avg_pool2d(x, 1).flatten(1)), y)


class Encoder(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class ViTTiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 192, 4, 4), nn.Parameter(torch.zeros(1, 1, 192))
        self.positions = nn.Embedding(65, 192)
        self.blocks = nn.ModuleList([Encoder(192, 3) for _ in range(12)])
        self.norm, self.scores = nn.LayerNorm(192), nn.Linear(192, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), 1, 192), x], 1) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.scores(self.norm(x)[:, 0]), y)


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(16, UNITS, batch_first=True)
        self.decoder, self.scores = nn.LSTM(8, UNITS, batch_first=True), nn.Linear(UNITS, 1)
        for lstm in (self.encoder, self.decoder):
            lstm.bias_hh_l0.requires_grad_(False)  # we have one bias a gate

    def forward(self, x: Tensor, known: Tensor, y: Tensor) -> Tensor:
        _, state = self.encoder(x)
        return F.mse_loss(self.scores(self.decoder(known, state)[0]), y)


NETS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": ResNet18,
    "vit-tiny": ViTTiny,
    "densenet-block": DenseNetBlock,
    "lstm-encoder-decoder": EncoderDecoder,
    "mobilenet-v2": MobileNetV2,
}


def model_of(name: str) -> nn.Module:
    """A net with our initial parameters."""
    command = [sys.executable, str(FOLDER / "tools" / "modules.py"), name]
    state = pickle.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    net = NETS[name]()
    kept = net.state_dict()
    net.load_state_dict({key: torch.from_numpy(state[key]) if key in state else kept[key] for key in kept})
    return net


def main(name: str, variant: str) -> None:
    """variant: names of VARIANTS, joined by "+"."""
    torch.set_num_threads(1)
    x, *rest = map(torch.from_numpy, CASES[name].data().values())
    entry = Entry(model_of(name), x.movedim(-1, 1).contiguous() if CASES[name].images else x)
    for part in variant.split("+"):
        VARIANTS[part](entry)
    step = step_by(lambda: entry.model(entry.x, *rest), entry.model, LEARNING_RATE, entry.settings)
    serve(step, [step() for _ in range(WARM_UP)], clock=time.process_time)


if __name__ == "__main__":
    main(*sys.argv[1:])
