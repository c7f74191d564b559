"""Where predictions lie: along the dimensions and coordinates of their source, in its order."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from singa_dask.data.columns import Channels, Column
from singa_dask.data.schema import AS_THEY_ARE, Along, Reading, Turn, same_order
from singa_dask.inference.described import KnownData

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placing:
    """How the values of an output lie. trained: the column that they are like; column, along: the same one, and its
    dimensions and coordinates, in the order of the source; turn: from one to the other. each: values at each place.
    whole: whether the column is the target, and not only its positions or those of the features."""

    trained: Column
    column: Column
    along: Along
    turn: Turn
    each: int = 1
    whole: bool = True

    def predictions(self, values: np.ndarray) -> np.ndarray:
        """Those of the net, (n, ...), in the order of the source."""
        return self._turned(values, self.each)

    def answers(self, values: np.ndarray) -> np.ndarray:
        """True values, (n, ...), in the order of the source."""
        inner = values.ndim - 1 > len(self.trained.shape) and not self.whole
        return self._turned(values, values.shape[-1] if inner else 1)

    def axes(self, shape: Sequence[int]) -> list[tuple[int, str, np.ndarray | None]]:
        """Of an array of samples, (n, ...): the axes that are those of the column, with the names of their dimensions,
        and the coordinates along them, None where these are not known. Flat values have none."""
        dims, column = self.along.dims, self.column
        last = [*range(1, len(dims)), 0] if column.channels is Channels.FIRST else [*range(len(dims))]
        starts = range(len(shape) - len(dims), 0, -1)
        for form, places in ((column.shape, range(len(dims))), (tuple(column.shape[at] for at in last), last)):
            start = next((at for at in starts if dims and tuple(shape[at : at + len(form)]) == form), None)
            if start is not None:
                told = [(start + axis, dims[at]) for axis, at in enumerate(places)]
                return [(axis, dim, self._coordinates(dim)) for axis, dim in told if not dim.startswith("(")]
        return []

    def _coordinates(self, dim: str) -> np.ndarray | None:
        known = self.along.coordinates.get(dim)
        return known.array if known is not None and known.size == len(known.values) else None

    def _turned(self, values: np.ndarray, each: int) -> np.ndarray:
        old, new, rank = self.trained, self.column, len(self.trained.shape)
        if self.turn == AS_THEY_ARE or prod(values.shape[1:]) % (old.values * each):
            return values
        first = old.channels is Channels.FIRST
        rows = values.reshape(-1, *old.net_shape, each)
        rows = np.moveaxis(rows, rank, 1) if first else rows
        rows = self.turn.of(rows.reshape(-1, *old.shape, each))
        rows = np.moveaxis(rows, 1, rank) if first else rows
        return rows.reshape(_with(values.shape, old, new))


def _with(shape: tuple[int, ...], old: Column, new: Column) -> tuple[int, ...]:
    """The shape of values with the axes of a column in another order; flat ones have one axis."""
    for was, now in ((old.net_shape, new.net_shape), (old.shape, new.shape)):
        for at in range(1, len(shape) - len(was) + 1):
            if shape[at : at + len(was)] == was:
                return (*shape[:at], *now, *shape[at + len(was) :])
    return shape


def placing_of(known: KnownData, output: str, reading: Reading) -> Placing | None:
    """How the values of an output lie in the order of a source that was read so; None if it is not known. What is
    in one dimension with names of its values stays."""
    answered = known.answered_by(output)
    steps = answered is not None and bool(known.store(answered).time_steps)
    for column, trained, whole in _alike(known, output):
        each = _values_at_a_place(known, output, column, steps=steps, whole=whole)
        if each:
            along, turn = _in_source(column, trained, reading, steps=steps)
            shape = tuple(column.shape[axis] for axis in turn.axes) or column.shape
            return Placing(column, replace(column, shape=shape), along, turn, each, whole)
    return None


def stays_as_trained(known: KnownData, outputs: Mapping[str, Placing | None], reading: Reading, where: object) -> bool:
    """Whether samples were put in the order of training, and predictions as large as these stay so, with a warning."""
    found = False
    for described in (known.inputs[layer] for layer in known.needed if layer in known.inputs):
        column = described.column.raw
        along, turn = _in_source(column, described.along(column), reading)
        moved = {along.dims[axis] for axis in turn.moved}
        sizes = {column.shape[turn.axes[axis] if turn.axes else axis] for axis in turn.moved}
        sizes |= {prod(_positions(column, along)[0].shape)}
        for name in [name for name, placing in outputs.items() if placing is None and moved]:
            shape = known.net.shapes[name][: -1 if known.classifies(name) else None]
            if sizes & {*shape, prod(shape)}:
                message = (
                    "%s: its samples were put in the order of the training data along %s, and the predictions of "
                    "layer %r stay in it, as the training data do not name their dimensions. Put the file in that "
                    "order to compare values by their places"
                )
                logger.warning(message, where, ", ".join(sorted(moved)), name)
                found = True
    return found


def _alike(known: KnownData, output: str) -> Iterator[tuple[Column, Along, bool]]:
    """The columns that an output may be like, and how they lie: its target, which lies along the features if it has
    their positions and no names of dimensions; the positions of that, and those of the features."""
    answered, target = known.inputs.get(known.answered_by(output) or ""), known.answers(output)
    read = [(one.column.raw, one.along(one.column)) for layer in known.needed if (one := known.inputs.get(layer))]
    positions, found = [_positions(*each) for each in read], list[tuple[Column, Along, bool]]()
    if target is not None and answered is not None:
        lies = answered.along(answered.answers or target)
        like = (along for column, along in positions if column.shape == target.shape != () and not lies.dims)
        found.append((target, next(like, lies), True))
        positions.insert(0, _positions(target, lies))
    found += [(column, along, False) for column, along in positions if len(column.shape) > 1]
    yield from (each for each in found if len(each[1].dims) == len(each[0].shape))


def _positions(column: Column, along: Along) -> tuple[Column, Along]:
    """A column without its channels."""
    axes = {Channels.FIRST: slice(1, None), Channels.LAST: slice(None, -1)}.get(column.channels, slice(None))
    return replace(column, shape=column.shape[axes], channels=Channels.NONE), along._replace(dims=along.dims[axes])


def _values_at_a_place(known: KnownData, output: str, column: Column, *, steps: bool, whole: bool) -> int:
    """How many values an output has for each one of a column; 0 if it is not like that."""
    shape, rank = known.net.shapes[output], len(column.shape)
    if not whole:
        return prod(shape[rank:]) if shape[:rank] == column.shape else 0
    each = shape[-1] if known.classifies(output) else 1
    answered = known.answered_by(output)
    ahead = max(1, known.store(answered).horizon) if answered else 1
    size = prod(shape) // each
    fits = size in (column.values, ahead * column.values) or (steps and column.values % size == 0)
    return each if fits and column.values > 1 else 0


def _in_source(column: Column, trained: Along, reading: Reading, *, steps: bool = False) -> tuple[Along, Turn]:
    """The dimensions and coordinates of a column in the order of a source, and the turn of samples of training to
    these. Channels, and steps in front, stay where they are."""
    dims = trained.dims
    if column.names or len(dims) != len(column.shape):
        return trained, AS_THEY_ARE
    kept = [dims[0]] if steps else []
    kept += [dims[column.channel_axis]] if column.channels is not Channels.NONE else []
    own = [[*filter(None, of.split("/"))] for of in reading.dimensions.values()]
    for names in own:
        dims = same_order(dims, [dim for dim in names if dim not in kept])
    there = {dim for names in own for dim in names}
    known = {dim: (reading if dim in there else trained).coordinates.get(dim) for dim in dims}
    coordinates = {dim: of for dim, of in known.items() if of is not None}
    orders = {
        dim: trained.coordinates[dim].order_like(of) for dim, of in coordinates.items() if dim in trained.coordinates
    }
    places = [(dims.index(dim), tuple(of.tolist())) for dim, of in orders.items() if of is not None and _moves(of)]
    axes = tuple(map(trained.dims.index, dims)) if dims != trained.dims else ()
    return Along(dims, coordinates), Turn(axes, tuple(places))


def _moves(order: Any) -> bool:
    return bool((order[1:] < order[:-1]).any())
