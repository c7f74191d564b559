"""Small jobs whose layers, measured, tell what similar layers of any job take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from singa_dask import layers
from singa_dask.job import Job
from singa_dask.job.job_pb2 import JobProto
from singa_dask.layers.base import Layer
from singa_dask.updaters import SGD

# Outputs of the products of a net, one after the other, and the rows with which it is measured.
WIDE = (1024, 4096, 1024), (8, 32, 128)
NARROW = (64, 512, 256, 512, 64), (8, 64, 512)
IMAGE_ROWS = (2, 8, 32)
# Units and time steps of recurrent layers and of transformers, and their rows.
RECURRENT = ((64, 10), (256, 20)), (8, 32)
TRANSFORMER = ((64, 32), (256, 128)), (4, 16)
SYMBOLS = 64


def grid_jobs() -> Iterator[JobProto]:
    """Nets of fully connected layers, of convolutions, of recurrent layers and of attention, with few and with many
    rows."""
    for widths, rows in (WIDE, NARROW):
        for batch in rows:
            yield _job(_products(widths, batch))
    for batch in IMAGE_ROWS:
        yield _job(_images(batch))
        yield _job(_pictures(batch))
    for batch in IMAGE_ROWS[1:]:
        yield _job(_residual(batch))
    for cell in (layers.RNN, layers.GRU, layers.LSTM):
        for units, steps in RECURRENT[0]:
            for batch in RECURRENT[1]:
                yield _job(_symbols(cell, units, steps, batch), unroll_len=steps)
    for units, steps in TRANSFORMER[0]:
        for batch in TRANSFORMER[1]:
            yield _job(_transformer(units, steps, batch), unroll_len=steps)
    yield _job(_patches(IMAGE_ROWS[1]))


def _job(chain: Sequence[Layer], **fields: Any) -> JobProto:
    return Job(name="grid", train_steps=1, layers=chain, updater=SGD(lr=0.1, momentum=0.9), **fields).proto


def _products(widths: Sequence[int], batch: int) -> list[Layer]:
    """Fully connected layers with an elementwise layer behind each."""
    between = (layers.ReLU, layers.STanh, layers.Sigmoid, layers.Tanh, layers.Dropout)
    chain: list[Layer] = [layers.RecordInput(batchsize=batch, shape=[widths[0]])]
    for width, elementwise in zip(widths, between, strict=False):
        chain += [layers.InnerProduct(num_output=width), elementwise()]
    return [*chain, layers.InnerProduct(num_output=10), layers.SoftmaxLoss()]


def _images(batch: int) -> list[Layer]:
    """Small images: 3 x 3 and 5 x 5 convolutions with batch norm, maxima and means."""
    return [
        layers.RecordInput(batchsize=batch, shape=[3, 32, 32]),
        layers.Convolution(num_filters=32, kernel=5, pad=2),
        layers.Pooling(pool="MAX", kernel=3, stride=2),
        layers.ReLU(),
        layers.LRN(local_size=3),
        layers.Convolution(num_filters=64, kernel=3, pad=1),
        layers.BatchNorm(),
        layers.Sigmoid(),
        layers.Pooling(pool="AVG", kernel=3, stride=2),
        layers.Convolution(num_filters=64, kernel=3, pad=1),
        layers.ReLU(),
        layers.Convolution(num_filters=128, kernel=1),
        layers.Pooling(pool="MAX", kernel=2, stride=2),
        layers.InnerProduct(num_output=10),
        layers.SoftmaxLoss(),
    ]


def _pictures(batch: int) -> list[Layer]:
    """Larger images: a first convolution with a stride, and many filters behind it."""
    return [
        layers.RecordInput(batchsize=batch, shape=[3, 96, 96]),
        layers.Convolution(num_filters=64, kernel=11, stride=4),
        layers.ReLU(),
        layers.LRN(local_size=5),
        layers.Pooling(pool="MAX", kernel=3, stride=2),
        layers.Convolution(num_filters=128, kernel=5, pad=2),
        layers.ReLU(),
        layers.Convolution(num_filters=256, kernel=3, pad=1),
        layers.Pooling(pool="AVG", kernel=2, stride=2),
        layers.Dropout(),
        layers.InnerProduct(num_output=256),
        layers.InnerProduct(num_output=100),
        layers.SoftmaxLoss(),
    ]


def _symbols(cell: type[Layer], units: int, steps: int, batch: int) -> list[Layer]:
    """A recurrent layer that predicts the next symbol."""
    return [
        layers.CharRNN(path="grid", unroll_len=steps, batchsize=batch),
        layers.RNNLabel(),
        layers.OneHot(vocab_size=SYMBOLS),
        cell(dim_hidden=units),
        layers.InnerProduct(num_output=SYMBOLS),
        layers.SoftmaxLoss(),
    ]


def _residual(batch: int) -> list[Layer]:
    """A residual block with each kind of normalisation, a gate and the usual activations; down and up again."""
    data = layers.RecordInput("data", batchsize=batch, shape=[16, 32, 32])
    block: list[Layer] = [
        layers.GroupNorm("group_norm", "data", num_groups=4),
        layers.SiLU("silu", "group_norm"),
        layers.Convolution("conv", "silu", num_filters=16, kernel=3, pad=1),
        layers.LayerNorm("layer_norm", "conv"),
        layers.GELU("gelu", "layer_norm"),
        layers.GlobalPooling("mean", "gelu"),
        layers.Mul("gated", ["gelu", "mean"]),
        layers.ELU("elu", "gated"),
        layers.Add("sum", ["elu", "conv"]),
        layers.Convolution("by_channel", "sum", num_filters=16, kernel=3, pad=1, groups=16),
        layers.Convolution("dilated", "by_channel", num_filters=16, kernel=3, pad=2, stride=2, dilation=2),
        layers.TransposedConvolution("up", "dilated", num_filters=16, kernel=2, stride=2),
        layers.Pooling("half", "up", pool="AVG", kernel=2, stride=2),
        layers.Upsampling("between", "half", method="BILINEAR"),
        layers.LeakyReLU("leaky", "between"),
        layers.Concate("both", ["leaky", "conv"], concate_dim=1),
        layers.Max("largest", ["leaky", "conv"]),
        layers.Sub("less", ["largest", "conv"]),
        layers.Sigmoid("above_zero", "conv"),
        layers.Div("share", ["less", "above_zero"]),
        layers.Reshape("turned", "share", shape=[32, 16, 32]),
        layers.Reshape("back", "turned", shape=[16, 32, 32]),
        layers.Concate("all", ["both", "back"], concate_dim=1),
    ]
    return [data, *block, layers.InnerProduct("scores", "all", num_output=10), layers.SoftmaxLoss()]


def _transformer(units: int, steps: int, batch: int) -> list[Layer]:
    """A block of a causal transformer that predicts the next symbol."""
    return [
        layers.CharRNN("data", path="grid", unroll_len=steps, batchsize=batch),
        layers.RNNLabel("label", "data"),
        layers.Embedding("symbols", "data", vocab_size=SYMBOLS, feature_dim=units),
        layers.PositionalEmbedding("in", "symbols"),
        layers.LayerNorm("norm", "in"),
        layers.Attention("attention", "norm", num_heads=4, causal=True),
        layers.Add("sum", ["attention", "in"]),
        layers.InnerProduct("wide", "sum", num_output=4 * units),
        layers.GELU("gelu", "wide"),
        layers.InnerProduct("scores", "gelu", num_output=SYMBOLS),
        layers.SoftmaxLoss("loss", ["scores", "label"]),
    ]


def _patches(batch: int) -> list[Layer]:
    """Attention between the patches of images and a token, of which heads share keys."""
    return [
        layers.RecordInput("data", batchsize=batch, shape=[3, 32, 32]),
        layers.Convolution("patches", "data", num_filters=64, kernel=4, stride=4),
        layers.ClassToken("positions", "patches"),
        layers.Attention("attention", "positions", num_heads=4, num_kv_heads=2, rotary=True),
        layers.Select("first", "attention"),
        layers.InnerProduct("scores", "first", num_output=10),
        layers.SoftmaxLoss("loss", ["scores", "data"]),
    ]
