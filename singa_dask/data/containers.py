"""What kind of container this is; sparse and masked arrays as plain ones."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from singa_dask.errors import DataError, nearest

_DENSE = "dense-"
_MISSING = {"M": np.datetime64("NaT"), "m": np.timedelta64("NaT", "s"), "f": np.nan, "c": np.nan}


def _of_pandas(x: Any) -> bool:
    return any(base.__module__.partition(".")[0] == "pandas" for base in type(x).__mro__)


def in_types_of_numpy(x: Any) -> Any:
    """A Series or a DataFrame of pandas whose nullable, Arrow and sparse numbers are exactly those in a type of NumPy,
    or float64 with NaN where some are missing; all else as it is."""
    if is_lazy(x) or not _of_pandas(x):
        return x
    if is_table(x):
        changed = {place: kind for place in range(x.shape[1]) if (kind := _numpy_type(x.iloc[:, place])) is not None}
        return x.astype({x.columns[place]: kind for place, kind in changed.items()}) if changed else x
    kind = _numpy_type(x)
    return x if kind is None else x.astype(kind)


def _numpy_type(column: Any) -> np.dtype | None:
    dtype = getattr(column, "dtype", None)
    if isinstance(dtype, np.dtype) or getattr(dtype, "kind", "") not in [*"biuf"]:
        return None
    exact = getattr(dtype, "numpy_dtype", None) or getattr(dtype, "subtype", None)
    return np.dtype(np.float64 if exact is None or column.isna().any() else exact)


def is_lazy(x: Any) -> bool:
    """Whether x is a Dask collection."""
    return hasattr(x, "__dask_graph__")


def is_table(x: Any) -> bool:
    """Whether x is a DataFrame, of pandas or Dask, whose Series have columns too."""
    return hasattr(x, "columns") and hasattr(x, "dtypes") and x.ndim == 2


def columns_of(table: Any, names: Any, what: str = "X") -> Any:
    """The columns of these names, as texts, of a DataFrame; all if there are none. Raises ValueError."""
    named = {str(name): name for name in table.columns}
    missing = [] if names is None else [name for name in names if name not in named]
    if missing:
        raise ValueError(
            f"{what} lacks the columns {', '.join(missing)}, to which it was fitted. {nearest(missing[0], named)}"
        )
    return table if names is None else table[[named[name] for name in names]]


def in_name_order(index: Any) -> Any:
    """An index of several levels with these in the order of their names, if all have one."""
    names = index.names
    if index.nlevels < 2 or None in names or [*names] == sorted(names, key=str):
        return index
    return index.reorder_levels(sorted(names, key=str))


def is_sparse(values: Any) -> bool:
    """Whether this is a sparse matrix or array of SciPy."""
    scipy = sys.modules.get("scipy.sparse")
    return scipy is not None and scipy.issparse(values)


def dense(values: Any) -> Any:
    """The array of a sparse one, and of a masked one, with what is masked as a missing value; all else as it is. Of
    Dask likewise, lazily: a Dask array may have masked chunks and not tell."""
    if type(values) is np.ndarray:
        return values
    if is_sparse(values):
        return values.toarray()
    if is_lazy(values):
        return _lazily_dense(values)
    if not isinstance(values, np.ma.MaskedArray):
        return values
    hidden = np.ma.getmaskarray(values)
    if not hidden.any():
        return values.data
    filled = values.data.astype(_with_missing(values.dtype))
    filled[hidden] = _MISSING.get(filled.dtype.kind)
    return filled


def _with_missing(dtype: np.dtype) -> np.dtype:
    """The type in which values of this one may be missing."""
    return np.dtype(np.float64 if dtype.kind in "biu" else dtype if dtype.kind in _MISSING else object)


def _lazily_dense(x: Any) -> Any:
    if not hasattr(x, "map_blocks") or hasattr(x, "dims") or x.name.startswith(_DENSE):
        return x
    masked = isinstance(x._meta, np.ma.MaskedArray)
    dtype = _with_missing(x.dtype) if masked else x.dtype
    meta = np.empty((0,) * x.ndim, dtype) if masked or is_sparse(x._meta) else x._meta
    return x.map_blocks(_dense_block, dtype, dtype=dtype, meta=meta, name=f"{_DENSE}{x.name}")


def _dense_block(block: Any, dtype: np.dtype) -> Any:
    made = dense(block)
    if made.dtype.kind != dtype.kind and made.dtype == _with_missing(dtype):
        raise DataError(
            f"a Dask array of {dtype} masks values in a chunk, which its type cannot leave out. Let it be of "
            f"{made.dtype} before they are masked: astype({str(made.dtype)!r})."
        )
    return made.astype(dtype, copy=False) if isinstance(block, np.ma.MaskedArray) else made
