"""Weights of PyTorch in our nets, and back; skipped where that is not installed (`make test-peers`)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

from singa_dask import Model, convert
from singa_dask.job.job_pb2 import NetProto
from singa_dask.layers import (
    GRU,
    LSTM,
    RNN,
    Attention,
    BatchNorm,
    Convolution,
    GroupNorm,
    InnerProduct,
    LayerNorm,
    Pooling,
    PositionalEmbedding,
    RecordInput,
    ReLU,
    Reshape,
    TransposedConvolution,
)

torch = pytest.importorskip("torch")
nn = torch.nn

ROWS, STEPS = 3, 5


class Positions(nn.Module):
    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, x: Any) -> Any:
        return x + self.table


class Sequence(nn.Module):
    """A module of which only the first output counts."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.n = part

    def forward(self, x: Any) -> Any:
        return (self.n(x, x, x) if isinstance(self.n, nn.MultiheadAttention) else self.n(x))[0]


class Case(NamedTuple):
    """layers: behind an input of samples of `shape`, channels last. peer: a module that takes channels first."""

    layers: Any
    peer: Any
    shape: tuple[int, ...]
    names: Any = None
    timed: bool = False


def drawn_statistics(norm: Any) -> Any:
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return norm


def attention(**options: Any) -> Any:
    module = Sequence(nn.MultiheadAttention(8, 2, batch_first=True, **options))
    if options.get("bias", True):
        nn.init.normal_(module.n.in_proj_bias)
        nn.init.normal_(module.n.out_proj.bias)
    return module


def named(**parts: Any) -> Any:
    peer = nn.Sequential()
    for name, part in parts.items():
        peer.add_module(name, part)
    return peer


CASES = {
    "images and features": lambda: Case(
        [
            *(Convolution("c", num_filters=4, kernel=3), BatchNorm("b"), ReLU(), Pooling(kernel=2, stride=2)),
            *(InnerProduct("h", num_output=6), ReLU(), InnerProduct("o", num_output=3, bias_term=False)),
        ],
        named(c=nn.Conv2d(2, 4, 3), b=drawn_statistics(nn.BatchNorm2d(4)), r=nn.ReLU(), p=nn.MaxPool2d(2))
        .extend([nn.Flatten()])
        .append(nn.Linear(4 * 3 * 4, 6))
        .extend([nn.ReLU(), nn.Linear(6, 3, bias=False)]),
        (8, 10, 2),
        {"h": "5", "o": "7"},
    ),
    "sequences": lambda: Case(
        [Reshape(shape=[2, 6]), Convolution("c", num_filters=4, kernel=3, groups=2), InnerProduct("o", num_output=3)],
        named(u=nn.Unflatten(1, (2, 6)), c=nn.Conv1d(2, 4, 3, groups=2), f=nn.Flatten(), o=nn.Linear(16, 3)),
        (12,),
    ),
    "volumes": lambda: Case(
        [Convolution("c", num_filters=4, kernel=3), InnerProduct("o", num_output=3)],
        named(c=nn.Conv3d(2, 4, 3), f=nn.Flatten(), o=nn.Linear(4 * 2 * 1 * 3, 3)),
        (4, 3, 5, 2),
    ),
    "transposed convolution": lambda: Case(
        [TransposedConvolution("c", num_filters=6, kernel_y=3, kernel_x=2, stride=2, groups=2)],
        named(c=nn.ConvTranspose2d(4, 6, (3, 2), stride=2, groups=2)),
        (3, 4, 4),
    ),
    "normalisation": lambda: Case(
        [GroupNorm("g", num_groups=2), InnerProduct("h", num_output=5), LayerNorm("l")],
        named(g=nn.GroupNorm(2, 4), f=nn.Flatten(), h=nn.Linear(24, 5), l=nn.LayerNorm(5)),
        (2, 3, 4),
    ),
    "stored as in PyTorch": lambda: Case(
        [InnerProduct("o", num_output=3, transpose=True)],
        named(f=nn.Flatten(), o=nn.Linear(24, 3)),
        (2, 3, 4),
    ),
    **{
        f"{ours.__name__}{'' if bias else ' without bias'}": lambda ours=ours, peer=peer, bias=bias: Case(
            [ours("n", dim_hidden=4, bias_term=bias)],
            Sequence(peer(6, 4, bias=bias, batch_first=True)),
            (6,),
            None,
            True,
        )
        for ours, peer in ((RNN, nn.RNN), (GRU, nn.GRU), (LSTM, nn.LSTM))
        for bias in (True, False)
    },
    "two layers of one module": lambda: Case(
        [LSTM("first", dim_hidden=4), LSTM("second", dim_hidden=4)],
        Sequence(nn.LSTM(6, 4, num_layers=2, batch_first=True)),
        (6,),
        {"first": "n.l0", "second": "n.l1"},
        True,
    ),
    "attention": lambda: Case([Attention("n", num_heads=2)], attention(), (8,), None, True),
    "attention without bias": lambda: Case(
        [Attention("n", num_heads=2, bias_term=False)], attention(bias=False), (8,), None, True
    ),
    "positions": lambda: Case(
        [PositionalEmbedding("p")], Positions(torch.randn(1, STEPS, 6)), (6,), {"p": "table"}, True
    ),
    "positions of no batch": lambda: Case(
        [PositionalEmbedding("p")], Positions(torch.randn(STEPS, 6)), (6,), {"p": "table"}, True
    ),
}


def model_of(layers: Any, shape: tuple[int, ...], timed: bool) -> Model:
    """A model that reads samples of this shape, or sequences of them."""
    source = RecordInput("data", shape=(shape[-1], *shape[:-1]), **({"sequence": STEPS} if timed else {}))
    if not timed:
        return Model([source, *layers])
    proto = NetProto(unroll_len=STEPS)
    for before, layer in pairwise([None, source, *layers]):
        proto.layer.add().CopyFrom(layer.proto)
        if before is None:
            proto.layer[0].unroll_len = 1
        else:
            proto.layer[-1].srclayers[:] = [before.name]
    return Model(proto)


@pytest.mark.parametrize("name", CASES)
def test_a_net_with_weights_of_pytorch_predicts_what_pytorch_does(name):
    torch.manual_seed(0)
    layers, peer, shape, names, timed = CASES[name]()
    peer.eval()
    if isinstance(getattr(peer, "n", None), nn.GRU) and peer.n.bias:
        nn.init.zeros_(peer.n.bias_hh_l0[8:])
    model = model_of(layers, shape, timed)
    assert convert.from_torch(model, peer.state_dict(), names=names) == ((), ())
    x = np.random.default_rng(0).normal(size=(ROWS, *((STEPS,) if timed else ()), *shape)).astype(np.float32)
    given = torch.tensor(x if timed else np.moveaxis(x, -1, 1))

    def theirs() -> np.ndarray:
        with torch.no_grad():
            y = peer(given).numpy()
        return y if timed or y.ndim < 3 else np.moveaxis(y, 1, -1)

    y = model.predict(x)
    np.testing.assert_allclose(y.reshape(theirs().shape), theirs(), atol=2e-6)
    back = convert.to_torch(model, names=names)
    for param in peer.parameters():
        nn.init.zeros_(param)
    if "positions" not in name:  # which are written as an Embedding
        peer.load_state_dict({key: torch.tensor(array) for key, array in back.items()})
        np.testing.assert_allclose(y.reshape(theirs().shape), theirs(), atol=2e-6)
