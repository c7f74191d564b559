"""Small nets of the kinds that people train: the loss falls, and several workers train as one."""

from functools import partial

import numpy as np
import pytest
from support.gradients import check_gradients, loss_of
from support.partitioned import assert_equal_to_serial, batches, net_of

from singa_dask import Module, autograd, tensor
from singa_dask.algorithms import BP
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import (
    GELU,
    GRU,
    LSTM,
    RNN,
    Add,
    Attention,
    BatchNorm,
    CharRNN,
    ClassToken,
    Concate,
    Convolution,
    Embedding,
    EuclideanLoss,
    GlobalPooling,
    GroupNorm,
    InnerProduct,
    LayerNorm,
    Mul,
    PositionalEmbedding,
    RecordInput,
    ReLU,
    RNNLabel,
    Select,
    Sigmoid,
    SoftmaxLoss,
    Tanh,
    TransposedConvolution,
    Upsampling,
    bidirectional,
)
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import Ops


def residual(norm=BatchNorm):
    """Two residual blocks, the second one with a gate per channel, and a dense connection."""
    layers = [RecordInput("data", shape=[3, 6, 6]), Convolution("stem", "data", num_filters=4, kernel=3, pad=1)]
    source = "stem"
    for block in ("a", "b"):
        layers += [
            norm(f"{block}_norm", source),
            ReLU(f"{block}_relu", f"{block}_norm"),
            Convolution(f"{block}_conv", f"{block}_relu", num_filters=4, kernel=3, pad=1),
            GlobalPooling(f"{block}_mean", f"{block}_conv"),
            InnerProduct(f"{block}_ip", f"{block}_mean", num_output=4),
            Sigmoid(f"{block}_gate", f"{block}_ip"),
            Mul(f"{block}_gated", [f"{block}_conv", f"{block}_gate"]),
            Add(f"{block}_sum", [f"{block}_gated", source]),
        ]
        source = f"{block}_sum"
    return [
        *layers,
        Concate("dense", ["stem", "a_sum", "b_sum"], concate_dim=1),
        GELU("gelu", "dense"),
        GlobalPooling("pool", "gelu"),
        InnerProduct("scores", "pool", num_output=5),
        SoftmaxLoss("loss", ["scores", "data"]),
    ]


STEPS, ROWS, SYMBOLS = 6, 4, 7


def transformer(blocks=2, heads=4, kind="LEARNED", causal=True, rows=ROWS):
    """A small GPT."""
    layers = [
        CharRNN("data", path="text", unroll_len=STEPS, batchsize=rows),
        RNNLabel("label", "data"),
        Embedding("symbols", "data", vocab_size=SYMBOLS, feature_dim=8),
        PositionalEmbedding("in", "symbols", kind=kind),
    ]
    source = "in"
    for block in range(blocks):
        layers += [
            LayerNorm(f"norm{block}a", source),
            Attention(f"attention{block}", f"norm{block}a", num_heads=heads, causal=causal),
            Add(f"sum{block}a", [f"attention{block}", source]),
            LayerNorm(f"norm{block}b", f"sum{block}a"),
            InnerProduct(f"wide{block}", f"norm{block}b", num_output=16),
            GELU(f"gelu{block}", f"wide{block}"),
            InnerProduct(f"narrow{block}", f"gelu{block}", num_output=8),
            Add(f"sum{block}b", [f"narrow{block}", f"sum{block}a"]),
        ]
        source = f"sum{block}b"
    return [
        *layers,
        LayerNorm("norm", source),
        InnerProduct("out", "norm", num_output=SYMBOLS),
        SoftmaxLoss("loss", ["out", "label"], scale=1 / STEPS),
    ]


def text(rows=ROWS, seed=5):
    draw = np.random.default_rng(seed)
    return [{"data": (draw.integers(0, SYMBOLS, (rows, STEPS + 1)).astype(float), None)}]


def vision_transformer():
    """Attention between the patches of an image."""
    return [
        RecordInput("data", shape=[3, 6, 6]),
        Convolution("patches", "data", num_filters=8, kernel=2, stride=2),
        PositionalEmbedding("in", "patches"),
        LayerNorm("norm", "in"),
        Attention("attention", "norm", num_heads=2),
        Add("sum", ["attention", "in"]),
        Convolution("wide", "sum", num_filters=8, kernel=1),
        GELU("gelu", "wide"),
        GlobalPooling("pool", "gelu"),
        InnerProduct("scores", "pool", num_output=5),
        SoftmaxLoss("loss", ["scores", "data"]),
    ]


def vision_transformer_with_a_token():
    """Whose heads share keys."""
    return [
        RecordInput("data", shape=[3, 6, 6]),
        Convolution("patches", "data", num_filters=8, kernel=2, stride=2),
        PositionalEmbedding("in", "patches"),
        ClassToken("token", "in"),
        Attention("attention", "token", num_heads=4, num_kv_heads=2, rotary=True),
        Add("sum", ["attention", "token"]),
        Select("first", "sum"),
        InnerProduct("scores", "first", num_output=5),
        SoftmaxLoss("loss", ["scores", "data"]),
    ]


