"""A recurrent layer of one's own, written as one time step, is as good as the built-in one of the same formula."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from singa_dask.algorithms import BPTT
from singa_dask.errors import ConfigError, DataError
from singa_dask.job.job_pb2 import LayerProto, NetProto, Phase
from singa_dask.layers import RNN, CharRNN, Embedding, InnerProduct, Layer, RecurrentLayer, RNNLabel, SoftmaxLoss
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops

STEPS, ROWS, SYMBOLS, UNITS = 4, 3, 5, 6


class Own(RecurrentLayer):
    """h_t = tanh(W_hx x_t + W_hh h_(t-1)), what kRNN is without its bias."""

    def setup_cell(self, x):
        self.hx = self.declare("hx", (UNITS, *x), *x, UNITS)
        self.hh = self.declare("hh", (UNITS, UNITS), UNITS, UNITS)
        return (UNITS,)

    def cell(self, ctx, x, before):
        return np.tanh(x @ self.hx.value.T + before @ self.hh.value.T)

    def cell_backward(self, ctx, dy, x, before, y):
        dy *= 1 - y * y
        ctx.ops.gemm(dy.T, x, out=self.hx.grad, accumulate=self.hx.claim())
        ctx.ops.gemm(dy.T, before, out=self.hh.grad, accumulate=self.hh.claim())
        return dy @ self.hx.value, dy @ self.hh.value


class Together(Layer):
    """Its rows are no time steps: a net with it is unrolled."""

    def setup(self, *src):
        return self.sources(src)[0]

    def forward(self, ctx, *x):
        return x[0]

    def backward(self, ctx, dy):
        return dy


LOOP = {"srclayers": ["in", "cell"], "unroll_conn_type": ["kUnrollOneToOne", "kUnrollOneToOne"], "shift": [0, 1]}


def net_of(cell, fold=True, above=None, **wiring):
    fields = {f.name: value for f, value in cell.proto.ListFields()} | wiring
    layers = [
        CharRNN("data", path="text", unroll_len=STEPS, batchsize=ROWS).proto,
        Embedding("in", "data", vocab_size=SYMBOLS, feature_dim=3).proto,
        RNNLabel("label", "data").proto,
        LayerProto(**fields),
        *([above.proto] if above else []),
        InnerProduct("out", above or "cell", num_output=SYMBOLS).proto,
        SoftmaxLoss("loss", ["out", "label"]).proto,
    ]
    net = Net(NetProto(layer=layers, unroll_len=STEPS), Phase.kTrain, get_ops("cpu", np.float64), fold=fold)
    net.initialise(3)
    return net


def feeds(rows=ROWS):
    draw = np.random.default_rng(5)
    return [draw.integers(0, SYMBOLS, (rows, STEPS + 1)).astype(np.float32) for _ in range(3)]


def trained(net):
    """Loss and gradients of three mini-batches that go on where the one before stopped."""
    found = []
    for number, features in enumerate(feeds()):
        step = Step(Phase.kTrain, number, total_rows=ROWS)
        loss = BPTT().train_one_batch(net, {"data": Batch(features)}, step)["loss"].mean
        found.append((loss, net.flat.grads.copy()))
    return found


@pytest.mark.parametrize("wiring", [{}, LOOP], ids=["implied", "written out"])
@pytest.mark.parametrize("fold", [True, False])
def test_it_computes_what_the_built_in_one_computes(fold, wiring):
    own = net_of(Own("cell", "in"), fold, **wiring)
    assert ("cell" in own.layers) == fold
    expected = trained(net_of(RNN("cell", "in", dim_hidden=UNITS, bias_term=False)))
    for (loss, gradients), (wanted, wanted_gradients) in zip(trained(own), expected, strict=True):
        assert loss == pytest.approx(wanted, rel=1e-12)
        np.testing.assert_allclose(gradients, wanted_gradients, rtol=1e-9, atol=1e-13)


def test_it_recurs_where_another_layer_has_the_net_unrolled():
    own = net_of(Own("cell", "in"), above=Together("together", "cell"))
    assert list(own.layers["2#cell"].proto.srclayers) == ["2#in", "1#cell"]
    assert trained(own)[2][0] == pytest.approx(trained(net_of(Own("cell", "in")))[2][0], rel=1e-12)


def test_it_starts_from_another_layers_state():
    """A second source gives the state before, and gets the gradient for it."""
    layer = Own.from_proto(LayerProto(name="cell", user_type="m:Own", srclayers=["x", "state"], unroll_len=2))
    with pytest.raises(ConfigError, match=r"must have shape \(6,\)\. Received: \(4,\)"):
        layer.setup((3,), (4,))
    net = net_of(Own("cell", "in"), fold=False)
    second, ctx = net.layers["1#cell"], net.contexts["1#cell"]
    draw = np.random.default_rng(0)
    x, state = draw.normal(size=(ROWS, 3)), draw.normal(size=(ROWS, UNITS))
    second.forward(ctx, x, state)
    _, dstate = second.backward(ctx, np.ones((ROWS, UNITS)))
    for i in np.ndindex(2, 2):
        moved = state.copy()
        moved[i] += 1e-6
        difference = second.forward(ctx, x, moved).sum() - second.forward(ctx, x, state).sum()
        assert dstate[i] == pytest.approx(difference / 1e-6, rel=1e-4)


def test_the_layer_of_the_documentation_has_right_gradients():
    text = (Path(__file__).parents[3] / "docs" / "layers.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "RecurrentLayer" in block)
    names = {"__name__": "of_the_documentation"}
    exec(code, names)
    net = net_of(names["Leaky"]("cell", "in"))
    (entry,) = (entry for entry in net.flat.entries if entry.name == "cell_weight")
    batch, step = {"data": Batch(feeds()[0])}, Step(Phase.kTrain, 0, total_rows=ROWS)

    def loss(change, i):
        net.forget()
        net.flat.values[i] += change
        net.forward(batch, step)
        net.flat.values[i] -= change
        return net.metrics()["loss"].total / ROWS

    loss(0, 0)
    net.backward()
    for i in range(entry.start, entry.stop):
        assert net.flat.grads[i] == pytest.approx((loss(1e-6, i) - loss(-1e-6, i)) / 2e-6, rel=1e-5)


def test_a_state_of_other_rows_is_refused():
    net = net_of(Own("cell", "in"))
    trained(net)
    net.carries = True
    trained(net)
    with pytest.raises(DataError, match="the mini-batch has 2 rows, but the state carried over has 3"):
        net.forward({"data": Batch(feeds(rows=2)[0])}, Step(Phase.kTrain, 9, total_rows=2))
