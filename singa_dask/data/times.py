"""The times of records, whatever index holds them."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Any

import numpy as np

_ISO = re.compile(r"\d{4}-\d\d(-\d\d.*)?|\d{8}(T.*)?")


def instants(index: Any) -> Any:
    """The last level of an index of pandas as dates without a zone, time spans, or numbers, so that steps can be
    measured: periods by their starts, texts of ISO 8601 and objects of dates as what they say, dates of other
    calendars as spans since the first one. None of all else."""
    if index is None:
        return None
    import pandas

    index = index.get_level_values(-1) if index.nlevels > 1 else index
    index = index.to_timestamp() if isinstance(index, pandas.PeriodIndex) else index
    if not isinstance(index.dtype, np.dtype | pandas.DatetimeTZDtype) or index.dtype.kind not in "iufmM":
        values = index.to_numpy(object)
        if not len(values) or isinstance(index.dtype, pandas.CategoricalDtype):
            return None
        try:
            index = _of_objects(values)
        except (ValueError, TypeError, OverflowError):
            return None
    return index.tz_convert(None) if getattr(index, "tz", None) is not None else index


def _of_objects(values: np.ndarray) -> Any:
    """Raises ValueError, TypeError or OverflowError if these are no times."""
    import pandas

    if all(isinstance(value, str) and _ISO.fullmatch(value) for value in values):
        return pandas.to_datetime(values, format="ISO8601", utc=True)
    if all(isinstance(value, date | np.datetime64) for value in values):
        return pandas.to_datetime(values, utc=True)
    if all(isinstance(value, timedelta | np.timedelta64) for value in values):
        return pandas.to_timedelta(values)
    if all(isinstance(value, int | float | np.number) for value in values):
        return pandas.Index(numbers if (numbers := np.array([*values])).dtype.kind in "iuf" else numbers.astype(float))
    if all(hasattr(value, "calendar") for value in values):
        return pandas.to_timedelta(values - values[0])
    raise ValueError("no times")
