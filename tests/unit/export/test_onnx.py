"""ONNX models give what our nets give, by onnxruntime."""

import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format
from support.onnx_models import read_again
from support.shards import write_shards
from support.user_layers import Same

from singa_dask.data import Manifest
from singa_dask.data.normalise import make_normaliser, resolve_normalisation
from singa_dask.errors import ConfigError
from singa_dask.export.onnx import export
from singa_dask.inference.model import Model
from singa_dask.job.assemble import assemble
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import (
    Attention,
    BatchNorm,
    BCELoss,
    Concate,
    Convolution,
    Embedding,
    EuclideanLoss,
    GlobalPooling,
    HuberLoss,
    InnerProduct,
    Layer,
    MAELoss,
    MSELoss,
    Pooling,
    RecordInput,
    Reshape,
    Slice,
    SoftmaxLoss,
    Step,
    Tanh,
    TransposedConvolution,
    Upsampling,
)
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops

ROWS = 5
IMAGES = {
    "convolution": "type: kConvolution convolution_conf { num_filters: 4 kernel: 3 pad: 1 stride: 2 }",
    "uneven convolution": """type: kConvolution
        convolution_conf { num_filters: 4 kernel_x: 3 kernel_y: 2 pad_x: 1 stride_y: 2 bias_term: false }""",
    "convolution in groups": """type: kConvolution
        convolution_conf { num_filters: 6 kernel: 3 pad: 2 dilation: 2 stride_x: 2 groups: 3 }""",
    "transposed convolution": """type: kTransposedConvolution
        convolution_conf { num_filters: 6 kernel: 3 kernel_x: 4 pad: 1 stride: 2 output_pad: 1 groups: 3 }""",
    "reshape": "type: kReshape reshape_conf { shape: [7, 9, 2] }",
    "reshape to features": "type: kReshape reshape_conf { shape: 126 }",
    "reshape to sequences": "type: kReshape reshape_conf { shape: [14, 9] }",
    "upsampling": "type: kUpsampling upsampling_conf { factor: 3 }",
    "upsampling between pixels": "type: kUpsampling upsampling_conf { method: BILINEAR }",
    "max pooling": "type: kPooling pooling_conf { pool: MAX kernel: 3 stride: 2 pad: 1 }",
    "average pooling": "type: kPooling pooling_conf { pool: AVG kernel: 3 stride: 2 pad: 1 }",
    "lrn": "type: kLRN lrn_conf { local_size: 3 alpha: 0.5 beta: 0.75 knorm: 2 }",
    "batch norm": "type: kBM",
    "layer norm": "type: kLayerNorm",
    "group norm": "type: kGroupNorm groupnorm_conf { num_groups: 3 }",
    "relu": "type: kReLU relu_conf { negative_slope: 0.1 }",
    "activation": "type: kActivation activation_conf { type: STANH }",
    "sigmoid": "type: kSigmoid",
    "attention": "type: kAttention attention_conf { num_heads: 3 }",
    "positions": "type: kPositionalEmbedding",
    "positions by waves": "type: kPositionalEmbedding positionalembedding_conf { kind: SINUSOIDAL }",
    "leaky relu": "type: kLeakyReLU leakyrelu_conf { negative_slope: 0.2 }",
    "elu": "type: kELU elu_conf { alpha: 0.5 }",
    "silu": "type: kSiLU",
    "gelu": "type: kGELU",
    "gelu by tanh": "type: kGELU gelu_conf { approximate: TANH }",
    "relu with a largest value": "type: kReLU relu_conf { max_value: 0.5 }",
    "max pooling that overhangs": "type: kPooling pooling_conf { kernel: 2 ceil_mode: true }",
    "batch norm with another epsilon": "type: kBM bm_conf { epsilon: 0.5 }",
    "global pooling": "type: kGlobalPooling",
    "global max pooling": "type: kGlobalPooling globalpooling_conf { pool: MAX }",
    "tanh": "type: kTanh",
    "dropout": "type: kDropout",
    "softmax": "type: kSoftmax softmax_conf { num_softmax_per_instance: 3 }",
    "inner product": "type: kInnerProduct innerproduct_conf { num_output: 6 }",
    "transposed": "type: kInnerProduct innerproduct_conf { num_output: 6 transpose: true bias_term: false }",
    "crop": "type: kImagePreprocess rgbimage_conf { cropsize: 4 scale: 0.5 mirror: true }",
    "rbm": "type: kRBMVis rbm_conf { hdim: 3 }",
}


