"""What is given by users, in containers of other libraries, as NumPy, pandas and files have it."""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.data.sources.stored import stored
from singa_dask.errors import DataError

_FILES = ("h5py", "zarr")


def native(x: Any) -> Any:
    """A table of polars, pyarrow or another library with Arrow's interface as a DataFrame of pandas, and a column of
    one as an array; an array of h5py or zarr as `Stored`; all else as it is. Raises DataError without pyarrow, and for
    what cannot be read."""
    if (package := next(filter(_FILES.__contains__, _packages(x)), "")) and hasattr(x, "chunks"):
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
