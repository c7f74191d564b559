"""Packed values, fill values and times, decoded as by xarray (CF conventions, sections 2.5.1, 4.4 and 8.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from singa_dask.data.schema import Coordinates, around
from singa_dask.data.sources.files import need
from singa_dask.errors import DataError

SCALES, FILLS = {"scale_factor": 1.0, "add_offset": 0.0}, ("_FillValue", "missing_value")
KEYS = (*SCALES, *FILLS)
TIMES = ("units", "calendar", "dtype")
VALID = "valid_range"
_MISSING = {"M": np.datetime64("NaT"), "m": np.timedelta64("NaT", "s")}
CALENDARS = ("standard", "gregorian", "proleptic_gregorian")


def packing(attributes: Mapping[str, Any], dtype: np.dtype) -> dict[str, Any]:
    """The attributes of an array of numbers that change its values: how they are packed, which are missing or valid,
    and the units of times since a date, and of time spans that xarray has written.

    Raises ValueError with a sentence for an attribute that is not one number, and for other calendars.
    """
    found: dict[str, Any] = {}
    if not attributes:
        return found
    for key in KEYS if dtype.kind in "iuf" else ():
        if key not in attributes:
            continue
        value = np.asarray(attributes[key])
        if value.size != 1 or value.dtype.kind not in "iuf":
            raise ValueError(f"has the attribute {key} = {attributes[key]!r}, which is not one number. Correct it.")
        number = value.ravel()[0]
        if number != SCALES.get(key) and not (key in FILLS and dtype.kind == "f" and np.isnan(number)):
            found[key] = number
    if found and str(attributes.get("_Unsigned", "")) in ("true", "b'true'"):
        found["_Unsigned"] = "true"
    if dtype.kind in "iuf" and (limits := valid_range(attributes)) is not None:
        found[VALID] = limits
    times = {key: _text(attributes[key]) for key in TIMES if key in attributes}
    if (parts := times.get("units", "").split(maxsplit=2))[1:2] and parts[1].lower() == "since":
        times["units"] = " ".join([parts[0].lower(), "since", *parts[2:]])
    since, span = " since " in times.get("units", ""), times.get("dtype", "").startswith("timedelta64")
    if dtype.kind not in "iuf" or not (since or span):
        return found
    if since and times.setdefault("calendar", CALENDARS[0]).lower() not in CALENDARS:
        told = f"holds times of the calendar {times['calendar']!r}, in which NumPy has no dates."
        raise ValueError(f"{told} Convert them, or leave it out.")
    return found | times


def units_of(attributes: Mapping[str, Any], dtype: np.dtype) -> str:
    """The units of numbers, "" if none are said; those of times are no matter, since these become dates."""
    return _text(attributes.get("units", "")) if dtype.kind in "iuf" else ""


def decoded(values: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    """The unpacked values, with NaN for those that are missing or not valid; integers stay such where there are none
    and nothing is scaled. Raises DataError without xarray."""
    if (limits := attributes.get(VALID)) is not None:
        found = decoded(values, {key: value for key, value in attributes.items() if key != VALID})
        stored = values if limits.dtype.kind in "iu" or values.dtype.kind == "f" else found
        if (outside := (stored < limits[0]) | (stored > limits[1])).any():
            found = found.astype(np.float64) if found.dtype.kind in "iu" else found.copy()
            found[outside] = _MISSING.get(found.dtype.kind, np.nan)
        return found
    if not attributes or (not _scales(attributes, values.dtype) and not _missing(values, attributes).any()):
        return values
    xarray = need("xarray", "fields", "packed values")
    if {*FILLS} <= attributes.keys():  # of two, xarray warns
        values = np.where(_missing(values, attributes), values.dtype.type(attributes[FILLS[0]]), values)
        attributes = {key: value for key, value in attributes.items() if key != FILLS[1]}
    raw = xarray.Variable([f"d{axis}" for axis in range(values.ndim)], values, dict(attributes))
    told = f"holds times in {attributes.get('units', '')!r}"
    hint = "Write them in another unit, such as days since 1970-01-01."
    try:
        found = np.asarray(xarray.conventions.decode_cf_variable("values", raw, decode_timedelta=None).values)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{told}, which cannot be read ({error}). {hint}") from error
    if found.dtype.kind == "O":
        raise DataError(f"{told}, which are no dates of NumPy: before 1582-10-15, the calendar is Julian. {hint}")
    return found


def valid_range(attributes: Mapping[str, Any]) -> np.ndarray | None:
    """The least and the largest valid value: of integers as stored, else as unpacked."""
    given = [np.asarray(attributes[key]).ravel() for key in (VALID, "valid_min", "valid_max") if key in attributes]
    if not given:
        return None
    integers = all(each.dtype.kind in "iu" for each in given)
    ends = np.iinfo(np.int64) if integers else np.finfo(np.float64)
    ends_of = (np.ravel(attributes.get(key, end)) for key, end in (("valid_min", ends.min), ("valid_max", ends.max)))
    both = attributes[VALID] if VALID in attributes else np.concatenate([*ends_of])
    limits = np.asarray(both).ravel()
    if limits.size != 2 or limits.dtype.kind not in "iuf":
        raise ValueError(f"has the attribute {VALID} = {both!r}, which is not two numbers. Correct it.")
    return limits


def as_first(values: np.ndarray, attributes: Mapping[str, Any], first: Mapping[str, Any]) -> np.ndarray | None:
    """Stored values with these attributes, as they would be stored with those of the first file: the same values, or
    times since another date. None where they mean something else. Raises DataError for times that cannot be read."""
    if dict(attributes) == dict(first):
        return values
    try:
        own, wanted = packing(attributes, values.dtype), packing(first, values.dtype)
    except ValueError:
        return None
    if any(" since " not in each.get("units", "") for each in (own, wanted)):
        return None
    xarray, stored = need("xarray", "fields", "times"), wanted | {"dtype": "float64"}
    dates = xarray.Variable([f"d{axis}" for axis in range(values.ndim)], decoded(values, own), {}, stored)
    return np.asarray(xarray.conventions.encode_cf_variable(dates).values)


def decoded_type(dtype: np.dtype, packed: Callable[[], Mapping[str, Any]]) -> tuple[np.dtype, str]:
    """The type of unpacked values, of which none is missing, and why they cannot be unpacked. packed: finds the
    attributes."""
    try:
        attributes = packed()
    except (ValueError, OSError) as error:
        return dtype, str(error)
    scaled = attributes and _scales(attributes, dtype)
    try:
        return decoded(np.zeros(1, dtype), attributes).dtype if scaled else dtype, ""
    except DataError as error:
        return dtype, str(error)


def plain(values: np.ndarray, packed: Callable[[], Mapping[str, Any]]) -> np.ndarray:
    """Texts of any type as NumPy's fixed-length texts; numbers unpacked."""
    if values.dtype.kind in "TO":
        return np.array(values.tolist(), str)
    return values if values.dtype.kind in "SU" else decoded(values, packed())


def unpacked(values: Any, packed: Callable[[], Mapping[str, Any]]) -> np.ndarray:
    """Coordinates; as they are stored if they cannot be unpacked."""
    values = np.asarray(values)
    with suppress(ValueError, DataError):
        values = plain(values, packed)
    return values


def coordinates_along(
    dims: Sequence[str], read: Callable[[str], np.ndarray | None], others: Mapping[str, Sequence[str]]
) -> dict[str, Coordinates]:
    """The coordinates of the dimensions of a sample. read: gives those of a name, None if the file has none. others:
    those that the attribute `coordinates` names, with their dimensions."""
    found = {}
    for dim in filter(None, dims):
        if (values := read(dim)) is not None:
            known = Coordinates.of(values)
        else:
            named = {name: own for name, own in others.items() if dim in own and {*own} <= {*dims}}
            known = around(dim, dims, {name: (own, read(name)) for name, own in named.items()}) if named else None
        if known is not None:
            found[dim] = known
    return found


def _scales(attributes: Mapping[str, Any], dtype: np.dtype) -> bool:
    return any(key in attributes for key in (*SCALES, "_Unsigned", *TIMES))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _missing(values: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    return np.isin(values, [attributes[key] for key in FILLS if key in attributes])