def image_net(layers, shape="shape: 3 shape: 6 shape: 7", extra=""):
    return f"""
      layer {{ name: "data" type: kRecordInput
              store_conf {{ path: "%(folder)s" batchsize: 5 {shape} mean_value: 100 std_value: 50 {extra} }} }}
      {layers}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of 6 x 7 pixels and 3 channels."""
    folder = tmp_path_factory.mktemp("data") / "shards"
    draw = np.random.default_rng(0)
    write_shards(folder, draw.integers(0, 256, (40, 6, 7, 3)).astype(np.uint8), draw.integers(0, 4, 40))
    return folder


def made(text, folder):
    """The evaluation net of a text, with random parameters."""
    proto = text_format.Parse(text % {"folder": folder}, NetProto())
    column = Manifest.load(folder).features
    resolve_normalisation(proto.layer[0].store_conf, column, column, None)
    ops = get_ops("cpu")
    train = Net(proto, Phase.kTrain, ops)
    train.initialise(3)
    draw = np.random.default_rng(1)
    train.flat.values[...] += draw.uniform(0.01, 0.1, train.flat.size)  # variances stay positive
    return Net(proto, Phase.kTest, ops, share=train)


def compared(net, folder, *outputs):
    """Both systems' outputs for raw samples, images as channels, height, width."""
    shape = Manifest.load(folder).features.shape
    raw = np.random.default_rng(2).integers(0, 256, (ROWS, *shape)).astype(np.float32)
    rule = make_normaliser(net.layers["data"].proto.store_conf, Manifest.load(folder).features)
    normal = rule.reference(raw.reshape(ROWS, -1), np.arange(ROWS)).reshape(raw.shape)
    net.forward({"data": Batch(normal, np.zeros(ROWS, np.int64))}, Step(Phase.kTest, total_rows=ROWS))
    model = export(net, outputs)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    fed = raw.transpose(0, 3, 1, 2) if len(net.shapes["data"]) == 3 else raw.reshape(ROWS, -1)
    results = session.run(list(outputs), {"data": fed})
    read_again(model, fed, results)
    for name, result in zip(outputs, results, strict=True):
        ours = net.output(name)
        yield (ours.transpose(0, 3, 1, 2) if ours.ndim == 4 else ours), result


NET = """
  layer { name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 8 kernel: 3 pad: 1 } }
  layer { name: "norm" type: kCudnnBM srclayers: "conv" }
  layer { name: "parts" type: kSlice srclayers: "norm" slice_conf { slice_dim: 1 num_slices: 2 } }
  layer { name: "left" type: kReLU srclayers: "parts" }
  layer { name: "right" type: kTanh srclayers: "parts" }
  layer { name: "both" type: kConcate srclayers: "right" srclayers: "left" concate_conf { concate_dim: 1 } }
  layer { name: "pool" type: kPooling srclayers: "both" pooling_conf { kernel: 2 stride: 2 } }
  layer { name: "ip1" type: kInnerProduct srclayers: "pool" innerproduct_conf { num_output: 10 }
          param { name: "w" } param { name: "b" } }
  layer { name: "copies" type: kSplit srclayers: "ip1" split_conf { num_splits: 2 } }
  layer { name: "back" type: kInnerProduct srclayers: "copies" innerproduct_conf { num_output: 72 transpose: true }
          param { name: "w_" share_from: "w" } }
  layer { name: "ip2" type: kInnerProduct srclayers: "copies" innerproduct_conf { num_output: 4 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip2" srclayers: "data" }
  layer { name: "error" type: kEuclideanLoss srclayers: "back" srclayers: "pool" }
"""


