"""Shapes, settings and arrays that layers refuse: with their name, the key, and the way out."""

import h5py
import numpy as np
import pytest
from support.layer_cases import CASES

from singa_dask.errors import ConfigError, DataError
from singa_dask.layers import (
    LRN,
    Add,
    ArgSort,
    Attention,
    BCELoss,
    Concate,
    Context,
    Convolution,
    CSVOutput,
    Div,
    Dropout,
    Dummy,
    EuclideanLoss,
    GlobalPooling,
    GroupNorm,
    HuberLoss,
    ImagePreprocess,
    InnerProduct,
    LayerNorm,
    MAELoss,
    Max,
    MSELoss,
    Mul,
    Pooling,
    PositionalEmbedding,
    RecordInput,
    ReLU,
    Reshape,
    Slice,
    Softmax,
    SoftmaxLoss,
    Split,
    Step,
    Sub,
    TransposedConvolution,
    Upsampling,
)
from singa_dask.ops import Ops, get_ops

IMAGE = (6, 5, 4)


@pytest.mark.parametrize("name", CASES)
def test_setup_refuses_another_number_of_sources(name):
    layer = CASES[name].layer
    most = layer.num_sources[1]
    with pytest.raises(ConfigError, match=f"layer '{layer.name}'"):
        layer.setup(*[(3,)] * (0 if most is None else most + 1))


def conv(**conf):
    return Convolution("c", "x", **{"num_filters": 6} | conf)


def transposed(**conf):
    return TransposedConvolution("c", "x", num_filters=6, **conf)


def in_time(kind, **conf):
    return kind("c", "x", unroll_len=4, **conf)


