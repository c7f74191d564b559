"""A recurrent layer of one's own, written as one time step, is as good as the built-in one of the same formula."""

import numpy as np
import pytest
from support.gradients import check_gradients, loss_of
from support.nets_over_time import FIRST_TO_LAST, ROWS, UNITS, cell, embedding, text, texts
from support.wired import wired

from singa_dask.algorithms import BPTT
from singa_dask.errors import ConfigError, DataError
from singa_dask.job.job_pb2 import LayerProto, Phase
from singa_dask.layers import GRU, RNN, BatchNorm, RecurrentLayer
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops


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


LOOP = {"srclayers": ["in", "cell"], "unroll_conn_type": ["kUnrollOneToOne", "kUnrollOneToOne"], "shift": [0, 1]}


def net_of(*cells, fold=True):
    net = Net(text(*cells, symbols=embedding()), Phase.kTrain, get_ops("cpu", np.float64), fold=fold)
    net.initialise(3)
    return net


def step(number, rows=ROWS):
    return Step(Phase.kTrain, number, total_rows=rows)


def trained(net):
    """Loss and gradients of three mini-batches that go on where the one before stopped."""
    found = []
    for number, features in enumerate(texts(3)):
        loss = BPTT().train_one_batch(net, {"data": Batch(features)}, step(number))["loss"].mean
        found.append((loss, net.flat.grads.copy()))
    return found


# What lies above the cell. Rows of a BatchNorm are no time steps, so the net is unrolled.
ABOVE = {"folded": (), "unrolled": (), "unrolled for another layer": (BatchNorm("norm", "cell"),)}


@pytest.mark.parametrize("wiring", [{}, LOOP], ids=["implied", "written out"])
@pytest.mark.parametrize("how", ABOVE)
def test_it_computes_what_the_built_in_one_computes(how, wiring):
    own = net_of(wired(Own("cell", "in"), **wiring), *ABOVE[how], fold=how != "unrolled")
    assert ("cell" in own.layers) == (how == "folded")
    expected = trained(net_of(cell(RNN, bias_term=False), *ABOVE[how]))
    for (loss, gradients), (wanted, wanted_gradients) in zip(trained(own), expected, strict=True):
        assert loss == pytest.approx(wanted, rel=1e-12)
        np.testing.assert_allclose(gradients, wanted_gradients, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("fold", [True, False])
def test_it_starts_from_another_layers_state(fold):
    """A second source gives the state before, and gets the gradient for it."""
    decoder = wired(Own("decoder", ["in", "cell"]), unroll_conn_type=FIRST_TO_LAST)
    net = net_of(cell(GRU), decoder, fold=fold)
    check_gradients(net, lambda: loss_of(net, {"data": Batch(texts(1)[0])}, step(0)), 7)
    layer = Own.from_proto(LayerProto(name="cell", user_type="m:Own", srclayers=["x", "state"], unroll_len=2))
    with pytest.raises(ConfigError, match=r"must have shape \(6,\)\. Received: \(4,\)"):
        layer.setup((3,), (4,))


def test_a_state_of_other_rows_is_refused():
    net = net_of(Own("cell", "in"))
    net.carries = True
    net.forward({"data": Batch(texts(1)[0])}, step(0))
    with pytest.raises(DataError, match="the mini-batch has 2 rows, but the state carried over has 5"):
        net.forward({"data": Batch(texts(1, rows=2)[0])}, step(1, rows=2))
