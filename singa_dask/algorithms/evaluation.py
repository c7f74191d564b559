"""Measuring and predicting with a net, for workers, commands and `Model` alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from singa_dask.algorithms.base import TrainOneBatch
from singa_dask.algorithms.measured import Measured, loss_metrics, own_rows
from singa_dask.errors import DataError
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net, inputs_of, undone, units


class Evaluator:
    """A net of one phase, and the algorithm that runs it forward.

    metrics: by name, to measure besides those of the layers. rows: of the whole set, to sample for a parity plot; 0
    for no sample.
    """

    def __init__(self, net: Net, how: TrainOneBatch, metrics: Sequence[str] = (), *, rows: int = 0) -> None:
        self._net, self._how, self._metrics, self._rows = net, how, metrics, rows

    @cached_property
    def _needed(self) -> dict[str, list[str]]:
        """The input layers of each output."""
        return {name: inputs_of(self._net, name) for name in self._net.predictions()}

    @cached_property
    def _units(self) -> dict[str, Any]:
        return {name: units(self._net, name) for name in self._needed}

    def measure(self, mini_batches: Iterable[tuple[Mapping[str, Batch], Step]]) -> Measured:
        """What is measured of these mini-batches. Raises ConfigError if a metric does not exist or fit the net."""
        measured = Measured(loss_metrics(self._net, self._metrics, rows=self._rows))
        for feed, step in mini_batches:
            metrics = self._how.test_one_batch(self._net, feed, step)
            measured.add(metrics, step, len(next(iter(feed.values())).features))
        return measured

    def predict(self, feed: Mapping[str, Batch], step: Step) -> dict[str, np.ndarray]:
        """Those outputs of `Net.predictions` whose inputs are fed: class probabilities of softmax losses, else the
        output of the loss or the last layer in the units of the data: (B, ...), of a layer with T time steps
        (B, T, ...), on the host, valid until the next call. feed: may lack labels, and inputs that only other outputs
        need. Collective where the net is partitioned.

        Raises ConfigError where the net has nothing to predict with, DataError if no output has all its inputs.
        """
        names = [name for name, inputs in self._needed.items() if feed.keys() >= set(inputs)]
        if not names:
            wanted = "; ".join(f"{name!r} needs {', '.join(inputs)}" for name, inputs in self._needed.items())
            raise DataError(f"input layers are not fed: {wanted}. Fed: {', '.join(feed) or 'none'}.")
        rows = len(next(iter(feed.values())).features)
        self._net.forward({key: self._completed(key, feed.get(key), rows) for key in self._net.input_layers}, step)
        return {name: self._output(name, rows) for name in names}

    def _output(self, name: str, rows: int) -> np.ndarray:
        y, makes = self._net.output(name), self._net.layers[name].partition.makes
        whole = own_rows(self._net, name, y, makes, self._net.whole_shapes[name])
        output = self._net.ops.to_host(undone(self._net, self._units[name], whole))
        if len(output) == rows:
            return output
        return output.reshape(-1, rows, *output.shape[1:]).swapaxes(0, 1)  # a folded layer: step after step

    def _completed(self, name: str, batch: Batch | None, rows: int) -> Batch:
        """The batch with what losses take in place of what is missing: their metrics are not used."""
        if batch is None:
            batch = Batch(np.zeros((rows, *self._net.shapes[name]), np.float32))
        if batch.labels is not None:
            return batch
        return Batch(batch.features, self._net.input_layer(name).no_labels(rows))