# A layer, the shapes of its sources, and words of the error.
REFUSED = [
    (Convolution("c", "x"), [(4, 4, 1)], "num_filters"),
    (conv(), [(9,)], "Convolution needs images, sequences or volumes.*channels, height, width"),
    (conv(kernel=5), [(4, 9, 1)], r"kernel of \(5, 5\) is larger than the image, \(4, 9\)"),
    (conv(kernel=3, dilation=3), [IMAGE], r"a kernel of \(7, 7\) is larger than the image, \(6, 5\)"),
    (conv(stride=0), [IMAGE], "kernel, stride and dilation must be at least 1"),
    (conv(dilation=0), [IMAGE], "at least 1"),
    (conv(pad=3), [IMAGE], r"pad must lie between 0 and \(kernel - 1\) dilation"),
    (conv(groups=3), [IMAGE], "groups must divide the 4 channels.*groups: 3, num_filters: 6"),
    (conv(groups=4), [IMAGE], "groups must divide.*groups: 4, num_filters: 6"),
    (conv(output_pad=1), [IMAGE], "output_pad is not read.*kTransposedConvolution"),
    (transposed(output_pad=1), [IMAGE], "output_pad must lie between 0 and stride - 1.*1"),
    (transposed(kernel=5, pad=4), [(2, 2, 4)], r"leaves nothing of an output of \(-2, -2\)"),
    (transposed(groups=3), [IMAGE], "groups must divide the 4 channels"),
    (Pooling("c", "x"), [(36,)], r"Pooling needs images, sequences or volumes.*\(36,\)"),
    (Pooling("c", "x", pad=3), [(4, 4, 1)], "pad must lie"),
    (Upsampling("c", "x"), [(36,)], r"Upsampling needs images.*\(36,\)"),
    (GlobalPooling("c", "x"), [(3,)], r"needs images.*\(3,\)"),
    (InnerProduct("c", "x"), [(4,)], "num_output"),
    (LRN("c", "x"), [(4,)], "needs images"),
    (LRN("c", "x", local_size=4), [(4, 4, 1)], "odd.*4"),
    (LRN("c", "x", knorm=0), [(4, 4, 1)], "knorm"),
    (GroupNorm("c", "x", num_groups=4), [(2, 2, 6)], "num_groups must divide the 6 channels.*4"),
    (LayerNorm("c", "x", epsilon=0), [(6,)], "layernorm_conf.epsilon must be above 0"),
    (Dropout("c", "x", dropout_ratio=1), [(4,)], "dropout_ratio"),
    (ReLU("c", "x", negative_slope=-1), [(4,)], "negative_slope"),
    (Softmax("c", "x", num_softmax_per_instance=3), [(4,)], "4 elements.*3"),
    (ArgSort("c", "x", topk=0), [(4,)], "topk"),
    (Slice("c", "x", slice_dim=1, num_slices=5), [(4,)], "num_slices.*4.*5"),
    (Slice("c", "x", slice_dim=2, num_slices=2), [(4,)], "dimension must be one of"),
    (Slice("c", "x", num_slices=0), [(4,)], "num_slices"),
    (Slice("c", "x", slice_dim=1, sizes=[1, 2]), [(4,)], r"sizes must be positive .* 4.*\[1, 2\]"),
    (Slice("c", "x", slice_dim=1, num_slices=2, piece=2), [(4,)], "piece must be below the number of pieces, 2"),
    (Split("c", "x", num_splits=0), [(4,)], "num_splits"),
    (Concate("c", ["x", "y"], concate_dim=1), [(4, 4, 1), (4, 5, 1)], r"x: \(4, 4, 1\), y: \(4, 5, 1\)"),
    (Concate("c", ["x", "y"]), [(4,), (5,)], "match"),
    (Add("c", ["x"]), [(3,)], "Add takes at least 2 srclayers.*x"),
    (Sub("c", ["x", "y", "z"]), [(3,)] * 3, "Sub takes 2 srclayers.*x, y, z"),
    *(
        (kind("c", ["x", "y"]), shapes, "same shape, or size 1.*x: .*y: ")
        for kind in (Add, Sub, Mul, Div, Max)
        for shapes in ([(3,), (4,)], [(2, 3, 4), (2, 2, 4)], [(2, 3, 4), (3,)], [(2, 3), (2, 3, 2)])
    ),
    *(
        (Reshape("c", "x", shape=shape), [(3, 4, 1)], r"samples of shape \(1, 3, 4\).*product is 12")
        for shape in ([5], [4, 2, 3], [])
    ),
    (in_time(Attention, num_heads=3), [(8,)], "num_heads must divide the 8 features.*3"),
    (Attention("c", "x", num_heads=2), [(8,)], "has a single position.*unroll_len: T"),
    (Attention("c", "x", num_heads=2), [(1, 1, 8)], "has a single position"),
    (PositionalEmbedding("c", "x"), [(8,)], "has a single position"),
    (PositionalEmbedding("c", "x"), [(1, 1, 8)], "has a single position"),
    (SoftmaxLoss("c", ["x", "y"], topk=5), [(4,), (4,)], "topk.*1 and 4.*5"),
    (
        SoftmaxLoss("c", ["x", "y"], class_weight=[1, 2, 3]),
        [(4,), ()],
        "softmaxloss_conf.class_weight must have 4 factors.*Received: 3 factors. Give one factor per class",
    ),
    (SoftmaxLoss("c", ["x", "y", "w"]), [(4,), (), (2,)], r"the third source .* one weight per sample.*'w': \(2,\)"),
    (EuclideanLoss("c", ["x", "y"]), [(4,), (5,)], r"\(4,\) and \(5,\)"),
    (EuclideanLoss("c", ["x", "y", "w", "v"]), [(4,), (4,), (1,), (1,)], "takes 2 to 3 srclayers"),
    (
        EuclideanLoss("c", ["x", "y", "w"]),
        [(12,), (2, 2, 3), (2, 2)],
        r"per sample or a mask \(2, 2, 3\) or a mask \(2, 2, 1\). Received: 'w': \(2, 2\)",
    ),
    (HuberLoss("c", ["x", "y"], delta=0), [(6,), (6,)], "huberloss_conf.delta must be above 0. Received: 0"),
    (BCELoss("c", ["x", "y"], pos_weight=[1, 2]), [(6,), (6,)], "pos_weight must have 6 factors.* 2 factors"),
    (MSELoss("c", ["x", "y"]), [(6,), (5,)], "prediction and target differ in size"),
    (MSELoss("c", ["x", "y"]), [(8, 6, 1), (6, 8, 1)], r"not at the same positions.*\(8, 6, 1\) and \(6, 8, 1\)"),
    (HuberLoss("c", ["x", "y"]), [(8, 6, 2), (6, 2, 8)], "not at the same positions"),
    (BCELoss("c", ["x", "y"]), [(4, 4, 4), (8, 8, 1)], "not at the same positions"),
    (MAELoss("c", ["x", "y"]), [(2, 4, 6, 3), (6, 4, 2, 3)], "not at the same positions.*set channels"),
    (EuclideanLoss("c", ["x", "y"]), [(8, 6, 24), (24, 8, 6, 1)], "not at the same positions"),
    (MSELoss("c", ["x", "y", "w"]), [(8, 6, 2), (8, 6, 2), (6, 8, 1)], "third source"),
    (MSELoss("c", ["x", "y", "w"]), [(8, 6, 1), (8, 6, 1), (6, 8, 1)], "third source"),
    (ImagePreprocess("c", "x", cropsize=3), [(5,)], "needs images"),
    (ImagePreprocess("c", "x", cropsize=3), [(2, 9, 3)], "cropsize must lie.*3 for 2 x 9"),
    (ImagePreprocess("c", "x", meanfile="none.h5"), [(4, 5, 3)], "none.h5"),
    *((RecordInput("c", shape=shape), [], "store_conf.shape") for shape in ([], [0], [2, 3, 4, 5, 6])),
    (Dummy("c"), [], "dummy_conf.input"),
    (CSVOutput("c", "x"), [(3,)], "store_conf.path"),
]


