"""What the cells of CSV files are: numbers, dates, true or false, or missing."""

from __future__ import annotations

import re

import numpy as np

from singa_dask.data.sources.tables import is_number

_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:[\d:.]+(Z|[+-]\d\d(?::?\d\d)?)?)?")
MONTH = re.compile(r"\s*\d{4}-(0[1-9]|1[0-2])\s*")
LED = re.compile(r"^\s*0\d")  # numbers lose such a zero
NOT_READ = re.compile(r"%[GgVUWuw]")  # by Arrow, which takes no notice of them
_TRUTH = {"0", "1", "true", "false"}


def may_lose_zeros(data: bytes, separator: str) -> bool:
    """Whether a 0 begins a cell, and a digit follows."""
    cells = np.frombuffer(data, np.uint8)
    zeros = np.flatnonzero(cells[:-1] == ord("0"))
    zeros = zeros[(cells[zeros + 1] >= ord("0")) & (cells[zeros + 1] <= ord("9"))]
    return bool(np.isin(cells[zeros - 1], [*(separator + ' "\r\n\t').encode()])[zeros > 0].any() or 0 in zeros[:1])


def is_value(cell: str) -> bool:
    """Whether a cell is a number, or a mark for a missing one."""
    return is_number(cell) or _is_missing(cell)


def _is_missing(cell: str) -> bool:
    from pyarrow.csv import ConvertOptions

    return cell in ConvertOptions().null_values


def is_truth(cell: str) -> bool:
    return cell.lower() in _TRUTH or _is_missing(cell)


def is_date(cell: str) -> bool:
    return _DATE.fullmatch(cell.strip()) is not None or _is_missing(cell)


def is_zoned(cell: str) -> bool | None:
    """Whether a date has a time zone; None if it is no date of ISO 8601."""
    date = _DATE.fullmatch(cell.strip())
    return None if date is None else date[1] is not None
