"""Our nets of tools/nets.py. As a program: the initial parameters of one on standard output, as PyTorch has them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

from singa_dask import Model, Module, autograd, convert
from singa_dask import layers as L
from singa_dask.tensors.tensor import Tensor
from tools.nets import CASES, CLASSES, STAGES, UNITS

SEED = 1


def plain(filters: int, kernel: int = 3, stride: int = 1, **settings: Any) -> L.Convolution:
    return L.Convolution(
        num_filters=filters, kernel=kernel, stride=stride, pad=kernel // 2, bias_term=False, param=_HE, **settings
    )


def dense(outputs: int) -> L.InnerProduct:
    return L.InnerProduct(num_output=outputs)


_HE = [{"init": {"type": "kGaussianSqrtFanIn", "std": 1.0}}]


class Short(Module):
    def __init__(self, filters: int, stride: int) -> None:
        self.conv, self.norm = plain(filters, 1, stride), L.BatchNorm()

    def forward(self, x: Any) -> Any:
        return self.norm(self.conv(x))


class Basic(Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        self.conv1, self.norm1 = plain(outputs, 3, stride), L.BatchNorm()
        self.conv2, self.norm2 = plain(outputs), L.BatchNorm()
        self.short = Short(outputs, stride) if stride > 1 or inputs != outputs else None

    def forward(self, x: Any) -> Any:
        y = self.norm2(self.conv2(autograd.relu(self.norm1(self.conv1(x)))))
        return autograd.relu(y + (self.short(x) if self.short else x))


class ResNet18(Module):
    """For images of 32 x 32: the first convolution has 3 x 3 weights, and no pooling follows it."""

    def __init__(self) -> None:
        self.conv, self.norm, self.blocks = plain(64), L.BatchNorm(), []
        inputs = 64
        for stage in range(4):
            for i in range(2):
                self.blocks.append(Basic(inputs, 64 << stage, 2 if stage and not i else 1))
                inputs = 64 << stage
        self.pool, self.scores, self.loss = L.GlobalPooling(), dense(CLASSES), L.SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = autograd.relu(self.norm(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        return self.loss(self.scores(self.pool(x)), y)


class Inverted(Module):
    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        wide = factor * inputs
        if factor > 1:
            self.expand, self.norm1 = plain(wide, 1), L.BatchNorm()
        self.depthwise, self.norm2 = plain(wide, 3, stride, groups=wide), L.BatchNorm()
        self.project, self.norm3 = plain(outputs, 1), L.BatchNorm()
        self.expands, self.residual = factor > 1, stride == 1 and inputs == outputs

    def forward(self, x: Any) -> Any:
        y = L.ReLU(max_value=6)(self.norm1(self.expand(x))) if self.expands else x
        y = L.ReLU(max_value=6)(self.norm2(self.depthwise(y)))
        y = self.norm3(self.project(y))
        return x + y if self.residual else y


class MobileNetV2(Module):
    def __init__(self) -> None:
        self.conv, self.norm, self.blocks = plain(32), L.BatchNorm(), []
        inputs = 32
        for factor, outputs, count, stride in STAGES:
            for i in range(count):
                self.blocks.append(Inverted(inputs, outputs, 1 if i else stride, factor))
                inputs = outputs
        self.last, self.norm2 = plain(1280, 1), L.BatchNorm()
        self.pool, self.scores, self.loss = L.GlobalPooling(), dense(CLASSES), L.SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = L.ReLU(max_value=6)(self.norm(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        x = L.ReLU(max_value=6)(self.norm2(self.last(x)))
        return self.loss(self.scores(self.pool(x)), y)


class Dense(Module):
    def __init__(self, growth: int) -> None:
        self.norm1, self.conv1 = L.BatchNorm(), plain(4 * growth, 1)
        self.norm2, self.conv2 = L.BatchNorm(), plain(growth)

    def forward(self, x: Any) -> Any:
        y = self.conv1(autograd.relu(self.norm1(x)))
        return autograd.cat([x, self.conv2(autograd.relu(self.norm2(y)))])


class DenseNetBlock(Module):
    """One block of a DenseNet-BC: 12 layers of growth rate 12."""

    def __init__(self) -> None:
        self.conv, self.block, self.norm = plain(24), [Dense(12) for _ in range(12)], L.BatchNorm()
        self.pool, self.scores, self.loss = L.GlobalPooling(), dense(CLASSES), L.SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = self.conv(x)
        for layer in self.block:
            x = layer(x)
        return self.loss(self.scores(self.pool(autograd.relu(self.norm(x)))), y)


class Encoder(Module):
    def __init__(self, width: int, heads: int) -> None:
        self.norm1, self.norm2 = L.LayerNorm(), L.LayerNorm()
        self.attention, self.wide, self.narrow = L.Attention(num_heads=heads), dense(4 * width), dense(width)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(autograd.gelu(self.wide(self.norm2(x))))


class ViTTiny(Module):
    """Of DeiT-tiny's width and depth, with patches of 4 x 4."""

    def __init__(self) -> None:
        self.patches = L.Convolution(num_filters=192, kernel=4, stride=4)
        self.token, self.positions = L.ClassToken(), L.PositionalEmbedding()
        self.blocks = [Encoder(192, 3) for _ in range(12)]
        self.norm, self.scores, self.loss = L.LayerNorm(), dense(CLASSES), L.SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = self.positions(self.token(self.patches(x)))
        for block in self.blocks:
            x = block(x)
        return self.loss(self.scores(self.norm(x)[:, 0]), y)


