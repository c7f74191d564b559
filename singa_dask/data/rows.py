"""Rows that are given beside each other are paired by their labels: an index of pandas, or the coordinates of xarray
along the samples."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from singa_dask.data.containers import in_name_order, is_lazy
from singa_dask.data.labelled import check_fields, first_array, in_order, index_along, is_labelled, shared_levels
from singa_dask.data.schema import order_like
from singa_dask.data.times import instants
from singa_dask.errors import DataError

logger = logging.getLogger(__name__)


def index_of(x: Any) -> Any:
    """The labels of the rows of a pandas object, a DataArray or a Dataset, as an index of pandas; None of all else."""
    if is_labelled(x):
        first = first_array(x)
        return index_along(first, first.dims[0]) if first.dims else None
    pandas = sys.modules.get("pandas")
    index = getattr(x, "index", None)
    return index if pandas is not None and isinstance(index, pandas.Index) else None


def beside(like: Any, value: Any, what: str) -> Any:
    """What is given beside X, row by row: with the same labels in the same order, a DataArray also with the same
    dimensions and other coordinates. Raises DataError if its labels say that the rows are others."""
    check_fields([("X", each) for each in _members(like)] + [(what, value)])
    first = first_array(like)
    if first is not None and is_labelled(value) and not hasattr(value, "data_vars"):
        value = in_order(value, first, what)
    for each in _members(like):
        value = in_rows(each, value, what)
    return value


def _members(x: Any) -> list[Any]:
    return [*x.values()] if isinstance(x, Mapping) and not is_labelled(x) else [x]


def in_same_rows(given: Iterable[tuple[str, Any]]) -> list[Any]:
    """Each value with its rows in the order of those before it. given: with their names for messages, such as
    X['wind']. Raises DataError."""
    likes, made = list[tuple[str, Any]](), []
    for what, value in given:
        for other, like in likes:
            value = in_rows(like, value, what, other=other.partition("[")[0])
        made.append(value)
        if not any(_names_rows(like) for _, like in likes) and (_names_rows(value) or not likes):
            likes.append((what, value))
    return made


def in_rows(like: Any, value: Any, what: str, partition: str = "", other: str = "X") -> Any:
    """The value with the rows of `like` in the same order, if both have labels.

    The default index of pandas, 0 to N - 1, only counts the rows, unless both have the same labels. partition: the
    name of that of Dask collections which they are, whose labels always count. other: the name of `like`. Raises
    DataError if the labels differ, or repeat in another order.
    """
    rows = index_of(like)
    samples = first_array(like).dims[0] if is_labelled(like) else getattr(rows, "name", None)
    if is_labelled(value) and samples in value.dims:
        value = value.transpose(samples, ...)
    own = index_of(value)
    for one, at, hidden, name in ((like, rows, value, other), (value, own, like, what)):
        if is_labelled(one) and at is not None and is_lazy(hidden) and hasattr(hidden, "npartitions"):
            raise DataError(
                f"{what}: cannot be paired with {other} by their labels: those of {name} are its coordinates along "
                f"{at.name!r}, and those of the other one, a Dask {type(hidden).__name__}, are not known. If their "
                f"rows belong together by their places: {name}.drop_vars({at.name!r})."
            )
    if rows is not None and own is not None:
        both = _has_index(like) and _has_index(value)
        own, rows = map(in_name_order, (own, rows)) if both else shared_levels(own, rows)
    if rows is None or own is None or own.equals(rows) or (len(own) != len(rows) and not partition):
        return value
    places = _places(own, rows)
    if places is not None:
        counted = [name for name, one in ((what, value), (other, like)) if not _names_rows(one)]
        if counted and not partition:
            message = (
                "%s: rows are put in the order of %s by the labels of their index, although the index of %s only "
                "counts from 0. If they are in that order already, give %s.to_numpy()"
            )
            logger.warning(message, what, other, counted[0], what)
        return value.isel({first_array(value).dims[0]: places}) if is_labelled(value) else value.iloc[places]
    if not partition and not (_names_rows(like) and _names_rows(value)):
        return value
    differing = next((pair for pair in zip(own, rows, strict=False) if pair[0] != pair[1]), (len(own), len(rows)))
    hint = f"Select them: {what}.loc[{other}.index]; or leave out the index: {what}.to_numpy()."
    if is_labelled(value):
        dim = first_array(value).dims[0]
        hint = f"Select them: {what}.sel({dim}={other}.index); or leave out the labels: {what}.drop_vars({dim!r})."
    elif is_labelled(like):
        hint = f"Select them: {what}.loc[{other}.indexes[{rows.name!r}]]; or leave out the index: {what}.to_numpy()."
    if partition:
        hint = (
            "Take both from one DataFrame, or give both the same divisions, with set_index or repartition(divisions=);"
            " if their rows belong together by their places: reset_index(drop=True) of both."
        )
    told = f"has the label {differing[0]} where {other} has {differing[1]}"
    if len(own) != len(rows):
        told = f"has {len(own):,} rows, and {other} {len(rows):,}"
    raise DataError(f"{what}: {partition and f'{partition} '}{told}, and rows are paired by their labels. {hint}")


def _has_index(x: Any) -> bool:
    """Whether the labels of the rows are an index, rather than other coordinates of xarray."""
    return not is_labelled(x) or first_array(x).dims[0] in first_array(x).indexes


def _places(own: Any, rows: Any) -> Any:
    """The places of the labels `rows` among those that are its own; None if they are others, or repeat in another
    order."""
    if len(own) == len(rows) and own.is_unique and rows.is_unique:
        places = own.get_indexer(rows)
        if (places >= 0).all():
            return places
    return order_like(own, rows)


def _names_rows(x: Any) -> bool:
    """Whether the rows have labels that do more than count them."""
    index = index_of(x)
    if index is None or is_labelled(x):
        return index is not None
    return not (index.nlevels == 1 and index.dtype.kind == "i" and index.equals(type(index)(range(len(index)))))


def order_of(x: Any) -> Any:
    """The labels of the rows, which may tell their order; of a Dask DataFrame or Series, its lazy index."""
    return getattr(x, "index", None) if is_lazy(x) and not is_labelled(x) else index_of(x)


def times_of(x: Any) -> Any:
    """What the labels of the rows say of their order, as a Series: times, the last level of several, or numbers that
    do not only count; of a Dask DataFrame, dates; of a mapping, that of its first such value. None if there is
    nothing."""
    if isinstance(x, Mapping) and not is_labelled(x):
        return next((times for times in map(times_of, x.values()) if times is not None), None)
    index = order_of(x)
    if is_lazy(index):
        return index.to_series() if getattr(index.dtype, "kind", "") == "M" else None
    times = instants(index)
    if times is None or (times.dtype.kind not in "mM" and (index.nlevels > 1 or not _names_rows(x))):
        return None
    return times.to_series()
