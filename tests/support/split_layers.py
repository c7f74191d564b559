"""Runs one layer on threads that divide its features, for comparison with the layer on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from singa_dask.comm.threads import run_threads
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.group import CommGroup
from singa_dask.layers import (
    GRU,
    LRN,
    LSTM,
    RNN,
    AllSteps,
    BatchNorm,
    ClassToken,
    Context,
    Dropout,
    Embedding,
    GroupNorm,
    LastStep,
    Layer,
    LossLayer,
    PositionalEmbedding,
    Reverse,
    Select,
    Softmax,
    SoftmaxLoss,
    Step,
)
from singa_dask.layers.partition import LayerPartition, Shape, Sharding
from singa_dask.ops import Ops

BASE = Ops(np.float64)


@dataclass
class Results:
    """Of one call on all workers, with whole arrays. dx, grads: None where there is none. metrics: of every rank."""

    y: np.ndarray
    dx: list[Any]
    grads: list[np.ndarray]
    metrics: list[dict[str, float]]
    states: list[np.ndarray]
    nbytes: int


@dataclass
class SplitLayer:
    """A layer with whole sources and parameters, which `run` divides over workers.

    inputs: whole arrays in the order of the sources; sources whose arrays are integers are labels or symbols.
    dy: the gradient for the output. state: what a recurrent layer starts from. `run` computes with `ops`.
    """

    layer: Layer
    sources: tuple[Shape, ...]
    inputs: list[np.ndarray]
    rows: int
    seed: int = 0
    ops: Ops = BASE
    state: list[np.ndarray] | None = None
    values: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        whole = self._made(LayerPartition(sources=self.sources))
        self.values = [rng.standard_normal(param.whole_shape) for param in whole.params]
        self.dy = rng.standard_normal(self.run(1, backward=False).y.shape)

    def _made(self, partition: LayerPartition) -> Layer:
        layer = type(self.layer).from_proto(self.layer.proto)
        layer.partition = partition
        whole, local = partition.sources, partition.local_sources
        layer.setup(*(whole[i] if i in layer.undivided_sources else shape for i, shape in enumerate(local)))
        return layer

    def run(self, size: int, *, backward: bool = True) -> Results:
        """The results on `size` workers; on one, those of the layer that is not split."""
        parts = run_threads(size, self._run, backward)
        first, last = parts[0], parts[-1]
        every = range(len(self.inputs))
        dx = [None if first["dx"][i] is None else self._joined([part["dx"][i] for part in parts]) for i in every]
        grads = []
        for i, value in enumerate(self.values):
            whole = np.zeros_like(value)
            for part in parts:
                shard = part["layer"].params[i].shard
                if shard is None:
                    whole += part["grads"][i]
                else:
                    shard.write(whole, part["grads"][i])
            grads.append(whole)
        states = [np.concatenate([part["states"][i] for part in parts], axis=1) for i in range(len(last["states"]))]
        y = np.concatenate([part["y"] for part in parts], axis=-1)
        return Results(y, dx, grads, [part["metrics"] for part in parts], states, first["nbytes"])

    def _joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The gradient for a source: columns side by side, or the sum of what workers have of a whole source."""
        whole = type(self.layer).splits_features
        return np.sum(parts, axis=0) if whole else np.concatenate(parts, axis=-1)

    def _run(self, comm: Any, backward: bool) -> dict[str, Any]:
        partition = LayerPartition(sources=self.sources, rank=comm.rank, size=comm.size)
        described = type(self.layer).from_proto(self.layer.proto)
        described.partition = partition
        if comm.size > 1:
            reads, makes = described.shardings(1, [Sharding.FEATURES] * len(self.sources))
            assert makes is Sharding.FEATURES
            partition = replace(partition, reads=reads, makes=makes)
        layer, ops = self._made(partition), self.ops
        ops.use()
        for param, value in zip(layer.params, self.values, strict=True):
            own = value if param.shard is None else param.shard.of_whole(value)
            param.bind(self._device(own), ops.zeros(param.shape) + np.nan)
        ctx = Context(ops, Step(total_rows=self.rows, counts=(self.rows,)))
        ctx.group = CommGroup(CollectiveExecutor(comm, threaded=False), comm, ops)
        divided = set(range(len(self.inputs))) - set(layer.undivided_sources)
        columns = divided if partition.reads is Sharding.FEATURES else ()
        inputs = [
            ops.asarray(x) if x.dtype.kind != "f" else self._device(self._own(partition, x) if i in columns else x)
            for i, x in enumerate(self.inputs)
        ]
        if self.state is not None:
            ctx.memory.state = [self._device(self._own(partition, state)) for state in self.state]
        y = layer.forward(ctx, *inputs)
        result = {"y": ops.to_host(y).copy(), "layer": layer, "dx": [None] * len(inputs), "nbytes": 0}
        result["metrics"] = {name: metric.mean for name, metric in layer.metrics(ctx).items()}
        result["states"] = [ops.to_host(state).copy() for state in ctx.memory.state or []]
        if backward:
            dy = None if isinstance(layer, LossLayer) else self._device(self._own(partition, self.dy))
            dx = layer.backward(ctx, dy)
            gradients = dx if isinstance(dx, tuple) else (dx,)
            result["dx"] = [None if each is None else ops.to_host(each) for each in gradients]
        result["grads"] = [ops.to_host(param.grad) for param in layer.params]
        result["nbytes"] = sum(comm.nbytes.values())
        return result

    def _own(self, partition: LayerPartition, x: np.ndarray) -> np.ndarray:
        first, last = partition.own(x.shape[-1])
        return np.ascontiguousarray(x[..., first:last])

    def _device(self, x: np.ndarray) -> Any:
        return self.ops.asarray(x.copy(), self.ops.dtype)


