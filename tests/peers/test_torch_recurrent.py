"""Recurrent layers and steps of a char-RNN against PyTorch; skipped where that is not installed (`make test-peers`).

T time steps of B rows: (T B, ...) in our layers, (T, B, ...) in PyTorch's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.layer_cases import Bench
from support.peers import assert_same_call

from singa_dask.algorithms import BP, BPTT
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import (
    GELU,
    GRU,
    LSTM,
    RNN,
    Add,
    Attention,
    CharRNN,
    Embedding,
    InnerProduct,
    LayerNorm,
    OneHot,
    PositionalEmbedding,
    Reverse,
    RNNLabel,
    SoftmaxLoss,
    Step,
)
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops

torch = pytest.importorskip("torch")
F = torch.nn.functional

Tensor = Any
STEPS, ROWS, INPUTS, UNITS, SYMBOLS = 5, 3, 6, 4, 7
# Their layer, and our number of the gate in each place of theirs.
PEERS = {
    "kRNN": (torch.nn.RNN, (0,)),
    "kGRU": (torch.nn.GRU, (1, 0, 2)),  # r, z, n
    "kLSTM": (torch.nn.LSTM, (0, 1, 3, 2)),  # i, f, g, o
}


def over_time(layer: Any, x: Tensor, params: list[Tensor], state: Any = None) -> tuple[Tensor, Any]:
    """Their layer with our parameters on x (T, B, I): outputs (T, B, H), and the state after the last step."""
    make, order = PEERS[layer.type]
    biases = len(params) == 3 * len(order)
    peer = make(x.shape[2], params[len(order)].shape[1], bias=biases)
    names, weights = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0"], {}
    for k in range(len(params) // len(order)):
        gates = params[k * len(order) :]
        weights[names[k]] = torch.cat([gates[place] for place in order])
    if biases:
        weights["bias_hh_l0"] = torch.zeros_like(weights["bias_ih_l0"])  # we have one bias a gate
    y, state = torch.func.functional_call(peer, weights, (x, state))
    return y, state


LAYERS = {
    f"{cls.__name__}{'' if bias else ' without bias'}": cls(
        "n", "x", dim_hidden=UNITS, bias_term=bias, unroll_len=STEPS
    )
    for cls in (RNN, GRU, LSTM)
    for bias in (True, False)
}


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_of_all_time_steps(name):
    ours = Bench(LAYERS[name], ((INPUTS,),), get_ops("cpu", np.float32), rows=STEPS * ROWS)
    x = torch.tensor(ours.inputs[0], requires_grad=True)
    params = [torch.tensor(param.value, requires_grad=True) for param in ours.layer.params]
    y, _ = over_time(ours.layer, x.reshape(STEPS, ROWS, INPUTS), params)
    assert_same_call(ours, y.flatten(0, 1), [x], params)


@pytest.mark.parametrize("cls", [RNN, GRU])
def test_a_state_from_another_layer(cls):
    layer = cls("n", ["x", "before"], dim_hidden=UNITS, unroll_len=STEPS)
    ours = Bench(layer, ((INPUTS,), (UNITS,)), get_ops("cpu", np.float32), rows=STEPS * ROWS)
    ours.inputs[1] = ours.inputs[1][:ROWS]
    x, before = (torch.tensor(array, requires_grad=True) for array in ours.inputs)
    y, _ = over_time(
        layer, x.reshape(STEPS, ROWS, INPUTS), [torch.tensor(p.value) for p in ours.layer.params], before[None]
    )
    assert_same_call(ours, y.flatten(0, 1), [x, before])


@pytest.mark.parametrize("cls", [RNN, GRU, LSTM])
def test_a_bidirectional_layer(cls):
    """Ours: two layers, the second between two that reverse the steps."""
    onwards, back = (cls(name, "x", dim_hidden=UNITS, unroll_len=STEPS) for name in "ab")
    turn = Bench(Reverse("t", "x", unroll_len=STEPS), ((INPUTS,),), get_ops("cpu", np.float32), rows=STEPS * ROWS)
    ours = [Bench(layer, ((INPUTS,),), turn.ops, rows=STEPS * ROWS, seed=i) for i, layer in enumerate((onwards, back))]
    given = ours[0].inputs[0]
    turn.inputs = [given]
    ours[1].inputs = [turn.forward()[0].copy()]
    turn.inputs = [ours[1].forward()[0]]
    result = np.concatenate([ours[0].forward()[0], turn.forward()[0]], axis=1)

    make, order = PEERS[onwards.type]
    peer, weights = make(INPUTS, UNITS, bidirectional=True), {}
    for bench, suffix in zip(ours, ("", "_reverse"), strict=True):
        params = [torch.tensor(param.value) for param in bench.layer.params]
        for k, name in enumerate(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0")):
            weights[name + suffix] = torch.cat([params[k * len(order) :][place] for place in order])
        weights[f"bias_hh_l0{suffix}"] = torch.zeros_like(weights[f"bias_ih_l0{suffix}"])
    y, _ = torch.func.functional_call(peer, weights, (torch.tensor(given).reshape(STEPS, ROWS, INPUTS),))
    np.testing.assert_allclose(result, y.flatten(0, 1).numpy(), rtol=1e-5, atol=1e-5)


def their_attention(x: Tensor, params: list[Tensor], heads: int, *, causal: bool) -> Tensor:
    """Theirs with our parameters, on x (T, B, C)."""
    weight, bias, output_weight, output_bias = params
    steps, _, width = x.shape
    mask = torch.nn.Transformer.generate_square_subsequent_mask(steps) if causal else None
    y, _ = F.multi_head_attention_forward(
        *(x, x, x, width, heads, weight.reshape(width, -1).T, bias.reshape(-1), None, None, False, 0.0),
        *(output_weight.reshape(-1, width).T, output_bias),
        attn_mask=mask,
        need_weights=False,
    )
    return y


@pytest.mark.parametrize("steps", [5, 200])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal, steps):
    layer = Attention("n", "x", num_heads=2, causal=causal, unroll_len=steps)
    ours = Bench(layer, ((6,),), get_ops("cpu", np.float32), rows=steps * ROWS)
    for param in ours.layer.params:
        param.value[...] *= 0.4
    x = torch.tensor(ours.inputs[0], requires_grad=True)
    params = [torch.tensor(param.value, requires_grad=True) for param in ours.layer.params]
    y = their_attention(x.reshape(steps, ROWS, 6), params, 2, causal=causal)
    assert_same_call(ours, y.flatten(0, 1), [x], params)


def test_symbols():
    symbols = np.array([[3], [0], [3], [6], [3], [0]], np.float32)  # some of them several times
    rows = torch.tensor(symbols[:, 0].astype(np.int64))
    one_hot = Bench(OneHot("n", "x", vocab_size=SYMBOLS), ((1,),), get_ops("cpu", np.float32))
    one_hot.inputs = [symbols]
    np.testing.assert_array_equal(one_hot.forward()[0], F.one_hot(rows, SYMBOLS).numpy())

    ours = Bench(Embedding("n", "x", vocab_size=SYMBOLS, feature_dim=4), ((1,),), get_ops("cpu", np.float32))
    ours.inputs = [symbols]
    table = torch.tensor(ours.layer.table.value, requires_grad=True)
    y = F.embedding(rows, table)
    np.testing.assert_array_equal(ours.forward()[0], y.detach().numpy())
    (weights,) = ours.weights()
    ours.backward([weights])
    y.backward(torch.tensor(weights, dtype=torch.float32))
    np.testing.assert_allclose(ours.layer.table.grad, table.grad.numpy(), rtol=1e-5, atol=1e-6)


def char_rnn(cls: Any) -> Net:
    layers = [
        CharRNN("data", path="text", unroll_len=STEPS, batchsize=ROWS),
        OneHot("in", "data", vocab_size=SYMBOLS),
        RNNLabel("label", "data"),
        cls("cell", "in", dim_hidden=UNITS),
        InnerProduct("out", "cell", num_output=SYMBOLS),
        SoftmaxLoss("loss", ["out", "label"]),
    ]
    net = Net(NetProto(layer=[layer.proto for layer in layers], unroll_len=STEPS), Phase.kTrain, get_ops("cpu"))
    net.flat.values[...] = np.random.default_rng(0).normal(0, 0.5, net.flat.size)
    return net


@pytest.mark.parametrize("cls", [RNN, GRU, LSTM])
def test_two_steps_of_a_char_rnn(cls):
    """Loss and every gradient of truncated backpropagation through time, the state carried on."""
    net, draw, state = char_rnn(cls), np.random.default_rng(1), None
    for number in range(2):
        text = draw.integers(0, SYMBOLS, (ROWS, STEPS + 1))
        step = Step(Phase.kTrain, number, total_rows=ROWS)
        metrics = BPTT().train_one_batch(net, {"data": Batch(text.astype(np.float32))}, step)

        params = {name: torch.tensor(param.value, requires_grad=True) for name, param in net.named_params.items()}
        *cell, weight, bias = params.values()
        characters = torch.tensor(text.T)
        y, state = over_time(net.layers["cell"], F.one_hot(characters[:-1], SYMBOLS).float(), cell, state)
        state = tuple(a.detach() for a in state) if isinstance(state, tuple) else state.detach()
        loss = F.cross_entropy((y @ weight + bias).flatten(0, 1), characters[1:].flatten(), reduction="sum")
        (loss / ROWS).backward()
        assert metrics["loss"].mean == pytest.approx(loss.item() / (STEPS * ROWS), rel=1e-5)
        for name, param in net.named_params.items():
            np.testing.assert_allclose(param.grad, params[name].grad.numpy(), rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_step_of_a_transformer():
    """Loss and every gradient of a small GPT."""
    layers = [
        CharRNN("data", path="text", unroll_len=STEPS, batchsize=ROWS),
        RNNLabel("label", "data"),
        Embedding("symbols", "data", vocab_size=SYMBOLS, feature_dim=8),
        PositionalEmbedding("in", "symbols"),
        LayerNorm("norm_a", "in"),
        Attention("attention", "norm_a", num_heads=2, causal=True),
        Add("sum_a", ["attention", "in"]),
        LayerNorm("norm_b", "sum_a"),
        InnerProduct("wide", "norm_b", num_output=16),
        GELU("gelu", "wide"),
        InnerProduct("narrow", "gelu", num_output=8),
        Add("sum_b", ["narrow", "sum_a"]),
        InnerProduct("out", "sum_b", num_output=SYMBOLS),
        SoftmaxLoss("loss", ["out", "label"]),
    ]
    net = Net(NetProto(layer=[layer.proto for layer in layers], unroll_len=STEPS), Phase.kTrain, get_ops("cpu"))
    draw = np.random.default_rng(0)
    net.flat.values[...] = draw.normal(0, 0.5, net.flat.size)
    text = draw.integers(0, SYMBOLS, (ROWS, STEPS + 1))
    step = Step(Phase.kTrain, 0, total_rows=ROWS)
    metrics = BP().train_one_batch(net, {"data": Batch(text.astype(np.float32))}, step)

    p = {name: torch.tensor(param.value, requires_grad=True) for name, param in net.named_params.items()}
    characters = torch.tensor(text.T)
    x = F.embedding(characters[:-1], p["symbols_table"]) + p["in_table"][:, None]
    attention = [p[f"attention_{role}"] for role in ("weight", "bias", "output_weight", "output_bias")]
    y = F.layer_norm(x, (8,), p["norm_a_scale"], p["norm_a_bias"])
    x = x + their_attention(y, attention, 2, causal=True)
    y = F.layer_norm(x, (8,), p["norm_b_scale"], p["norm_b_bias"])
    y = F.gelu(y @ p["wide_weight"] + p["wide_bias"])
    x = x + y @ p["narrow_weight"] + p["narrow_bias"]
    scores = x @ p["out_weight"] + p["out_bias"]
    loss = F.cross_entropy(scores.flatten(0, 1), characters[1:].flatten(), reduction="sum")
    (loss / ROWS).backward()
    assert metrics["loss"].mean == pytest.approx(loss.item() / (STEPS * ROWS), rel=1e-5)
    for name, param in net.named_params.items():
        np.testing.assert_allclose(param.grad, p[name].grad.numpy(), rtol=1e-5, atol=1e-5, err_msg=name)
