"""A net of layer objects that is called on arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from singa_dask.algorithms import BP
from singa_dask.algorithms.evaluation import Evaluator, means
from singa_dask.errors import ConfigError, DataError, Problem, TrainingError
from singa_dask.job.assemble import assemble
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers.context import Metric, Step
from singa_dask.layers.group import Group
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops


class Loss:
    """The metrics of a training call on this rank's rows, from which DistOpt goes backward.

    float(loss): the mean loss; loss.accuracy: and so on, every metric's mean; metrics: all of them. rows: own rows.
    """

    def __init__(self, model: Model, metrics: Mapping[str, Metric], rows: int) -> None:
        self.metrics = {name: metric.mean for name, metric in metrics.items()}
        self.rows = rows
        self._model = model

    def __float__(self) -> float:
        losses = [value for name, value in self.metrics.items() if name.split(".")[-1] == "loss"]
        return sum(losses) if losses else float("nan")

    def __getattr__(self, name: str) -> float:
        metrics = self.__dict__.get("metrics", {})
        if name not in metrics:
            raise AttributeError(f"this model measures no {name!r}. It measures: {', '.join(metrics) or 'nothing'}.")
        return metrics[name]

    def __repr__(self) -> str:
        return "Loss(" + ", ".join(f"{name}={value:.6g}" for name, value in self.metrics.items()) + ")"

    def claim(self) -> Model:
        """The model, for one backward pass.

        Raises TrainingError where the model was called since, or the loss was claimed before.
        """
        if self._model.last is not self:
            raise TrainingError(
                "this loss cannot go backward: the model was called again since, or it has gone already. "
                "Call the model, then DistOpt once, in every step."
            )
        self._model.last = None
        return self._model


class Model:
    """A net built from layers as objects, in a list or a graph as `Job` takes them, with its initial parameters.

        model = Model([RecordInput(shape=[1, 28, 28]), InnerProduct(num_output=10), SoftmaxLoss()], seed=0)
        loss = model(x, y)                     x: (B, ...), images (B, H, W, C) or flat; y: (B,)
        scores = model.predict(x)

    layers: may be a NetProto too. seed: of the initial parameters and of random layers. device, dtype, device_id: see
    get_ops. rows_of_all: own rows -> (rows of lower ranks, rows of all ranks); DistOpt sets it, and training calls are
    then collective.

    Raises ConfigError where the layers do not fit together.
    """

    def __init__(
        self,
        layers: Iterable[Any] | NetProto,
        *,
        seed: int = 0,
        device: str = "cpu",
        dtype: Any = np.float32,
        device_id: int = 0,
    ) -> None:
        proto = layers if isinstance(layers, NetProto) else NetProto(layer=assemble(layers))
        self.ops = get_ops(device, dtype, device_id=device_id)
        self.net = Net(proto, Phase.kTrain, self.ops)
        self._evaluator = Evaluator(Net(proto, Phase.kTest, self.ops, share=self.net), BP())
        self.net.initialise(seed)
        self.seed = seed
        self.number = 0
        self.last: Loss | None = None
        self.rows_of_all: Callable[[int], tuple[int, int]] = lambda rows: (0, rows)

    def __call__(self, x: Any, y: Any = None) -> Loss:
        """Run forward in training; x: one array, or arrays by the names of the input layers. y: labels, or None.

        Raises DataError where x and y do not fit the net or each other.
        """
        feed, rows = self._feed(x, y)
        first, total = self.rows_of_all(rows)
        self.net.forward(feed, Step(Phase.kTrain, self.number, self.seed, first, total))
        self.last = Loss(self, self.net.metrics(), rows)
        return self.last

    def evaluate(self, x: Any, y: Any = None, *, batchsize: int = 500) -> dict[str, float]:
        """Mean metrics over test data, `batchsize` rows at a time, on this rank alone."""
        return means(self._evaluator.measure(self._mini_batches(x, y, batchsize)))

    def predict(self, x: Any, *, batchsize: int = 500) -> np.ndarray:
        """The net's output for every row of x, `batchsize` rows at a time: class probabilities of a softmax loss, else
        the output of the loss or the last layer. -> (B, ...), on the host.

        Raises ConfigError where the net has nothing to predict with, or gives several rows for one, as for sequences.
        """
        mini_batches = self._mini_batches(x, None, batchsize)
        return np.concatenate([self._evaluator.predict(feed, step).copy() for feed, step in mini_batches])

    def _mini_batches(self, x: Any, y: Any, batchsize: int) -> Iterator[tuple[dict[str, Batch], Step]]:
        """Test data, `batchsize` rows at a time."""
        if batchsize < 1:
            raise ConfigError(Problem("batchsize", "must be at least 1", str(batchsize)))
        feed, rows = self._feed(x, y)
        for start in range(0, rows, batchsize):
            some = slice(start, start + batchsize)
            part = {
                name: Batch(batch.features[some], None if batch.labels is None else batch.labels[some])
                for name, batch in feed.items()
            }
            yield part, Step(Phase.kTest, 0, self.seed, start, min(batchsize, rows - start))

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the parameters, by name."""
        values = self.ops.to_host(self.net.flat.values).copy()
        return self.net.flat.named(values)

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Set the parameters. Raises CheckpointError where names or shapes differ."""
        self.net.flat.values[...] = self.ops.asarray(self.net.flat.flattened(state))

    def join(self, group: Group) -> None:
        """Let the layers of the training net exchange with those of the other ranks."""
        self.net.join(group)

    def _feed(self, x: Any, y: Any) -> tuple[dict[str, Batch], int]:
        names = self.net.input_layers
        given = dict(x) if isinstance(x, Mapping) else dict.fromkeys(names[:1], x)
        if set(given) != set(names):
            raise DataError(f"x must be arrays for the input layers {', '.join(names)}. Received: {', '.join(given)}.")
        arrays = {name: _array(array) for name, array in given.items()}
        labels = None if y is None else _array(y)
        sizes = {f"x[{name!r}]" if len(names) > 1 else "x": len(array) for name, array in arrays.items()}
        if labels is not None:
            sizes["y"] = len(labels)
        rows = next(iter(sizes.values()))
        if rows < 1 or len(set(sizes.values())) > 1:
            told = ", ".join(f"{size} in {name}" for name, size in sizes.items())
            raise DataError(
                f"a mini-batch must have as many samples in all arrays, and at least one. Received: {told}."
            )
        return {name: Batch(array, labels) for name, array in arrays.items()}, rows


def _array(array: Any) -> Any:
    array = array if hasattr(array, "shape") else np.asarray(array)
    if not array.shape:
        raise DataError("x and y must be arrays whose first axis counts the samples. Received: a number.")
    return array
