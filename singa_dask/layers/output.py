"""Layers that write the output of a net to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from singa_dask.files import NotAFile, unlinked
from singa_dask.layers.base import OutputLayer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array


class _FileOutput(OutputLayer):
    """Writes every batch to the file at store_conf.path, which the first batch truncates; y = x.

    Workers that share a mini-batch write separate files: `name-<first row>.suffix`. A net over time writes the rows of
    a mini-batch time step by time step.
    """

    rowwise: ClassVar[bool] = True

    conf_field: ClassVar[str | None] = "store_conf"

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        if not self.conf.path:
            raise self.problem("store_conf.path is missing: the file to write")
        if self.proto.num_instances > 1:
            hint = "Write only the last time step: unroll_len: 1 unroll_conn_type: kUnrollFirstToLast."
            raise self.problem(f"{self.proto.num_instances} time steps cannot write to one file", self.conf.path, hint)
        self._file: Any = None
        return shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        rows = ctx.ops.to_host(x[0])
        if self._file is None:
            path = Path(self.conf.path)
            if len(rows) < ctx.step.total_rows:
                path = path.with_name(f"{path.stem}-{ctx.step.first_row}{path.suffix}")
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._file = self._open(path, rows)
            except NotAFile as error:
                hint = "Name a regular file: links, pipes and devices are not written to."
                raise self.problem(f"store_conf.path is {error.kind}", str(path), hint) from None
        self._append(rows)
        return x[0]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: Path, rows: np.ndarray) -> Any:
        raise NotImplementedError

    def _append(self, rows: np.ndarray) -> None:
        raise NotImplementedError


class CSVOutput(_FileOutput):
    """Writes one line per sample, its elements in order, to a CSV file; y = x.   store_conf: path, separator."""

    type: ClassVar[str] = "kCSVOutput"

    def _open(self, path: Path, rows: np.ndarray) -> Any:
        return open(path, "w", encoding="utf-8", opener=unlinked)

    def _append(self, rows: np.ndarray) -> None:
        digits = "%d" if rows.dtype.kind in "iu" else "%.9g" if rows.dtype == np.float32 else "%.17g"
        np.savetxt(self._file, rows.reshape(len(rows), -1), fmt=digits, delimiter=self.conf.separator)


class RecordOutput(_FileOutput):
    """Writes samples to data set `features` of an HDF5 file; y = x.   store_conf: path."""

    type: ClassVar[str] = "kRecordOutput"

    # HDF5 needs chunks for a growing data set; chunks of about this size cost little.
    chunk_nbytes: ClassVar[int] = 1 << 20

    def _open(self, path: Path, rows: np.ndarray) -> Any:
        import h5py

        os.close(unlinked(path, os.O_WRONLY | os.O_CREAT))
        file = h5py.File(path, "w")
        shape = rows.shape[1:]
        count = max(1, self.chunk_nbytes // max(1, rows[:1].nbytes))
        file.create_dataset("features", (0, *shape), rows.dtype, maxshape=(None, *shape), chunks=(count, *shape))
        return file

    def _append(self, rows: np.ndarray) -> None:
        features = self._file["features"]
        start = features.shape[0]
        features.resize(start + len(rows), axis=0)
        features[start:] = rows
