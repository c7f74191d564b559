"""Pictures of an evaluation: confusion matrices and parity plots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from singa_dask.algorithms.measured import Detail
from singa_dask.data.columns import Column
from singa_dask.inference.described import Described, class_names, value_names
from singa_dask.job import runs_in
from singa_dask.job.evaluations import PHASE_NAMES
from singa_dask.job.job_pb2 import JobProto
from singa_dask.monitor.plots import plot_confusion, plot_parity

# By phase, then by name: "confusion", "parity", or "<layer>.confusion" of several losses.
Details = Mapping[str, Mapping[str, Detail]]


def matrices(details: Details, job: JobProto, described: Mapping[str, str]) -> dict[str, Any]:
    """The confusion matrices for summary.json: {"test": {"classes": names or None, "matrix": nested lists}}.

    Of several losses the keys are "test.<layer>".
    """
    found: dict[str, Any] = {}
    for phase, of_phase in details.items():
        for name, detail in of_phase.items():
            if name.endswith("confusion"):
                classes = class_names(_column(job, described, phase, detail.source))
                key = f"{phase}.{name}".removesuffix(".confusion")
                found[key] = {"classes": classes, "matrix": detail.value}
    return found


def draw_pictures(details: Details, job: JobProto, described: Mapping[str, str], folder: Path) -> list[Path]:
    """Draw what evaluations kept, as <name>-<phase>.png in `folder`. described: of the data, as in `Prepared`."""
    drawn = []
    for phase, of_phase in details.items():
        for name, detail in of_phase.items():
            column = _column(job, described, phase, detail.source)
            # A layer's name is in it, which may have slashes.
            path, title = folder / f"{name}-{phase}.png".replace("/", "_"), f"{job.name}, {phase}"
            if name.endswith("confusion"):
                names = value_names(column, len(detail.value), classifies=True)
                plot_confusion(detail.value, path, names=names, title=title)
            else:
                prediction, target = detail.value.transpose(2, 0, 1)
                targets = value_names(column, len(prediction[0]), classifies=False) if column else None
                plot_parity(prediction, target, path, names=targets, title=title)
            drawn.append(path)
    return drawn


def _column(job: JobProto, described: Mapping[str, str], phase: str, source: str) -> Column | None:
    """The labels or targets of the input layer `source` in a phase, if they are described."""
    (number,) = (number for number, name in PHASE_NAMES.items() if name == phase)
    layers = (layer for layer in job.neuralnet.layer if layer.name == source and runs_in(layer, number))
    stores = [layer.store_conf for layer in layers if layer.HasField("store_conf")]
    return Described.of(stores[0], described[source]).answers if stores and source in described else None
