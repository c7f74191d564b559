"""What a sample is: its columns, how the columns of a table became features, and how the source was read.

It is written down once, when data are first described, and kept in the manifest of shards and in every checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from singa_dask.data.columns import Column
from singa_dask.data.encoders import Encoders

# Of the manifest and of descriptions in checkpoints. Others are refused.
VERSION = 3
TYPES = ("number", "integer", "text", "true or false", "date", "zoned date")


@dataclass(frozen=True)
class Reading:
    """How a source was read, so that other files are read in the same way.

    format: of `singa-dask shard`, "" for arrays and tables in memory. Of CSV: separator; header: whether the first
    line names the columns; dates: formats of dates that are not ISO 8601, by column; types: one of TYPES, by column.
    Of arrays: datasets: the path of each, by column; dimensions: the names of those of a sample, with / between them,
    by column.
    """

    format: str = ""
    separator: str = ""
    header: bool = True
    dates: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    datasets: Mapping[str, str] = field(default_factory=dict)
    dimensions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Schema:
    """The description of a data set. encoders: of the columns of a table. fitted: the samples that the statistics, the
    values for missing ones and the categories come from, as text."""

    columns: tuple[Column, ...]
    encoders: Encoders = field(default_factory=Encoders)
    reading: Reading = field(default_factory=Reading)
    fitted: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "columns": list(map(_column_fields, self.columns)),
            "encoders": self.encoders.to_json(),
            "reading": asdict(self.reading),
            "fitted": self.fitted,
        }

    def to_json(self) -> str:
        """The text that checkpoints keep; `manifest_reader.read_description` reads it."""
        return json.dumps({"version": VERSION, **self.fields})


def _column_fields(column: Column) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": column.name,
        "role": column.role.value,
        "dtype": column.dtype,
        "shape": list(column.shape),
        "channels": column.channels.value,
        "classes": list(column.classes) if isinstance(column.classes, tuple) else column.classes,
        "mean": list(column.mean),
        "std": list(column.std),
    }
    if column.names:
        fields["names"] = list(column.names)
    if column.dataset:
        fields["dataset"] = column.dataset
    if column.fill is not None:
        fields["fill"] = {"values": list(column.fill.values), "flags": column.fill.flags}
    return fields
