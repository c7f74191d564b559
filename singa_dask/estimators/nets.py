"""A net that suits the data, for estimators without one and for `singa-dask new`."""

from __future__ import annotations

from math import prod

from singa_dask.layers import (
    GRU,
    Convolution,
    EuclideanLoss,
    InnerProduct,
    Layer,
    OneHot,
    Pooling,
    ReLU,
    RNNLabel,
    SoftmaxLoss,
)
from singa_dask.layers.partition import Shape

# Outputs of the hidden layers for vectors, and of the one above convolutions.
HIDDEN = (128, 64)
# Filters of the convolutions of images; the image is halved after each.
FILTERS = (32, 64, 128)
# Height and width that an image keeps at least.
SMALLEST = 4


def layers_for(shape: Shape, outputs: int, *, classify: bool) -> list[Layer]:
    """The layers after the input layer. shape: of a sample in the net: (D,), (H, W, C) or another, which is flattened.

    Images: up to three times a 3 x 3 convolution, ReLU and 2 x 2 max-pooling, then one hidden layer. Otherwise: two
    hidden layers. The last layer has `outputs` outputs, for a softmax loss over classes or a Euclidean loss.
    """
    layers: list[Layer] = []
    hidden: tuple[int, ...] = HIDDEN
    if len(shape) == 3 and min(shape[:2]) >= SMALLEST:
        hidden = HIDDEN[:1]
        for number, (filters, side) in enumerate(zip(FILTERS, _sides(min(shape[:2])), strict=False), 1):
            layers += [Convolution(f"conv{number}", num_filters=filters, kernel=3, pad=1), ReLU(f"conv{number}_relu")]
            if side >= 2 * SMALLEST:
                layers.append(Pooling(f"pool{number}", pool="MAX", kernel=2, stride=2))
    for number, width in enumerate(hidden, 1):
        layers += [InnerProduct(f"hidden{number}", num_output=width), ReLU(f"hidden{number}_relu")]
    layers.append(InnerProduct("output", num_output=outputs))
    return [*layers, SoftmaxLoss("loss") if classify else EuclideanLoss("loss")]


def _sides(side: int) -> list[int]:
    """The smaller side of the image before each convolution."""
    sides = [side]
    while sides[-1] >= 2 * SMALLEST:
        sides.append(sides[-1] // 2)
    return sides


def outputs_for(classes: int | None, target: Shape) -> int:
    """Outputs of the net: one per class, or per value of a target of this shape."""
    return prod(target) if classes is None else classes


def text_layers(symbols: int, hidden: int) -> list[Layer]:
    """The layers after the input layer of a text: they predict the next symbol, in a net that is unrolled."""
    return [
        OneHot("onehot", "data", vocab_size=symbols, unroll_conn_type=["kUnrollOneToAll"]),
        RNNLabel("label", "data", unroll_conn_type=["kUnrollOneToAll"]),
        GRU("gru", "onehot", dim_hidden=hidden),
        InnerProduct("output", "gru", num_output=symbols),
        SoftmaxLoss("loss", ["output", "label"]),
    ]
