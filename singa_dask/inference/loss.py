"""What a training call of a model returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from singa_dask.errors import TrainingError
from singa_dask.layers.context import Metric

if TYPE_CHECKING:
    from singa_dask.inference.model import Model


class TrainingLoss:
    """The metrics of a training call on this rank's rows, from which DistOpt goes backward.

    float(loss): the mean loss; loss.accuracy: and so on, every metric's mean; metrics: all of them. Those of a loss
    that is split over the ranks by classes are of the rows of all ranks. rows: own rows; total_rows: of all ranks.
    """

    def __init__(self, model: Model, metrics: Mapping[str, Metric], rows: int, total_rows: int) -> None:
        self.metrics = {name: metric.mean for name, metric in metrics.items()}
        self.rows, self.total_rows = rows, total_rows
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
