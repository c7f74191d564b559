"""Every layer that computes: its two spellings, its sources, and its formula written out.

B rows, S sample shape. A case's `formula` takes the sources' arrays and the parameters, in float64, and returns the
output, or a list of outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support import layer_formulas as formulas

from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import (
    ELU,
    GELU,
    GRU,
    LRN,
    LSTM,
    RNN,
    Accuracy,
    Activation,
    Add,
    AllSteps,
    ArgSort,
    Attention,
    BatchNorm,
    BCELoss,
    BridgeDst,
    BridgeSrc,
    ClassToken,
    Concate,
    Context,
    Convolution,
    Div,
    Dropout,
    Dummy,
    Embedding,
    EuclideanLoss,
    GlobalPooling,
    GroupNorm,
    HuberLoss,
    InnerProduct,
    LastStep,
    Layer,
    LayerNorm,
    LeakyReLU,
    LossLayer,
    MAELoss,
    Max,
    MSELoss,
    Mul,
    Pooling,
    PositionalEmbedding,
    ReLU,
    Reshape,
    Reverse,
    Select,
    Sigmoid,
    SiLU,
    Slice,
    Softmax,
    SoftmaxLoss,
    Split,
    STanh,
    Step,
    Sub,
    Tanh,
    TransposedConvolution,
    Upsampling,
)
from singa_dask.layers.group import LayerGroup
from singa_dask.ops import Ops

B = 3
LABELS = "labels"


class Weights(tuple):
    """The sample shape of a source that gives weights: positive numbers and, in the first row, 0."""


class Shares(tuple):
    """The sample shape of a source that gives numbers from 0 to 1."""


class Counts(tuple):
    """(n,): a source that gives one number from 1 to n."""


class Marks(tuple):
    """(n,): a source that gives n numbers, 0 or 1, of which the first is 1."""


class Symbols(tuple):
    """(n, size): a source that gives n integers in [0, size)."""


class Twins(LayerGroup):
    """Two workers with the same rows."""

    size = 2

    def sum(self, array):
        return 2 * array


@dataclass
class Case:
    """layer: Python spelling. text: the same layer in a job. sources: sample shapes, LABELS, or Weights.

    differentiable: whether there is a gradient to check.
    """

    layer: Layer
    text: str
    sources: tuple[Any, ...]
    formula: Callable[..., Any]
    phase: int = Phase.kTrain
    differentiable: bool = True


def sample_shapes(sources: tuple[Any, ...]) -> list[tuple[int, ...]]:
    """Of the sources of a case."""
    ones = [(1,) if source is LABELS or isinstance(source, Counts) else source for source in sources]
    return [source[:1] if isinstance(source, Symbols) else source for source in ones]


@dataclass
class Bench:
    """A layer of its own, set up on `ops`, with parameters and sources drawn in float64 from `seed`.

    rows: of a layer that computes T time steps at once, those of all of them.
    """

    layer: Layer
    sources: tuple[Any, ...]
    ops: Ops
    phase: int = Phase.kTrain
    seed: int = 0
    rows: int = B
    inputs: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.layer = type(self.layer).from_proto(self.layer.proto)
        self.shape = self.layer.setup(*sample_shapes(self.sources))
        for param in self.layer.params:
            value = self.ops.asarray(rng.standard_normal(param.shape), self.ops.dtype)
            param.bind(value, self.ops.zeros(param.shape))
        self.ctx = Context(self.ops, Step(self.phase, number=3, seed=11, first_row=0, total_rows=2 * self.rows))
        self.ctx.group = Twins()
        for source in self.sources:
            if source is LABELS:
                self.inputs.append(self.ops.asarray(rng.integers(0, self.classes(), self.rows)))
            elif isinstance(source, Shares):
                self.inputs.append(self.ops.asarray(rng.random((self.rows, *source)), self.ops.dtype))
            elif isinstance(source, Symbols):
                self.inputs.append(self.ops.asarray(rng.integers(0, source[1], (self.rows, source[0]))))
            elif isinstance(source, Counts):
                self.inputs.append(
                    self.ops.asarray(rng.integers(1, *source, (self.rows, 1), endpoint=True), self.ops.dtype)
                )
            elif isinstance(source, Marks):
                marks = rng.integers(0, 2, (self.rows, *source))
                marks[:, 0] = 1
                self.inputs.append(self.ops.asarray(marks, self.ops.dtype))
            elif isinstance(source, Weights):
                weights = rng.random((self.rows, *source)) + 0.5
                weights.reshape(-1)[0] = 0
                self.inputs.append(self.ops.asarray(weights, self.ops.dtype))
            else:
                self.inputs.append(self.ops.asarray(rng.standard_normal((self.rows, *source)), self.ops.dtype))

    def classes(self) -> int:
        return int(np.prod(self.sources[0]))

    def forward(self) -> list[Any]:
        """The outputs, as a list."""
        self.ctx.memory.state = None
        y = self.layer.forward(self.ctx, *self.inputs)
        return list(y) if self.layer.multiple_outputs else [y]

    def objective(self, weights: list[np.ndarray]) -> float:
        """The number whose gradient the backward pass computes from dy = weights; of a loss, the group's mean."""
        y = self.forward()
        if isinstance(self.layer, LossLayer):
            return self.layer.metrics(self.ctx)["loss"].total / self.ctx.step.total_rows
        return float(sum(np.sum(w * self.ops.to_host(a), dtype=np.float64) for w, a in zip(weights, y, strict=True)))

    def backward(self, weights: list[np.ndarray]) -> list[Any]:
        """Gradients for the sources; parameters get theirs."""
        dy = [self.ops.asarray(w, self.ops.dtype).copy() for w in weights]
        for param in self.layer.params:
            param.start_step()
        if isinstance(self.layer, LossLayer):
            dx = self.layer.backward(self.ctx, None)
        else:
            dx = self.layer.backward(self.ctx, tuple(dy) if self.layer.multiple_outputs else dy[0])
        return list(dx) if isinstance(dx, tuple) else [dx]

    def weights(self) -> list[np.ndarray]:
        """Random dy in float64, one per output."""
        rng = np.random.default_rng(self.seed + 1)
        return [rng.standard_normal(y.shape) for y in self.forward()]