@pytest.mark.parametrize(
    ("layer", "shapes", "words"), REFUSED, ids=[f"{type(layer).__name__}: {words}" for layer, _, words in REFUSED]
)
def test_shapes_and_settings_that_do_not_fit_are_refused(layer, shapes, words):
    with pytest.raises(ConfigError, match=f"(?s)layer 'c'.*{words}"):
        layer.setup(*shapes)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [("std", (7,), "no data set 'mean'.*It has: std"), ("mean", (3, 3, 9), r"of a sample, \(4, 5, 3\).*\(3, 3, 9\)")],
)
def test_a_file_without_a_usable_mean_is_refused(tmp_path, name, shape, words):
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file[name] = np.zeros(shape)
    with pytest.raises(ConfigError, match=f"layer 'c'.*{words}"):
        ImagePreprocess("c", "x", meanfile=str(tmp_path / "file.h5")).setup((4, 5, 3))


X, LABELS = np.zeros((2, 4), np.float32), np.array([0, 1])


def weighted(*weights):
    return X, LABELS, np.array(weights)


@pytest.mark.parametrize(
    ("layer", "arrays", "words"),
    [
        (SoftmaxLoss("c", ["x", "y"]), (X, None), "needs labels, but 'y' has none"),
        (SoftmaxLoss("c", ["x", "y"]), (X, np.array([0, 4])), "from 0 to 4"),
        (SoftmaxLoss("c", ["x", "y"]), (X, np.array([-1, 0])), "from -1 to 0"),
        (SoftmaxLoss("c", ["x", "y"]), (X, np.array([0.5, 1])), "must be integers"),
        (SoftmaxLoss("c", ["x", "y"]), (X, np.array([1])), "2 rows, but 'y' gives 1 labels"),
        (SoftmaxLoss("c", ["x", "y", "w"]), weighted(1, -1), "weights must be .* 'w' gave -1.0 in row 1"),
        (SoftmaxLoss("c", ["x", "y", "w"]), weighted(np.nan, 1), "'w' gave nan in row 0"),
        (SoftmaxLoss("c", ["x", "y", "w"]), weighted(0, np.inf), "'w' gave inf in row 1"),
        (SoftmaxLoss("c", ["x", "y", "w"]), weighted(1.0), "'x' gives 2 rows, but 'w' gives 1 weights"),
        (EuclideanLoss("c", ["x", "y", "w"]), (X, X, np.array([1.0, np.nan])), "'w' gave nan in row 1"),
        (EuclideanLoss("c", ["x", "y", "w"]), (X, X, np.array([1.0])), "'w' gives 1 weights"),
        (BCELoss("c", ["x", "y"]), (X, X + 2), r"targets must lie in \[0, 1\]; 'y' gave values from 2 to 2. Use MSE"),
        (BCELoss("c", ["x", "y"]), (X, X + np.nan), r"targets must lie in \[0, 1\]"),
        (RecordInput("c", shape=[4]), (np.zeros((2, 5)),), r"\(5,\).*\[4\]"),
        (RecordInput("c", shape=[3, 4, 5]), (np.zeros((2, 5, 4, 3)),), ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("ops", [Ops(), get_ops()], ids=["base", "cpu"])
def test_arrays_that_do_not_fit_are_refused(layer, arrays, words, ops):
    layer.setup(*[(4,), (4,), (1,)][: len(layer.proto.srclayers)])
    with pytest.raises(DataError, match=f"layer 'c'.*{words}"):
        layer.forward(Context(ops, Step(total_rows=2)), *arrays)
