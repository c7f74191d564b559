"""Measuring and predicting with a net, for workers, commands and `Model` alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from singa_dask.algorithms.base import TrainOneBatch
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.job.job_pb2 import LayerProto, LayerType
from singa_dask.layers.context import Context, Metric, Step
from singa_dask.layers.partition import Form, LayerPartition
from singa_dask.layers.transition import Transition
from singa_dask.net import Batch, Net, in_units, inputs_of
from singa_dask.ops.arrays import Array


class Evaluator:
    """A net of one phase, and the algorithm that runs it forward."""

    def __init__(self, net: Net, how: TrainOneBatch) -> None:
        self._net, self._how = net, how

    def measure(self, mini_batches: Iterable[tuple[Mapping[str, Batch], Step]]) -> dict[str, Metric]:
        """The metrics, summed over the mini-batches."""
        summed: dict[str, Metric] = {}
        for feed, step in mini_batches:
            for name, metric in self._how.test_one_batch(self._net, feed, step).items():
                summed[name] = summed.get(name, Metric()) + metric
        return summed

    def predict(self, feed: Mapping[str, Batch], step: Step) -> np.ndarray:
        """The class probabilities of a softmax loss, else the output of the loss or the last layer in the units of the
        data: (B, ...), on the host, valid until the next call. feed: may lack labels, and input layers on which the
        output does not depend. Collective where the net is partitioned.

        Raises ConfigError where the net has nothing to predict with, or gives several rows for one, as for sequences.
        """
        name, _ = self._net.scores()
        missing = [key for key in inputs_of(self._net, name) if key not in feed]
        if missing:
            raise DataError(f"layer {name!r} depends on the input layers {', '.join(missing)}, which were not fed.")
        rows = len(next(iter(feed.values())).features)
        self._net.forward({key: self._completed(key, feed.get(key), rows) for key in self._net.input_layers}, step)
        output = self._net.ops.to_host(in_units(self._net, name, _own_rows(self._net, name)))
        if len(output) != rows:
            hint = "Text comes from `singa-dask sample`; evaluate() measures."
            received = f"{len(output)} for {rows}"
            raise ConfigError(Problem(f"layer {name!r}", "gives several rows for one", received, hint))
        return output

    def _completed(self, name: str, batch: Batch | None, rows: int) -> Batch:
        """The batch with zeros for what is missing: a loss reads it, and its metrics are not used."""
        if batch is None:
            batch = Batch(np.zeros((rows, *self._net.shapes[name]), np.float32))
        if batch.labels is not None:
            return batch
        return Batch(batch.features, self._net.input_layer(name).no_labels(rows))


def means(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """The means of summed metrics."""
    return {name: metric.mean for name, metric in metrics.items()}


def _own_rows(net: Net, name: str) -> Array:
    """This worker's rows of a layer's output, with all features."""
    layer, y = net.layers[name], net.output(name)
    partition = layer.partition
    if partition.makes is Form.ROWS:
        return y
    message = LayerProto(name=f"{name}:rows", type=LayerType.kTransition, unroll_len=layer.output_steps)
    transition = Transition.from_proto(message)
    sources = (net.whole_shapes[name],)
    transition.partition = LayerPartition(partition.makes, Form.ROWS, sources, partition.rank, partition.size)
    ctx = net.contexts[name]
    return transition.forward(Context(ctx.ops, ctx.step, group=ctx.group), y)
