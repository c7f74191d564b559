"""What kind of container this is; sparse and masked arrays as plain ones."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

_MISSING = {"M": np.datetime64("NaT"), "m": np.timedelta64("NaT", "s"), "f": np.nan, "c": np.nan}


def is_lazy(x: Any) -> bool:
    """Whether x is a Dask collection."""
    return hasattr(x, "__dask_graph__")


def is_table(x: Any) -> bool:
    """Whether x is a DataFrame, of pandas or Dask, whose Series have columns too."""
    return hasattr(x, "columns") and hasattr(x, "dtypes") and x.ndim == 2


def is_sparse(values: Any) -> bool:
    """Whether this is a sparse matrix or array of SciPy."""
    scipy = sys.modules.get("scipy.sparse")
    return scipy is not None and scipy.issparse(values)


def dense(values: Any) -> Any:
    """The array of a sparse one, and of a masked one, with what is masked as a missing value; all else as it is."""
    if type(values) is np.ndarray:
        return values
    if is_sparse(values):
        return values.toarray()
    if not isinstance(values, np.ma.MaskedArray):
        return values
    hidden = np.ma.getmaskarray(values)
    if not hidden.any():
        return values.data
    kind = values.dtype.kind
    filled = values.data.astype(np.float64 if kind in "biu" else values.dtype if kind in _MISSING else object)
    filled[hidden] = _MISSING.get(filled.dtype.kind)
    return filled
