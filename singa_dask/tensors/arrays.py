"""Arrays as tensors hold them: the order of the axes of images, and the type of the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.errors import DataError
from singa_dask.functions.shapes import IMAGES

if TYPE_CHECKING:
    pass


def as_images(array: Any) -> Any:
    """The view with the channels second of images that have them last; other arrays as they are."""
    return array.transpose(0, array.ndim - 1, *range(1, array.ndim - 1)) if array.ndim in IMAGES else array


def channels_last(array: Any) -> Any:
    """The inverse of `as_images`."""
    return array.transpose(0, *range(2, array.ndim), 1) if array.ndim in IMAGES else array


def in_type(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The values in this type: floats may be rounded. Raises DataError for values that it cannot hold."""
    dtype = np.dtype(dtype)
    if array.dtype.kind not in "biuf":
        raise DataError(f"tensors hold real numbers. Received: an array of {array.dtype}.")
    if np.can_cast(array.dtype, dtype):
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        held = array.astype(dtype)
    same = held == array if dtype.kind in "biu" else np.isfinite(held) | ~np.isfinite(array)
    if not same.all():
        received = array.reshape(-1)[int(np.argmin(same))]
        raise DataError(f"a tensor of {dtype} cannot hold all values. Received: {received} ({array.dtype}).")
    return held
