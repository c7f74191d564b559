"""The values of one column of a block as numbers, and what is known of them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from singa_dask.data.columns import MAX_RANK, Role, as_map, stored_dtype
from singa_dask.data.ingest.facts import Facts, Kind, note_unusable
from singa_dask.errors import DataError

# Blocks keep at most so many distinct values of a column; there is no use for more.
MAX_VALUES = 100_000
DAY = np.timedelta64(1, "D")
FEW_VALUES = 20
# Of maps, whose distinct values are found block by block.
CHECKED_VALUES = 1 << 20


def encode_series(name: str, raw: Any) -> tuple[np.ndarray, Facts]:
    """A one-dimensional column of a table, or labels, as numbers (rows,): float for numbers, days since 1970 and
    timedeltas in days, int32 places in `Facts.values` for texts; NaN or -1 where missing.

    raw: a NumPy array or a pandas Series. Raises DataError for values of other kinds.
    """
    values, facts = exact_series(name, raw)
    if values.dtype.kind not in "Mm":
        return values, facts
    since = values - np.datetime64(0, "D") if values.dtype.kind == "M" else values
    days, known = numbers(since / DAY)  # NaT becomes NaN
    known.dtype = facts.dtype
    if known.kind is not Kind.EMPTY:
        known.kind = facts.kind
    return days, known


def exact_series(name: str, raw: Any) -> tuple[np.ndarray, Facts]:
    """The same, with dates (in UTC) and timedeltas as NumPy has them."""
    if not isinstance(raw, np.ndarray):
        return _encode_pandas(name, raw)
    if raw.dtype.kind in "biuf":
        return numbers(raw)
    if raw.dtype.kind in "Mm":
        return _times(raw)
    if raw.dtype.kind == "S":
        raw = decoded(name, raw)
    if raw.dtype.kind == "U":
        values, codes = np.unique(raw, return_inverse=True)
        return _texts(codes.astype(np.int32), values.tolist())
    if raw.dtype.kind == "O":
        return _encode_objects(name, raw)
    raise _not_usable(name, raw.dtype)


def _not_usable(name: str, dtype: Any) -> DataError:
    return DataError(f"column {name!r}: holds {dtype}, of which features cannot be made. Leave the column out.")


def as_texts(values: np.ndarray, facts: Facts) -> tuple[np.ndarray, Facts]:
    """Numbers as texts, of which categories are made: 2, whether it was read as 2 or as 2.0; booleans as such."""
    if facts.dtype == "bool":
        return _truths(values)
    distinct, codes = np.unique(values, return_inverse=True)
    codes = codes.astype(np.int32)
    if distinct.dtype.kind == "f":
        codes[np.isnan(values)] = -1
        distinct = distinct[~np.isnan(distinct)]
    names = [str(int(value)) if float(value).is_integer() else repr(value) for value in distinct.tolist()]
    return _of_distinct("", codes, names)


def numbers(raw: np.ndarray) -> tuple[np.ndarray, Facts]:
    """Numbers or booleans, with what is missing or infinite."""
    facts = Facts(Kind.NUMBER, raw.dtype.name)
    if raw.dtype.kind == "f":
        note_unusable(facts, raw)
        if facts.missing == raw.size:
            facts.kind = Kind.EMPTY
    return raw, facts


def _times(raw: np.ndarray, *, zoned: bool = False) -> tuple[np.ndarray, Facts]:
    kind = Kind.TIMEDELTA if raw.dtype.kind == "m" else Kind.ZONED if zoned else Kind.DATE
    return raw, Facts(kind, raw.dtype.name)


def _texts(codes: np.ndarray, values: list[str]) -> tuple[np.ndarray, Facts]:
    """codes: the place in `values`, which are sorted, -1 where missing."""
    facts = Facts(Kind.TEXT, "text", values=values if len(values) <= MAX_VALUES else None)
    facts.missing = int(np.count_nonzero(codes < 0))
    facts.first_missing = int((codes < 0).argmax()) if facts.missing else -1
    if not values:
        facts.kind = Kind.EMPTY
    return codes, facts


def decoded(name: str, raw: np.ndarray) -> np.ndarray:
    """Bytes as texts. Raises DataError."""
    try:
        return np.char.decode(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"column {name!r}: holds text that is not UTF-8 ({error}). Convert it first.") from error


def _encode_objects(name: str, raw: np.ndarray) -> tuple[np.ndarray, Facts]:
    places: dict[Any, int] = {}
    codes = np.empty(raw.size, np.int32)
    for row, value in enumerate(raw.tolist()):
        try:
            missing = value is None or bool(value != value)
            codes[row] = -1 if missing else places.setdefault(value, len(places))
        except (TypeError, ValueError):
            raise _unusable(name, row, value) from None
    return _of_distinct(name, codes, list(places))


def _of_distinct(name: str, codes: np.ndarray, values: list[Any]) -> tuple[np.ndarray, Facts]:
    """A column by its distinct values, which are texts, or numbers, or dates."""
    from datetime import UTC, date, datetime, timedelta

    types = {type(value) for value in values}
    if types <= {str}:
        order = np.argsort(np.array(values, dtype=str), kind="stable") if values else np.zeros(0, np.int64)
        ranks = np.empty(order.size + 1, np.int32)
        ranks[order] = np.arange(order.size)
        ranks[-1] = -1
        return _texts(ranks[codes], [values[place] for place in order])
    if types <= {bool, np.bool_}:
        return _booleans(np.array([*map(float, values), np.nan])[codes])
    if all(issubclass(kind, int | float | np.number | np.bool_) or kind.__name__ == "Decimal" for kind in types):
        if types == {int} and codes.min() >= 0:  # which float64 may not have
            with suppress(OverflowError):
                return numbers(np.array(values, np.int64)[codes])
        return numbers(np.array([*map(float, values), np.nan])[codes])
    if all(issubclass(kind, date | np.datetime64) for kind in types):
        zones = [isinstance(value, datetime) and value.tzinfo is not None for value in values]
        if len({*zones}) > 1:
            odd = next(place for place, zoned in enumerate(zones) if zoned is not zones[0])
            raise _unusable(name, int((codes == odd).argmax()), values[odd], ["dates with a time zone", "without one"])
        values = [value.astimezone(UTC).replace(tzinfo=None) for value in values] if any(zones) else values
        days = [
            value.to_datetime64() if hasattr(value, "nanosecond") else np.datetime64(value, "us") for value in values
        ]
        days.append(np.datetime64("NaT", "us"))
        return _times(np.array(days)[codes], zoned=any(zones))
    if all(issubclass(kind, timedelta | np.timedelta64) for kind in types):
        spans = [np.timedelta64(value) for value in values] + [np.timedelta64("NaT", "us")]
        return _times(np.array(spans)[codes])
    kinds = sorted({kind.__name__ for kind in types})
    odd = next(place for place, value in enumerate(values) if type(value) is not type(values[0])) if kinds[1:] else 0
    raise _unusable(name, int((codes == odd).argmax()), values[odd], kinds)


def _booleans(values: np.ndarray) -> tuple[np.ndarray, Facts]:
    """values: 0.0 and 1.0, NaN where one is missing."""
    found, facts = numbers(values if np.isnan(values).any() else values.astype(bool))
    facts.dtype = "bool"
    return found, facts


def _unusable(name: str, row: int, value: Any, kinds: list[str] | None = None) -> DataError:
    shown = repr(value) if len(repr(value)) < 60 else repr(value)[:57] + "..."
    told = "neither a number, a text nor a date."
    if kinds and len(kinds) > 1:
        told = f"of another type than those before. The column mixes {', '.join(kinds)}."
    way = "Convert the column to one type, or leave it out."
    return DataError(f"column {name!r}, row {row} of its block: {shown} is {told} {way}")


def _encode_pandas(name: str, raw: Any) -> tuple[np.ndarray, Facts]:
    import pandas as pd

    raw = pd.Series(raw, copy=False)
    raw = raw.sparse.to_dense() if isinstance(raw.dtype, pd.SparseDtype) else raw
    dtype = raw.dtype
    if dtype.kind == "c":
        raise _not_usable(name, dtype)
    if isinstance(dtype, pd.CategoricalDtype):
        codes = raw.cat.codes.to_numpy()
        used = np.bincount(codes[codes >= 0], minlength=len(raw.cat.categories))
        places = np.cumsum(used > 0).astype(np.int32) - 1
        codes = np.append(places, np.int32(-1))[codes]
        values = raw.cat.categories[used > 0].tolist()
        return _of_distinct(name, codes, values if all(isinstance(v, str) for v in values) else list(map(str, values)))
    if pd.api.types.is_bool_dtype(dtype) or pd.api.types.is_numeric_dtype(dtype):
        if dtype.kind in "biuf" and not raw.hasnans:
            return numbers(
                raw.to_numpy(dtype=np.dtype(f"{dtype.kind}{dtype.itemsize}") if dtype.kind != "b" else bool)
            )
        values = raw.to_numpy(dtype=np.float64, na_value=np.nan)
        return _booleans(values) if pd.api.types.is_bool_dtype(dtype) else numbers(values)
    if isinstance(dtype, pd.DatetimeTZDtype) or getattr(getattr(dtype, "pyarrow_dtype", None), "tz", None):
        return _times(raw.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy(), zoned=True)
    if raw.dtype.kind in "Mm":
        kind = getattr(dtype, "numpy_dtype", dtype)
        return _times(raw.astype(kind).to_numpy())  # dates of pyarrow are objects otherwise
    if isinstance(dtype, pd.StringDtype) or pd.api.types.is_string_dtype(dtype):
        try:
            codes, uniques = raw.factorize()
        except TypeError:  # a list or a dict in each cell
            kind = next(type(cell).__name__ for cell in raw if getattr(type(cell), "__hash__", None) is None)
            raise DataError(
                f"column {name!r}: has several values in a cell ({kind}). Make a column of each of them, give "
                "them as an array of its own in a mapping, or leave the column out."
            ) from None
        return _of_distinct(name, codes.astype(np.int32), uniques.tolist())
    return _encode_objects(name, raw.to_numpy(dtype=object))


def encode(name: str, raw: Any, role: Role | None) -> tuple[np.ndarray, Facts]:
    """An array of features, a column of y, weights or a mask as numbers (rows, ...), with what is known of them. role:
    of a column of y, None if its values are to tell. Raises DataError."""
    if role in (Role.WEIGHT, Role.MASK):
        return _factors(name, np.asarray(raw))
    return encode_array(name, np.asarray(raw)) if role is Role.FEATURE else _answers(name, raw, role)


def _factors(what: str, raw: np.ndarray) -> tuple[np.ndarray, Facts]:
    if what == Role.WEIGHT:
        if raw.ndim == 2 and raw.shape[1] == 1:
            raw = raw[:, 0]
        if raw.ndim != 1:
            raise DataError(f"weight: must be one number for each sample, not {raw.shape[1:]}. Use mask for targets.")
        if raw.dtype.kind in "biu":
            raw = raw.astype(np.float32)
    elif raw.dtype.kind in "iuf" and (wrong := (raw != 0) & (raw != 1)).any():
        raise DataError(
            f"mask: must be 1 where a target counts and 0 elsewhere, but holds {raw[wrong][0]}. Compare it, for "
            "example mask > 0; how much samples count is given as weights."
        )
    values, facts = encode_array(what, raw)
    if len(values) and not facts.missing:
        facts.low = float(values.min())
        facts.first = int(values.reshape(len(values), -1).min(axis=1).argmin())
    return values, facts


def encode_array(name: str, raw: np.ndarray) -> tuple[np.ndarray, Facts]:
    """An array in the type of the shards (rows, ...), with what is missing or infinite. Raises DataError."""
    dtype = stored_dtype(raw.dtype)
    if dtype is None and raw.dtype == np.uint64 and int(raw.max(initial=0)) <= np.iinfo(np.int64).max:
        dtype = np.dtype(np.int64)
    if dtype is None:
        way = "Only the columns of a table (a DataFrame, csv, parquet) can hold texts and dates. "
        raise DataError(
            f"column {str(name)!r}: holds {raw.dtype}, but arrays must hold numbers of up to 64 bits. "
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


def _answers(name: str, raw: Any, role: Role | None) -> tuple[np.ndarray, Facts]:
    """A column of y: texts and booleans are labels, integers (rows,) are labels, and so are those of maps
    (rows, H, W), one of each position; other numbers are targets. `role` overrules this for numbers: labels of
    sequences are (rows, T).

    Raises DataError.
    """
    if isinstance(raw, np.ndarray) and (role is Role.LABEL or (role is None and raw.dtype.kind in "biu")):
        raw = as_map(raw)
        if raw.ndim == 3 or (raw.ndim > 1 and raw[:1].size > 1 and role is Role.LABEL):
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
            shown = f", such as {facts.values[0]!r}," if facts.values else ""
            hint = "Write numbers with a decimal point, or leave out `targets` (--target), and they are classes."
            raise DataError(f"column {name!r}: texts{shown} cannot be targets. {hint}")
        facts.kind = Kind.TEXT
        _note_order(facts, values, facts.values)
        return values, facts
    if facts.dtype == "bool":
        return (values, None) if role is Role.TARGET else _truths(values)
    if values.dtype.kind in "iu" and role is not Role.TARGET:
        return _whole(name, values)
    return values, None


def _truths(values: np.ndarray) -> tuple[np.ndarray, Facts]:
    """Booleans as texts. values: floats with NaN if some are missing."""
    codes, facts = _texts(np.where(np.isnan(values), -1, values).astype(np.int32), ["False", "True"])
    facts.dtype = "bool"
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
                f"column {name!r}: labels must be integers, but row {row} of its block is {raw[row]}. "
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
    """The distinct values, of maps those of a sample, if they are few integers, which may be meant as classes."""
    if values.dtype.kind != "f" or values.ndim == 2:
        return None
    flat = values.reshape(-1)[:: max(1, values.size // CHECKED_VALUES if values.ndim > 1 else 1)]
    if not bool((flat[:256] == np.floor(flat[:256])).all()):
        return None
    distinct = np.unique(flat)
    few = distinct.size <= FEW_VALUES and bool((distinct == np.floor(distinct)).all())
    return distinct.tolist() if few else None
