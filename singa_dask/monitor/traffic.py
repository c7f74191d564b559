"""What the workers of a group send each other in a step, by the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from singa_dask.job import runs_in
from singa_dask.job.evaluations import PHASE_NAMES
from singa_dask.job.job_pb2 import Phase
from singa_dask.job.stores import store_of
from singa_dask.net import LayerRow
from singa_dask.training.memory import format_nbytes
from singa_dask.training.prepare import Prepared

NBYTES = np.dtype(np.float32).itemsize


@dataclass(frozen=True)
class Traffic:
    """Bytes that one worker sends to the others of its group in a step.

    batch: rows of the group's mini-batch. backward: whether gradients are sent. replicated: bytes for the gradients
    and values of replicated parameters, (n - 1) / n of them twice, before a codec encodes them.
    """

    batch: int
    backward: bool
    replicated: int

    @classmethod
    def of(cls, prepared: Prepared, phase: str) -> Traffic:
        """The traffic of a phase: "train", "validate" or "test"."""
        number = next(number for number, name in PHASE_NAMES.items() if name == phase)
        inputs = (layer for layer in prepared.job.neuralnet.layer if runs_in(layer, number) and not layer.srclayers)
        batches = [size for layer in inputs for size in store_of(layer).batchsize]
        trains, workers = number == Phase.kTrain, prepared.topology.nworkers_per_group
        size = sum(entry.size for entry in prepared.layout.replicated) if trains else 0
        return cls(max(batches, default=1), trains, round(2 * (workers - 1) / workers * size * NBYTES))

    def of_layer(self, row: LayerRow) -> int:
        """Bytes that a transition sends, or a layer that exchanges something in its calls."""
        forward, backward = row.sent
        return round(NBYTES * self.batch * row.steps * (forward + (backward if self.backward else 0.0)))

    def summary(self, rows: Sequence[LayerRow], codec: str) -> list[str]:
        """A line of totals; none if workers send each other nothing."""
        nbytes = sum(map(self.of_layer, rows))
        parts = [f"{format_nbytes(nbytes)} for activations"] if nbytes else []
        if self.replicated:
            encoded = "" if codec == "kFull" else f" (before {codec} encodes them)"
            parts.append(f"{format_nbytes(self.replicated)} for replicated parameters{encoded}")
        return ["each worker sends per step " + " and ".join(parts)] if parts else []
