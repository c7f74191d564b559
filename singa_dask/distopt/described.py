"""What a trained net knows of its data: names of classes, targets and columns, and the encoders of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from singa_dask.data.columns import Column, Role
from singa_dask.data.manifest import Manifest
from singa_dask.data.manifest_reader import read_description
from singa_dask.data.store import columns_of
from singa_dask.errors import DataError, nearest
from singa_dask.job.job_pb2 import StoreProto
from singa_dask.layers.input import InputLayer
from singa_dask.net import Net


@dataclass(frozen=True)
class Described:
    """The data of one input layer. column: what it outputs; answers: its labels or targets, or None; encoders: of the
    columns of a table, as JSON."""

    column: Column
    answers: Column | None
    encoders: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, store: StoreProto, text: str) -> Described:
        """From `Manifest.description`. Raises DataError, ConfigError."""
        columns, encoders = read_description(text)
        return cls(*columns_of(store, Manifest(0, columns, 1, ())), encoders)

    def features(self, table: Any) -> np.ndarray:
        """The features of a DataFrame, or of a mapping from columns to arrays: (rows, D) float32.

        Raises DataError that names the column.
        """
        names = self.column.names or tuple(map(str, table))
        missing = [name for name in names if name not in table]
        if missing:
            hint = nearest(missing[0], map(str, table))
            raise DataError(f"the net was trained with the columns {', '.join(missing)}, which are missing. {hint}")
        return numbers(table, names)


def described_inputs(net: Net, texts: Mapping[str, str]) -> dict[str, Described]:
    """The data of the input layers that are described, by layer."""
    stores = {name: net.layers[name].proto.store_conf for name in net.input_layers}
    return {name: Described.of(store, texts[name]) for name, store in stores.items() if name in texts}


def answers_of(net: Net, output: str, inputs: Mapping[str, Described]) -> Column | None:
    """The labels or targets with which an output was trained, if they are described."""
    sources = [layer.name for layer in net.labels_from(output) if isinstance(layer, InputLayer)]
    known = [inputs[name].answers for name in sources if name in inputs]
    return known[0] if known else None


def class_names(column: Column | None) -> tuple[str, ...] | None:
    """The names of the classes of labels."""
    return column.classes if column is not None and isinstance(column.classes, tuple) else None


def value_names(column: Column | None, width: int, *, classifies: bool) -> list[str]:
    """The names of the `width` values of one prediction: of the classes, or of the values of the target."""
    if classifies:
        classes = class_names(column) or ()
        return [classes[i] if i < len(classes) else str(i) for i in range(width)]
    if column is None or column.role is not Role.TARGET or prod(column.shape) != width:
        return [f"output_{i}" for i in range(width)]
    if column.shape == ():
        return [column.name]
    return list(column.names) or [f"{column.name}_{i}" for i in range(width)]


def numbers(table: Any, names: Sequence[Any]) -> np.ndarray:
    """Columns of numbers, side by side: (rows, columns) float32. Raises DataError."""
    columns = [np.asarray(table[name]) for name in names]
    wrong = [str(name) for name, values in zip(names, columns, strict=True) if values.dtype.kind not in "biuf"]
    if wrong:
        raise DataError(f"the columns {', '.join(wrong)} are not numbers, and the net has no encoders for them.")
    return np.stack(columns, axis=1, dtype=np.float32, casting="unsafe")
