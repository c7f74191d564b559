"""Our nets on images: `forward` reads the data and gives the loss."""

from __future__ import annotations

from typing import Any, ClassVar

from singa_dask import Module, autograd, layers
from singa_dask.layers import (
    Attention,
    BatchNorm,
    BCELoss,
    ClassToken,
    Convolution,
    GlobalPooling,
    InnerProduct,
    LayerNorm,
    MSELoss,
    Pooling,
    PositionalEmbedding,
    SoftmaxLoss,
    TransposedConvolution,
    Upsampling,
)


def conv(filters: int, kernel: int = 3, stride: int = 1, pad: int | None = None, **settings: Any) -> Convolution:
    pad = kernel // 2 if pad is None else pad
    return Convolution(num_filters=filters, kernel=kernel, stride=stride, pad=pad, **settings)


def plain(filters: int, kernel: int = 3, stride: int = 1, **settings: Any) -> Convolution:
    return conv(filters, kernel, stride, bias_term=False, **settings)


def pooled(x: Any, kernel: int = 2, stride: int = 2, pad: int = 0, pool: str = "MAX", **settings: Any) -> Any:
    return Pooling(pool=pool, kernel=kernel, stride=stride, pad=pad, **settings)(x)


class LeNet(Module):
    def __init__(self) -> None:
        self.conv1, self.conv2 = conv(6, 5), conv(8, pad=0)
        self.fc1, self.fc2, self.loss = InnerProduct(num_output=16), InnerProduct(num_output=5), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = pooled(autograd.tanh(self.conv1(x)))
        x = pooled(autograd.tanh(self.conv2(x)), pool="AVG")
        return self.loss(self.fc2(autograd.tanh(self.fc1(x))), y)


class Short(Module):
    def __init__(self, filters: int, stride: int) -> None:
        self.conv, self.norm = plain(filters, 1, stride), BatchNorm()

    def forward(self, x: Any) -> Any:
        return self.norm(self.conv(x))


