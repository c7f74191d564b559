"""What an evaluation measures: the metrics of layers, and metrics by name of what losses compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from singa_dask.algorithms.metrics import METRICS, ComparedRows, SetMetric, kind_of, layout, make_metric
from singa_dask.algorithms.parity_sample import ParitySample
from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import LayerProto, LayerType
from singa_dask.job.unroll import origin
from singa_dask.layers.base import LossLayer
from singa_dask.layers.context import Context, Metric, Step
from singa_dask.layers.input import InputLayer
from singa_dask.layers.normalisation import Normalisation
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import LayerPartition, Sharding
from singa_dask.layers.transition import Transition
from singa_dask.net import Net
from singa_dask.net.outputs import units
from singa_dask.ops.arrays import Array

PARITY = "parity"


class Detail(NamedTuple):
    """A result that is not one number. source: the input layer of the labels or targets, "" if there is none."""

    value: Any
    source: str = ""


class Measured:
    """The sums of an evaluation. Those of several workers can be added: after `share`, their `sums` are vectors of one
    length."""

    def __init__(self, losses: Sequence[LossMetrics] = ()) -> None:
        self._losses = losses
        self._layers: dict[str, Metric] = {}
        self._rows = 0  # of the group, so far
        self._set = {name: metric for loss in losses for name, metric in loss.metrics.items()}

    def add(self, metrics: Mapping[str, Metric], step: Step, rows: int) -> None:
        """Add a mini-batch: the metrics of its layers, and what its losses compared. rows: of this worker."""
        for name, metric in metrics.items():
            self._layers[name] = self._layers.get(name, Metric()) + metric
        for loss in self._losses:
            loss.update(self._rows + step.first_row, rows)
        self._rows += int(step.total_rows)

    def share(self, rank: int, numbers: Callable[[int], Sequence[int]]) -> None:
        """Make the sums those that can be added. numbers: every rank's number, by rank. Collective."""
        for metric in self._set.values():
            metric.share(rank, numbers)

    @property
    def sums(self) -> np.ndarray:
        """All sums, in float64."""
        of_layers = [[metric.total, metric.count] for metric in self._layers.values()]
        return np.concatenate([np.array(of_layers).reshape(-1), *(metric.state for metric in self._set.values())])

    @sums.setter
    def sums(self, sums: np.ndarray) -> None:
        pairs, start = sums[: 2 * len(self._layers)].reshape(-1, 2), 2 * len(self._layers)
        self._layers = {name: Metric(*pair) for name, pair in zip(self._layers, pairs.tolist(), strict=True)}
        for metric in self._set.values():
            metric.state = sums[start : start + metric.state.size]
            start += metric.state.size

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics that are one number. A metric by name replaces that of a layer with the same name."""
        means = {name: metric.mean for name, metric in self._layers.items()}
        return means | {name: metric.result() for name, metric in self._set.items() if metric.is_number}

    @property
    def details(self) -> dict[str, Detail]:
        """The others: "confusion", nested lists; "parity", an array (rows, targets, 2)."""
        return {
            name: Detail(metric.result(), loss.source)
            for loss in self._losses
            for name, metric in loss.metrics.items()
            if not metric.is_number
        }


class LossMetrics:
    """The metrics by name of one loss. metrics: by the name in the results. source: the input layer of its labels or
    targets, or ""."""

    def __init__(self, net: Net, layers: Sequence[str]) -> None:
        self._net, self._layers = net, layers  # the time steps of an unrolled net are several layers
        self.name, self._layer = origin(net.layers[layers[0]].proto), _loss(net, layers[0])
        self.kind = compares(net, layers[0])
        self.metrics: dict[str, SetMetric] = {}
        self.source = next((source.name for source in net.labels_from(layers[0])), "")
        if self.kind == "classes":
            self.size = net.whole_shapes[layers[0]][-1]
            return
        shape = net.source_shape(layers[0], 1)
        self.size, self._positions = layout(shape)
        normalisation, of = units(net, layers[0]) or (Normalisation(), shape)
        numbers = (
            1.0 if normalisation.std is None else normalisation.std,
            0.0 if normalisation.mean is None else normalisation.mean,
        )
        self._std, self._mean = (np.broadcast_to(each, of).reshape(-1, self.size) for each in numbers)

    def sample(self, rows: int) -> None:
        """Sample what the loss compares, for a parity plot. rows: of the whole set."""
        if self.kind == "values" and len(self._layers) == 1:
            every = rows * self._layer.steps * self._positions
            self.metrics[PARITY] = ParitySample(self.size, every, self._mean)

    def update(self, start: int, rows: int) -> None:
        """Add what the loss compared in the last forward call of the net: `rows` rows of the set from `start` on."""
        for name in self._layers if self.metrics else ():
            compared = self._rows(name, start, rows)
            for metric in self.metrics.values():
                metric.update(compared)

    def _rows(self, name: str, start: int, rows: int) -> ComparedRows:
        net, layer = self._net, _loss(self._net, name)
        own = not layer.compares
        prediction, target, weight = (*net.sources_of(name), None) if own else layer.compared(net.contexts[name])
        shape, makes = net.source_shape(name, 0) if own else net.whole_shapes[name], layer.partition.makes
        rest = Sharding.REPLICATED if makes is Sharding.FEATURES else makes  # labels and weights are not divided
        host = net.ops.to_host
        prediction = np.asarray(host(own_rows(net, name, prediction, makes, shape)), np.float64)
        target = host(own_rows(net, name, target, rest, target.shape[1:]))
        weight = None if weight is None else host(own_rows(net, name, weight, rest, weight.shape[1:]))
        samples = _numbers(len(prediction), start, rows)
        if self.kind == "classes":
            weight = np.ones(len(target)) if weight is None else weight.reshape(-1).astype(np.float64)
            return ComparedRows(prediction, target.astype(np.intp), weight, samples)
        weight = np.broadcast_to(np.float64(1) if weight is None else weight.astype(np.float64), target.shape)
        number = samples[:, None] * self._positions + np.arange(self._positions)
        prediction, target = (
            (array.reshape(-1, *self._std.shape) * self._std).reshape(-1, self.size)  # the mean makes no difference
            for array in (prediction, target.astype(np.float64))
        )
        return ComparedRows(prediction, target, weight.reshape(-1, self.size), number.reshape(-1))


def compares(net: Net, name: str) -> str:
    """What metrics by name compare of a loss: "classes", "values" or nothing. One that does not say compares its first
    source with the targets that the second one brings, where both are of one size and there is no third one."""
    layer = _loss(net, name)
    if layer.compares or layer.targets.keys() != {1} or len(layer.proto.srclayers) != 2:
        return layer.compares
    (first,) = net.labels_from(name)
    positions = isinstance(first, InputLayer) and first.labels_positions
    return "values" if not positions and prod(net.source_shape(name, 0)) == prod(layer.targets[1]) else ""


def loss_metrics(net: Net, names: Sequence[str] = (), *, rows: int = 0) -> list[LossMetrics]:
    """The metrics of these names of a net's losses, and samples for parity plots if the number of rows is given.

    A metric of several losses is named "<layer>.<metric>". Raises ConfigError if a metric does not fit the net.
    """
    instances: dict[str, list[str]] = {}
    for name, layer in net.layers.items():
        if isinstance(layer, LossLayer) and compares(net, name):
            instances.setdefault(origin(layer.proto), []).append(name)
    losses = [LossMetrics(net, layers) for layers in instances.values()]
    for name in dict.fromkeys(names):
        fitting = [loss for loss in losses if loss.kind == kind_of(name)]
        if not fitting:
            raise ConfigError(_misfit(name, losses))
        for loss in fitting:
            loss.metrics[name if len(fitting) == 1 else f"{loss.name}.{name}"] = make_metric(name, loss.size)
    if rows:
        for loss in [loss for loss in losses if loss.kind == "values"][:1]:
            loss.sample(rows)
    return losses


def own_rows(net: Net, name: str, array: Array, makes: Sharding, shape: Shape) -> Array:
    """This worker's rows, with all features, of an array of layer `name`, which is in the sharding `makes`.

    shape: of a whole sample. Collective where the sharding is not BATCH.
    """
    if makes is Sharding.BATCH:
        return array
    layer, ctx = net.layers[name], net.contexts[name]
    message = LayerProto(name=f"{name}:batch", type=LayerType.kTransition, unroll_len=layer.output_steps)
    transition = Transition.from_proto(message)
    transition.partition = LayerPartition(makes, Sharding.BATCH, (shape,), layer.partition.rank, layer.partition.size)
    return transition.forward(Context(ctx.ops, ctx.step, group=ctx.group), array)


def _numbers(count: int, start: int, rows: int) -> np.ndarray:
    """The numbers in the whole set of `count` rows: the time steps of `rows` rows from `start` on, step after step."""
    row, steps = np.arange(count), count // max(rows, 1)
    return (start + row % max(rows, 1)) * steps + row // max(rows, 1)


def _loss(net: Net, name: str) -> LossLayer:
    layer = net.layers[name]
    assert isinstance(layer, LossLayer)
    return layer


def _misfit(name: str, losses: Sequence[LossMetrics]) -> Problem:
    kind = kind_of(name)
    message = {
        "classes": f"{name} compares classes: it needs a kSoftmaxLoss, and the net has none",
        "values": f"{name} compares numbers: it needs a loss of one prediction for each value of a target",
    }[kind]
    known = [other for each in dict.fromkeys(loss.kind for loss in losses) for other in METRICS[each]]
    hint = f"This net can have: {', '.join(known)}." if known else "Leave it out."
    return Problem("metric", message, name, hint)
