"""What is given by users, in containers of other libraries, as NumPy, pandas and files have it."""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.data.containers import in_name_order, is_table
from singa_dask.data.sources.stored import packages_of, stored
from singa_dask.errors import DataError


def native(x: Any) -> Any:
    """A table of polars, pyarrow or another library with Arrow's interface as a DataFrame of pandas, and a column of
    one as an array; an array of a file, of h5py or zarr for example, as `Stored`, and the arrays of a group by their
    names; the levels of columns of pandas in the order of their names; all else as it is. Raises DataError without
    pyarrow, and for what cannot be read."""
    if (members := _members_of(x)) is not None:
        return members
    if not hasattr(x, "__arrow_c_stream__") or "pandas" in packages_of(x) or hasattr(x, "dims"):  # xarray's have names
        columns = getattr(x, "columns", None)
        if not is_table(x) or getattr(columns, "nlevels", 1) < 2 or (ordered := in_name_order(columns)) is columns:
            return stored(x)
        turned = x.copy()
        turned.columns = ordered
        return turned
    if not (hasattr(x, "columns") or hasattr(x, "column_names")):
        return np.asarray(x)
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(f"a {type(x).__name__} is read by pyarrow, which is not installed. Install it.") from error
    return pyarrow.table(x).to_pandas()


def _members_of(x: Any) -> dict[str, Any] | None:
    """The arrays of a group of Zarr, and of a netCDF file those that are no coordinates."""
    if "zarr" in packages_of(x) and hasattr(x, "arrays"):
        return dict(x.arrays())
    if hasattr(x, "variables") and hasattr(x, "dimensions") and "xarray" not in packages_of(x):
        return {name: each for name, each in x.variables.items() if name not in x.dimensions}
    return None


# What to give in place of objects of Dask that are no collections of rows, and of lists of them, by their classes.
_OF_DASK = {
    "Bag": ("{what}.to_dataframe()", "dask.bag.concat({what}).to_dataframe()"),
    "Delayed": (
        "dask.array.from_delayed({what}, shape, dtype), dask.dataframe.from_delayed([{what}]), or {what}.compute()",
        "dask.array.concatenate([dask.array.from_delayed(part, shape, dtype) for part in {what}]), or "
        "dask.dataframe.from_delayed({what})",
    ),
    "Future": ("client.gather({what})", "numpy.concatenate(client.gather({what}))"),
}


def check_at_hand(what: str, x: Any) -> None:
    """Raise DataError for a bag, a delayed value or a future, a list of them, or a mapping that has one, and for a
    lazy table of polars."""
    if type(x) is dict:
        for name, each in x.items():
            check_at_hand(f"{what}[{name!r}]", each)
    listed = isinstance(x, list | tuple) and len(x) > 0
    first = x[0] if listed else x
    if type(first).__name__ == "LazyFrame" and "polars" in packages_of(first):
        raise DataError(f"{what} must be a table in memory. Received: a LazyFrame. Give {what}.collect().")
    kinds = [base.__name__ for base in type(first).__mro__ if base.__name__ in _OF_DASK]
    if kinds and {"dask", "distributed", "concurrent"} & {*packages_of(first)}:
        received = f"a list of {len(x)} {kinds[0]} objects" if listed else f"a {kinds[0]}"
        raise DataError(
            f"{what} must be an array or a table, in memory or of Dask. Received: {received}. "
            f"Give {_OF_DASK[kinds[0]][listed].format(what=what)}."
        )