def bench(name: str, ops: Ops) -> Bench:
    case = CASES[name]
    return Bench(case.layer, case.sources, ops, case.phase)


def step_results(set_up: Bench, differentiable: bool = True) -> list[np.ndarray]:
    """Outputs, metrics and gradients of one step, in NumPy."""
    host = set_up.ops.to_host
    results = [host(y).copy() for y in set_up.forward()]
    results += [np.array(metric.total) for metric in set_up.layer.metrics(set_up.ctx).values()]
    if differentiable:
        weights = set_up.weights()
        set_up.forward()
        results += [host(dx) for dx in set_up.backward(weights) if dx is not None]
        results += [host(param.grad) for param in set_up.layer.params]
    return results


def _activations() -> dict[str, Case]:
    formulas: dict[str, tuple[type[Layer], Callable[[np.ndarray], np.ndarray]]] = {
        "ReLU": (ReLU, lambda x: np.maximum(x, 0)),
        "Sigmoid": (Sigmoid, lambda x: 1 / (1 + np.exp(-x))),
        "Tanh": (Tanh, np.tanh),
        "STanh": (STanh, lambda x: 1.7159047 * np.tanh(0.6666667 * x)),
        "LeakyReLU": (LeakyReLU, lambda x: np.where(x > 0, x, 0.01 * x)),
        "ELU": (ELU, lambda x: np.where(x > 0, x, np.exp(x) - 1)),
        "SiLU": (SiLU, lambda x: x / (1 + np.exp(-x))),
        "GELU": (GELU, lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))),
    }
    cases = {}
    for name, (cls, formula) in formulas.items():
        text = f'name: "a" type: k{name} srclayers: "x"'
        cases[name] = Case(cls("a", "x"), text, ((4, 3, 2),), formula)
        kind = name.upper()
        text = f'name: "a" type: kActivation srclayers: "x" activation_conf {{ type: {kind} }}'
        cases[f"Activation {kind}"] = Case(Activation("a", "x", type=kind), text, ((7,),), formula)
    return cases


