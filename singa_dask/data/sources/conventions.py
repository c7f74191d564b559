"""Packed values, fill values and times, decoded as by xarray (CF conventions, sections 2.5.1, 4.4 and 8.1)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

import numpy as np

from singa_dask.data.schema import Coordinates, around, scalars_of
from singa_dask.data.sources.files import need
from singa_dask.errors import DataError

SCALES, FILLS = {"scale_factor": 1.0, "add_offset": 0.0}, ("_FillValue", "missing_value")
KEYS = (*SCALES, *FILLS)
TIMES = ("units", "calendar", "dtype")
VALID, UNSIGNED = "valid_range", "_Unsigned"
_MISSING = {"M": np.datetime64("NaT"), "m": np.timedelta64("NaT", "s")}
# Of the netCDF library: NC_FILL_SHORT to NC_FILL_DOUBLE. Bytes have none.
DEFAULT_FILLS: Mapping[str, Any] = {
    "i2": 1 - 2**15,
    "i4": 1 - 2**31,
    "i8": 2 - 2**63,
    "u2": 2**16 - 1,
    "u4": 2**32 - 1,
    "u8": 2**64 - 2,
    **dict.fromkeys(("f4", "f8"), float.fromhex("0x1.ep+122")),
}
CALENDARS = ("standard", "gregorian", "proleptic_gregorian")


def packing(attributes: Mapping[str, Any], dtype: np.dtype) -> dict[str, Any]:
    """The attributes of an array of numbers that change its values: how they are packed, which are missing or valid,
    and the units of times since a date, and of time spans that xarray has written. Numbers that stand for stored
    values have their type.

    Raises ValueError with a sentence for an attribute that is not one number, and for other calendars.
    """
    found: dict[str, Any] = {}
    if not attributes or dtype.kind not in "iuf":
        return found
    told = _text(attributes.get(UNSIGNED, "")).lower()
    own = _own_type(told, dtype)
    for key in filter(attributes.__contains__, KEYS):
        value = np.asarray(attributes[key])
        if value.size != 1 or value.dtype.kind not in "iuf":
            raise ValueError(f"has the attribute {key} = {attributes[key]!r}, which is not one number. Correct it.")
        number = value.ravel()[0] if key in SCALES else _fill(value.ravel()[0], dtype, own)
        if number != SCALES.get(key) and number == number:
            found[key] = number
    if own != dtype:
        found[UNSIGNED] = told
    if (limits := valid_range(attributes, dtype, own)) is not None:
        found[VALID] = limits
    times = {key: _text(attributes[key]) for key in TIMES if key in attributes}
    if (parts := times.get("units", "").split(maxsplit=2))[1:2] and parts[1].lower() == "since":
        times["units"] = " ".join([parts[0].lower(), "since", *parts[2:]])
    since, span = " since " in times.get("units", ""), times.get("dtype", "").startswith("timedelta64")
    if not (since or span):
        return found
    if since and times.setdefault("calendar", CALENDARS[0]).lower() not in CALENDARS:
        told = f"holds times of the calendar {times['calendar']!r}, in which NumPy has no dates."
        raise ValueError(f"{told} Convert them, or leave it out.")
    return found | times


def netcdf_packing(attributes: Mapping[str, Any], dtype: np.dtype) -> dict[str, Any]:
    """The same of a variable of netCDF: with the value that stands where none was written, if it names no other."""
    fill = DEFAULT_FILLS.get(dtype.str[1:])
    return packing({**({} if fill is None else {FILLS[0]: fill}), **attributes}, dtype)


def units_of(attributes: Mapping[str, Any], dtype: np.dtype) -> str:
    """The units of numbers, "" if none are said; those of times are no matter, since these become dates."""
    return _text(attributes.get("units", "")) if dtype.kind in "iuf" else ""


def decoded(values: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    """The unpacked values, with NaN for those that are missing or not valid; integers stay such where there are none
    and nothing is scaled. attributes: as of `packing`. Raises DataError without xarray."""
    if not attributes:
        return values
    values = np.asarray(values)
    values = values.view(_own_type(attributes.get(UNSIGNED, ""), values.dtype))
    packed = {key: value for key, value in attributes.items() if key not in (*FILLS, VALID, UNSIGNED)}
    missing = is_any(values, [attributes[key] for key in FILLS if key in attributes])
    limits = attributes.get(VALID)
    of_stored = limits is not None and (limits.dtype.kind in "iu" or values.dtype.kind == "f")
    missing = missing | _outside(values, limits if of_stored else None)
    if missing.any():
        packed[FILLS[0]] = values[missing][0]
        values = np.where(missing, packed[FILLS[0]], values)
    found = _by_xarray(values, packed) if packed else values
    if not of_stored and (outside := _outside(found, limits)).any():
        found = found.astype(np.float64) if found.dtype.kind in "iu" else found.copy()
        found[outside] = _MISSING.get(found.dtype.kind, np.nan)
    return found


def _by_xarray(values: np.ndarray, packed: Mapping[str, Any]) -> np.ndarray:
    xarray = need("xarray", "fields", "packed values")
    raw = xarray.Variable([f"d{axis}" for axis in range(values.ndim)], values, dict(packed))
    told = f"holds times in {packed.get('units', '')!r}"
    hint = "Write them in another unit, such as days since 1970-01-01."
    try:
        found = np.asarray(xarray.conventions.decode_cf_variable("values", raw, decode_timedelta=None).values)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{told}, which cannot be read ({error}). {hint}") from error
    if found.dtype.kind == "O":
        raise DataError(f"{told}, which are no dates of NumPy: before 1582-10-15, the calendar is Julian. {hint}")
    return found


def overlooked(attributes: Mapping[str, Any], dtype: np.dtype) -> list[Any]:
    """What a library that compares in float64 leaves of missing values, which it does not find if their type has
    rounded the fill value: the numbers that it unpacks these to. dtype: of the stored values."""
    given = [np.ravel(attributes[key]) for key in FILLS if dtype.kind == "f" and attributes.get(key) is not None]
    fills = [number for each in given if each.dtype.kind in "iuf" for number in each]
    rounded = [fill for number in fills if (fill := _fill(number, dtype, dtype)) == fill != number]
    scales = {key: attributes[key] for key in SCALES if attributes.get(key) is not None}
    return [*decoded(np.array(rounded, dtype), scales)] if rounded else []


def is_any(values: Any, numbers: Sequence[Any]) -> Any:
    """Which values are one of these numbers."""
    return reduce(operator.or_, (values == number for number in numbers), np.False_)


def _outside(values: np.ndarray, limits: np.ndarray | None) -> Any:
    """Which values are not valid. limits: of the values in their type, as far as they are floats."""
    if limits is None:
        return np.False_
    with np.errstate(over="ignore"):
        least, largest = limits.astype(values.dtype) if values.dtype.kind == "f" else limits
    return (values < least) | (values > largest)


def _own_type(told: str, dtype: np.dtype) -> np.dtype:
    """The type of integers of which the attribute _Unsigned says whether they are."""
    kind = {"true": "u", "false": "i"}.get(told, dtype.kind)
    return np.dtype(dtype.str.replace(dtype.kind, kind)) if dtype.kind in "iu" else dtype


def _fill(number: Any, dtype: np.dtype, own: np.dtype) -> Any:
    """A fill value as the values have it; NaN if none has it. dtype: as stored; own: as meant."""
    if own.kind in "iu":
        return _in_range(number, dtype, own)
    with np.errstate(over="ignore"):
        fill = own.type(number)
    return fill if np.isinf(fill) == np.isinf(number) else np.nan


def _in_range(number: Any, dtype: np.dtype, own: np.dtype) -> Any:
    """A number of an attribute: an integer that only the stored type has, as the same bits in the type that is
    meant."""
    stored, meant = np.iinfo(dtype), np.iinfo(own)
    if number == np.floor(number) and stored.min <= number <= stored.max and not meant.min <= number <= meant.max:
        return np.array(int(number), dtype).astype(own)[()]
    return number


def valid_range(attributes: Mapping[str, Any], dtype: np.dtype, own: np.dtype) -> np.ndarray | None:
    """The least and the largest valid value: of integers as stored, else as unpacked. dtype: as stored; own: as
    meant."""
    given = [np.asarray(attributes[key]).ravel() for key in (VALID, "valid_min", "valid_max") if key in attributes]
    if not given:
        return None
    integers = own.kind in "iu" and all(each.dtype.kind in "iu" for each in given)
    ends: Any = np.iinfo(own) if integers else np.finfo(np.float64)
    ends_of = (np.ravel(attributes.get(key, end)) for key, end in (("valid_min", ends.min), ("valid_max", ends.max)))
    both = attributes[VALID] if VALID in attributes else np.concatenate([*ends_of])
    limits = np.asarray(both).ravel()
    if limits.size != 2 or limits.dtype.kind not in "iuf":
        raise ValueError(f"has the attribute {VALID} = {both!r}, which is not two numbers. Correct it.")
    if not integers:
        return limits.astype(np.float64)
    return np.array([min(max(int(_in_range(one, dtype, own)), ends.min), ends.max) for one in limits], own)


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
    scaled = attributes and _scales(attributes)
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
) -> dict[str, Any]:
    """The coordinates of the dimensions of a sample, and the scalar ones, as Dataset has them. read: gives those of a
    name, None if the file has none. others: those that the attribute `coordinates` names, with their dimensions."""
    found = dict[str, Coordinates]()
    for dim in filter(None, dims):
        if (values := read(dim)) is not None:
            known = Coordinates.of(values)
        else:
            named = {name: own for name, own in others.items() if dim in own and {*own} <= {*dims}}
            known = around(dim, dims, {name: (own, read(name)) for name, own in named.items()}) if named else None
        if known is not None:
            found[dim] = known
    return {"coordinates": found, "scalars": scalars_of({name: read(name) for name, own in others.items() if not own})}


def _scales(attributes: Mapping[str, Any]) -> bool:
    return any(key in attributes for key in (*SCALES, UNSIGNED, *TIMES))


def _text(value: Any) -> str:
    value = value.item() if np.size(value) == 1 and hasattr(value, "item") else value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
