"""Nets that read sequences of characters and predict the next ones."""

import numpy as np
from support.user_layers import Cell
from support.wired import wired

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
    PositionalEmbedding,
    RNNLabel,
    Sigmoid,
    Softmax,
    SoftmaxLoss,
)

STEPS, ROWS, SYMBOLS, UNITS = 3, 5, 7, 6
CELLS = {"rnn": RNN, "gru": GRU, "lstm": LSTM}
FIRST_TO_LAST = ["kUnrollOneToOne", "kUnrollFirstToLast"]
_ALL = {"unroll_conn_type": ["kUnrollOneToAll"]}


def text(*cells, symbols=None, **out):
    """Characters in, the next characters out. cells: layers or messages. out: of the last InnerProduct."""
    layers = [
        wired(CharRNN("data", path="text", unroll_len=STEPS, batchsize=ROWS), unroll_len=1),
        wired(symbols or OneHot("in", "data", vocab_size=SYMBOLS), **_ALL),
        wired(RNNLabel("label", "data"), **_ALL),
        *(cell if isinstance(cell, LayerProto) else cell.proto for cell in cells),
        InnerProduct("out", cells[-1].name, num_output=SYMBOLS, **out).proto,
        SoftmaxLoss("loss", ["out", "label"], topk=2).proto,
    ]
    return NetProto(layer=layers, unroll_len=STEPS)


def embedding(**conf):
    return Embedding("in", "data", vocab_size=SYMBOLS, feature_dim=5, **conf)


def cell(kind, units=UNITS, **conf):
    return kind("cell", "in", dim_hidden=units, **conf)


NETS = {
    **{name: text(cell(kind)) for name, kind in CELLS.items()},
    "embedding": text(cell(GRU), symbols=embedding()),
    "embedding tied to the output": text(
        cell(GRU, 5),
        symbols=embedding(param=[{"name": "table"}]),
        transpose=True,
        param=[{"name": "o", "share_from": "table"}],
    ),
    "positions": text(PositionalEmbedding("positions", "in"), LSTM("cell", "positions", dim_hidden=UNITS)),
    "two layers and dropout": text(
        cell(GRU),
        Dropout("drop", "cell", dropout_ratio=0.4),
        LSTM("second", "drop", dim_hidden=4),
        Sigmoid("s", "second"),
    ),
    "softmax": text(cell(RNN), Softmax("soft", "cell")),
    "decoder that starts from what was read": text(
        cell(GRU), wired(LSTM("decoder", ["in", "cell"], dim_hidden=UNITS), unroll_conn_type=FIRST_TO_LAST)
    ),
    "the loop written out": text(
        wired(cell(LSTM), srclayers=["in", "cell"], unroll_conn_type=["kUnrollOneToOne"] * 2, shift=[0, 1])
    ),
    "a user's cell": text(Cell("cell", "in")),
}


def texts(count, rows=ROWS, steps=STEPS):
    """Mini-batches of sequences, each with the symbol after it."""
    draw = np.random.default_rng(5)
    return [draw.integers(0, SYMBOLS, (rows, steps + 1)).astype(np.float32) for _ in range(count)]
