"""A net that suits the data, for estimators without one and for `singa-dask new`."""

from __future__ import annotations

from math import prod
from typing import Any

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.layer_types import SOURCES, type_name
from singa_dask.layers import (
    GRU,
    Concate,
    Convolution,
    EuclideanLoss,
    InnerProduct,
    Layer,
    LossLayer,
    MSELoss,
    OneHot,
    Pooling,
    RecordInput,
    ReLU,
    RNNLabel,
    SoftmaxLoss,
    Upsampling,
)
from singa_dask.layers.module import Module
from singa_dask.layers.partition import Shape

# Outputs of the hidden layers for vectors, and of the one above convolutions.
HIDDEN = (128, 64)
# Filters of the convolutions of images; the image is halved after each.
FILTERS = (32, 64, 128)
# Height and width that an image keeps at least.
SMALLEST = 4
# Filters of a U-Net at each resolution, and of the dilated convolutions where height or width cannot be halved.
FIELD_FILTERS, DILATED = (16, 32, 64, 128), 32


def layers_for(shape: Shape, outputs: int, *, classify: bool, target: Shape = ()) -> list[Layer]:
    """The layers after the input layer "data". shape: of a sample in the net: (D,), (H, W, C) or another, which is
    flattened. target: of a target in the net, or of labels of positions.

    Fields of the size of the images: `field_layers`. Other images: up to three times a 3 x 3 convolution, ReLU and 2 x
    2 max-pooling, then one hidden layer. Otherwise: two hidden layers. The last layer has `outputs` outputs, for a
    softmax loss over classes or a Euclidean loss. Raises ConfigError for labels of positions of another size.
    """
    if is_field(shape, target):
        return field_layers(shape, outputs if classify else target[-1], classify=classify)
    if classify and len(target) > 1:
        hint = "Give the layers: net=[...], or a job of your own."
        message = "no net is proposed for labels of positions that are not those of images of at least 4 x 4"
        raise ConfigError(Problem("net", message, f"samples {shape}, labels {target}", hint))
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


def is_field(shape: Shape, target: Shape) -> bool:
    """Whether samples are images, and answers have the same height and width."""
    return len(shape) == len(target) == 3 and shape[:2] == target[:2] and min(shape[:2]) >= SMALLEST


def field_layers(
    shape: Shape, outputs: int, *, classify: bool, source: str = "data", answers: str = "data"
) -> list[Layer]:
    """A U-Net (Ronneberger et al. 2015): convolutions at up to four resolutions, each half the one before, and back,
    joined with those of the same resolution. shape: of a sample (H, W, C). outputs: of each pixel. source, answers:
    the layers with the samples and with the labels or targets.

    If height or width cannot be halved: three dilated convolutions.
    """
    halvings = _halvings(shape)
    layers: list[Layer] = []

    def convolve(name: str, filters: int, source: str, dilation: int = 1) -> str:
        layer = Convolution(name, source, num_filters=filters, kernel=3, pad=dilation)
        if dilation > 1:
            layer.proto.convolution_conf.dilation = dilation
        layers.extend([layer, ReLU(f"{name}_relu", name)])
        return f"{name}_relu"

    if not halvings:
        for number, dilation in enumerate((1, 2, 4), 1):
            source = convolve(f"conv{number}", DILATED, source, dilation)
    skipped = []
    for number, filters in enumerate(FIELD_FILTERS[: halvings + 1] if halvings else (), 1):
        source = convolve(f"down{number}b", filters, convolve(f"down{number}a", filters, source))
        if number <= halvings:
            skipped.append((number, filters, source))
            layers.append(Pooling(f"pool{number}", source, pool="MAX", kernel=2, stride=2))
            source = f"pool{number}"
    for number, filters, beside in reversed(skipped):
        layers.append(Upsampling(f"wide{number}", source, factor=2))
        layers.append(Concate(f"skip{number}", [f"wide{number}", beside], concate_dim=1))
        source = convolve(f"up{number}b", filters, convolve(f"up{number}a", filters, f"skip{number}"))
    layers.append(Convolution("output", source, num_filters=outputs, kernel=1))
    return [*layers, (SoftmaxLoss if classify else MSELoss)("loss", ["output", answers])]


def _halvings(shape: Shape) -> int:
    """How often both height and width can be halved, at most as often as there are further filters."""
    count, (height, width) = 0, shape[:2]
    while count < len(FIELD_FILTERS) - 1 and height % 2 == width % 2 == 0 and min(height, width) >= 2 * SMALLEST:
        count, height, width = count + 1, height // 2, width // 2
    return count


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


def from_input_to_loss(layers: list[Any], *, classify: bool) -> list[Any]:
    """All layers of a net, with an input layer and a loss if they are missing."""
    first: Any = layers[0] if layers else None
    if first is None or isinstance(first, Module) or type_name(getattr(first, "proto", first)) not in SOURCES:
        layers.insert(0, RecordInput("data"))
    placed: list[Any] = []
    for layer in layers:
        placed += layer.placed(placed) if isinstance(layer, Module) else (layer,)
    if not any(isinstance(layer, LossLayer) for layer in placed):
        placed.append(SoftmaxLoss() if classify else EuclideanLoss())
    return placed
