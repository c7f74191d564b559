"""ONNX models as nets: each operator, and whole nets, against onnxruntime."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support.onnx_models import MODELS, Builder, gpt, lstm, mobilenet, vit
from support.shards import write_shards
from support.topologies import run_topology

from singa_dask import ClusterTopology, Job, Model, Module, autograd, convert
from singa_dask.convert.onnx_ops import CONVERTERS
from singa_dask.errors import ConfigError
from singa_dask.export import onnx as onnx_export
from singa_dask.layers import (
    GELU,
    LRN,
    Attention,
    Convolution,
    EuclideanLoss,
    GroupNorm,
    InnerProduct,
    LayerNorm,
    RecordInput,
    Reshape,
    SoftmaxLoss,
    STanh,
)
from singa_dask.tensors.tensor import Tensor
from singa_dask.training.prepare import check_given, prepare
from singa_dask.updaters import SGD

IMAGE, ROWS = (3, 9, 8), 4
F32 = np.float32


def window(op, size=IMAGE, **attributes):
    """A convolution or pooling."""

    def build(b, x):
        if op.endswith("Pool"):
            return b(op, x, kernel_shape=[3, 2], **attributes)
        groups, inputs = attributes.get("group", 1), size[0]
        shape = (6, inputs // groups) if op == "Conv" else (inputs, 6 // groups)
        return b(op, x, b.weight("c.weight", *shape, 3, 2), b.weight("c.bias", 6), **attributes)

    return build, size


def of(op, *constants, shape=(5, 4), after=None, **attributes):
    """One operator, with constants behind its first input."""

    def build(b, x):
        return b(op, x if after is None else after(b, x), *constants, **attributes)

    return build, shape


def positive(b, x):
    return b("Add", b("Abs", x), F32(0.5))


def twice(op, **attributes):
    """Two tensors that depend on the rows."""

    def build(b, x):
        other = b("Mul", b("Sin", x), F32(2))
        return b(op, x, other, **attributes)

    return build, (5, 4)


def by_heads(b, x):
    """Rows and heads in one axis, behind the positions: (T, B N, D)."""
    rows = b.size(x, 0)
    turned = b("Transpose", x, perm=[1, 0, 2])
    shape = b("Concat", np.array([6]), b("Mul", rows, np.array([2])), np.array([4]), axis=0)
    return b("Reshape", turned, shape)


def scores(b, x):
    heads = b("Transpose", by_heads(b, x), perm=[1, 0, 2])
    return b("Softmax", b("MatMul", heads, b("Transpose", heads, perm=[0, 2, 1])), axis=-1)


def back(b, heads, x):
    """The inverse of `by_heads`."""
    shape = b("Concat", np.array([6]), b.size(x, 0), np.array([8]), axis=0)
    return b("Transpose", b("Reshape", heads, shape), perm=[1, 0, 2])


def attended(b, x):
    heads = b("Transpose", by_heads(b, x), perm=[1, 0, 2])
    mixed = b("MatMul", scores(b, x), heads)
    return back(b, b("Transpose", b("Mul", mixed, b.weight("gain", 1, 1, 4)), perm=[1, 0, 2]), x)


def formula_of_a_bias(b, x):
    """A sum with a constant that is no bias: it has its own axes."""
    return b("Sub", b("Add", x, b.weight("map.value", 3, 1, 8)), b.weight("channels", 3, 1, 1))


def expanded(b, x):
    token = b("Expand", b.weight("token", 1, 1, 4), b("Concat", b.size(x, 0), np.array([2, 4]), axis=0))
    return b("Concat", token, x, axis=1)


def normalised(b, x):
    """As this project writes group normalisation."""
    return b("InstanceNormalization", x, b.positive("n.weight", 3), b.weight("n.bias", 3))


def turned_product(b, x):
    return b("Transpose", b.linear(b("Transpose", x, perm=[1, 0, 2]), "f", 4, 3), perm=[1, 0, 2])


def pieces(b, x):
    first, second = b("Split", x, np.array([2, 3]), axis=1, outputs=2)
    return b("Concat", second, first, axis=1)


def other_shapes(b, x):
    wider = b("Reshape", b("Unsqueeze", x, np.array([1])), np.array([0, 1, 10, 2]))
    return b("Squeeze", wider, np.array([1]))


def read_twice(b, x):
    """A product whose sum with a bias is not all that reads it."""
    y = b("MatMul", x, b.weight("w", 4, 3))
    return b("Mul", b("Add", y, b.weight("bias", 3)), y)


def all_in_one(b, x):
    """Rows, positions and heads in one axis."""
    heads = b("Reshape", x, np.array([-1, 4]))
    changed = b("Mul", b("Add", heads, b.weight("shift", 4)), b("Sin", heads))
    return b("Reshape", changed, np.array([-1, 6, 8]))


def over_time(op, direction="forward", *, state=False, bias=True):
    """A recurrent node: all steps, and the state after the last one."""

    def build(b, x):
        ways, gates = 1 + (direction == "bidirectional"), {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
        weights = [b.weight("r.W", ways, 6 * gates, 4), b.weight("r.R", ways, 6 * gates, 6), "", ""]
        if bias:
            weights[2] = b.weight("r.B", ways, 12 * gates)
            b.weights["r.B"][:, -6:] = 0  # what a GRU adds before the reset gate
        rows = b("Concat", np.array([ways]), b.size(x, 0), np.array([6]), axis=0)
        states = [b("ConstantOfShape", rows)] * (1 + (op == "LSTM"))
        if state:
            means = b("ReduceMean", x, axes=[1], keepdims=0)
            states = [b("Expand", b("Gemm", means, b.weight(f"s{i}", 4, 6)), rows) for i in range(len(states))]
        turned, more = b("Transpose", x, perm=[1, 0, 2]), {"linear_before_reset": 1} if op == "GRU" else {}
        made = b(op, turned, *weights, *states, hidden_size=6, direction=direction, outputs=1 + len(states), **more)
        steps, after = b("Transpose", made[0], perm=[2, 0, 1, 3]), b("Transpose", made[-1], perm=[1, 0, 2])
        return b("Concat", steps, b("Unsqueeze", after, np.array([1])), axis=1)

    return build, (5, 4)


OPERATORS = {
    **{f"{op} {way}": over_time(op, way, state=way == "bidirectional", bias=way != "reverse")
       for op in ("RNN", "GRU", "LSTM") for way in ("forward", "reverse", "bidirectional")},
    "one of so many": (
        lambda b, x: b("OneHot", b("Cast", b("Abs", x), to=7), np.int64(3), np.array([0, 1], F32)), (5,),
    ),
    "integers": (lambda b, x: b("Cast", b("Cast", b("Mul", x, F32(3)), to=6), to=1), (5, 4)),
    "numbers that are true": (lambda b, x: b("Where", b("Cast", b("Relu", x), to=9), x, F32(2)), (5, 4)),
    "edges": of("Pad", np.array([0, 1, 0, 0, 0, 2]), F32(7)),
    "products by letters": (
        lambda b, x: b("Einsum", x, b.weight("w", 4, 3), b("Sin", x), equation="bij,jk,bij->bkj"), (5, 4),
    ),
    "not": (lambda b, x: b("Where", b("Not", b("Less", x, F32(0))), x, F32(2)), (5, 4)),
    **{op: (lambda b, x, op=op: b("Where", b(op, x, F32(0)), x, F32(2)), (5, 4))
       for op in ("GreaterOrEqual", "LessOrEqual")},
    "signs": of("Sign"),
    "smallest": of("ReduceMin", axes=[2], keepdims=0),
    "logarithm of a sum": of("ReduceLogSumExp", axes=[1]),
    "convolution": window("Conv", pads=[1, 1, 1, 1], strides=[2, 1]),
    "dilated convolution": window("Conv", dilations=[2, 1]),
    "grouped convolution": window("Conv", group=3),
    "convolution with uneven padding": window("Conv", pads=[0, 1, 2, 0]),
    "transposed convolution": window("ConvTranspose", strides=[2, 2], output_padding=[1, 1], pads=[1, 0, 1, 0]),
    "max pooling": window("MaxPool", strides=[2, 2], pads=[1, 0, 1, 0]),
    "max pooling with uneven padding": window("MaxPool", strides=[2, 2], pads=[0, 0, 1, 1]),
    "average pooling": window("AveragePool", strides=[2, 1]),
    "padded average pooling": window("AveragePool", pads=[1, 1, 1, 1], count_include_pad=1),
    "global average": of("GlobalAveragePool", shape=IMAGE),
    "global maximum": of("GlobalMaxPool", shape=IMAGE),
    "instance normalisation": (normalised, IMAGE),
    "batch normalisation": (lambda b, x: b.norm(x, "n", 3, 1e-3), IMAGE),
    "response normalisation": of("LRN", shape=IMAGE, alpha=0.1, beta=0.75, bias=1.0, size=3),
    "nearest neighbours": of(
        "Resize", "", np.array([1, 1, 2, 2], F32), shape=IMAGE, mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    ),
    "bilinear": of("Resize", "", np.array([1, 1, 3, 3], F32), shape=IMAGE, mode="linear"),
    "flattened image": (lambda b, x: b.gemm(b("Flatten", x, axis=1), "f", 3 * 9 * 8, 4), IMAGE),
    "flattened turned image": (
        lambda b, x: b.gemm(b("Flatten", b("Transpose", x, perm=[0, 2, 3, 1]), axis=1), "f", 3 * 9 * 8, 4), IMAGE,
    ),
    "flattened sequence": (lambda b, x: b.gemm(b("Flatten", x, axis=1), "f", 20, 3), (5, 4)),
    "scaled product": (
        lambda b, x: b("Gemm", x, b.weight("f", 5, 3), b.weight("g", 1, 3), alpha=0.5, beta=2.0), (5,),
    ),
    "product of a sequence": (lambda b, x: b("MatMul", x, b.weight("w", 4, 3)), (5, 4)),
    "product of an image": (lambda b, x: b.linear(x, "f", 8, 3), IMAGE),
    "product of a turned sequence": (turned_product, (5, 4)),
    "attention with rows and heads in one axis": (attended, (6, 8)),
    "a product that is read twice": (read_twice, (5, 4)),
    "rows, positions and heads in one axis": (all_in_one, (6, 8)),
    "layer normalisation": (lambda b, x: b.layer_norm(x, "n", 4), (5, 4)),
    "layer normalisation of a vector": (lambda b, x: b.layer_norm(x, "n", 4), (4,)),
    "constants with axes of their own": (formula_of_a_bias, IMAGE),
    "a token in front": (expanded, (5, 4)),
    "mask": (lambda b, x: b("Where", np.tril(np.ones((5, 4), bool)), x, F32(-9)), (5, 4)),
    "comparison": (lambda b, x: b("Where", b("Greater", x, F32(0)), x, b("Neg", x)), (5, 4)),
    "clip": of("Clip", F32(-0.5), F32(0.8)),
    "clip below": of("Clip", F32(-0.5)),
    "gelu": (lambda b, x: b.gelu(x), (5, 4)),
    "gelu by tanh": (lambda b, x: b.gelu_tanh(x), (5, 4)),
    "silu": (lambda b, x: b("Mul", x, b("Sigmoid", x)), (5, 4)),
    "leaky relu": of("LeakyRelu", alpha=0.3),
    "elu": of("Elu", alpha=0.7),
    **{op: of(op) for op in ("Abs", "Cos", "Exp", "Identity", "Neg", "Relu", "Sin", "Softplus", "Tanh")},
    **{op: of(op, after=positive) for op in ("Log", "Sqrt")},
    **{op: twice(op) for op in ("Add", "Div", "Max", "Min", "Mul", "Sub")},
    "power": of("Pow", F32(1.5), after=positive),
    "softmax": of("Softmax", axis=1),
    "log softmax": of("LogSoftmax", axis=-1),
    "mean": of("ReduceMean", axes=[1], keepdims=0),
    "mean of positions": of("ReduceMean", shape=IMAGE, axes=[2, 3]),
    "sum": of("ReduceSum", np.array([-1]), keepdims=1),
    "largest": of("ReduceMax", axes=[2], keepdims=0),
    "piece": of("Slice", np.array([1, 0]), np.array([4, 9]), np.array([1, 2]), np.array([2, 1])),
    "last pieces": of("Slice", np.array([-2]), np.array([np.iinfo(np.int64).max]), np.array([1])),
    "reversed": of("Slice", np.array([-1]), np.array([np.iinfo(np.int64).min]), np.array([1]), np.array([-1])),
    "one of them": of("Gather", np.int64(2), axis=1),
    "some of them": of("Gather", np.array([3, 0, 3]), axis=2),
    "pieces put together": (pieces, (5, 4)),
    "other shapes": (other_shapes, (5, 4)),
    "shapes without common parts": (lambda b, x: b("Reshape", x, np.array([0, 2, 10])), (5, 4)),
    "uses of fixed rows": (lambda b, x: b("Reshape", x, np.array([-1, 20])), (5, 4)),
}  # fmt: skip


def expected(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def drawn(shape, rows=ROWS):
    return np.random.default_rng(0).normal(size=(rows, *shape)).astype(F32)


def in_a_loop(net, x):
    """What the net computes of tensors."""
    return net(Tensor.of(x)).to_numpy()


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_computes_what_onnxruntime_does(name):
    build, shape = OPERATORS[name]
    b = Builder()
    x, output = drawn(shape), build(b, b.take("x", *shape))
    model = b.model(output)
    np.testing.assert_allclose(in_a_loop(convert.from_onnx(model), x), expected(model, x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_a_recurrent_operator_with_a_state_is_the_same_in_a_model(op):
    build, shape = over_time(op, "bidirectional", state=True)
    b = Builder()
    steps = b("Reshape", b.take("x", 20), np.array([0, *shape]))
    model, x = b.model(b("ReduceMean", build(b, steps), axes=[1, 2], keepdims=0)), drawn((20,))
    ours = Model([RecordInput("data", shape=[20], target_shape=[6]), convert.from_onnx(model), EuclideanLoss("loss")])
    np.testing.assert_allclose(ours.predict(x), expected(model, x), atol=1e-5)


def sample_of(model, rows=ROWS):
    """Rows of the model's input; symbols all occur."""
    (given,) = model.graph.input
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim][1:]
    if given.type.tensor_type.elem_type == onnx.TensorProto.INT64:
        return np.random.default_rng(0).permutation(np.arange(rows * shape[0]) % 11).reshape(rows, *shape)
    return drawn(shape, rows)