def translator():
    """Reads sequences of 4 to 7 steps, and with these in mind others of 6, which it classifies."""
    read = Tanh("read")(RecordInput("given", shape=[3], time_steps=7, lengths="n", has_label=False))
    written = RecordInput("data", shape=[4], time_steps=6)
    encoded = bidirectional(read, LSTM("there", dim_hidden=2), LSTM("back", dim_hidden=2), "encoded")
    decoded = GRU("decoded", [Tanh("before")(written), encoded], dim_hidden=4)
    memory = Attention("memory", [decoded, encoded], num_heads=2)
    scores = InnerProduct("scores", num_output=5)(Add("sum")(decoded, memory))
    count = RecordInput("n", column="n", shape=[1], has_label=False)
    return [count, SoftmaxLoss("loss")(scores, written)]


def u_net():
    """Down, up by a transposed convolution and between pixels, and across."""
    return [
        RecordInput("data", shape=[3, 8, 8]),
        Convolution("down1", "data", num_filters=6, kernel=3, pad=2, dilation=2),
        GELU("gelu1", "down1"),
        Convolution("down2", "gelu1", num_filters=8, kernel=2, stride=2),
        GELU("gelu2", "down2"),
        Convolution("by_channel", "gelu2", num_filters=8, kernel=3, pad=1, groups=8),
        TransposedConvolution("up1", "by_channel", num_filters=6, kernel=2, stride=2),
        Upsampling("up2", "gelu2", method="BILINEAR"),
        Concate("across", ["up1", "up2", "gelu1"], concate_dim=1),
        Convolution("last", "across", num_filters=10, kernel=1, groups=2),
        GlobalPooling("pool", "last"),
        InnerProduct("scores", "pool", num_output=5),
        SoftmaxLoss("loss", ["scores", "data"]),
    ]


def windows(shape, **conf):
    """Convolutions of volumes, or of sequences that are read whole, up to the scores."""
    return [
        RecordInput("data", shape=shape, **conf),
        Convolution("conv1", "data", num_filters=6, kernel=3, pad=1),
        ReLU("relu", "conv1"),
        Convolution("conv2", "relu", num_filters=6, kernel=3, stride=2, groups=3),
        TransposedConvolution("back", "conv2", num_filters=5, kernel=3, stride=2),
        GlobalPooling("pool", "back", pool="MAX"),
        InnerProduct("scores", "pool", num_output=5),
    ]


def tagger(cell, classes=5):
    """Two bidirectional layers; the class of each record of a sequence, and that of the next layer's last step."""
    data = RecordInput("data", shape=[3], sequence=STEPS)
    first = bidirectional(data, cell("a", dim_hidden=4), cell("b", dim_hidden=3), "first")
    second = bidirectional(first, cell("c", dim_hidden=3), cell("d", dim_hidden=3), "second")
    return [data, SoftmaxLoss("loss")(InnerProduct("scores", num_output=classes)(second), data)]


DRAW = np.random.default_rng(0)
IMAGES = batches((6, 6, 3), 5, count=1)
SEQUENCES = {"data": (DRAW.standard_normal((7, 9, 3)), None), "target": (DRAW.standard_normal((7, 5)), None)}
TRANSLATED = {
    "given": (DRAW.standard_normal((ROWS, 7, 3)), None),
    "n": (np.array([[7.0], [4], [6], [5]]), None),
    "data": (DRAW.standard_normal((ROWS, 6, 4)), DRAW.integers(0, 5, ROWS)),
}
TAGGED = {"data": (DRAW.standard_normal((ROWS, STEPS, 3)), DRAW.integers(0, 5, (ROWS, STEPS)))}
SEQUENCE_NET = [
    RecordInput("target", shape=[5], has_label=False),
    *windows([3], sequence=9, has_label=False),
    EuclideanLoss("loss", ["scores", "target"]),
]
# Layers, a mini-batch, and the part of the loss that is left after some steps, at most.
NETS = {
    "residual": (residual(), IMAGES, 0.95),
    "residual with group norm": (residual(partial(GroupNorm, num_groups=2)), IMAGES, 0.95),
    "residual with layer norm": (residual(LayerNorm), IMAGES, 0.95),
    "transformer": (transformer(), text(), 0.97),
    "transformer with waves": (transformer(kind="SINUSOIDAL"), text(), 0.97),
    "vision transformer": (vision_transformer(), IMAGES, 0.98),
    "vision transformer with a token": (vision_transformer_with_a_token(), IMAGES, 0.98),
    "translator": (translator(), [TRANSLATED], 0.99),
    "U-Net": (u_net(), batches((8, 8, 3), 5, count=1), 0.97),
    "volumes": (
        [*windows([2, 3, 5, 4]), SoftmaxLoss("loss", ["scores", "data"])],
        batches((3, 5, 4, 2), 5, count=1),
        0.97,
    ),
    "sequences read whole": (SEQUENCE_NET, [SEQUENCES], 0.97),
    **{f"bidirectional {cell.__name__}": (tagger(cell), [TAGGED], 0.99) for cell in (RNN, GRU, LSTM)},
}


