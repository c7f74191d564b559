"""Labels and targets of one block: which of both they are, and how the parts hold them."""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.data.columns import MAX_RANK, Role, as_map, stored_dtype
from singa_dask.data.ingest.facts import Facts, Kind
from singa_dask.data.ingest.series import MAX_VALUES, encode_series, note_unusable
from singa_dask.errors import DataError

FEW_VALUES = 20
# Of maps, whose distinct values are found portion by portion.
CHECKED_VALUES = 1 << 20


def encode_array(name: str, raw: np.ndarray) -> tuple[np.ndarray, Facts]:
    """An array in the type of the shards (rows, ...), with what is missing or infinite. Raises DataError."""
    dtype = stored_dtype(raw.dtype)
    if dtype is None and raw.dtype == np.uint64 and int(raw.max(initial=0)) <= np.iinfo(np.int64).max:
        dtype = np.dtype(np.int64)
    if dtype is None:
        way = "Only the columns of a table (a DataFrame, csv, parquet) can hold texts and dates. "
        raise DataError(
            f"column {name!r}: holds {raw.dtype}, but arrays must hold numbers of up to 64 bits. "
            f"{way if raw.dtype.kind in 'OUSMm' else ''}Convert it with astype."
        )
    if raw.ndim > MAX_RANK + 1:
        raise DataError(
            f"column {name!r}: a sample has the shape {raw.shape[1:]}, but at most {MAX_RANK} axes are possible. "
            "Reshape the array."
        )
    values = raw.astype(dtype, copy=False)
    facts = Facts(Kind.ARRAY, dtype.name, shape=values.shape[1:])
    if dtype.kind == "f":
        note_unusable(facts, values)
    return values, facts


def encode_answers(name: str, raw: Any, role: Role | None) -> tuple[np.ndarray, Facts]:
    """A column of y: texts and truth values are labels, whole numbers (rows,) are labels, and so are those of maps
    (rows, H, W), one of each position; other numbers are targets. `role` overrules this for numbers.

    Raises DataError.
    """
    if isinstance(raw, np.ndarray) and (role is Role.LABEL or (role is None and raw.dtype.kind in "biu")):
        raw = as_map(raw)
        if raw.ndim == 3 or (raw.ndim > 3 and role is Role.LABEL):
            return _map(name, raw)
    if not isinstance(raw, np.ndarray) or raw.dtype.kind not in "iuf" or (raw.dtype.kind != "f" and raw.ndim == 1):
        raw, facts = _of_one_axis(name, raw, role)
        if facts is not None:
            return raw, facts
    if raw.ndim == 2 and raw.shape[1] == 1 and raw.dtype.kind in "iu" and role is not Role.TARGET:
        return _whole(name, raw[:, 0])
    if role is not Role.LABEL:
        values, facts = encode_array(name, raw)
        facts.values = _few_whole(values)
        return values, facts
    if raw.ndim == 2 and raw.shape[1] == 1:
        raw = raw[:, 0]
    if raw.ndim != 1:
        raise DataError(
            f"column {name!r}: labels must be one number for each sample, or one for each position of images (H, W), "
            f"but a sample has the shape {raw.shape[1:]}. Give each label as a column of its own, or leave out "
            "`labels` to predict the numbers."
        )
    return _whole(name, raw)


def _map(name: str, raw: np.ndarray) -> tuple[np.ndarray, Facts]:
    """Labels of positions, in the type in which they came if it is one of integers."""
    if raw.dtype == bool:
        raw = raw.astype(np.uint8)
    values, facts = encode_array(name, raw)
    facts.kind = Kind.WHOLE
    if facts.missing:
        return np.zeros(values.shape, np.uint8), facts
    distinct = np.empty(0, values.dtype)
    step = max(1, CHECKED_VALUES // max(1, values[:1].size))
    for start in range(0, len(values), step):
        distinct = np.union1d(distinct, values[start : start + step])
        if distinct.size > MAX_VALUES:
            break
    broken = distinct[~np.isfinite(distinct) | (distinct != np.floor(distinct))]
    if broken.size:
        raise DataError(
            f"column {name!r}: labels must be integers, but one is {broken[0]:g}. To predict the numbers, say "
            "--target in place of --label; in Python, leave out `labels`."
        )
    if distinct.size:
        facts.low, facts.high = int(distinct[0]), int(distinct[-1])
    facts.values = [int(value) for value in distinct.tolist()] if distinct.size <= MAX_VALUES else None
    return values if values.dtype in (np.uint8, np.int16) else values.astype(np.int64), facts


def _of_one_axis(name: str, raw: Any, role: Role | None) -> tuple[np.ndarray, Facts | None]:
    """Labels with their facts, or numbers without."""
    if isinstance(raw, np.ndarray) and raw.ndim == 2 and raw.shape[1] == 1:
        raw = raw[:, 0]
    if isinstance(raw, np.ndarray) and raw.ndim > 1:
        return raw, None
    values, facts = encode_series(name, raw)
    if facts.kind in (Kind.DATE, Kind.ZONED):
        raise DataError(f"column {name!r}: dates can be neither labels nor targets. Give numbers, such as days.")
    if facts.kind is Kind.TEXT or (facts.kind is Kind.EMPTY and values.dtype == np.int32):
        if role is Role.TARGET:
            raise DataError(f"column {name!r}: texts cannot be targets. Leave out `targets`, and they are classes.")
        facts.kind = Kind.TEXT
        _note_order(facts, values, facts.values)
        return values, facts
    if values.dtype == bool:
        if role is Role.TARGET:
            return values, None
        return _truths(values)
    if values.dtype.kind in "iu" and role is not Role.TARGET:
        return _whole(name, values)
    return values, None


def _truths(values: np.ndarray) -> tuple[np.ndarray, Facts]:
    codes = values.astype(np.int32)
    facts = Facts(Kind.TEXT, "bool", values=["False", "True"])
    _note_order(facts, codes, facts.values)
    return codes, facts


def _whole(name: str, raw: np.ndarray) -> tuple[np.ndarray, Facts]:
    facts = Facts(Kind.WHOLE, raw.dtype.name)
    if raw.dtype.kind == "f":
        note_unusable(facts, raw)
        if facts.missing or facts.infinite:
            return np.zeros(len(raw), np.int64), facts
        broken = raw != np.floor(raw)
        if broken.any():
            row = int(broken.argmax())
            raise DataError(
                f"column {name!r}: labels must be whole numbers, but row {row} of its block is {raw[row]}. "
                "To predict the numbers, say --target in place of --label; in Python, leave out `labels`."
            )
    values = raw.astype(np.int64)
    if len(values):
        facts.low, facts.high = int(values.min()), int(values.max())
        distinct = np.unique(values)
        facts.values = distinct.tolist() if distinct.size <= MAX_VALUES else None
        _note_order(facts, values, None)
    return values, facts


def _note_order(facts: Facts, codes: np.ndarray, names: list[str] | None) -> None:
    if len(codes):
        facts.ascending = bool((codes[1:] >= codes[:-1]).all())
        ends = (int(codes[0]), int(codes[-1]))
        facts.first, facts.last = ends if names is None else (names[ends[0]], names[ends[1]]) if names else ("", "")


def _few_whole(values: np.ndarray) -> list[float] | None:
    """The distinct values if they are few whole numbers, which may be meant as classes."""
    whole = values.ndim == 1 and values.dtype.kind == "f" and bool((values[:256] == np.floor(values[:256])).all())
    if not whole:
        return None
    distinct = np.unique(values)
    few = distinct.size <= FEW_VALUES and bool((distinct == np.floor(distinct)).all())
    return distinct.tolist() if few else None
