"""Containers of other libraries as NumPy and pandas have them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from singa_dask.errors import DataError

_FILES = ("h5py", "zarr")
_MISSING = {"M": np.datetime64("NaT"), "m": np.timedelta64("NaT", "s"), "f": np.nan, "c": np.nan}


def native(x: Any) -> Any:
    """A table of polars, pyarrow or another library with Arrow's interface as a DataFrame of pandas, and a column of
    one as an array; an array of h5py or zarr as `Stored`; all else as it is. Raises DataError without pyarrow, and for
    what cannot be read."""
    if (package := next(filter(_FILES.__contains__, _packages(x)), "")) and hasattr(x, "chunks"):
        from singa_dask.data.sources.stored import stored

        return stored(x, package)
    if not hasattr(x, "__arrow_c_stream__") or "pandas" in _packages(x) or hasattr(x, "dims"):  # xarray's have names
        return x
    if not (hasattr(x, "columns") or hasattr(x, "column_names")):
        return np.asarray(x)
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(f"a {type(x).__name__} is read by pyarrow, which is not installed. Install it.") from error
    return pyarrow.table(x).to_pandas()


def _packages(x: Any) -> list[str]:
    return [base.__module__.partition(".")[0] for base in type(x).__mro__]


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
