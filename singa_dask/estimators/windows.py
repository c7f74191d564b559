"""Windows of the records that an estimator is given."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from singa_dask.data.labelled import first_array, is_labelled
from singa_dask.data.windows import LONG_GAP
from singa_dask.errors import ConfigError, Problem
from singa_dask.estimators.arrays import is_lazy
from singa_dask.job.job_pb2 import StoreProto
from singa_dask.job.stores import reads_windows

logger = logging.getLogger(__name__)


def index_of(x: Any) -> Any:
    """The index of a DataFrame, or that of the samples of a DataArray or a Dataset, which may tell their times."""
    return x.indexes.get(first_array(x).dims[0]) if is_labelled(x) else getattr(x, "index", None)


def check_order(index: Any) -> None:
    """Warn of gaps in the index of records. Raises ValueError if it does not rise."""
    if is_lazy(index):
        index = index.compute() if getattr(index.dtype, "kind", "") == "M" else None
    if not hasattr(index, "is_monotonic_increasing") or len(index) < 2:
        return
    if not index.is_monotonic_increasing:
        hint = "Sort it, and split it with TimeSeriesSplit."
        raise ValueError(f"X: its index does not rise, and the net reads windows in the order of time. {hint}")
    if index.dtype.kind in "iufM":
        steps = np.diff(index.to_numpy())
        if gaps := int((steps > LONG_GAP * np.median(steps)).sum()):
            message = "X: its index has %s, which windows cross. TimeSeriesSplit leaves none."
            logger.warning(message, f"{gaps:,} gap{'s' * (gaps > 1)}")


def check_dates(table: Any, names: Sequence[str]) -> None:
    """Raise ValueError if a table has columns of dates, and none of them rises."""
    columns = [table[name] for name in names]
    if columns and not any(column.is_monotonic_increasing for column in columns):
        hint = "Sort it by time."
        raise ValueError(f"X: {names[0]!r} does not rise, and the net reads windows in the order of time. {hint}")


@dataclass(frozen=True)
class Windows:
    """Of T = sequence consecutive records, with the answers of the H = horizon records after them."""

    sequence: int
    horizon: int
    stride: int

    @classmethod
    def of(cls, store: StoreProto) -> Self | None:
        """Those that an input layer reads, if any. Raises ConfigError if they have no horizon."""
        if not reads_windows(store):
            return None
        if store.horizon < 1:
            message, hint = "is missing: how many values of y after a window are predicted", "For example horizon=24."
            raise ConfigError(Problem("store_conf.horizon", message, str(store.horizon), hint))
        return cls(store.sequence, store.horizon, max(1, store.stride))

    def count(self, rows: int) -> int:
        """How many of `rows` records training reads."""
        return (rows - self.sequence - self.horizon) // self.stride + 1

    def features(self, x: Any) -> np.ndarray:
        """All windows of records x (N, ...), with none left out by the stride: (N - T + 1, T, ...), a view.

        Raises ValueError.
        """
        if is_lazy(x):
            raise ValueError("Windows are predicted from arrays in memory: give X.compute(), or a part of X.")
        if len(x) < self.sequence:
            raise ValueError(f"X has {len(x)} records, but the net reads windows of {self.sequence}. Give more.")
        return np.moveaxis(np.lib.stride_tricks.sliding_window_view(x, self.sequence, axis=0), -1, 1)

    def pair(self, predicted: np.ndarray, y: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray]:
        """The predictions for windows whose horizon is in y (N, ...), and the answers there, one row for each of them.

        Raises ValueError if there are none, or sample_weight is given.
        """
        if sample_weight is not None:
            raise ValueError("sample_weight counts single records, and the net reads windows: leave it out.")
        y = np.asarray(y)
        if self.count(len(y)) < 1:
            needed = self.sequence + self.horizon
            raise ValueError(f"A window and its horizon are {needed} records, but y has {len(y)}. Give more.")
        after = np.lib.stride_tricks.sliding_window_view(y[self.sequence :], self.horizon, axis=0)
        return predicted[: len(after)], np.moveaxis(after, -1, 1)
