"""Nets on images in PyTorch. `forward` gives the loss; images have their channels first."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 8, 3)
        self.fc1, self.fc2 = nn.Linear(8 * 3 * 3, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.max_pool2d(torch.tanh(self.conv1(x)), 2)
        x = F.avg_pool2d(torch.tanh(self.conv2(x)), 2)
        return F.cross_entropy(self.fc2(torch.tanh(self.fc1(x.flatten(1)))), y)


class Basic(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = Short(inputs, outputs, stride) if stride > 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (self.short(x) if self.short else x))


class Short(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.short = Short(inputs, outputs, stride) if stride > 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm3(self.conv3(F.relu(self.norm2(self.conv2(y)))))
        return F.relu(y + (self.short(x) if self.short else x))


class ResNet(nn.Module):
    def __init__(self, bottlenecks: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        blocks: list[nn.Module] = []
        inputs = 4
        for stage, count in enumerate((3, 4, 6, 3) if bottlenecks else (2, 2, 2, 2)):
            for i in range(count):
                width, stride = 4 * 2 ** min(stage, 2), 2 if stage in (1, 2) and not i else 1
                blocks.append(Bottleneck(inputs, width, stride) if bottlenecks else Basic(inputs, width, stride))
                inputs = 4 * width if bottlenecks else width
        self.blocks = nn.ModuleList(blocks)
        self.scores = nn.Linear(inputs, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.scores(x.mean((2, 3))), y)


class Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = factor * inputs
        self.expand, self.norm1 = nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.project, self.norm3 = nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.norm1(self.expand(x)))
        y = F.relu6(self.norm2(self.depthwise(y)))
        y = self.norm3(self.project(y))
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6)
        kinds = ((6, 6, 1, 1), (6, 8, 2, 4), (8, 8, 1, 4), (8, 12, 2, 4))
        self.blocks = nn.ModuleList([Inverted(*kind) for kind in kinds])
        self.last, self.norm2 = nn.Conv2d(12, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.scores = nn.Linear(16, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.relu6(self.norm(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        x = F.relu6(self.norm2(self.last(x)))
        return F.cross_entropy(self.scores(x.mean((2, 3))), y)


class Dense(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 2 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(2 * growth), nn.Conv2d(2 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(y)))], 1)


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.first = nn.ModuleList([Dense(8 + 4 * i, 4) for i in range(3)])
        self.norm, self.between = nn.BatchNorm2d(20), nn.Conv2d(20, 10, 1, bias=False)
        self.second = nn.ModuleList([Dense(10 + 4 * i, 4) for i in range(3)])
        self.last, self.scores = nn.BatchNorm2d(22), nn.Linear(22, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.conv(x)
        for block in self.first:
            x = block(x)
        x = F.avg_pool2d(self.between(F.relu(self.norm(x))), 2)
        for block in self.second:
            x = block(x)
        return F.cross_entropy(self.scores(F.relu(self.last(x)).mean((2, 3))), y)


class Branches(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, 4, 1)
        self.three1, self.three2 = nn.Conv2d(inputs, 3, 1), nn.Conv2d(3, 4, 3, padding=1)
        self.five1, self.five2 = nn.Conv2d(inputs, 2, 1), nn.Conv2d(2, 3, 5, padding=2)
        self.pooled = nn.Conv2d(inputs, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(F.max_pool2d(x, 3, 1, 1))
        three, five = self.three2(F.relu(self.three1(x))), self.five2(F.relu(self.five1(x)))
        return F.relu(torch.cat([self.one(x), three, five, pooled], 1))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.first, self.second, self.scores = Branches(6), Branches(14), nn.Linear(14, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, ceil_mode=True)
        x = F.max_pool2d(self.first(x), 3, 2, ceil_mode=True)
        return F.cross_entropy(self.scores(self.second(x).mean((2, 3))), y)


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 6), (6, 6), (6, 8), (8, 8))
        self.convs = nn.ModuleList([nn.Conv2d(*size, 3, padding=1) for size in sizes])
        self.fc1, self.fc2 = nn.Linear(8 * 4 * 4, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            x = F.relu(conv(x))
            if i % 2:
                x = F.max_pool2d(x, 2)
        return F.cross_entropy(self.fc2(F.relu(self.fc1(x.flatten(1)))), y)


class Fire(nn.Module):
    def __init__(self, inputs: int, squeezed: int, outputs: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.one, self.three = nn.Conv2d(squeezed, outputs, 1), nn.Conv2d(squeezed, outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


class SqueezeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, 1)
        self.fires = nn.ModuleList([Fire(6, 3, 4), Fire(8, 4, 5)])
        self.scores = nn.Conv2d(10, 5, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        for fire in self.fires:
            x = fire(F.max_pool2d(x, 3, 2, ceil_mode=True))
        return F.cross_entropy(F.relu(self.scores(x)).mean((2, 3)), y)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.bottom = nn.Conv2d(8, 8, 3, padding=1)
        self.up2, self.up1 = nn.ConvTranspose2d(8, 8, 2, 2), nn.ConvTranspose2d(8, 4, 2, 2)
        self.joined2, self.joined1 = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.scores = nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        first = F.relu(self.down1(x))
        second = F.relu(self.down2(F.max_pool2d(first, 2)))
        x = F.relu(self.bottom(F.max_pool2d(second, 2)))
        x = F.relu(self.joined2(torch.cat([self.up2(x), second], 1)))
        x = F.relu(self.joined1(torch.cat([self.up1(x), first], 1)))
        return F.binary_cross_entropy_with_logits(self.scores(x), y)


class Segmentation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, 2, 1)
        self.scores = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = F.interpolate(self.scores(x), scale_factor=2, mode="bilinear")
        return F.cross_entropy(x, y)


class Encoder(nn.Module):
    """A block of a transformer, normalised before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, *, causal: bool = False, padding: Tensor | None = None) -> Tensor:
        y, steps = self.norm1(x), x.shape[1]
        later = torch.ones(steps, steps, dtype=torch.bool).triu(1) if causal else None
        x = x + self.attention(y, y, y, key_padding_mask=padding, attn_mask=later, need_weights=False)[0]
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, cls: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 12)) if cls else None
        self.positions = nn.Embedding(16 + cls, 12)
        self.blocks = nn.ModuleList([Encoder(12, 2) for _ in range(2)])
        self.norm, self.scores = nn.LayerNorm(12), nn.Linear(12, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), 1, 12), x], 1)
        x = x + self.positions.weight
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return F.cross_entropy(self.scores(x.mean(1) if self.token is None else x[:, 0]), y)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, 2, 1), nn.Conv2d(4, 6, 3, 2, 1)
        self.up1, self.up2 = nn.ConvTranspose2d(6, 4, 4, 2, 1), nn.ConvTranspose2d(4, 1, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        code = F.relu(self.conv2(F.relu(self.conv1(x))))
        return F.mse_loss(self.up2(F.relu(self.up1(code))), x)


class Dice(nn.Module):
    """One minus the dice coefficient of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scores = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        p = torch.sigmoid(self.scores(F.relu(self.conv(x))))
        shared = (p * y).sum((1, 2, 3))
        return (1 - (2 * shared + 1) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)).mean()


class BatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.fc = nn.Linear(6 * 8 * 8, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.fc(F.relu(self.norm(self.conv(x))).flatten(1)), y)


NETS = {
    "lenet": LeNet,
    "resnet18": lambda: ResNet(bottlenecks=False),
    "resnet50": lambda: ResNet(bottlenecks=True),
    "mobilenet_v2": MobileNetV2,
    "densenet": DenseNet,
    "inception": Inception,
    "vgg": VGG,
    "squeezenet": SqueezeNet,
    "unet": UNet,
    "segmentation": Segmentation,
    "vit": lambda: ViT(cls=False),
    "vit_cls": lambda: ViT(cls=True),
    "autoencoder": Autoencoder,
    "dice": Dice,
    "batch_norm": BatchNorm,
}