class Basic(Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        self.conv1, self.norm1 = plain(outputs, 3, stride), BatchNorm()
        self.conv2, self.norm2 = plain(outputs), BatchNorm()
        self.short = Short(outputs, stride) if stride > 1 or inputs != outputs else None

    def forward(self, x: Any) -> Any:
        y = self.norm2(self.conv2(autograd.relu(self.norm1(self.conv1(x)))))
        return autograd.relu(y + (self.short(x) if self.short else x))


class Bottleneck(Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        self.conv1, self.norm1 = plain(width, 1), BatchNorm()
        self.conv2, self.norm2 = plain(width, 3, stride), BatchNorm()
        self.conv3, self.norm3 = plain(4 * width, 1), BatchNorm()
        self.short = Short(4 * width, stride) if stride > 1 or inputs != 4 * width else None

    def forward(self, x: Any) -> Any:
        y = autograd.relu(self.norm1(self.conv1(x)))
        y = self.norm3(self.conv3(autograd.relu(self.norm2(self.conv2(y)))))
        return autograd.relu(y + (self.short(x) if self.short else x))


class ResNet(Module):
    def __init__(self, bottlenecks: bool) -> None:
        self.conv, self.norm, self.blocks = plain(4), BatchNorm(), []
        inputs = 4
        for stage, count in enumerate((3, 4, 6, 3) if bottlenecks else (2, 2, 2, 2)):
            for i in range(count):
                width, stride = 4 * 2 ** min(stage, 2), 2 if stage in (1, 2) and not i else 1
                self.blocks.append(Bottleneck(inputs, width, stride) if bottlenecks else Basic(inputs, width, stride))
                inputs = 4 * width if bottlenecks else width
        self.pool, self.scores, self.loss = GlobalPooling(), InnerProduct(num_output=5), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = autograd.relu(self.norm(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        return self.loss(self.scores(self.pool(x)), y)


def relu6(x: Any) -> Any:
    return autograd.clip(x, 0, 6)


class Inverted(Module):
    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        wide = factor * inputs
        self.expand, self.norm1 = plain(wide, 1), BatchNorm()
        self.depthwise, self.norm2 = plain(wide, 3, stride, groups=wide), BatchNorm()
        self.project, self.norm3 = plain(outputs, 1), BatchNorm()
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Any) -> Any:
        y = relu6(self.norm1(self.expand(x)))
        y = relu6(self.norm2(self.depthwise(y)))
        y = self.norm3(self.project(y))
        return x + y if self.residual else y


class MobileNetV2(Module):
    def __init__(self) -> None:
        self.conv, self.norm = plain(6), BatchNorm()
        self.blocks = [Inverted(*kind) for kind in ((6, 6, 1, 1), (6, 8, 2, 4), (8, 8, 1, 4), (8, 12, 2, 4))]
        self.last, self.norm2 = plain(16, 1), BatchNorm()
        self.pool, self.scores, self.loss = GlobalPooling(), InnerProduct(num_output=5), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = relu6(self.norm(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        x = relu6(self.norm2(self.last(x)))
        return self.loss(self.scores(self.pool(x)), y)


class Dense(Module):
    def __init__(self, growth: int) -> None:
        self.norm1, self.conv1 = BatchNorm(), plain(2 * growth, 1)
        self.norm2, self.conv2 = BatchNorm(), plain(growth)

    def forward(self, x: Any) -> Any:
        y = self.conv1(autograd.relu(self.norm1(x)))
        return autograd.cat([x, self.conv2(autograd.relu(self.norm2(y)))])


class DenseNet(Module):
    def __init__(self) -> None:
        self.conv, self.norm, self.between = plain(8), BatchNorm(), plain(10, 1)
        self.first, self.second = [Dense(4) for _ in range(3)], [Dense(4) for _ in range(3)]
        self.last, self.pool = BatchNorm(), GlobalPooling()
        self.scores, self.loss = InnerProduct(num_output=5), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = self.conv(x)
        for block in self.first:
            x = block(x)
        x = pooled(self.between(autograd.relu(self.norm(x))), pool="AVG")
        for block in self.second:
            x = block(x)
        return self.loss(self.scores(self.pool(autograd.relu(self.last(x)))), y)


class Branches(Module):
    def __init__(self) -> None:
        self.one, self.three1, self.three2 = conv(4, 1), conv(3, 1), conv(4)
        self.five1, self.five2, self.pooled = conv(2, 1), conv(3, 5), conv(3, 1)

    def forward(self, x: Any) -> Any:
        three, five = self.three2(autograd.relu(self.three1(x))), self.five2(autograd.relu(self.five1(x)))
        return autograd.relu(autograd.cat([self.one(x), three, five, self.pooled(pooled(x, 3, 1, 1))]))


class Inception(Module):
    def __init__(self) -> None:
        self.stem, self.first, self.second = conv(6), Branches(), Branches()
        self.pool, self.scores, self.loss = GlobalPooling(), InnerProduct(num_output=5), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = pooled(autograd.relu(self.stem(x)), 3, ceil_mode=True)
        x = pooled(self.first(x), 3, ceil_mode=True)
        return self.loss(self.scores(self.pool(self.second(x))), y)


class VGG(Module):
    def __init__(self) -> None:
        self.convs = [conv(filters) for filters in (6, 6, 8, 8)]
        self.fc1, self.fc2, self.loss = InnerProduct(num_output=16), InnerProduct(num_output=5), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        for i, layer in enumerate(self.convs):
            x = autograd.relu(layer(x))
            if i % 2:
                x = pooled(x)
        return self.loss(self.fc2(autograd.relu(self.fc1(x))), y)


class Fire(Module):
    def __init__(self, squeezed: int, outputs: int) -> None:
        self.squeeze, self.one, self.three = conv(squeezed, 1), conv(outputs, 1), conv(outputs)

    def forward(self, x: Any) -> Any:
        x = autograd.relu(self.squeeze(x))
        return autograd.cat([autograd.relu(self.one(x)), autograd.relu(self.three(x))])


class SqueezeNet(Module):
    def __init__(self) -> None:
        self.conv, self.fires = conv(6, pad=0), [Fire(3, 4), Fire(4, 5)]
        self.scores, self.pool, self.loss = conv(5, 1), GlobalPooling(), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = autograd.relu(self.conv(x))
        for fire in self.fires:
            x = fire(pooled(x, 3, ceil_mode=True))
        return self.loss(self.pool(autograd.relu(self.scores(x))), y)


def up(filters: int, kernel: int = 2, pad: int = 0) -> TransposedConvolution:
    return TransposedConvolution(num_filters=filters, kernel=kernel, stride=2, pad=pad)


class UNet(Module):
    def __init__(self) -> None:
        self.down1, self.down2, self.bottom = conv(4), conv(8), conv(8)
        self.up2, self.up1, self.joined2, self.joined1 = up(8), up(4), conv(8), conv(4)
        self.scores, self.loss = conv(1, 1), BCELoss()

    def forward(self, x: Any, y: Any) -> Any:
        first = autograd.relu(self.down1(x))
        second = autograd.relu(self.down2(pooled(first)))
        x = autograd.relu(self.bottom(pooled(second)))
        x = autograd.relu(self.joined2(autograd.cat([self.up2(x), second])))
        x = autograd.relu(self.joined1(autograd.cat([self.up1(x), first])))
        return self.loss(self.scores(x), y)


class Segmentation(Module):
    def __init__(self) -> None:
        self.conv1, self.conv2, self.scores = conv(6), conv(8, 3, 2), conv(4, 1)
        self.up, self.loss = Upsampling(factor=2, method="BILINEAR"), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = autograd.relu(self.conv2(autograd.relu(self.conv1(x))))
        return self.loss(self.up(self.scores(x)), y)


class Encoder(Module):
    """A block of a transformer, normalised before. of: the layer for each position."""

    def __init__(self, width: int, heads: int, of: Any = None, **attention: Any) -> None:
        of = of or (lambda outputs: InnerProduct(num_output=outputs))
        self.norm1, self.norm2 = LayerNorm(), LayerNorm()
        self.attention = Attention(num_heads=heads, **attention)
        self.wide, self.narrow = of(2 * width), of(width)

    def forward(self, x: Any, *real: Any) -> Any:
        x = x + self.attention(self.norm1(x), *real)
        return x + self.narrow(autograd.gelu(self.wide(self.norm2(x))))


class ViT(Module):
    def __init__(self) -> None:
        self.patches, self.positions = conv(12, 4, 4, pad=0), PositionalEmbedding()
        self.blocks = [Encoder(12, 2, lambda outputs: conv(outputs, 1)) for _ in range(2)]
        self.norm, self.pool, self.scores = LayerNorm(), GlobalPooling(), InnerProduct(num_output=5)
        self.loss = SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = self.positions(self.patches(x))
        for block in self.blocks:
            x = block(x)
        return self.loss(self.scores(self.pool(self.norm(x))), y)


class ViTWithToken(ViT):
    there: ClassVar = {"token": "token"}

    def __init__(self) -> None:
        super().__init__()
        self.token, self.blocks = ClassToken(), [Encoder(12, 2) for _ in range(2)]

    def forward(self, x: Any, y: Any) -> Any:
        x = self.positions(self.token(self.patches(x)))
        for block in self.blocks:
            x = block(x)
        return self.loss(self.scores(self.norm(x)[:, 0]), y)


class Autoencoder(Module):
    def __init__(self) -> None:
        self.conv1, self.conv2, self.up1, self.up2 = conv(4, 3, 2), conv(6, 3, 2), up(4, 4, 1), up(1, 4, 1)
        self.loss = MSELoss()

    def forward(self, x: Any) -> Any:
        code = autograd.relu(self.conv2(autograd.relu(self.conv1(x))))
        return self.loss(self.up2(autograd.relu(self.up1(code))), x)


def dice(x: Any, y: Any) -> Any:
    """One minus the dice coefficient of each sample."""
    p = autograd.sigmoid(x)
    shared, every = (autograd.sum(each, axis=(1, 2, 3)) for each in (p * y, p + y))
    return 1 - (2 * shared + 1) / (every + 1)


class Dice(Module):
    def __init__(self) -> None:
        self.conv, self.scores, self.loss = conv(4), conv(1, 1), layers.Loss(dice)

    def forward(self, x: Any, y: Any) -> Any:
        return self.loss(self.scores(autograd.relu(self.conv(x))), y)


class NormOfBatch(Module):
    def __init__(self) -> None:
        self.conv, self.norm, self.fc, self.loss = conv(6), BatchNorm(), InnerProduct(num_output=5), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        return self.loss(self.fc(autograd.relu(self.norm(self.conv(x)))), y)


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
    "vit": ViT,
    "vit_cls": ViTWithToken,
    "autoencoder": Autoencoder,
    "dice": Dice,
    "batch_norm": NormOfBatch,
}
