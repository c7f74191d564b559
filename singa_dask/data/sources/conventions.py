"""Packed values and fill values, decoded as xarray decodes them (CF conventions, sections 2.5.1 and 8.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singa_dask.data.sources.files import need

KEYS = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


def packing(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an array that say how its values are packed, and which of them are missing."""
    return {key: _value(attributes[key]) for key in KEYS if key in attributes}


def _value(value: Any) -> Any:
    """HDF5 keeps single values as arrays of one."""
    value = np.asarray(value)
    value = value.ravel()[0] if value.size == 1 else value
    return value.decode() if isinstance(value, bytes) else value


def decoded(values: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    """The unpacked values, with NaN for those that are missing. Raises DataError without xarray."""
    if not attributes:
        return values
    xarray = need("xarray", "fields", "packed values")
    raw = xarray.Variable([f"d{axis}" for axis in range(values.ndim)], values, dict(attributes))
    return np.asarray(xarray.conventions.decode_cf_variable("values", raw, decode_times=False).values)


def decoded_type(dtype: np.dtype, attributes: Mapping[str, Any]) -> np.dtype:
    """The type of unpacked values."""
    return decoded(np.zeros(1, dtype), attributes).dtype if attributes else dtype