CELLS = {"RNN": RNN, "GRU": GRU, "LSTM": LSTM}


def normal(*shape, seed=5):
    return np.random.default_rng(seed).standard_normal(shape)


def integers(limit, *shape, seed=6):
    return np.random.default_rng(seed).integers(0, limit, shape)


def one_hot(symbols, size):
    return np.eye(size)[symbols]


def loss(rows, **conf):
    return SplitLayer(
        SoftmaxLoss("loss", ["x", "data"], **conf), ((10,), (1,)), [normal(rows, 10), integers(10, rows)], rows
    )


def weighted_loss(rows):
    layer = SoftmaxLoss("loss", ["x", "data", "w"], class_weight=[0.5 * (i + 1) for i in range(10)])
    inputs = [normal(rows, 10), integers(10, rows), np.abs(normal(rows, 1))]
    return SplitLayer(layer, ((10,), (1,), (1,)), inputs, rows)


def images(layer, *shape, rows=2):
    return SplitLayer(layer, (shape,), [normal(rows, *shape)], rows)


def recurrent(cls, x, *state, units=5, steps=3, rows=2, **conf):
    given = [normal(rows, units, seed=8)] if state else []
    sources = ["x", "before"] if state else ["x"]
    layer = cls("cell", sources, dim_hidden=units, unroll_len=steps, **conf)
    return SplitLayer(layer, (x.shape[1:], *((units,) for _ in state)), [x, *given], rows)


CASES = {
    "Softmax": lambda: images(Softmax("s", "x"), 10, rows=4),
    "Softmax of images": lambda: images(Softmax("s", "x"), 2, 3, 5),
    "SoftmaxLoss": lambda: loss(5, scale=3),
    "SoftmaxLoss, smoothed": lambda: loss(5, label_smoothing=0.1),
    "SoftmaxLoss, top 3": lambda: loss(40, topk=3),
    "SoftmaxLoss, weighted": lambda: weighted_loss(5),
    "BatchNorm": lambda: images(BatchNorm("n", "x"), 2, 2, 5, rows=3),
    "GroupNorm": lambda: images(GroupNorm("n", "x", num_groups=6), 2, 2, 12, rows=3),
    "ClassToken": lambda: images(ClassToken("c", "x"), 2, 2, 5, rows=3),
    "Select": lambda: images(Select("s", "x", index=-1), 4, 5, rows=3),
    "PositionalEmbedding": lambda: images(PositionalEmbedding("p", "x"), 2, 2, 5, rows=3),
    "PositionalEmbedding by waves": lambda: SplitLayer(
        PositionalEmbedding("p", "x", kind="SINUSOIDAL", unroll_len=3), ((5,),), [normal(6, 5)], 2
    ),
    "Dropout": lambda: images(Dropout("d", "x", dropout_ratio=0.4), 2, 2, 5),
    "LRN": lambda: images(LRN("n", "x", local_size=3, alpha=0.5), 2, 2, 7),
    "LRN with neighbours of neighbours": lambda: images(LRN("n", "x", local_size=7, alpha=2, knorm=2), 1, 2, 5),
    "LRN of another power": lambda: images(LRN("n", "x", beta=0.5), 2, 1, 4),
    "Embedding": lambda: SplitLayer(Embedding("e", "x", vocab_size=6, feature_dim=5), ((1,),), [integers(6, 9, 1)], 9),
    "Embedding of several symbols": lambda: SplitLayer(
        Embedding("e", "x", vocab_size=6, feature_dim=5, pool="MEAN", padding_idx=1), ((4,),), [integers(6, 9, 4)], 9
    ),
    "Reverse": lambda: SplitLayer(Reverse("back", "x", unroll_len=3), ((5,),), [normal(6, 5)], 2),
    "AllSteps": lambda: SplitLayer(AllSteps("all", "x", unroll_len=3), ((5,),), [normal(6, 5)], 2),
    "LastStep": lambda: SplitLayer(LastStep("last", "x", unroll_len=3), ((5,),), [normal(6, 5)], 2),
    **{name: lambda cls=cls: recurrent(cls, normal(6, 4)) for name, cls in CELLS.items()},
    **{
        f"{name} of symbols": lambda cls=cls: recurrent(cls, one_hot(integers(4, 6), 4), units=4)
        for name, cls in CELLS.items()
    },
    **{
        f"{name} from a given state": lambda cls=cls: recurrent(cls, normal(6, 2, 2), "given")
        for name, cls in CELLS.items()
    },
    "one step from a given state, without bias": lambda: recurrent(
        GRU, normal(2, 4), "given", steps=1, bias_term=False
    ),
}