def over_time(layers, **settings):
    return net_of(layers, unroll_len=STEPS, **settings)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", NETS)
def test_the_loss_falls_and_workers_train_as_one(name, dim):
    layers, given, falls = NETS[name]
    steps = STEPS if name.startswith(("transformer", "bidirectional")) else 1
    sizes = (2, 3) if name in ("transformer", "U-Net", "bidirectional GRU") else (2,)
    net = net_of(layers, unroll_len=steps, partition_dim=dim)
    results = assert_equal_to_serial(net, BP(), given * 8, sizes, rtol=1e-7)
    for result in results.values():
        losses = [metrics["loss"] for metrics in result["losses"]]
        assert losses[-1] < falls * losses[0]


class GPT(Module):
    """The same, with one block, as a class."""

    def __init__(self):
        self.embed, self.positions = Embedding(vocab_size=SYMBOLS, feature_dim=8), PositionalEmbedding()
        self.norm, self.attention = LayerNorm(), Attention(num_heads=4, causal=True)
        self.last, self.wide, self.narrow = LayerNorm(), InnerProduct(num_output=16), InnerProduct(num_output=8)
        self.out = InnerProduct(num_output=SYMBOLS)

    def forward(self, x):
        x = self.positions(self.embed(x))
        x = x + self.attention(self.norm(x))
        x = x + self.narrow(autograd.gelu(self.wide(self.last(x))))
        return self.out(x)


def test_a_transformer_as_a_class_computes_on_sequences_what_the_net_computes(monkeypatch):
    monkeypatch.setattr(autograd, "training", True)
    rows = text()[0]["data"][0]
    model = GPT()
    scores = model(tensor.from_numpy(rows[:, :-1]))
    assert scores.shape == (ROWS, STEPS, SYMBOLS)
    loss = autograd.softmax_cross_entropy(scores, tensor.from_numpy(rows[:, 1:]))
    state = model.state_dict()
    gradients = {param.name: gradient.array.copy() for param, gradient in autograd.backward(loss)}

    layers = [CharRNN("data", path="text", unroll_len=STEPS, batchsize=ROWS), RNNLabel("label", "data"), GPT()("data")]
    layers.append(SoftmaxLoss("loss", [layers[-1], "label"], scale=1 / STEPS))
    net = Net(over_time(layers), Phase.kTrain, Ops(np.float32))
    assert state.keys() == gradients.keys() == net.named_params.keys()
    for name, value in state.items():
        net.named_params[name].value[...] = value
    assert float(loss) == pytest.approx(loss_of(net, {"data": Batch(rows)}, Step(total_rows=ROWS)), rel=1e-5)
    given = scores.to_numpy().swapaxes(0, 1).reshape(-1, SYMBOLS)
    np.testing.assert_allclose(given, net.output("out"), rtol=1e-5, atol=1e-6)
    net.backward()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, net.named_params[name].grad, rtol=1e-4, atol=1e-6)


def test_heads_are_divided():
    net = over_time(transformer(1), partition_dim=1)
    results = assert_equal_to_serial(net, BP(), text(), (2, 3), rtol=1e-7)
    for size, bounds in ((2, (0, 2, 4)), (3, (0, 1, 2, 4))):
        own = {name: shard.bounds for name, shard in results[size]["own"].items() if name.startswith("attention")}
        assert own == dict.fromkeys(("attention0_weight", "attention0_bias", "attention0_output_weight"), bounds)


def test_fewer_heads_than_workers_stay_together():
    asked = transformer(1, heads=2)
    results = assert_equal_to_serial(over_time(asked, partition_dim=1), BP(), text(), (3,), rtol=1e-7)
    assert not any(name.startswith("attention") for name in results[3]["own"])
    asked[5] = Attention("attention0", "norm0a", num_heads=2, partition_dim=1)
    with pytest.raises(ConfigError, match=r"attention0.*cannot be split over 3 workers: it has 2 heads"):
        Net(over_time(asked), Phase.kTrain, Ops(), size=3)


@pytest.mark.parametrize(
    ("layers", "given"), [(transformer(1), text()[0]), (tagger(LSTM), TAGGED)], ids=["transformer", "bidirectional"]
)
def test_gradients_over_time(layers, given):
    net = Net(over_time(layers), Phase.kTrain, Ops(np.float64))
    net.initialise(1)
    feed, step = {"data": Batch(*given["data"])}, Step(total_rows=ROWS)
    check_gradients(net, lambda: loss_of(net, feed, step), 4)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"fold": False}, "folding is switched off"),
        ({"norm": BatchNorm("norm0a", "in")}, "an output row of 'norm0a' may depend on other rows"),
    ],
)
def test_attention_in_a_net_that_cannot_be_folded_is_refused(changed, why):
    layers = transformer(1)
    layers[4] = changed.get("norm", layers[4])
    with pytest.raises(ConfigError, match=rf"layer 'attention0': computes all time steps in one call.*{why}"):
        Net(over_time(layers), Phase.kTrain, Ops(), fold=changed.get("fold", True))