def cross_entropy(scores: Any, y: Any) -> Any:
    """As a user writes it."""
    return -autograd.take_along_axis(autograd.log_softmax(scores), autograd.reshape(y, (-1, 1)), axis=1)


def squared(scores: Any, y: Any) -> Any:
    """As a user writes it."""
    return (scores - y) ** 2


class EncoderDecoder(Module):
    def __init__(self) -> None:
        self.encoder, self.decoder = L.LSTM(dim_hidden=UNITS, return_cell=True), L.LSTM(dim_hidden=UNITS)
        self.scores, self.loss = dense(1), L.MSELoss()

    def forward(self, x: Any, known: Any, y: Any) -> Any:
        return self.loss(self.scores(self.decoder(known, self.encoder(x)[:, -1])), y)


class MLP(Module):
    def __init__(self, loss: Any) -> None:
        self.first, self.second, self.third, self.loss = dense(64), dense(64), dense(CLASSES), loss

    def forward(self, x: Any, y: Any) -> Any:
        return self.loss(self.third(autograd.relu(self.second(autograd.relu(self.first(x))))), y)


class CNN(Module):
    """The net of examples/mnist."""

    def __init__(self, loss: Any) -> None:
        self.conv1, self.conv2 = (L.Convolution(num_filters=filters, kernel=5) for filters in (20, 50))
        self.first, self.second, self.loss = dense(500), dense(CLASSES), loss

    def forward(self, x: Any, y: Any) -> Any:
        for conv in (self.conv1, self.conv2):
            x = L.Pooling(pool="MAX", kernel=2, stride=2)(conv(x))
        return self.loss(self.second(autograd.relu(self.first(x))), y)


NETS: dict[str, Callable[[], Module]] = {
    "resnet18": ResNet18,
    "vit-tiny": ViTTiny,
    "densenet-block": DenseNetBlock,
    "lstm-encoder-decoder": EncoderDecoder,
    "mobilenet-v2": MobileNetV2,
    "mlp": lambda: MLP(L.SoftmaxLoss()),
    "mlp-formula": lambda: MLP(L.Loss(cross_entropy, labels=1)),
    "mlp-values": lambda: MLP(L.MSELoss()),
    "mlp-values-formula": lambda: MLP(L.Loss(squared)),
    "cnn": lambda: CNN(L.SoftmaxLoss()),
    "cnn-formula": lambda: CNN(L.Loss(cross_entropy, labels=1)),
}


def model_of(name: str) -> Model:
    """A net with its initial parameters."""
    return Model([NETS[name]()(*(_input(key, shape) for key, shape in CASES[name].shapes.items()))], seed=SEED)


def _input(name: str, shape: tuple[int, ...]) -> L.RecordInput:
    if name == "y":
        return L.RecordInput(name, shape=[1], **({"target_shape": shape} if shape else {}))
    if len(shape) == 2:
        return L.RecordInput(name, shape=shape[1:], time_steps=shape[0])
    return L.RecordInput(name, shape=[shape[-1], *shape[:-1]])


def tensors_of(name: str) -> list[Tensor]:
    """The mini-batch; images have their channels second."""
    return [
        Tensor.of(array.transpose(0, 3, 1, 2) if array.ndim == 4 else array) for array in CASES[name].data().values()
    ]


def main(name: str) -> None:
    sys.stdout.buffer.write(pickle.dumps(convert.to_torch(model_of(name))))


if __name__ == "__main__":
    main(sys.argv[1])