@pytest.mark.parametrize("name", MODELS)
def test_a_net_computes_what_onnxruntime_does(name):
    model = MODELS[name]()
    x = sample_of(model)
    wanted = expected(model, x)
    np.testing.assert_allclose(in_a_loop(convert.from_onnx(model), x), wanted, atol=1e-5 * np.abs(wanted).max())


CLASSES = 10


class OfPositions(Module):
    """Scores (B, T, V) as those of images of width 1, whose labels are maps."""

    def __init__(self, net):
        self.net = net

    def forward(self, x):
        return autograd.expand_dims(autograd.swapaxes(self.net(x), 1, 2), 3)


def layers_of(net, model, **data):
    """A net with a loss: over classes, or for symbols over the next symbol at each step."""
    shape = list(sample_of(model).shape[1:])
    if len(shape) > 1:
        return [RecordInput("data", shape=shape, **data), net, SoftmaxLoss("loss")]
    labels = {} if data else {"label_shape": [*shape, 1]}  # shards know it
    return [RecordInput("data", shape=shape, **labels, **data), OfPositions(net), SoftmaxLoss("loss")]


def probabilities(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def for_nets(x):
    """Samples as nets take them, with labels: images have their channels last."""
    if x.ndim > 2:
        return np.moveaxis(x, 1, -1), np.arange(len(x)) % CLASSES
    return x, np.roll(x, -1, axis=1)


def mapped(labels):
    return labels if labels.ndim == 1 else labels[:, :, None]


@pytest.mark.parametrize("name", MODELS)
def test_a_net_predicts_in_a_model_what_it_does_in_onnxruntime(name):
    model = MODELS[name]()
    net, x = convert.from_onnx(model), sample_of(model)
    ours, wanted = Model(layers_of(net, model)), probabilities(expected(model, x))
    samples, labels = for_nets(x)
    np.testing.assert_allclose(ours.predict(samples).reshape(wanted.shape), wanted, atol=1e-5)
    of_labels = np.take_along_axis(wanted, labels[..., None], axis=-1)
    np.testing.assert_allclose(ours.evaluate(samples, mapped(labels))["loss"], -np.log(of_labels).mean(), rtol=1e-4)


STRATEGIES = {
    "AllReduce": ClusterTopology.allreduce(2),
    "Sandblaster": ClusterTopology.sandblaster(2, nservers=2),
    "Downpour": ClusterTopology.downpour(2, nservers=2),
    "Hogwild": ClusterTopology.hogwild(2),
    "hybrid": ClusterTopology.hybrid(2, nworkers_per_group=2),
}


TRAINED = {"mobilenet": mobilenet, "vit": lambda: vit(depth=1), "gpt": lambda: gpt(depth=1), "lstm": lstm}


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_net_trains_on_as_a_job(strategy, name, tmp_path):
    model = TRAINED[name]()
    samples, labels = for_nets(sample_of(model, rows=16))
    labels = mapped(labels)
    write_shards(tmp_path / "train", samples, labels)
    inside = {"": "net"} if name in ("gpt", "lstm") else None
    convert.to_torch(convert.from_onnx(model), tmp_path / "w.safetensors", names=inside)
    job = Job(
        name="onward",
        layers=layers_of(convert.from_onnx(model), model, path=str(tmp_path / "train"), batchsize=16),
        updater=SGD(lr=0.01),
        train_steps=3,
        disp_freq=1,
        cluster=STRATEGIES[strategy],
        checkpoint_path=tmp_path / "w.safetensors",
    )
    prepared = prepare(job)
    assert check_given(prepared)[0].startswith(f"{len(prepared.shapes)} of {len(prepared.shapes)} initial parameters")
    ran = run_topology(prepared, tmp_path / "run")
    first, *_, last = [event["metrics"]["loss"] for event in ran.events if event["kind"] == "metrics"]
    if strategy in ("AllReduce", "Sandblaster"):
        ours = Model(layers_of(convert.from_onnx(model), model))
        np.testing.assert_allclose(first, ours(samples, labels).metrics["loss"], rtol=1e-4)
        assert last < first
    assert np.isfinite(last)


def written() -> set[str]:
    """The operators whose names stand in the code of the export."""
    trees = [ast.parse(path.read_text()) for path in Path(onnx_export.__file__).parent.glob("*.py")]
    texts = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {schema.name for schema in onnx.defs.get_all_schemas()} & texts


def test_every_operator_that_this_project_writes_is_read():
    computed = {"ConstantOfShape", "Range", "Shape", "Trilu"}  # before the model runs
    inside = {"Erf"}  # of a GELU
    assert computed | inside | {"GRU", "LSTM", "RNN"} < written()
    assert written() - computed - inside <= CONVERTERS.keys()


def test_outputs_are_chosen_by_name():
    b = Builder()
    build, shape = over_time("LSTM")
    features = build(b, b.take("x", *shape))
    model, x = b.model(b("MatMul", features, b.weight("head", 6, 2))), drawn(shape)
    net = convert.from_onnx(model, outputs=[features])
    assert [name for name, _ in net.named_layers().values()] == ["r"]
    again = onnx.ModelProto()
    again.CopyFrom(model)
    again.graph.output[0].name = features
    np.testing.assert_allclose(in_a_loop(net, x), expected(again, x), atol=1e-5)
    with pytest.raises(ConfigError, match=r"outputs: must be tensors of the model\. Received: 'haed'"):
        convert.from_onnx(model, outputs=["haed"])


def fixed(op, *inputs, shape=(5, 4), **attributes):
    """A model of one node."""
    b = Builder()
    return b.model(b(op, b.take("x", *shape), *inputs, **attributes))


REFUSED = {
    "has no counterpart here. Did you mean Softplus": lambda: fixed("Softplos"),
    "along which the rows of the mini-batch lie": lambda: fixed("Softmax", axis=0),
    "auto_pad must not be SAME_UPPER": lambda: fixed(
        "MaxPool", shape=IMAGE, kernel_shape=[2, 2], auto_pad="SAME_UPPER"
    ),
    "count_include_pad must not be 0": lambda: fixed(
        "AveragePool", shape=IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1]
    ),
    r"mixes the rows of a mini-batch where it sees \(rows, 20\) as \(5, rows, 4\)": lambda: fixed(
        "Reshape", np.array([5, -1, 4])
    ),
    "must have samples of a known shape. Received: batch, steps. Give .*shapes={'x'": lambda: fixed(
        "Relu", shape=("steps",)
    ),
    "whose shape depends on what the model computes": lambda: fixed("Reshape", np.array([-1, 3, 5])),
    "the mini-batch must be the first axis": lambda: fixed("Transpose", perm=[1, 0, 2]),
    "a constant that differs from row to row": lambda: fixed("Add", np.ones((ROWS, 1, 1), F32)),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_has_no_counterpart_is_named(said):
    with pytest.raises(ConfigError, match=said):
        convert.from_onnx(REFUSED[said]())


def test_files_that_are_no_models_are_named(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    for path in (tmp_path / "m.onnx", tmp_path / "none.onnx"):
        with pytest.raises(ConfigError, match="is not a readable ONNX model"):
            convert.from_onnx(path)


def test_free_sizes_are_given_and_names_are_those_of_the_weights(tmp_path):
    b = Builder()
    x = b.take("x", 3, "height", "width")
    y = b("Relu", b.conv(x, "body.stem", 3, 4, 3, bias=True))
    model = b.model(b.gemm(b("Flatten", b("GlobalAveragePool", y), axis=1), "head", 4, 2))
    onnx.save(model, tmp_path / "m.onnx")
    net = convert.from_onnx(tmp_path / "m.onnx", shapes={"x": (3, 6, 5)})
    assert convert.to_torch(net).keys() == {"body.stem.weight", "body.stem.bias", "head.weight", "head.bias"}
    x = drawn((3, 6, 5))
    np.testing.assert_allclose(in_a_loop(net, x), expected(model, x), atol=1e-5)


@pytest.mark.parametrize(("write", "kind"), [("gelu", "NONE"), ("gelu_tanh", "TANH")])
def test_a_gelu_is_one_layer_unless_its_parts_are_read(write, kind):
    b = Builder()
    net = convert.from_onnx(b.model(getattr(b, write)(b.take("x", 4))))
    ((_, layer),) = net.named_layers().values()
    assert isinstance(layer, GELU) and layer.proto.gelu_conf.approximate == getattr(layer.proto.gelu_conf, kind)
    b = Builder()
    y = b.gelu_tanh(b.take("x", 4))
    model = b.model(b("Add", y, next(node.output[0] for node in b.nodes if node.op_type == "Tanh")))
    x = drawn((4,))
    np.testing.assert_allclose(in_a_loop(convert.from_onnx(model), x), expected(model, x), atol=1e-6)


def test_constants_learn_unless_they_are_masks():
    b = Builder()
    mask = np.where(np.tril(np.ones((4, 4))), 0, -np.inf).astype(F32)
    masked = b("Softmax", b("Add", b("Mul", b.take("x", 4, 4), b.weight("gain", 4)), mask), axis=-1)
    net = convert.from_onnx(b.model(masked))
    scales = {name: layer.proto.param[0].lr_scale for name, layer in net.named_layers().values()}
    assert scales.pop("gain") == 1 and [*scales.values()] == [0]


def test_a_table_that_is_the_last_weight_too_stays_one_parameter():
    state = convert.to_torch(convert.from_onnx(MODELS["gpt"]()))
    np.testing.assert_array_equal(state["wte.weight"], state["head.weight"])
    convert.from_torch(convert.from_onnx(MODELS["gpt"]()), {key: state[key] for key in state if key != "head.weight"})


def test_a_layer_that_is_called_twice_stays_one():
    b = Builder()
    x = b.take("x", 3, 4)
    weights = b.weight("turned", 4, 4), b.weight("f.bias", 4), b.positive("n.weight", 4), b.weight("n.bias", 4)
    for _ in range(2):
        x = b("LayerNormalization", b("Add", b("MatMul", x, weights[0]), weights[1]), *weights[2:], axis=-1)
    x = b("Flatten", x, axis=1)
    x = b("Gemm", b("Gemm", x, b.weight("g.weight", 12, 12), transB=1), "g.weight", transB=1)
    model, samples = b.model(x), drawn((3, 4))
    net = convert.from_onnx(model)
    assert [name for name, _ in net.named_layers().values()] == ["turned", "n", "g"]
    np.testing.assert_allclose(in_a_loop(net, samples), expected(model, samples), atol=1e-5)


def test_what_this_project_writes_is_read(tmp_path):
    layers = [
        RecordInput("data", shape=[3, 8, 6]),
        Convolution("conv", num_filters=4, kernel=3, pad=1),
        GroupNorm("norm", num_groups=2),
        STanh(),
        LRN(local_size=3),
        Reshape("sequence", shape=[4, 48]),
        LayerNorm("layer"),
        Attention("mix", num_heads=2),
        InnerProduct("out", num_output=5),
        SoftmaxLoss("loss"),
    ]
    model = Model(layers)
    model.to_onnx(tmp_path / "m.onnx")
    x = drawn((8, 6, 3))
    net = convert.from_onnx(tmp_path / "m.onnx", shapes={"data": (3, 8, 6)})
    np.testing.assert_allclose(in_a_loop(net, np.moveaxis(x, -1, 1)), model.predict(x), atol=1e-5)
