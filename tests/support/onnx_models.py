"""ONNX models as PyTorch exports them, with random weights: nodes, names of weights and shapes that are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from singa_dask import convert
from singa_dask.tensors.tensor import Tensor


class Builder:
    """Collects nodes and weights. Inputs of nodes are names, or arrays, which become constants."""

    def __init__(self, opset: int = 17, seed: int = 0) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}
        self.inputs: list[Any] = []
        self.opset, self.draw = opset, np.random.default_rng(seed)

    def take(self, name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, ["batch", *shape]))
        return name

    def weight(self, name: str, *shape: int, scale: float | None = None, mean: float = 0.0) -> str:
        scale = (1 / np.sqrt(max(1, np.prod(shape[1:])))) if scale is None else scale
        self.weights[name] = (mean + scale * self.draw.normal(size=shape)).astype(np.float32)
        return name

    def positive(self, name: str, *shape: int) -> str:
        self.weights[name] = self.draw.uniform(0.5, 1.5, shape).astype(np.float32)
        return name

    def __call__(self, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        names = []
        for each in inputs:
            if not isinstance(each, str):
                name, array = f"const_{len(self.nodes)}_{len(names)}", np.asarray(each)
                self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
                each = name
            names.append(each)
        made = [f"/{op}_{len(self.nodes)}_output_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, name=f"/{op}_{len(self.nodes)}", **attributes))
        return made[0] if outputs == 1 else made

    def model(self, *outputs: str) -> Any:
        given = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "model", self.inputs, made, given)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        model.ir_version = 8
        return model

    # What PyTorch writes for its modules:

    def conv(
        self,
        x: str,
        name: str,
        inputs: int,
        filters: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        **more: Any,
    ) -> str:
        weights = [self.weight(f"{name}.weight", filters, inputs // groups, kernel, kernel)]
        weights += [self.weight(f"{name}.bias", filters, scale=0.1)] if bias else []
        pads = more.pop("pads", [kernel // 2] * 4)
        return self(
            "Conv",
            x,
            *weights,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=pads,
            group=groups,
            dilations=[1, 1],
        )

    def norm(self, x: str, name: str, channels: int, epsilon: float = 1e-5) -> str:
        names = [self.positive(f"{name}.weight", channels), self.weight(f"{name}.bias", channels, scale=0.1)]
        names += [
            self.weight(f"{name}.running_mean", channels, scale=0.1),
            self.positive(f"{name}.running_var", channels),
        ]
        return self("BatchNormalization", x, *names, epsilon=epsilon, momentum=0.9)

    def linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """Of tensors (rows, ..., inputs): a product, whose weight the exporter has turned, and a sum."""
        weight = self.weight(f"onnx::MatMul_{name}", inputs, outputs, scale=inputs**-0.5)
        return self("Add", self.weight(f"{name}.bias", outputs, scale=0.1), self("MatMul", x, weight))

    def gemm(self, x: str, name: str, inputs: int, outputs: int) -> str:
        return self(
            "Gemm",
            x,
            self.weight(f"{name}.weight", outputs, inputs),
            self.weight(f"{name}.bias", outputs, scale=0.1),
            transB=1,
        )

    def layer_norm(self, x: str, name: str, size: int) -> str:
        """One node, or before opset 17 its formula."""
        scale, bias = self.positive(f"{name}.weight", size), self.weight(f"{name}.bias", size, scale=0.1)
        if self.opset >= 17:
            return self("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)
        away = self("Sub", x, self("ReduceMean", x, axes=[-1]))
        variance = self("ReduceMean", self("Pow", away, np.float32(2)), axes=[-1])
        normal = self("Div", away, self("Sqrt", self("Add", variance, np.float32(1e-5))))
        return self("Add", self("Mul", normal, scale), bias)

    def gelu(self, x: str) -> str:
        area = self("Add", self("Erf", self("Div", x, np.float32(np.sqrt(2)))), np.float32(1))
        return self("Mul", self("Mul", x, area), np.float32(0.5))

    def gelu_tanh(self, x: str) -> str:
        cubed = self("Mul", self("Pow", x, np.float32(3)), np.float32(0.044715))
        inner = self("Mul", self("Add", x, cubed), np.float32(np.sqrt(2 / np.pi)))
        return self("Mul", self("Mul", x, np.float32(0.5)), self("Add", self("Tanh", inner), np.float32(1)))

    def size(self, x: str, axis: int) -> str:
        """One size of a tensor, as the exporter takes it, shape (1,)."""
        return self("Unsqueeze", self("Gather", self("Shape", x), np.int64(axis), axis=0), np.array([0]))


def resnet(
    blocks: tuple[int, ...], *, bottleneck: bool = False, width: int = 8, classes: int = 10, size: int = 32
) -> Any:
    """ResNet-18 with blocks (2, 2, 2, 2), ResNet-50 with bottleneck and (3, 4, 6, 3)."""
    b = Builder(13)
    x = b.take("input", 3, size, size)
    x = b("Relu", b.norm(b.conv(x, "conv1", 3, width, 7, 2), "bn1", width))
    x = b("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=0)
    inputs, grown = width, 4 if bottleneck else 1
    for stage, count in enumerate(blocks):
        own = width << stage
        for i in range(count):
            name, stride, kept = f"layer{stage + 1}.{i}", 2 if stage and not i else 1, x
            kernels = [(1, 1), (3, stride), (1, 1)] if bottleneck else [(3, stride), (3, 1)]
            for k, (kernel, step) in enumerate(kernels, 1):
                filters = own * (grown if k == len(kernels) else 1)
                source = inputs if k == 1 else own
                x = b.norm(b.conv(x, f"{name}.conv{k}", source, filters, kernel, step), f"{name}.bn{k}", filters)
                x = b("Relu", x) if k < len(kernels) else x
            if stride > 1 or inputs != own * grown:
                kept = b.norm(
                    b.conv(kept, f"{name}.downsample.0", inputs, own * grown, 1, stride),
                    f"{name}.downsample.1",
                    own * grown,
                )
            x, inputs = b("Relu", b("Add", x, kept)), own * grown
    x = b("Flatten", b("GlobalAveragePool", x), axis=1)
    return b.model(b.gemm(x, "fc", inputs, classes))


def mobilenet(classes: int = 10, size: int = 32) -> Any:
    """MobileNetV2, some of its blocks."""
    b = Builder(13)

    def relu6(x: str) -> str:
        return b("Clip", x, np.float32(0), np.float32(6))

    def block(x: str, name: str, inputs: int, outputs: int, stride: int, grown: int) -> str:
        wide, y = inputs * grown, x
        if grown > 1:
            y = relu6(b.norm(b.conv(y, f"{name}.conv.0.0", inputs, wide, 1), f"{name}.conv.0.1", wide))
        y = relu6(b.norm(b.conv(y, f"{name}.conv.1.0", wide, wide, 3, stride, groups=wide), f"{name}.conv.1.1", wide))
        y = b.norm(b.conv(y, f"{name}.conv.2", wide, outputs, 1), f"{name}.conv.3", outputs)
        return b("Add", x, y) if stride == 1 and inputs == outputs else y

    x = b.take("input", 3, size, size)
    x = relu6(b.norm(b.conv(x, "features.0.0", 3, 8, 3, 2), "features.0.1", 8))
    for i, (inputs, outputs, stride, grown) in enumerate(
        [(8, 8, 1, 1), (8, 12, 2, 6), (12, 12, 1, 6), (12, 16, 2, 6)], 1
    ):
        x = block(x, f"features.{i}", inputs, outputs, stride, grown)
    x = relu6(b.norm(b.conv(x, "features.5.0", 16, 32, 1), "features.5.1", 32))
    x = b("ReduceMean", x, axes=[2, 3], keepdims=0)
    return b.model(b.gemm(x, "classifier.1", 32, classes))


def vit(*, opset: int = 17, size: int = 16, patch: int = 4, channels: int = 16, heads: int = 2, depth: int = 2) -> Any:
    """torchvision's ViT: a token for the class, and attention whose rows lie between the positions and the heads."""
    b = Builder(opset)
    x = b.take("input", 3, size, size)
    tokens, d = (size // patch) ** 2, channels // heads
    patches = b(
        "Conv",
        x,
        b.weight("conv_proj.weight", channels, 3, patch, patch),
        b.weight("conv_proj.bias", channels, scale=0.1),
        kernel_shape=[patch] * 2,
        strides=[patch] * 2,
    )
    rows = b.size(x, 0)
    y = b("Reshape", patches, b("Concat", rows, np.array([channels]), np.array([tokens]), axis=0))
    y = b("Transpose", y, perm=[0, 2, 1])
    token = b(
        "Expand",
        b.weight("class_token", 1, 1, channels),
        b("Concat", rows, np.array([1]), np.array([channels]), axis=0),
    )
    y = b("Add", b("Concat", token, y, axis=1), b.weight("encoder.pos_embedding", 1, tokens + 1, channels, scale=0.5))
    length = tokens + 1
    for i in range(depth):
        name = f"encoder.layers.encoder_layer_{i}"
        h = b("Transpose", b.layer_norm(y, f"{name}.ln_1", channels), perm=[1, 0, 2])  # (T, B, C)
        h = b.linear(h, f"{name}.self_attention.in_proj", channels, 3 * channels)
        h = b("Reshape", h, b("Concat", np.array([length]), rows, np.array([3]), np.array([channels]), axis=0))
        h = b("Squeeze", b("Transpose", b("Unsqueeze", h, np.array([0])), perm=[3, 1, 2, 0, 4]), np.array([3]))
        parts = [b("Gather", h, np.int64(k), axis=0) for k in range(3)]
        merged = b("Concat", np.array([length]), b("Mul", rows, np.array([heads])), np.array([d]), axis=0)
        q, k, v = (b("Transpose", b("Reshape", part, merged), perm=[1, 0, 2]) for part in parts)  # (B N, T, D)
        scores = b("MatMul", b("Mul", q, np.float32(d**-0.5)), b("Transpose", k, perm=[0, 2, 1]))
        mixed = b("MatMul", b("Softmax", scores, axis=-1), v)
        mixed = b("Transpose", mixed, perm=[1, 0, 2])
        flat = b("Reshape", mixed, b("Concat", b("Mul", np.array([length]), rows), np.array([channels]), axis=0))
        out = b.gemm(flat, f"{name}.self_attention.out_proj", channels, channels)
        out = b("Reshape", out, b("Concat", np.array([length]), rows, np.array([channels]), axis=0))
        y = b("Add", b("Transpose", out, perm=[1, 0, 2]), y)
        h = b.gelu(b.linear(b.layer_norm(y, f"{name}.ln_2", channels), f"{name}.mlp.0", channels, 2 * channels))
        y = b("Add", y, b.linear(h, f"{name}.mlp.3", 2 * channels, channels))
    y = b("Gather", b.layer_norm(y, "encoder.ln", channels), np.int64(0), axis=1)
    return b.model(b.gemm(y, "heads.head", channels, 10))


def gpt(
    *, opset: int = 17, steps: int = 6, symbols: int = 11, channels: int = 12, heads: int = 3, depth: int = 2
) -> Any:
    """A GPT that maps symbols (B, T) to scores (B, T, V), with the table of the symbols as its last weight."""
    b = Builder(opset)
    x = b.take("input_ids", steps, kind=TensorProto.INT64)
    d = channels // heads
    table = b.weight("wte.weight", symbols, channels, scale=0.5)
    positions = b("Gather", b.weight("wpe.weight", steps, channels, scale=0.5), np.arange(steps)[None], axis=0)
    y = b("Add", b("Gather", table, x, axis=0), positions)
    shape = b("Shape", x)
    rows = b("Unsqueeze", b("Gather", shape, np.int64(0), axis=0), np.array([0]))
    for i in range(depth):
        name = f"h.{i}"
        h = b.linear(b.layer_norm(y, f"{name}.ln_1", channels), f"{name}.attn.c_attn", channels, 3 * channels)
        pieces = b("Split", h, np.array([channels] * 3), axis=-1, outputs=3)
        by_head = b("Concat", rows, np.array([steps]), np.array([heads]), np.array([d]), axis=0)
        q, k, v = (b("Transpose", b("Reshape", part, by_head), perm=[0, 2, 1, 3]) for part in pieces)
        scores = b("Div", b("MatMul", q, b("Transpose", k, perm=[0, 1, 3, 2])), np.float32(np.sqrt(d)))
        allowed = np.tril(np.ones((1, 1, steps, steps), bool))
        scores = b("Where", allowed, scores, np.float32(np.finfo(np.float32).min))
        mixed = b("Transpose", b("MatMul", b("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        mixed = b("Reshape", mixed, b("Concat", rows, np.array([steps]), np.array([channels]), axis=0))
        y = b("Add", y, b.linear(mixed, f"{name}.attn.c_proj", channels, channels))
        h = b.gelu_tanh(
            b.linear(b.layer_norm(y, f"{name}.ln_2", channels), f"{name}.mlp.c_fc", channels, 4 * channels)
        )
        y = b("Add", y, b.linear(h, f"{name}.mlp.c_proj", 4 * channels, channels))
    y = b.layer_norm(y, "ln_f", channels)
    return b.model(b("MatMul", y, b("Transpose", table, perm=[1, 0])))


def lstm(*, steps: int = 6, symbols: int = 11, units: int = 8) -> Any:
    """A bidirectional LSTM, then a GRU, as PyTorch writes them: symbols (B, T) to scores (B, T, V)."""
    b = Builder()
    x = b.take("input_ids", steps, kind=TensorProto.INT64)
    y = b("Transpose", b("Gather", b.weight("words.weight", symbols, units), x, axis=0), perm=[1, 0, 2])
    for op, ways, gates, inputs in (("LSTM", 2, 4, units), ("GRU", 1, 3, 2 * units)):
        weights = [
            b.weight(f"{op}.{key}", ways, gates * units, n, scale=0.4) for key, n in (("W", inputs), ("R", units))
        ]
        bias = b.weight(f"{op}.B", ways, 2 * gates * units, scale=0.1)
        b.weights[bias][:, -units:] = 0
        zeros = b("ConstantOfShape", b("Concat", np.array([ways]), b.size(x, 0), np.array([units]), axis=0))
        more = {"linear_before_reset": 1} if op == "GRU" else {"direction": "bidirectional"}
        y = b(op, y, *weights, bias, "", *[zeros] * (1 + (op == "LSTM")), hidden_size=units, outputs=2, **more)[0]
        y = b("Reshape", b("Transpose", y, perm=[0, 2, 1, 3]), np.array([0, 0, ways * units]))
    return b.model(b.linear(b("Transpose", y, perm=[1, 0, 2]), "head", units, symbols))


def read_again(model: Any, fed: Any, results: list[Any], **shapes: Any) -> None:
    """Assert that the model, as a net, gives these results."""
    net = convert.from_onnx(model, shapes={"data": fed.shape[1:], **shapes})
    ours = net(*(Tensor.of(each) for each in (fed if isinstance(fed, tuple) else (fed,))))
    for y, result in zip(ours if isinstance(ours, tuple) else (ours,), results, strict=True):
        np.testing.assert_allclose(y.to_numpy(), result, rtol=1e-5, atol=1e-5 * max(1, np.abs(result).max()))


MODELS = {
    "resnet18": lambda: resnet((2, 2, 2, 2)),
    "resnet50": lambda: resnet((3, 4, 6, 3), bottleneck=True),
    "mobilenet": mobilenet,
    "vit": vit,
    "vit of opset 13": lambda: vit(opset=13),
    "gpt": gpt,
    "lstm": lstm,
    "gpt of opset 13": lambda: gpt(opset=13),
}
