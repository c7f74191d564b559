"""NumPy arrays and Dask collections alike, as estimators need them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from singa_dask.data.columns import Channels, Column, Role, guess_channels
from singa_dask.data.containers import dense, in_types_of_numpy, is_lazy, is_table
from singa_dask.data.native import native

MISSING = "Input y has missing labels. Leave out these samples."


def check_samples(x: Any) -> None:
    """Raise ValueError if x has no samples, as far as a Dask collection tells."""
    if len(x.shape) < 2:
        raise ValueError(f"X must have samples of features, (N, D). Received: the shape {x.shape}.")
    if isinstance(x.shape[0], int) and not x.shape[0]:
        raise ValueError("X must have samples. Received: 0. If it is filtered, check what the filter keeps.")


def known_container(x: Any) -> Any:
    """In place of what scikit-learn reads otherwise, what it knows: of a masked array, of a table of another library,
    of one whose columns have names that are no texts."""
    x = native(x)
    if is_table(x) and len({str(name) for name in x.columns}) < len(x.columns):
        twice = next(name for name, count in Counter(map(str, x.columns)).items() if count > 1)
        raise ValueError(f"several columns are named {twice!r}. Rename or drop one.")
    if is_table(x) and not is_lazy(x) and not all(isinstance(name, str) for name in x.columns):
        return x.set_axis([str(name) for name in x.columns], axis=1)
    return dense(x) if isinstance(x, np.ma.MaskedArray) or is_lazy(x) else x


def known_answers(y: Any) -> Any:
    """Labels or targets likewise. What pandas stores otherwise has a type of NumPy, and so have integers and booleans
    among objects. Raises ValueError for a mapping."""
    if isinstance(y, Mapping) and not hasattr(y, "dims"):
        raise ValueError(of_mapping(y, "y", "an array, a Series or a DataFrame"))
    given, y = y, in_types_of_numpy(known_container(y))
    if is_lazy(y):
        counted = isinstance(getattr(given, "_meta", None), np.ma.MaskedArray) and given.dtype.kind in "biu"
        return _unless_masked(given, y) if counted else y
    if is_table(y):
        return y.astype({name: np.asarray(known_answers(y[name])).dtype for name in y if y[name].dtype == object})
    objects = getattr(getattr(y, "dtype", None), "kind", "") == "O" and not hasattr(y, "cat")
    kinds = _kinds(np.asarray(y)) if objects else set()
    for kind, dtype in (((bool, np.bool), bool), ((int, np.integer), np.int64)):
        if kinds and all(issubclass(each, kind) for each in kinds) and (dtype is bool or not kinds & {bool}):
            with suppress(OverflowError):
                return y.astype(dtype)
    return y


def of_mapping(given: Mapping[str, Any], what: str, wanted: str) -> str:
    """What to say of a mapping, such as a file or a group of arrays."""
    ranks = {name: getattr(each, "ndim", 0) for name, each in given.items()}
    most = max(ranks.values(), default=0)
    fields = [f"{what}[{name!r}]" for name, rank in sorted(ranks.items()) if rank == most]
    hint = f"Give pandas.DataFrame({what})."
    if most > 1:
        stacked = f", or several as channels: numpy.stack([{', '.join(fields[:2])}], axis=-1)" * (len(fields) > 1)
        hint = f"Give one of its arrays, such as {fields[0]}{stacked}. Of a file, a Dataset of xarray does this."
    return f"{what} is a mapping, and must be {wanted}. {hint}"


def _kinds(y: np.ndarray) -> set[type]:
    """The types of objects. Raises ValueError if texts are among others, which leaves open what are classes."""
    kinds = {type(value) for value in y.flat}
    if any(issubclass(kind, str) for kind in kinds) and not all(issubclass(kind, str) for kind in kinds):
        there = [value for value in y.flat if not is_missing(value)]
        texts, others = ([value for value in there if isinstance(value, str) is text] for text in (True, False))
        if others:
            told = f"the text {texts[0]!r} and the {type(others[0]).__name__} {others[0]!r}"
            raise ValueError(f"y mixes {told}. Give labels of one type, for example y.astype(str).")
    return kinds


def is_missing(label: Any) -> bool:
    """Whether this is None, NaN or NA."""
    same = label == label  # NaN is not, and pandas.NA does not tell
    return label is None or not isinstance(same, bool | np.bool) or not same


def _unless_masked(given: Any, otherwise: Any) -> Any:
    """The integers of a Dask array of masked chunks, if none of them is masked."""
    from dask.array import ma

    hidden = bool(ma.getmaskarray(given).any().compute())
    meta = np.empty((0,) * given.ndim, given.dtype)
    return otherwise if hidden else given.map_blocks(np.ma.getdata, dtype=given.dtype, meta=meta)


def of_numbers(table: Any) -> bool:
    """Whether all columns of a DataFrame are numbers, which may be missing."""
    return all(dtype.kind in "biuf" for dtype in table.dtypes)


def check_numbers(values: Any, what: str) -> None:
    """Raise ValueError that names the first text or date in an array, in nested lists, or in a DataFrame in the place
    of one of numbers."""
    if is_table(values) and not of_numbers(values):
        name, dtype = next((name, dtype) for name, dtype in values.dtypes.items() if dtype.kind not in "biuf")
        told = f"holds {dtype}, such as {str(values[name].iloc[0])!r}" if len(values) else f"holds {dtype}"
        hint = " Convert it: astype('float64')." if hasattr(dtype, "categories") else ""
        hint = hint if dtype.kind != "O" or hint else " Convert it: infer_objects()."
        raise ValueError(f"{what}: column {name!r} {told}, and must be of numbers, as in fit.{hint}")
    array = values if hasattr(values, "dtype") else np.asarray(values)
    kind, hint = array.dtype.kind, "Convert it to numbers."
    if what == "X":
        hint = "Give a DataFrame: its columns of texts become categories, and those of dates days."
    if kind in "mM":
        raise ValueError(f"{what} holds {array.dtype}, and must hold numbers. {hint}")
    for place, value in np.ndenumerate(np.asarray(array)) if kind in "OUST" else ():
        if isinstance(value, str | bytes):
            raise ValueError(f"{what}{list(place)} is the text {str(value)!r}, and must be a number. {hint}")


def check_known(y: Any) -> None:
    """Raise ValueError that names the first target in memory that is missing."""
    values = np.asarray(y)
    missing = np.argwhere(np.isnan(values) if values.dtype.kind == "f" else np.zeros(0))
    if len(missing):
        first = ", ".join(map(str, missing[0].tolist()))
        hint = "Leave out these samples, of X too."
        raise ValueError(f"Input y contains NaN: y[{first}] is missing ({len(missing):,} such). {hint}")


def weights_of(weight: Any, answers: Any, *, scaled: bool) -> Any:
    """The weights of samples with these answers. scaled: so that their mean is 1. Raises ValueError."""
    if not is_lazy(answers):
        weight = _check_sample_weight(weight, answers, ensure_non_negative=True)
    known, mean = (weight >= 0).all(), weight.mean()
    if is_lazy(weight):
        import dask

        known, mean = dask.compute(known, mean)
    if not known:
        raise ValueError("sample_weight must hold numbers that are not negative and not missing.")
    if not mean and scaled:
        raise ValueError("sample_weight must have at least one non-zero number.")
    return weight / float(mean) if scaled else weight


def known_weights(weight: Any) -> Any:
    """As a Series what a DataFrame holds in one column; all else as it is. Raises ValueError for what is not (N,)."""
    weight = in_types_of_numpy(known_container(weight))
    if is_table(weight) and len(weight.columns) == 1:
        return weight[weight.columns[0]]
    if getattr(weight, "ndim", 1) > 1:
        hint = "Positions that do not count: a negative class, or mask= of shard."
        raise ValueError(f"sample_weight must be (N,), a number for each sample. Received: {weight.shape}. {hint}")
    return weight


def unique(y: Any) -> np.ndarray:
    """The different values of y, sorted. Raises ValueError if labels are missing."""
    if not is_lazy(y):
        return np.unique(y)
    y = y.to_dask_array() if is_table(y) else y
    if hasattr(y, "npartitions") and hasattr(y, "drop_duplicates"):
        found = in_types_of_numpy(y.drop_duplicates().compute())
        missing = bool(found.isna().any())
    elif y.dtype.kind == "O":  # which cannot be sorted if they are of several types
        import dask
        import pandas

        parts = dask.compute(*map(dask.delayed(pandas.unique), y.ravel().to_delayed()))
        found = pandas.unique(np.concatenate(parts))
        missing = bool(pandas.isna(found).any())
    else:
        from dask import array

        found = np.asarray(array.unique(y).compute())
        missing = found.dtype.kind == "f" and bool(np.isnan(found).any())
    if missing:
        raise ValueError(MISSING)
    _kinds(np.asarray(found, object))
    return np.unique(found)


def codes(y: Any, classes: np.ndarray, *, uncounted: bool = False) -> Any:
    """The place of each value among the classes, int64. uncounted: whether negative numbers are none, and become -1.
    Raises ValueError for other values."""
    if is_lazy(y):
        mapped = y.map_partitions if hasattr(y, "map_partitions") else y.map_blocks
        kind: dict[str, Any] = {"meta": ("y", "int64")} if hasattr(y, "map_partitions") else {"dtype": "int64"}
        kind = {"meta": codes(y._meta, classes)} if is_table(y) else kind
        return mapped(codes, classes, uncounted=uncounted, **kind)
    values = np.asarray(in_types_of_numpy(y))
    try:
        places = np.minimum(np.searchsorted(classes, values), len(classes) - 1)
    except TypeError as error:  # texts and numbers have no order
        told = f"y holds values of another type than the classes {classes.tolist()} ({error})."
        raise ValueError(f"{told} Give labels of that type, for example with y.astype.") from error
    unknown = classes[places] != values
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise ValueError(MISSING)
    if uncounted and values.dtype.kind in "if":
        unknown &= values >= 0
        places = np.where(values < 0, -1, places)
    if unknown.any():
        raise ValueError(
            f"y holds {values[unknown].tolist()[0]!r}, which is not one of the classes: {classes.tolist()}."
        )
    if hasattr(y, "index"):  # of a DataFrame's partition
        return type(y)(places, index=y.index, **({"columns": y.columns} if is_table(y) else {"name": "y"}))
    return places


def column_of(values: Any, name: str, channels: str | None) -> Column:
    """The column of X or y as shards describe it. channels: where images have them; by default the shape decides.
    Raises ValueError where it does not."""
    shape = tuple(int(size) for size in values.shape[1:])
    if channels not in (None, *Channels):
        raise ValueError(f"channels must be None, {', '.join(map(repr, map(str, Channels)))}. Received: {channels!r}.")
    where = Channels(channels) if channels is not None and len(shape) > 2 else guess_channels(shape)
    if where is None:
        raise ValueError(
            f"the shape {tuple(values.shape)} of {name} does not tell which axis has the channels. Set channels to "
            "'first', 'last' or 'none'."
        )
    return Column("x", Role.FEATURE, "float32", shape, where)