RESIDUAL = """
  layer { name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 3 kernel: 3 pad: 1 } }
  layer { name: "mean" type: kGlobalPooling srclayers: "conv" }
  layer { name: "gate" type: kInnerProduct srclayers: "mean" innerproduct_conf { num_output: 3 } }
  layer { name: "gated" type: kMul srclayers: ["conv", "gate", "mean"] }
  layer { name: "largest" type: kMax srclayers: ["gated", "data"] }
  layer { name: "sum" type: kAdd srclayers: ["largest", "data", "conv"] }
  layer { name: "less" type: kSub srclayers: ["sum", "mean"] }
  layer { name: "open" type: kSigmoid srclayers: "conv" }
  layer { name: "quotient" type: kDiv srclayers: ["less", "open"] }
"""


MACHINE = """
  layer { name: "vis" type: kRBMVis srclayers: "data" srclayers: "hid" rbm_conf { hdim: 3 } }
  layer { name: "hid" type: kRBMHid srclayers: "vis" rbm_conf { hdim: 3 } }
"""
FLAT = 'layer { name: "x" srclayers: "data" type: kInnerProduct innerproduct_conf { num_output: 6 } }'
MEAN = 'mean_file: "%(folder)s/statistics.h5"'


class Shift(Layer):
    """x + shift, for ONNX too."""

    def setup(self, *src):
        self.shift = self.declare("shift", src[0], 1, 1)
        return src[0]

    def forward(self, ctx, *x):
        return x[0] + self.shift.value

    def to_onnx(self, graph, *inputs):
        return graph.add("Add", [*inputs, *graph.parameter(self.shift, (2, 0, 1))])


class Mystery(Same):
    """Nobody told ONNX."""


def user(cls):
    return image_net(f'layer {{ name: "x" srclayers: "data" user_type: "{__name__}:{cls}" }}')


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        *(
            pytest.param(image_net(f'layer {{ name: "x" srclayers: "data" {layer} }}'), ["x"], id=name)
            for name, layer in IMAGES.items()
        ),
        pytest.param(image_net(NET), ["loss", "back", "pool"], id="branches and shared weights"),
        pytest.param(image_net(RESIDUAL), ["gated", "largest", "sum", "less", "quotient"], id="sums and products"),
        pytest.param(image_net(FLAT).replace("mean_value: 100", MEAN), ["x"], id="a mean image"),
        pytest.param(image_net(FLAT, "shape: 126").replace("mean_value: 100", MEAN), ["x"], id="flat samples"),
        pytest.param(image_net(MACHINE), ["hid"], id="the hidden units of an RBM"),
        pytest.param(user("Shift"), ["x"], id="a layer of one's own"),
    ],
)
def test_both_give_the_same(text, outputs, folder):
    for ours, theirs in compared(made(text, folder), folder, *outputs):
        np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-4)  # onnxruntime before 1.30 rounds more