CASES: dict[str, Case] = {
    "InnerProduct": Case(
        InnerProduct("ip", "x", num_output=4),
        'name: "ip" type: kInnerProduct srclayers: "x" innerproduct_conf { num_output: 4 }',
        ((5,),),
        lambda x, w, b: x @ w + b,
    ),
    "InnerProduct of images, transposed": Case(
        InnerProduct("ip", "x", num_output=4, transpose=True, param=[{"name": "w", "lr_scale": 2}]),
        'name: "ip" type: kInnerProduct srclayers: "x" innerproduct_conf { num_output: 4 transpose: true } '
        'param { name: "w" lr_scale: 2 }',
        ((2, 3, 2),),
        lambda x, w, b: x.reshape(len(x), -1) @ w.T + b,
    ),
    "InnerProduct without bias": Case(
        InnerProduct("ip", "x", num_output=2, bias_term=False),
        'name: "ip" type: kInnerProduct srclayers: "x" innerproduct_conf { num_output: 2 bias_term: false }',
        ((5,),),
        lambda x, w: x @ w,
    ),
    "Convolution": Case(
        Convolution("c", "x", num_filters=3, pad=1, stride=2),
        'name: "c" type: kConvolution srclayers: "x" convolution_conf { num_filters: 3 pad: 1 stride: 2 }',
        ((6, 5, 2),),
        formulas.convolve((3, 3), (2, 2), (1, 1)),
    ),
    "Convolution by axis": Case(
        Convolution("c", "x", num_filters=2, kernel=3, kernel_x=2, stride_y=2, pad_x=1, bias_term=False),
        'name: "c" type: kConvolution srclayers: "x" convolution_conf { num_filters: 2 kernel: 3 kernel_x: 2 '
        "stride_y: 2 pad_x: 1 bias_term: false }",
        ((6, 5, 3),),
        formulas.convolve((3, 2), (2, 1), (0, 1)),
    ),
    "Convolution in groups": Case(
        Convolution("c", "x", num_filters=4, groups=2, pad=1),
        'name: "c" type: kConvolution srclayers: "x" convolution_conf { num_filters: 4 groups: 2 pad: 1 }',
        ((4, 3, 6),),
        formulas.convolve((3, 3), (1, 1), (1, 1), groups=2),
    ),
    "Convolution by channel, dilated": Case(
        Convolution("c", "x", num_filters=3, groups=3, dilation=2, dilation_x=1, stride=2, pad=1, bias_term=False),
        'name: "c" type: kConvolution srclayers: "x" convolution_conf { num_filters: 3 groups: 3 dilation: 2 '
        "dilation_x: 1 stride: 2 pad: 1 bias_term: false }",
        ((6, 5, 3),),
        formulas.convolve((3, 3), (2, 2), (1, 1), (2, 1), groups=3),
    ),
    "Convolution of sequences": Case(
        Convolution("c", "x", num_filters=4, kernel=3, pad=2, stride=2, dilation=2),
        'name: "c" type: kConvolution srclayers: "x" convolution_conf { num_filters: 4 kernel: 3 pad: 2 stride: 2 '
        "dilation: 2 }",
        ((7, 3),),
        formulas.convolve((3,), (2,), (2,), (2,)),
    ),
    "Convolution of volumes": Case(
        Convolution("c", "x", num_filters=2, kernel=2, kernel_z=1, pad_x=1, stride_y=2),
        'name: "c" type: kConvolution srclayers: "x" convolution_conf { num_filters: 2 kernel: 2 kernel_z: 1 pad_x: 1 '
        "stride_y: 2 }",
        ((2, 4, 3, 2),),
        formulas.convolve((1, 2, 2), (1, 2, 1), (0, 0, 1)),
    ),
    "TransposedConvolution": Case(
        TransposedConvolution("c", "x", num_filters=3, stride=2, pad=1, output_pad=1),
        'name: "c" type: kTransposedConvolution srclayers: "x" convolution_conf { num_filters: 3 stride: 2 pad: 1 '
        "output_pad: 1 }",
        ((3, 2, 4),),
        formulas.transposed((3, 3), 2, 1, more=1),
    ),
    "TransposedConvolution in groups": Case(
        TransposedConvolution("c", "x", num_filters=4, kernel=2, groups=2, dilation=2, bias_term=False),
        'name: "c" type: kTransposedConvolution srclayers: "x" convolution_conf { num_filters: 4 kernel: 2 groups: 2 '
        "dilation: 2 bias_term: false }",
        ((2, 3, 2),),
        formulas.transposed((2, 2), 1, 0, dilation=2, groups=2),
    ),
    "TransposedConvolution of sequences": Case(
        TransposedConvolution("c", "x", num_filters=2, kernel=4, stride=2, pad=1, output_pad=1),
        'name: "c" type: kTransposedConvolution srclayers: "x" convolution_conf { num_filters: 2 kernel: 4 stride: 2 '
        "pad: 1 output_pad: 1 }",
        ((4, 3),),
        formulas.transposed((4,), 2, 1, more=1),
    ),
    "TransposedConvolution of volumes": Case(
        TransposedConvolution("c", "x", num_filters=2, kernel=2, stride=2),
        'name: "c" type: kTransposedConvolution srclayers: "x" '
        "convolution_conf { num_filters: 2 kernel: 2 stride: 2 }",
        ((1, 2, 2, 3),),
        formulas.transposed((2, 2, 2), 2, 0),
    ),
    "Upsampling": Case(
        Upsampling("u", "x", factor=3),
        'name: "u" type: kUpsampling srclayers: "x" upsampling_conf { factor: 3 }',
        ((2, 3, 2),),
        lambda x: x.repeat(3, axis=1).repeat(3, axis=2),
    ),
    "Upsampling between pixels": Case(
        Upsampling("u", "x", method="BILINEAR"),
        'name: "u" type: kUpsampling srclayers: "x" upsampling_conf { method: BILINEAR }',
        ((3, 1, 2),),
        lambda x: formulas.between(x).repeat(2, axis=2),
    ),
    "Upsampling of sequences": Case(
        Upsampling("u", "x", method="BILINEAR"),
        'name: "u" type: kUpsampling srclayers: "x" upsampling_conf { method: BILINEAR }',
        ((3, 2),),
        formulas.between,
    ),
    "Upsampling of volumes": Case(
        Upsampling("u", "x", factor=3),
        'name: "u" type: kUpsampling srclayers: "x" upsampling_conf { factor: 3 }',
        ((2, 3, 2, 2),),
        lambda x: x.repeat(3, axis=1).repeat(3, axis=2).repeat(3, axis=3),
    ),
    "Upsampling between voxels": Case(
        Upsampling("u", "x", method="BILINEAR"),
        'name: "u" type: kUpsampling srclayers: "x" upsampling_conf { method: BILINEAR }',
        ((3, 1, 1, 2),),
        lambda x: formulas.between(x).repeat(2, axis=2).repeat(2, axis=3),
    ),
    "Pooling MAX": Case(
        Pooling("p", "x"),
        'name: "p" type: kPooling srclayers: "x"',
        ((6, 7, 2),),
        formulas.pool(np.max, 3, 2, 0, -np.inf),
    ),
    "Pooling MAX, padded": Case(
        Pooling("p", "x", kernel=2, pad=1),
        'name: "p" type: kPooling srclayers: "x" pooling_conf { kernel: 2 pad: 1 }',
        ((5, 4, 2),),
        formulas.pool(np.max, 2, 2, 1, -np.inf),
    ),
    "Pooling AVG": Case(
        Pooling("p", "x", pool="AVG", kernel=3, stride=1, pad=1),
        'name: "p" type: kPooling srclayers: "x" pooling_conf { pool: AVG kernel: 3 stride: 1 pad: 1 }',
        ((5, 4, 2),),
        formulas.pool(np.mean, 3, 1, 1, 0),
    ),
    "Pooling MAX of sequences": Case(
        Pooling("p", "x", kernel=3, stride=1, pad=1),
        'name: "p" type: kPooling srclayers: "x" pooling_conf { kernel: 3 stride: 1 pad: 1 }',
        ((7, 2),),
        formulas.pool(np.max, 3, 1, 1, -np.inf),
    ),
    "Pooling AVG of sequences": Case(
        Pooling("p", "x", pool="AVG", kernel=3),
        'name: "p" type: kPooling srclayers: "x" pooling_conf { pool: AVG kernel: 3 }',
        ((8, 2),),
        formulas.pool(np.mean, 3, 2, 0, 0),
    ),
    "Pooling MAX of volumes": Case(
        Pooling("p", "x", pad=1),
        'name: "p" type: kPooling srclayers: "x" pooling_conf { pad: 1 }',
        ((4, 5, 3, 2),),
        formulas.pool(np.max, 3, 2, 1, -np.inf),
    ),
    "Pooling AVG of volumes": Case(
        Pooling("p", "x", pool="AVG", kernel=2, stride=1, pad=1),
        'name: "p" type: kPooling srclayers: "x" pooling_conf { pool: AVG kernel: 2 stride: 1 pad: 1 }',
        ((2, 3, 2, 2),),
        formulas.pool(np.mean, 2, 1, 1, 0),
    ),
    "Pooling of depth": Case(
        Pooling("p", "x", kernel=1, stride=1, kernel_z=2, stride_z=2),
        'name: "p" type: kPooling srclayers: "x" pooling_conf { kernel: 1 stride: 1 kernel_z: 2 stride_z: 2 }',
        ((5, 2, 3, 2),),
        lambda x: np.maximum(x[:, 0:4:2], x[:, 1:5:2]),
    ),
    "Pooling MAX with a window that overhangs": Case(
        Pooling("p", "x", ceil_mode=True),
        'name: "p" type: kPooling srclayers: "x" pooling_conf { ceil_mode: true }',
        ((6, 5, 2),),
        lambda x: formulas.pool(np.max, 3, 2, 0, -np.inf)(formulas.longer(x, -np.inf, 1)),
    ),
    "Pooling AVG with windows that overhang": Case(
        Pooling("p", "x", pool="AVG", kernel=4, stride=3, pad=1, ceil_mode=True),
        'name: "p" type: kPooling srclayers: "x" '
        "pooling_conf { pool: AVG kernel: 4 stride: 3 pad: 1 ceil_mode: true }",
        ((6, 3, 4, 2),),
        # The image has 8, 5 and 6 with its padding; of volumes, each axis on its own.
        lambda x: formulas.pool(np.nanmean, 4, 3, 0, 0)(
            formulas.longer(np.pad(x, ((0, 0), *[(1, 1)] * 3, (0, 0))), np.nan, 2)[:, :, :7, :7]
        ),
    ),
    **_activations(),
    "ReLU with a largest value": Case(
        ReLU("a", "x", negative_slope=0.25, max_value=0.5),
        'name: "a" type: kReLU srclayers: "x" relu_conf { negative_slope: 0.25 max_value: 0.5 }',
        ((7,),),
        lambda x: np.where(x > 0, np.minimum(x, 0.5), 0.25 * x),
    ),
    "GELU by tanh": Case(
        GELU("a", "x", approximate="TANH"),
        'name: "a" type: kGELU srclayers: "x" gelu_conf { approximate: TANH }',
        ((2, 3),),
        lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    "ReLU with a slope": Case(
        ReLU("a", "x", negative_slope=0.25),
        'name: "a" type: kReLU srclayers: "x" relu_conf { negative_slope: 0.25 }',
        ((7,),),
        lambda x: np.where(x > 0, x, 0.25 * x),
    ),
    "LeakyReLU of another slope": Case(
        LeakyReLU("a", "x", negative_slope=0.5),
        'name: "a" type: kLeakyReLU srclayers: "x" leakyrelu_conf { negative_slope: 0.5 }',
        ((7,),),
        lambda x: np.where(x > 0, x, 0.5 * x),
    ),
    "ELU of another alpha": Case(
        ELU("a", "x", alpha=0.25),
        'name: "a" type: kELU srclayers: "x" elu_conf { alpha: 0.25 }',
        ((7,),),
        lambda x: np.where(x > 0, x, 0.25 * (np.exp(x) - 1)),
    ),
    "GlobalPooling": Case(
        GlobalPooling("p", "x"),
        'name: "p" type: kGlobalPooling srclayers: "x"',
        ((3, 4, 5),),
        lambda x: x.mean(axis=(1, 2), keepdims=True),
    ),
    "GlobalPooling MAX of volumes": Case(
        GlobalPooling("p", "x", pool="MAX"),
        'name: "p" type: kGlobalPooling srclayers: "x" globalpooling_conf { pool: MAX }',
        ((2, 3, 2, 3),),
        lambda x: x.max(axis=(1, 2, 3), keepdims=True),
    ),
    "Add": Case(
        Add("c", ["x", "y"]), 'name: "c" type: kAdd srclayers: ["x", "y"]', ((2, 3), (2, 3)), lambda x, y: x + y
    ),
    "Add of repeated axes": Case(
        Add("c", ["x", "y", "z"]),
        'name: "c" type: kAdd srclayers: ["x", "y", "z"]',
        ((2, 1, 4), (1, 3, 1), (4,)),
        lambda x, y, z: x + y + z[:, None, None],
    ),
    "Mul": Case(
        Mul("c", ["x", "y", "z"]),
        'name: "c" type: kMul srclayers: ["x", "y", "z"]',
        ((5,), (5,), (1,)),
        lambda x, y, z: x * y * z,
    ),
    "Mul of images by channels": Case(
        Mul("c", ["x", "y"]),
        'name: "c" type: kMul srclayers: ["x", "y"]',
        ((2, 3, 4), (4,)),
        lambda x, y: x * y[:, None, None],
    ),
    "Max": Case(
        Max("c", ["x", "y", "z"]),
        'name: "c" type: kMax srclayers: ["x", "y", "z"]',
        ((2, 3), (2, 1), (3,)),
        lambda x, y, z: np.maximum(np.maximum(x, y), z[:, None]),
    ),
    "Sub": Case(
        Sub("c", ["x", "y"]),
        'name: "c" type: kSub srclayers: ["x", "y"]',
        ((2, 3, 4), (4,)),
        lambda x, y: x - y[:, None, None],
    ),
    "Div": Case(
        Div("c", ["x", "y"]), 'name: "c" type: kDiv srclayers: ["x", "y"]', ((2, 3), (2, 1)), lambda x, y: x / y
    ),
    "Reshape": Case(
        Reshape("r", "x", shape=[4, 1, 3]),
        'name: "r" type: kReshape srclayers: "x" reshape_conf { shape: [4, 1, 3] }',
        ((2, 3, 2),),
        lambda x: x.transpose(0, 3, 1, 2).reshape(-1, 4, 1, 3).transpose(0, 2, 3, 1),
    ),
    "Reshape to features": Case(
        Reshape("r", "x", shape=12),
        'name: "r" type: kReshape srclayers: "x" reshape_conf { shape: 12 }',
        ((4, 3),),
        lambda x: x.transpose(0, 2, 1).reshape(-1, 12),
    ),
    "Softmax": Case(Softmax("s", "x"), 'name: "s" type: kSoftmax srclayers: "x"', ((6,),), formulas.softmax),
    "Softmax in parts": Case(
        Softmax("s", "x", num_softmax_per_instance=2),
        'name: "s" type: kSoftmax srclayers: "x" softmax_conf { num_softmax_per_instance: 2 }',
        ((6,),),
        lambda x: formulas.softmax(x.reshape(-1, 2, 3)).reshape(-1, 6),
    ),
    "LRN": Case(
        LRN("n", "x", local_size=3, alpha=0.5),
        'name: "n" type: kLRN srclayers: "x" lrn_conf { local_size: 3 alpha: 0.5 }',
        ((2, 3, 5),),
        formulas.lrn(3, 0.5, 0.75, 1),
    ),
    "LRN of another power": Case(
        LRN("n", "x", beta=0.5, knorm=2),
        'name: "n" type: kLRN srclayers: "x" lrn_conf { beta: 0.5 knorm: 2 }',
        ((2, 1, 4),),
        formulas.lrn(5, 1, 0.5, 2),
    ),
    "BatchNorm of images": Case(
        BatchNorm("n", "x"),
        'name: "n" type: kBM srclayers: "x"',
        ((2, 3, 4),),
        lambda x, scale, bias, *_: formulas.normalised(x) * scale + bias,
    ),
    "BatchNorm with another epsilon": Case(
        BatchNorm("n", "x", epsilon=0.5),
        'name: "n" type: kBM srclayers: "x" bm_conf { epsilon: 0.5 }',
        ((5,),),
        lambda x, scale, bias, *_: formulas.normalised(x, 0.5) * scale + bias,
    ),
    "BatchNorm of vectors": Case(
        BatchNorm("n", "x", factor=0.5),
        'name: "n" type: kBM srclayers: "x" bm_conf { factor: 0.5 }',
        ((5,),),
        lambda x, scale, bias, *_: formulas.normalised(x) * scale + bias,
    ),
    "LayerNorm": Case(
        LayerNorm("n", "x"),
        'name: "n" type: kLayerNorm srclayers: "x"',
        ((6,),),
        formulas.grouped(1, 1e-5),
    ),
    "LayerNorm of positions": Case(
        LayerNorm("n", "x", epsilon=0.1),
        'name: "n" type: kLayerNorm srclayers: "x" layernorm_conf { epsilon: 0.1 }',
        ((2, 3, 4),),
        lambda x, *p: formulas.grouped(1, 0.1)(x.reshape(-1, 4), *p).reshape(x.shape),
    ),
    "GroupNorm of images": Case(
        GroupNorm("n", "x", num_groups=2),
        'name: "n" type: kGroupNorm srclayers: "x" groupnorm_conf { num_groups: 2 }',
        ((2, 3, 4),),
        formulas.grouped(2, 1e-5),
    ),
    "GroupNorm of vectors": Case(
        GroupNorm("n", "x", num_groups=3, epsilon=0.01),
        'name: "n" type: kGroupNorm srclayers: "x" groupnorm_conf { num_groups: 3 epsilon: 0.01 }',
        ((6,),),
        formulas.grouped(3, 0.01),
    ),
    "Attention": Case(
        Attention("a", "x", num_heads=2, causal=True, unroll_len=3),
        'name: "a" type: kAttention srclayers: "x" attention_conf { num_heads: 2 causal: true } unroll_len: 3',
        ((4,),),
        lambda x, *p: formulas.attention(True)(x[None], *p)[0],
    ),
    "Attention between the positions of an image": Case(
        Attention("a", "x", num_heads=3),
        'name: "a" type: kAttention srclayers: "x" attention_conf { num_heads: 3 }',
        ((2, 2, 6),),
        lambda x, *p: formulas.attention(False)(x.reshape(B, 4, 6), *p).reshape(x.shape),
    ),
    "Attention without bias": Case(
        Attention("a", "x", num_heads=1, bias_term=False),
        'name: "a" type: kAttention srclayers: "x" attention_conf { num_heads: 1 bias_term: false }',
        ((5, 1, 2),),
        lambda x, w, wo: formulas.attention(False)(x.reshape(B, 5, 2), w, np.zeros((3, 1, 2)), wo, 0).reshape(x.shape),
    ),
    "Attention to a memory": Case(
        Attention("a", ["x", "m"], num_heads=2),
        'name: "a" type: kAttention srclayers: "x" srclayers: "m" attention_conf { num_heads: 2 }',
        ((4, 6), (3, 6)),
        lambda x, m, *p: formulas.attention()(x, *p, memory=m),
    ),
    "Attention to the first positions of a memory": Case(
        Attention("a", ["x", "m", "n"], num_heads=2, num_kv_heads=1, rotary=True, rotary_base=50),
        'name: "a" type: kAttention srclayers: "x" srclayers: "m" srclayers: "n" '
        "attention_conf { num_heads: 2 num_kv_heads: 1 rotary: true rotary_base: 50 }",
        ((2, 2, 4), (5, 4), Counts((5,))),
        lambda x, m, n, *p: formulas.attention(rotary=50)(
            x.reshape(B, 4, 4), *p, memory=m, seen=np.arange(5) < n
        ).reshape(x.shape),
    ),
    "Attention to marked positions": Case(
        Attention("a", ["x", "m"], num_heads=2, causal=True),
        'name: "a" type: kAttention srclayers: "x" srclayers: "m" attention_conf { num_heads: 2 causal: true }',
        ((5, 6), Marks((5,))),
        lambda x, m, *p: formulas.attention(True)(x, *p, seen=m > 0),
    ),
    "Attention with shared keys": Case(
        Attention("a", "x", num_heads=6, num_kv_heads=2, rotary=True),
        'name: "a" type: kAttention srclayers: "x" attention_conf { num_heads: 6 num_kv_heads: 2 rotary: true }',
        ((4, 12),),
        formulas.attention(rotary=10000),
    ),
    "Attention over time to a memory": Case(
        Attention("a", ["x", "m", "n"], num_heads=2, unroll_len=3),
        'name: "a" type: kAttention srclayers: "x" srclayers: "m" srclayers: "n" attention_conf { num_heads: 2 } '
        "unroll_len: 3",
        ((4,), (4,), Marks((1,))),
        lambda x, m, n, *p: formulas.attention()(x[None], *p, memory=m[None], seen=n.T > 0)[0],
    ),
    "ClassToken": Case(
        ClassToken("c", "x"),
        'name: "c" type: kClassToken srclayers: "x"',
        ((2, 3, 4),),
        lambda x, token: np.concatenate([np.tile(token, (B, 1, 1)), x.reshape(B, 6, 4)], axis=1),
    ),
    "Select": Case(
        Select("s", "x", index=-2),
        'name: "s" type: kSelect srclayers: "x" select_conf { index: -2 }',
        ((2, 3, 4),),
        lambda x: x[:, 1, 1],
    ),
    "Select the last that counts": Case(
        Select("s", ["x", "n"], index=-1),
        'name: "s" type: kSelect srclayers: "x" srclayers: "n" select_conf { index: -1 }',
        ((5, 2), Counts((5,))),
        lambda x, n: x[np.arange(B), n[:, 0].astype(int) - 1],
    ),
    "PositionalEmbedding": Case(
        PositionalEmbedding("p", "x", unroll_len=3),
        'name: "p" type: kPositionalEmbedding srclayers: "x" unroll_len: 3',
        ((4,),),
        lambda x, table: x + table,
    ),
    "PositionalEmbedding of an image": Case(
        PositionalEmbedding("p", "x"),
        'name: "p" type: kPositionalEmbedding srclayers: "x"',
        ((2, 3, 4),),
        lambda x, table: x + table.reshape(2, 3, 4),
    ),
    "PositionalEmbedding by waves": Case(
        PositionalEmbedding("p", "x", kind="SINUSOIDAL", unroll_len=3),
        'name: "p" type: kPositionalEmbedding srclayers: "x" positionalembedding_conf { kind: SINUSOIDAL } '
        "unroll_len: 3",
        ((4,),),
        lambda x: x + [[f(t / 10000 ** (i / 4)) for i in (0, 2) for f in (np.sin, np.cos)] for t in range(3)],
    ),
    "RNN": Case(
        RNN("r", "x", dim_hidden=4, unroll_len=3),
        'name: "r" type: kRNN srclayers: "x" rnn_conf { dim_hidden: 4 } unroll_len: 3',
        ((5,),),
        formulas.over_time(lambda ax, ah, h: (np.tanh(ax[0] + ah[0]),), 1),
    ),
    "GRU": Case(
        GRU("g", "x", dim_hidden=4, unroll_len=3),
        'name: "g" type: kGRU srclayers: "x" gru_conf { dim_hidden: 4 } unroll_len: 3',
        ((2, 3),),
        formulas.over_time(formulas.gru, 3),
    ),
    "GRU without bias, one step from a given state": Case(
        GRU("g", ["x", "before"], dim_hidden=4, bias_term=False),
        'name: "g" type: kGRU srclayers: ["x", "before"] gru_conf { dim_hidden: 4 bias_term: false }',
        ((5,), (4,)),
        formulas.over_time(formulas.gru, 3),
    ),
    "LSTM": Case(
        LSTM("l", "x", dim_hidden=4, unroll_len=3),
        'name: "l" type: kLSTM srclayers: "x" lstm_conf { dim_hidden: 4 } unroll_len: 3',
        ((5,),),
        formulas.over_time(formulas.lstm, 4, 2),
    ),
    "LSTM with its cell": Case(
        LSTM("l", "x", dim_hidden=3, return_cell=True, unroll_len=3),
        'name: "l" type: kLSTM srclayers: "x" lstm_conf { dim_hidden: 3 return_cell: true } unroll_len: 3',
        ((5,),),
        formulas.over_time(formulas.lstm, 4, 2, whole=True),
    ),
    "LSTM from a state and a cell": Case(
        LSTM("l", ["x", "before"], dim_hidden=3, return_cell=True),
        'name: "l" type: kLSTM srclayers: ["x", "before"] lstm_conf { dim_hidden: 3 return_cell: true }',
        ((5,), (6,)),
        formulas.over_time(formulas.lstm, 4, 2, whole=True),
    ),
    "AllSteps": Case(
        AllSteps("all", "x", unroll_len=3),
        'name: "all" type: kAllSteps srclayers: "x" unroll_len: 3',
        ((4,),),
        lambda x: x.reshape(3, -1, *x.shape[1:]).swapaxes(0, 1).reshape(-1, 3, *x.shape[1:]),
    ),
    "LastStep": Case(
        LastStep("last", "x", unroll_len=3),
        'name: "last" type: kLastStep srclayers: "x" unroll_len: 3',
        ((4,),),
        lambda x: x[-1:],
    ),
    "Embedding of several symbols": Case(
        Embedding("e", "x", vocab_size=5, feature_dim=3, padding_idx=2),
        'name: "e" type: kEmbedding srclayers: "x" embedding_conf { vocab_size: 5 feature_dim: 3 padding_idx: 2 }',
        (Symbols((4, 5)),),
        lambda x, w: w[x.astype(int)] * (x != 2)[..., None],
    ),
    "Embedding, the sum": Case(
        Embedding("e", "x", vocab_size=5, feature_dim=3, pool="SUM"),
        'name: "e" type: kEmbedding srclayers: "x" embedding_conf { vocab_size: 5 feature_dim: 3 pool: SUM }',
        (Symbols((4, 5)),),
        lambda x, w: w[x.astype(int)].sum(axis=1),
    ),
    "Embedding, the mean of those that count": Case(
        Embedding("e", "x", vocab_size=3, feature_dim=3, pool="MEAN", padding_idx=0),
        'name: "e" type: kEmbedding srclayers: "x" '
        "embedding_conf { vocab_size: 3 feature_dim: 3 pool: MEAN padding_idx: 0 }",
        (Symbols((4, 3)),),
        lambda x, w: (
            (w[x.astype(int)] * (x != 0)[..., None]).sum(axis=1) / np.maximum((x != 0).sum(axis=1), 1)[:, None]
        ),
    ),
    "Reverse": Case(
        Reverse("back", "x", unroll_len=3),
        'name: "back" type: kReverse srclayers: "x" unroll_len: 3',
        ((4,),),
        np.flipud,
    ),
    "Dropout": Case(
        Dropout("drop", "x", dropout_ratio=0.25),
        'name: "drop" type: kDropout srclayers: "x" dropout_conf { dropout_ratio: 0.25 }',
        ((4, 5),),
        formulas.dropout,
    ),
    "Dropout outside training": Case(
        Dropout("drop", "x"),
        'name: "drop" type: kDropout srclayers: "x"',
        ((9,),),
        lambda x: x,
        phase=Phase.kTest,
    ),
    "SoftmaxLoss": Case(
        SoftmaxLoss("loss", ["x", "data"], topk=2, scale=3),
        'name: "loss" type: kSoftmaxLoss srclayers: ["x", "data"] softmaxloss_conf { topk: 2 scale: 3 }',
        ((6,), LABELS),
        lambda x, labels: formulas.softmax(x),
    ),
    "SoftmaxLoss with weights of samples and classes": Case(
        SoftmaxLoss("loss", ["x", "data", "w"], class_weight=[1, 0.5, 2, 0, 1, 3]),
        'name: "loss" type: kSoftmaxLoss srclayers: ["x", "data", "w"] '
        "softmaxloss_conf { class_weight: [1, 0.5, 2, 0, 1, 3] }",
        ((6,), LABELS, Weights((1,))),
        lambda x, labels, w: formulas.softmax(x),
    ),
    "SoftmaxLoss with label smoothing": Case(
        SoftmaxLoss("loss", ["x", "data"], label_smoothing=0.1, scale=2),
        'name: "loss" type: kSoftmaxLoss srclayers: ["x", "data"] softmaxloss_conf { label_smoothing: 0.1 scale: 2 }',
        ((6,), LABELS),
        lambda x, labels: formulas.softmax(x),
    ),
    "SoftmaxLoss with label smoothing and weights": Case(
        SoftmaxLoss("loss", ["x", "data", "w"], class_weight=[1, 0.5, 2, 0, 1, 3], label_smoothing=0.3),
        'name: "loss" type: kSoftmaxLoss srclayers: ["x", "data", "w"] '
        "softmaxloss_conf { class_weight: [1, 0.5, 2, 0, 1, 3] label_smoothing: 0.3 }",
        ((6,), LABELS, Weights((1,))),
        lambda x, labels, w: formulas.softmax(x),
    ),
    "MSELoss": Case(
        MSELoss("loss", ["x", "data"]),
        'name: "loss" type: kMSELoss srclayers: ["x", "data"]',
        ((6,), (2, 3, 1)),
        lambda x, t: x,
    ),
    "MSELoss of sums with a mask": Case(
        MSELoss("loss", ["x", "data", "mask"], reduction="SUM", scale=3),
        'name: "loss" type: kMSELoss srclayers: ["x", "data", "mask"] mseloss_conf { reduction: SUM scale: 3 }',
        ((2, 2, 3), (2, 2, 3), Weights((12,))),
        lambda x, t, w: x,
    ),
    "MAELoss": Case(
        MAELoss("loss", ["x", "data"]),
        'name: "loss" type: kMAELoss srclayers: ["x", "data"]',
        ((6,), (6,)),
        lambda x, t: x,
    ),
    "MAELoss of sums with a mask of positions": Case(
        MAELoss("loss", ["x", "data", "mask"], reduction="SUM"),
        'name: "loss" type: kMAELoss srclayers: ["x", "data", "mask"] maeloss_conf { reduction: SUM }',
        ((12,), (2, 2, 3), Weights((2, 2, 1))),
        lambda x, t, w: x,
    ),
    "HuberLoss": Case(
        HuberLoss("loss", ["x", "data"], delta=0.7, scale=0.5),
        'name: "loss" type: kHuberLoss srclayers: ["x", "data"] huberloss_conf { delta: 0.7 scale: 0.5 }',
        ((12,), (2, 2, 3)),
        lambda x, t: x,
    ),
    "HuberLoss of sums with weights of samples": Case(
        HuberLoss("loss", ["x", "data", "w"], reduction="SUM"),
        'name: "loss" type: kHuberLoss srclayers: ["x", "data", "w"] huberloss_conf { reduction: SUM }',
        ((6,), (6,), Weights(())),
        lambda x, t, w: x,
    ),
    "BCELoss": Case(
        BCELoss("loss", ["x", "data"]),
        'name: "loss" type: kBCELoss srclayers: ["x", "data"]',
        ((6,), Shares((6,))),
        lambda x, t: formulas.sigmoid(x),
    ),
    "BCELoss of sums with all settings and a mask": Case(
        BCELoss(
            "loss", ["x", "data", "mask"], reduction="SUM", pos_weight=[1, 2, 0.5, 0], label_smoothing=0.2, scale=2
        ),
        'name: "loss" type: kBCELoss srclayers: ["x", "data", "mask"] '
        "bceloss_conf { reduction: SUM pos_weight: [1, 2, 0.5, 0] label_smoothing: 0.2 scale: 2 }",
        ((4,), Shares((2, 2)), Weights((4,))),
        lambda x, t, w: formulas.sigmoid(x),
    ),
    "EuclideanLoss": Case(
        EuclideanLoss("loss", ["x", "data"]),
        'name: "loss" type: kEuclideanLoss srclayers: ["x", "data"]',
        ((6,), (2, 3, 1)),
        lambda x, t: x,
    ),
    "EuclideanLoss with weights of samples": Case(
        EuclideanLoss("loss", ["x", "data", "w"]),
        'name: "loss" type: kEuclideanLoss srclayers: ["x", "data", "w"]',
        ((6,), (2, 3, 1), Weights(())),
        lambda x, t, w: x,
    ),
    "EuclideanLoss with a mask": Case(
        EuclideanLoss("loss", ["x", "data", "mask"]),
        'name: "loss" type: kEuclideanLoss srclayers: ["x", "data", "mask"]',
        ((2, 2, 3), (2, 2, 3), Weights((12,))),
        lambda x, t, w: x,
    ),
    "EuclideanLoss with a mask of positions": Case(
        EuclideanLoss("loss", ["x", "data", "mask"]),
        'name: "loss" type: kEuclideanLoss srclayers: ["x", "data", "mask"]',
        ((12,), (2, 2, 3), Weights((2, 2, 1))),
        lambda x, t, w: x,
    ),
    "Accuracy": Case(
        Accuracy("acc", ["x", "data"], topk=2),
        'name: "acc" type: kAccuracy srclayers: ["x", "data"] argsort_conf { topk: 2 }',
        ((6,), LABELS),
        lambda x, labels: np.argsort(-x, axis=1)[:, :2],
        differentiable=False,
    ),
    "ArgSort": Case(
        ArgSort("top", "x", topk=3),
        'name: "top" type: kArgSort srclayers: "x" argsort_conf { topk: 3 }',
        ((6,),),
        lambda x: np.argsort(-x, axis=1)[:, :3],
        differentiable=False,
    ),
    "Split": Case(
        Split("s", "x", num_splits=3),
        'name: "s" type: kSplit srclayers: "x" split_conf { num_splits: 3 }',
        ((4,),),
        lambda x: [x, x, x],
    ),
    "Slice of channels": Case(
        Slice("s", "x", slice_dim=1, num_slices=2),
        'name: "s" type: kSlice srclayers: "x" slice_conf { slice_dim: 1 num_slices: 2 }',
        ((2, 3, 5),),
        lambda x: [x[..., :2], x[..., 2:]],
    ),
    "Slice of one piece": Case(
        Slice("s", "x", slice_dim=1, sizes=[1, 2], piece=1),
        'name: "s" type: kSlice srclayers: "x" slice_conf { slice_dim: 1 sizes: [1, 2] piece: 1 }',
        ((2, 2, 3),),
        lambda x: x[..., 1:],
    ),
    "Slice of rows": Case(
        Slice("s", "x", num_slices=2),
        'name: "s" type: kSlice srclayers: "x" slice_conf { num_slices: 2 }',
        ((4,),),
        lambda x: [x[:1], x[1:]],
    ),
    "Slice of the channels of sequences": Case(
        Slice("s", "x", slice_dim=1, num_slices=2),
        'name: "s" type: kSlice srclayers: "x" slice_conf { slice_dim: 1 num_slices: 2 }',
        ((3, 5),),
        lambda x: [x[..., :2], x[..., 2:]],
    ),
    "Slice into sizes": Case(
        Slice("s", "x", slice_dim=1, sizes=[1, 3, 1]),
        'name: "s" type: kSlice srclayers: "x" slice_conf { slice_dim: 1 sizes: [1, 3, 1] }',
        ((2, 3, 5),),
        lambda x: [x[..., :1], x[..., 1:4], x[..., 4:]],
    ),
    "Slice of lines": Case(
        Slice("s", "x", slice_dim=2, num_slices=2),
        'name: "s" type: kSlice srclayers: "x" slice_conf { slice_dim: 2 num_slices: 2 }',
        ((4, 3, 2),),
        lambda x: [x[:, :2], x[:, 2:]],
    ),
    "Concate of channels": Case(
        Concate("c", ["x", "y"], concate_dim=1),
        'name: "c" type: kConcate srclayers: ["x", "y"] concate_conf { concate_dim: 1 }',
        ((2, 3, 1), (2, 3, 4)),
        lambda x, y: np.concatenate([x, y], axis=3),
    ),
    "Concate of channels of volumes": Case(
        Concate("c", ["x", "y"], concate_dim=1),
        'name: "c" type: kConcate srclayers: ["x", "y"] concate_conf { concate_dim: 1 }',
        ((2, 1, 3, 2), (2, 1, 3, 3)),
        lambda x, y: np.concatenate([x, y], axis=4),
    ),
    "Concate of sequences": Case(
        Concate("c", ["x", "y"], concate_dim=2),
        'name: "c" type: kConcate srclayers: ["x", "y"] concate_conf { concate_dim: 2 }',
        ((2, 3), (4, 3)),
        lambda x, y: np.concatenate([x, y], axis=1),
    ),
    "Concate of rows": Case(
        Concate("c", ["x", "y"]),
        'name: "c" type: kConcate srclayers: ["x", "y"]',
        ((4,), (4,)),
        lambda x, y: np.concatenate([x, y]),
    ),
    "Concate of features": Case(
        Concate("c", ["x", "y"], concate_dim=1),
        'name: "c" type: kConcate srclayers: ["x", "y"] concate_conf { concate_dim: 1 }',
        ((4,), (2,)),
        lambda x, y: np.concatenate([x, y], axis=1),
    ),
    "BridgeSrc": Case(BridgeSrc("s", "x"), 'name: "s" type: kBridgeSrc srclayers: "x"', ((4,),), lambda x: x),
    "BridgeDst": Case(BridgeDst("d", "s"), 'name: "d" type: kBridgeDst srclayers: "s"', ((4,),), lambda x: x),
    "Dummy": Case(Dummy("d", "x"), 'name: "d" type: kDummy srclayers: "x"', ((4,),), lambda x: x),
}
