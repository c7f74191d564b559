"""Small nets of the kinds that people train: the loss falls, and two workers train as one."""

from functools import partial

import numpy as np
import pytest
from support.gradients import check_gradients

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
    Sigmoid,
    SoftmaxLoss,
    TransposedConvolution,
    Upsampling,
    bidirectional,
)
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import Ops
from tests.support.partitioned import assert_equal_to_serial
from tests.unit.net.test_partition import batches, net_of


def trains(layers, given, sizes=(2,), falls=0.8, **settings):
    """Steps on the same mini-batch, which divide the loss by at least 1 / falls."""
    results = assert_equal_to_serial(net_of(layers, **settings), BP(), given * 8, sizes, rtol=1e-7)
    for result in results.values():
        losses = [metrics["loss"] for metrics in result["losses"]]
        assert losses[-1] < falls * losses[0]


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


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("norm", [BatchNorm, partial(GroupNorm, num_groups=2), LayerNorm])
def test_residual_net(dim, norm):
    trains(residual(norm), batches((6, 6, 3), 5, count=1), falls=0.95, partition_dim=dim)


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


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["LEARNED", "SINUSOIDAL"])
def test_causal_transformer(dim, kind):
    sizes = (2, 3) if kind == "LEARNED" else (2,)
    trains(transformer(kind=kind), text(), sizes, falls=0.97, unroll_len=STEPS, partition_dim=dim)


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


def test_a_transformer_as_a_class_computes_on_lists_of_time_steps_what_the_net_computes(monkeypatch):
    monkeypatch.setattr(autograd, "training", True)
    rows = text()[0]["data"][0]
    symbols, labels = [*rows[:, :-1].T], [*rows[:, 1:].T]
    model = GPT()
    scores = model(symbols)
    loss = autograd.softmax_cross_entropy([tensor.from_numpy(each) for each in scores], labels)
    assert [each.shape for each in scores] == [(ROWS, SYMBOLS)] * STEPS

    layers = [CharRNN("data", path="text", unroll_len=STEPS, batchsize=ROWS), RNNLabel("label", "data"), GPT()("data")]
    layers.append(SoftmaxLoss("loss", [layers[-1], "label"], scale=1 / STEPS))
    net = Net(net_of(layers, unroll_len=STEPS), Phase.kTrain, Ops(np.float32))
    state = model.state_dict()
    assert state.keys() == net.named_params.keys()
    for name, value in state.items():
        net.named_params[name].value[...] = value
    net.forward({"data": Batch(rows)}, Step(total_rows=ROWS))
    net.backward()
    np.testing.assert_allclose(np.concatenate(scores), net.output("out"), rtol=1e-5, atol=1e-6)
    assert float(loss) == pytest.approx(net.metrics()["loss"].total / ROWS, rel=1e-5)

    loss = autograd.softmax_cross_entropy(model([tensor.from_numpy(each) for each in symbols]), labels)
    gradients = {param.name: gradient.array.copy() for param, gradient in autograd.backward(loss)}
    assert gradients.keys() == state.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, net.named_params[name].grad, rtol=1e-4, atol=1e-6)


def test_heads_are_divided():
    results = assert_equal_to_serial(
        net_of(transformer(1), unroll_len=STEPS, partition_dim=1), BP(), text(), (2, 3), rtol=1e-7
    )
    for size, result in results.items():
        own = {name: portion.bounds for name, portion in result["own"].items() if name.startswith("attention")}
        assert own == dict.fromkeys(
            ("attention0_weight", "attention0_bias", "attention0_output_weight"),
            tuple(range(0, 5, 2)) if size == 2 else (0, 1, 2, 4),
        )


def test_fewer_heads_than_workers_stay_together():
    net = net_of(transformer(1, heads=2), unroll_len=STEPS, partition_dim=1)
    results = assert_equal_to_serial(net, BP(), text(), (3,), rtol=1e-7)
    assert not any(name.startswith("attention") for name in results[3]["own"])
    asked = transformer(1, heads=2)
    asked[5] = Attention("attention0", "norm0a", num_heads=2, partition_dim=1)
    with pytest.raises(ConfigError, match=r"attention0.*cannot be split over 3 workers: it has 2 heads"):
        Net(net_of(asked, unroll_len=STEPS), Phase.kTrain, Ops(), size=3)


def test_later_symbols_do_not_matter_to_a_causal_net():
    net = Net(net_of(transformer(), unroll_len=STEPS), Phase.kTrain, Ops(np.float64))
    net.initialise(1)
    (batch,) = text()
    first = batch["data"][0]
    second = first.copy()
    second[:, 4:] = (second[:, 4:] + 1) % SYMBOLS
    outputs = []
    for rows in (first, second):
        net.forward({"data": Batch(rows)}, Step(total_rows=ROWS))
        outputs.append(net.output("out").reshape(STEPS, ROWS, SYMBOLS).copy())
    np.testing.assert_array_equal(outputs[0][:4], outputs[1][:4])
    assert (outputs[0][4:] != outputs[1][4:]).any(axis=-1).all()


