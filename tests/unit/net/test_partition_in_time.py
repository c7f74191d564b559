"""Partitioned nets over time compute what the serial nets compute."""

import numpy as np
import pytest
from support.partitioned import assert_equal_to_serial
from support.user_layers import Cell
from support.wired import wired

from singa_dask.algorithms import BP, BPTT
from singa_dask.job.job_pb2 import LayerProto, NetProto
from singa_dask.layers import (
    GRU,
    LSTM,
    RNN,
    CharRNN,
    Dropout,
    Embedding,
    InnerProduct,
    OneHot,
    RNNLabel,
    Sigmoid,
    Softmax,
    SoftmaxLoss,
)

STEPS, ROWS, SYMBOLS, UNITS = 3, 5, 7, 6
CELLS = {"rnn": RNN, "gru": GRU, "lstm": LSTM}
ALL = {"unroll_conn_type": ["kUnrollOneToAll"]}


def text(*cells, symbols=None, dim=1):
    """Characters in, the next characters out."""
    layers = [
        wired(CharRNN("data", path="text", unroll_len=STEPS, batchsize=ROWS), unroll_len=1),
        wired(symbols or OneHot("in", "data", vocab_size=SYMBOLS), **ALL),
        wired(RNNLabel("label", "data"), **ALL),
        *(cell if isinstance(cell, LayerProto) else cell.proto for cell in cells),
        InnerProduct("out", cells[-1].name, num_output=SYMBOLS).proto,
        SoftmaxLoss("loss", ["out", "label"], topk=2).proto,
    ]
    return NetProto(layer=layers, unroll_len=STEPS, partition_dim=dim)


def batches(count=3):
    draw = np.random.default_rng(5)
    return [{"data": (draw.integers(0, SYMBOLS, (ROWS, STEPS + 1)).astype(float), None)} for _ in range(count)]


@pytest.mark.parametrize("algorithm", [BP, BPTT])
@pytest.mark.parametrize("cell", CELLS)
def test_char_rnn(cell, algorithm):
    results = assert_equal_to_serial(text(CELLS[cell]("cell", "in", dim_hidden=UNITS)), algorithm(), batches())
    for result in results.values():
        assert set(result["own"]) == set(result["values"])


def decoder():
    """A second recurrent layer starts from what the first one has read."""
    net = text(GRU("cell", "in", dim_hidden=UNITS))
    above = [
        wired(
            LSTM("decoder", ["in", "cell"], dim_hidden=UNITS),
            unroll_conn_type=["kUnrollOneToOne", "kUnrollFirstToLast"],
        ),
        InnerProduct("out", "decoder", num_output=SYMBOLS).proto,
    ]
    return NetProto(layer=[*net.layer[:4], *above, net.layer[5]], unroll_len=STEPS, partition_dim=1)


EMBEDDING = Embedding("in", "data", vocab_size=SYMBOLS, feature_dim=5)
NETS = {
    "embedding": text(GRU("cell", "in", dim_hidden=UNITS), symbols=EMBEDDING),
    "two layers and dropout": text(
        GRU("cell", "in", dim_hidden=UNITS),
        Dropout("drop", "cell", dropout_ratio=0.4),
        LSTM("second", "drop", dim_hidden=4),
        Sigmoid("s", "second"),
    ),
    "softmax": text(RNN("cell", "in", dim_hidden=UNITS), Softmax("soft", "cell")),
    "decoder": decoder(),
    "only the recurrent layer": text(LSTM("cell", "in", dim_hidden=UNITS, partition_dim=1), dim=0),
    "all but the recurrent layer": text(LSTM("cell", "in", dim_hidden=UNITS, partition_dim=0), symbols=EMBEDDING),
    "the loop written out": text(
        wired(
            LSTM("cell", "in", dim_hidden=UNITS),
            srclayers=["in", "cell"],
            unroll_conn_type=["kUnrollOneToOne", "kUnrollOneToOne"],
            shift=[0, 1],
        )
    ),
}


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_nets_over_time(name, fold):
    results = assert_equal_to_serial(NETS[name], BPTT(), batches(), fold=fold)
    for result in results.values():
        assert result["own"]


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_user_cell_keeps_its_state_in_one_form(dim, fold):
    assert_equal_to_serial(text(Cell("cell", "in"), dim=dim), BPTT(), batches(), (2, 4), fold=fold)


@pytest.mark.parametrize("fold", [True, False])
def test_an_embedding_tied_to_the_output(fold):
    tied = [{"name": "o", "share_from": "table"}]
    layers = text(GRU("cell", "in", dim_hidden=5), symbols=Embedding("in", "data", vocab_size=SYMBOLS, feature_dim=5))
    layers.layer[1].param.add(name="table")
    out = InnerProduct("out", "cell", num_output=SYMBOLS, transpose=True, param=tied)
    layers.layer[4].CopyFrom(out.proto)
    (result,) = assert_equal_to_serial(layers, BPTT(), batches(), (3,), fold=fold).values()
    assert result["own"]["table"].axis == 1