@pytest.mark.parametrize("pool", ["NONE", "SUM", "MEAN"])
@pytest.mark.parametrize("conf", [{}, {"padding_idx": 1}])
def test_several_symbols_of_a_sample(pool, conf):
    data, x = RecordInput("x", shape=[3], has_label=False), np.array([[1, 1, 1], [0, 1, 3], [2, 3, 0]])
    embedding = Embedding("e", "x", vocab_size=4, feature_dim=2, pool=pool, **conf)
    net = Net(NetProto(layer=assemble([data, embedding])), Phase.kTest, get_ops("cpu"))
    net.initialise(1)
    net.forward({"x": Batch(x.astype(np.float32))}, Step(Phase.kTest, total_rows=3))
    session = onnxruntime.InferenceSession(export(net, ["e"]).SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": x})[0], net.output("e"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("counted", ["lengths", "marks"])
def test_attention_to_what_counts_of_a_memory(counted):
    """With queries that share keys, and rotary positions."""
    marks = np.arange(5) < [[2], [5], [1]] if counted == "lengths" else np.eye(5)[:3] + np.eye(5)[4]
    given = {
        "x": np.random.default_rng(0).normal(size=(3, 24)),
        "m": np.random.default_rng(1).normal(size=(3, 30)),
        "n": marks.sum(axis=1, keepdims=True) if counted == "lengths" else marks,
    }
    inputs = [RecordInput(name, shape=[array.shape[1]], has_label=False) for name, array in given.items()]
    x, memory = Reshape("four", "x", shape=[6, 4]), Reshape("five", "m", shape=[6, 5])
    heads = {"num_heads": 3, "num_kv_heads": 1, "rotary": True, "rotary_base": 30}
    attention = Attention("a", ["four", "five", "n"], **heads)
    net = Net(NetProto(layer=assemble([*inputs, x, memory, attention])), Phase.kTest, get_ops("cpu"))
    net.initialise(1)
    assert net.shapes["a"] == (4, 6)
    fed = {name: np.asarray(array, np.float32) for name, array in given.items()}
    net.forward({name: Batch(array) for name, array in fed.items()}, Step(Phase.kTest, total_rows=3))
    session = onnxruntime.InferenceSession(export(net, ["a"]).SerializeToString())
    np.testing.assert_allclose(session.run(None, fed)[0], net.output("a"), rtol=1e-4, atol=1e-6)


def test_what_cannot_be_exported_is_named(folder):
    with pytest.raises(ConfigError, match=r"layer 'x'.*no counterpart in ONNX.*Mystery.*to_onnx"):
        export(made(user("Mystery"), folder), ["x"])
    with pytest.raises(ConfigError, match=r"unknown layer.*loss"):
        export(made(image_net(NET), folder), ["lass"])


def ran(model, layers, feed, output):
    """What ONNX Runtime gives for an output of a Model's net."""
    net = Net(NetProto(layer=assemble(layers)), Phase.kTest, model.ops, share=model.net)
    session = onnxruntime.InferenceSession(export(net, [output]).SerializeToString())
    assert {each.name for each in session.get_inputs()} == feed.keys()
    return session.run([output], feed)[0]


LARGE = [{"init": {"type": "kUniform", "low": -1, "high": 1}}]
TARGETS = {"target_mean": [100, -7], "target_std": [20, 3]}
FIELDS = {"target_mean": [100, -7], "target_std": list(range(1, 41))}
VOLUMES = RecordInput("data", shape=[2, 5, 6, 7], has_label=False)


def regression(loss):
    data = RecordInput("data", shape=[3], target_shape=[2], mean=[1, 2, 3], std=[4, 5, 6])
    return [data, InnerProduct("out", num_output=2, param=LARGE), loss("loss")]


WEIGHTED = [
    RecordInput("data", shape=[3], target_shape=[2], mean=[1, 2, 3], std=[4, 5, 6], **TARGETS),
    RecordInput("weight", shape=[1], has_label=False),
    InnerProduct("out", "data", num_output=2, param=LARGE),
    EuclideanLoss("loss", ["out", "data", "weight"]),
]


def pieces(dim):
    first, second = Tanh("first", "pieces"), Tanh("second", "pieces")
    slices = [Slice("pieces", "data", slice_dim=dim, num_slices=2), first, second]
    slices += [Slice("last", "data", slice_dim=dim, num_slices=2, piece=1)]
    both = Concate("both", ["second", "first", "last"], concate_dim=dim)
    data = RecordInput("data", shape=[4, 5, 6, 7], has_label=False)
    return [data, *slices, both, InnerProduct("out", "both", num_output=2, param=LARGE)]


def windows(data, last, method):
    return [
        data,
        Convolution("conv", num_filters=3, kernel=1, param=LARGE),
        Pooling("largest", kernel=3, stride=2, pad=1),
        Upsampling("more", method=method),
        Pooling("means", pool="AVG", kernel=3, stride=1, pad=1),
        last,
    ]


@pytest.mark.parametrize(
    ("layers", "output", "shape"),
    [
        *(pytest.param(WEIGHTED, output, (3,), id=f"weighted regression, {output}") for output in ("loss", "out")),
        *(
            pytest.param(regression(loss), "loss", (3,), id=loss.__name__)
            for loss in (MSELoss, MAELoss, HuberLoss, BCELoss)
        ),
        pytest.param(
            [
                RecordInput("data", shape=[3, 4, 5], target_shape=[2, 4, 5], mean=[1, 2, 3], **FIELDS),
                Convolution("out", num_filters=2, kernel=3, pad=1, param=LARGE),
                EuclideanLoss("loss"),
            ],
            "loss",
            (3, 4, 5),
            id="raw fields to raw targets",
        ),
        *(
            pytest.param(
                [VOLUMES, kind("conv", num_filters=4, kernel=2, kernel_z=3, param=LARGE, **options)],
                "conv",
                (2, 5, 6, 7),
                id=f"volumes, {kind.__name__} {options}",
            )
            for kind in (Convolution, TransposedConvolution)
            for options in ({"pad": 1, "stride": 2}, {"groups": 2, "dilation": 2})
        ),
        *(pytest.param(pieces(dim), "out", (4, 5, 6, 7), id=f"pieces along axis {dim}") for dim in (1, 2, 3, 4)),
        *(
            pytest.param(
                [
                    RecordInput("data", shape=[3], sequence=9, has_label=False),
                    kind("conv", num_filters=4, kernel=5, pad=1, stride=2, param=LARGE),
                ],
                "conv",
                (9, 3),
                id=f"sequences, {kind.__name__}",
            )
            for kind in (Convolution, TransposedConvolution)
        ),
        *(
            pytest.param(windows(data, last, method), "out", shape, id=f"windows, {shape} {method}")
            for data, last, shape in (
                (
                    RecordInput("data", has_label=False, shape=[2, 4, 6, 5]),
                    InnerProduct("out", num_output=4, param=LARGE),
                    (2, 4, 6, 5),
                ),
                (
                    RecordInput("data", has_label=False, shape=[2], sequence=9),
                    Convolution("out", num_filters=4, kernel=3, param=LARGE),
                    (9, 2),
                ),
            )
            for method in ("NEAREST", "BILINEAR")
        ),
        pytest.param(
            [
                RecordInput("data", shape=[2, 3, 4, 5], has_label=False, mean=[1, 2], std=list(range(1, 121))),
                InnerProduct("out", num_output=2, param=LARGE),
            ],
            "out",
            (2, 3, 4, 5),
            id="volumes, channels first",
        ),
        pytest.param(
            [
                RecordInput("data", shape=[2, 4, 6], label_shape=[4, 6]),
                Convolution("out", num_filters=3, kernel=1, param=LARGE),
                SoftmaxLoss("loss"),
            ],
            "loss",
            (2, 4, 6),
            id="classes of positions",
        ),
    ],
)
def test_a_model_and_its_export_predict_the_same(layers, output, shape):
    model = Model(layers)
    x = np.random.default_rng(0).normal(size=(5, *shape), scale=9).astype(np.float32)
    expected = model.predict(x)
    expected = np.moveaxis(expected, -1, 1) if expected.ndim > 3 else expected
    np.testing.assert_allclose(ran(model, layers, {"data": x}, output), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axes", [(5, 6, 5), (5,)])  # of volumes with as many depths as channels, of sequences
@pytest.mark.parametrize("last", ["norm", "out"])
def test_layers_of_channels_on_volumes_and_sequences(axes, last):
    data = RecordInput("data", shape=[2, *axes] if axes[1:] else [10], has_label=False)
    layers = [data, *([] if axes[1:] else [Reshape("sequences", shape=[5, 2])])]
    layers += [Convolution("conv", num_filters=4, kernel=2, param=LARGE), BatchNorm("norm")]
    layers += [GlobalPooling("means"), InnerProduct("out", num_output=3, param=LARGE)] if last == "out" else []
    model, draw = Model(layers), np.random.default_rng(0)
    x = draw.normal(size=(6, *data.proto.store_conf.shape)).astype(np.float32)
    for param in model.net.params:
        if param.name.startswith("norm"):
            param.value[...] = draw.uniform(0.5, 2.0, param.value.shape)
    expected = model.predict(x)
    expected = np.moveaxis(expected, -1, 1) if expected.ndim > 3 else expected
    np.testing.assert_allclose(ran(model, layers, {"data": x}, last), expected, rtol=1e-4, atol=1e-4)


def test_a_model_that_a_loop_has_trained_is_written_to_a_file(tmp_path):
    model = Model(
        [RecordInput(shape=[3]), InnerProduct("out", num_output=2, param=LARGE), SoftmaxLoss("loss")], seed=1
    )
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    model.to_onnx(tmp_path / "models" / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "models" / "net.onnx")
    (given,) = session.get_inputs()
    np.testing.assert_allclose(session.run(None, {given.name: x})[0], model.predict(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match=r"path: cannot be written .*models"):
        model.to_onnx(tmp_path / "models")