@pytest.mark.parametrize("fold", [True, False])
def test_gradients_of_a_transformer(fold):
    """Unrolled, too: without attention, which needs all time steps in one call."""
    layers = [layer for layer in transformer(1, kind="LEARNED") if fold or not isinstance(layer, Attention)]
    if not fold:
        layers[5] = Add("sum0a", ["norm0a", "in"])
    net = Net(net_of(layers, unroll_len=STEPS), Phase.kTrain, Ops(np.float64), fold=fold)
    net.initialise(1)
    step, batch = Step(total_rows=ROWS), Batch(text()[0]["data"][0])

    def loss():
        net.forward({"data": batch}, step)
        return net.metrics()["loss"].total / ROWS

    loss()
    net.backward()
    check_gradients(net, loss, per_entry=4)


def test_positions_of_an_unrolled_net_are_those_of_the_folded_one():
    layers = [layer for layer in transformer(0) if not isinstance(layer, LayerNorm)]
    layers[4] = InnerProduct("out", "in", num_output=SYMBOLS)
    batch, losses = Batch(text()[0]["data"][0]), []
    for fold in (True, False):
        net = Net(net_of(layers, unroll_len=STEPS), Phase.kTrain, Ops(np.float64), fold=fold)
        net.initialise(1)
        net.forward({"data": batch}, Step(total_rows=ROWS))
        net.backward()
        losses.append((net.metrics()["loss"].total, net.flat.grads.copy()))
    (folded, of_folded), (unrolled, of_unrolled) = losses
    assert folded == pytest.approx(unrolled, rel=1e-12)
    np.testing.assert_allclose(of_folded, of_unrolled, rtol=1e-9, atol=1e-12)


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
        Net(net_of(layers, unroll_len=STEPS), Phase.kTrain, Ops(), fold=changed.get("fold", True))


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


@pytest.mark.parametrize("dim", [0, 1])
def test_vision_transformer(dim):
    trains(vision_transformer(), batches((6, 6, 3), 5, count=1), falls=0.98, partition_dim=dim)


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


@pytest.mark.parametrize("dim", [0, 1])
def test_u_net(dim):
    trains(u_net(), batches((8, 8, 3), 5, count=1), (2, 3), falls=0.97, partition_dim=dim)


def windows(shape, **conf):
    """Convolutions of volumes, or of sequences that are read whole."""
    return [
        RecordInput("data", shape=shape, **conf),
        Convolution("conv1", "data", num_filters=6, kernel=3, pad=1),
        ReLU("relu", "conv1"),
        Convolution("conv2", "relu", num_filters=6, kernel=3, stride=2, groups=3),
        TransposedConvolution("back", "conv2", num_filters=5, kernel=3, stride=2),
        GlobalPooling("pool", "back", pool="MAX"),
        InnerProduct("scores", "pool", num_output=5),
        SoftmaxLoss("loss", ["scores", "data"]),
    ]


@pytest.mark.parametrize("dim", [0, 1])
def test_volumes(dim):
    trains(windows([2, 3, 5, 4]), batches((3, 5, 4, 2), 5, count=1), falls=0.97, partition_dim=dim)


@pytest.mark.parametrize("dim", [0, 1])
def test_sequences_read_whole(dim):
    layers = windows([3], sequence=9, has_label=False)
    layers[-1] = EuclideanLoss("loss", ["scores", "target"])
    layers.insert(1, RecordInput("target", shape=[5], has_label=False))
    draw = np.random.default_rng(0)
    given = {"data": (draw.standard_normal((7, 9, 3)), None), "target": (draw.standard_normal((7, 5)), None)}
    trains(layers, [given], falls=0.97, partition_dim=dim)


def tagger(cell, classes=5):
    """Two bidirectional layers; the class of each record of a sequence, and that of the next layer's last step."""
    data = RecordInput("data", shape=[3], sequence=STEPS)
    first = bidirectional(data, cell("a", dim_hidden=4), cell("b", dim_hidden=3), "first")
    second = bidirectional(first, cell("c", dim_hidden=3), cell("d", dim_hidden=3), "second")
    return [data, SoftmaxLoss("loss")(InnerProduct("scores", num_output=classes)(second), data)]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("cell", [RNN, GRU, LSTM])
def test_bidirectional_layers(cell, dim):
    draw = np.random.default_rng(0)
    given = {"data": (draw.standard_normal((ROWS, STEPS, 3)), draw.integers(0, 5, (ROWS, STEPS)))}
    trains(tagger(cell), [given], (2, 3), falls=0.99, unroll_len=STEPS, partition_dim=dim)


def test_every_output_of_a_bidirectional_net_depends_on_every_input():
    net = Net(net_of(tagger(GRU), unroll_len=STEPS), Phase.kTrain, Ops(np.float64))
    net.initialise(1)
    x, labels = np.random.default_rng(0).standard_normal((1, STEPS, 3)), np.zeros((1, STEPS), int)

    def scores(changed=None):
        rows = x.copy()
        if changed is not None:
            rows[0, changed] += 0.5
        net.forward({"data": Batch(rows, labels)}, Step())
        return net.output("scores").copy()

    unchanged = scores()
    for step in range(STEPS):
        assert (scores(step) != unchanged).any(axis=1).all()


def test_gradients_of_a_bidirectional_net():
    net = Net(net_of(tagger(LSTM), unroll_len=STEPS), Phase.kTrain, Ops(np.float64))
    net.initialise(1)
    draw = np.random.default_rng(0)
    batch = Batch(draw.standard_normal((2, STEPS, 3)), draw.integers(0, 5, (2, STEPS)))

    def loss():
        net.forward({"data": batch}, Step(total_rows=2))
        return net.metrics()["loss"].total / 2

    loss()
    net.backward()
    check_gradients(net, loss, per_entry=3)
