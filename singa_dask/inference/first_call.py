"""What the first training call of a model says of its samples: in a loop of one's own, no data set describes them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from singa_dask.data.columns import Column, Role, X, Y
from singa_dask.data.containers import is_table
from singa_dask.data.labelled import along_of, as_table, is_labelled, variables_of
from singa_dask.data.listed import together
from singa_dask.data.native import native
from singa_dask.data.schema import COLUMN, Along, Reading, Schema, of_columns
from singa_dask.errors import DataError
from singa_dask.inference.described import KnownData
from singa_dask.inference.feeding import check_named, feed_of
from singa_dask.inference.predicting import arrays_of, one_array
from singa_dask.net import Batch, inputs_of

if TYPE_CHECKING:
    from singa_dask.inference.model import Model

_BITS = 31  # of the number of rows


def fed_in_training(model: Model, x: Any, y: Any) -> tuple[KnownData, dict[str, Batch], int, tuple[int, ...]]:
    """What is known of the data, what `feed_of` returns, and the rows by rank. The first call also describes the input
    layers that have no description. Raises DataError, on all ranks if these give other names."""
    before = model.described
    try:
        model.described = before if model.called else {**before, **_described(model, x, y)}
        known = KnownData(model.net, model.described)
        feed, rows = feed_of(known, *arrays_of(model, x, y))
        mark = 0 if model.called or not model.described else zlib.crc32(repr(model.described).encode())
        told = model.ranks.numbers(mark << _BITS | rows)  # one message
        _check_same([number >> _BITS for number in told])
    except BaseException:
        model.described = before
        raise
    model.called = True
    return known, feed, rows, tuple(number & (1 << _BITS) - 1 for number in told)


def _check_same(marks: Sequence[int]) -> None:
    """Raise DataError if the descriptions of two ranks differ. marks: of these, 0 for none."""
    first = next(filter(None, marks), 0)
    if other := next((rank for rank, mark in enumerate(marks) if mark not in (0, first)), 0):
        raise DataError(
            f"x and y: rank {other} gives columns of other names, or in another order, than rank "
            f"{marks.index(first)}. Give all ranks the same in the first call."
        )


def _described(model: Model, x: Any, y: Any) -> dict[str, str]:
    """Descriptions of the input layers that have none: the names of the columns and dimensions of x, and those of
    several targets."""
    inputs, known, found = inputs_of(model.net, model.outputs[0]), model.known, dict[str, str]()
    x, y = _by_layer(x, inputs, "x"), _by_layer(y, known.answering, "y")
    if len(x) < len(inputs):
        check_named(known, inputs, x)
    for layer in [name for name in model.net.input_layers if name not in model.described]:
        store = known.store(layer)
        of_x = _along(x.get(layer), "x", steps=known.has_steps(layer))
        of_y = _along(y.get(layer), "y", steps=known.has_steps(layer, answers=True)) if store.target_shape else Along()
        names, targets = _names(of_x), _names(of_y)
        columns = [_column(store.column or X, Role.FEATURE, names)]
        columns += [_column(store.label or Y, Role.TARGET, targets)] * (len(targets) > 1)
        reading = Reading(dimensions={columns[0].name: "/".join(of_x.dims)}, coordinates=of_x.coordinates)
        if of_x.dims or len(targets) > 1:
            found[layer] = Schema(tuple(columns), reading=Reading() if names else reading).to_json()
    return found


def _column(name: str, role: Role, names: tuple[str, ...]) -> Column:
    """Of a vector whose values have names, or of samples of any shape."""
    size = len(names)
    known: dict[str, Any] = {"shape": (size,), "mean": (0.0,) * size, "std": (1.0,) * size, "names": names}
    return Column(name, role, "float32", **(known if names else {"shape": ()}))


def _by_layer(given: Any, layers: Sequence[str], what: str) -> Mapping[str, Any]:
    if hasattr(given, "data_vars") and len(layers) > 1:
        return variables_of(given, what)
    return given if isinstance(given, Mapping) and not is_labelled(given) else dict.fromkeys(layers[:1], given)


def _along(given: Any, what: str, *, steps: bool) -> Along:
    """The dimensions of a record and its coordinates that are names. steps: whether a sample has several records."""
    if given is None:
        return Along()
    given = native(as_table(given))
    if is_table(given):
        along = Along((COLUMN,), of_columns(given.columns))
    elif is_labelled(given):
        along = along_of(one_array(given, Along()), what)
    else:
        along = together(given, what)[1]
    told = {dim: of for dim, of in along.coordinates.items() if of.type == "text" and len({*of.values}) == of.size}
    unnamed = {dim for dim in along.dims if dim.startswith("dim_")}  # by xarray, and columns by pandas
    unnamed |= {dim for dim, of in told.items() if [*of.values] == [*map(str, range(of.size))]}
    dims = along.dims[steps:]
    return Along() if unnamed & {*dims} else Along(dims, {dim: of for dim, of in told.items() if dim in dims})


def _names(along: Along) -> tuple[str, ...]:
    known = along.coordinates.get(along.dims[0]) if len(along.dims) == 1 else None
    return () if known is None else tuple(known.shown)
