"""Predictions for whatever holds samples: arrays, DataFrames, and the collections of Dask, which stay lazy."""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.data.columns import Role
from singa_dask.data.containers import dense, is_lazy, is_table
from singa_dask.data.labelled import (
    VARIABLE,
    as_given,
    as_table,
    check_fields,
    check_turned,
    dims_of,
    first_array,
    in_order,
    is_labelled,
    labelled,
    stacked,
    turned,
    variables_of,
    with_gaps,
)
from singa_dask.data.listed import check_times
from singa_dask.data.native import check_at_hand, native
from singa_dask.data.rows import beside, in_rows, in_same_rows
from singa_dask.data.schema import STEP, Along
from singa_dask.data.sources.stored import Stored
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.inference.described import numbers
from singa_dask.inference.feeding import as_recorded, check_named
from singa_dask.net import inputs_of

if TYPE_CHECKING:
    from singa_dask.inference.model import Model

logger = logging.getLogger(__name__)


def predict(model: Model, x: Any, output: str, batchsize: int | None) -> Any:
    """The output `output` of a model for every row of x, which is of any kind that `Model.predict` takes."""
    check_at_hand("x", x)
    x = with_gaps(x)
    x = as_table(x) if is_labelled(x) else x
    if has_labels(x):
        return _with_labels(model, x, output, batchsize)
    x = _members_paired(x)
    table = native(x)
    if table is not x:
        found = predict(model, table, output, batchsize)
        return found.to_numpy() if is_table(found) else found  # it has no index of its own
    values = list(x.values()) if isinstance(x, Mapping) else [x]
    lazy = [is_lazy(value) for value in values]
    if any(lazy) and not all(lazy):
        hint = "Turn the others into Dask arrays with dask.array.from_array, with the same blocks of rows."
        raise ConfigError(Problem("x", "mixes Dask collections with arrays", ", ".join(x), hint))
    if is_table(x):
        return (_lazy_table if lazy[0] else _table)(x, model, output, batchsize)
    if lazy[0] and not any(map(is_table, values)):
        return _lazy_array(model, x, output, batchsize)
    return predicted(model, _recorded(model, x, output), output, batchsize)


def _recorded(model: Model, x: Any, output: str) -> Any:
    """The arrays with their channels last, of a table the features."""
    if isinstance(x, Mapping):
        return {name: _member(model, name, array, output) for name, array in x.items()}
    inputs = inputs_of(model.net, output)
    check_named(model.known, inputs, inputs[:1])
    return as_recorded(model.known, inputs[0], x, "x")


def _member(model: Model, layer: str, x: Any, output: str) -> Any:
    """What one input layer reads of an array or a table in memory."""
    table, known = native(x), model.known.inputs.get(layer)
    if not is_table(table):
        return as_recorded(model.known, layer, table, "x")
    if is_lazy(table):
        hint = "Give x.compute(), or a Dask array."
        raise ConfigError(Problem("x", f"has a Dask DataFrame for the input layer {layer!r}", hint=hint))
    if known is None or known.column.role is Role.FEATURE:
        return _features(table, model, output, [layer])[layer]
    return numbers(table, map(str, table))


def _with_labels(model: Model, x: Any, output: str, batchsize: int | None) -> Any:
    """The output for a DataArray, or a Dataset, whose variables are the input layers, or else the channels of one."""
    arrays = by_layer(model, x, output)
    first = first_array(arrays)
    found = predict(model, values_of(arrays), output, batchsize)
    last = "class" if model.known.classifies(output) else "output"
    dims, names = dims_of(first, found.shape[1:], last), model.known.names(output)
    coords = {last: names} if dims[-1:] == (last,) and len(names) == found.shape[-1] else {}
    given = next(array for array in (x.values() if isinstance(x, Mapping) else [x]) if is_labelled(array))
    return as_given(labelled(found, first, dims, coords), given)


def has_labels(x: Any) -> bool:
    """Whether x is a DataArray or a Dataset, or a mapping with one."""
    return is_labelled(x) or (isinstance(x, Mapping) and any(map(is_labelled, x.values())))


def values_of(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The values of DataArrays; all else as it is."""
    return {name: array.data if is_labelled(array) else array for name, array in arrays.items()}


def by_layer(
    model: Model, x: Any, output: str, answers: Mapping[str, Any] = {}, *, places: bool = True
) -> dict[str, Any]:
    """The DataArrays that the input layers read of one, of a Dataset or of a mapping, as in training, and with
    the same samples: of a Dataset the variables are those of the layers, or else the channels of a single one.
    answers: given for the same rows; places: whether to warn of others. Raises DataError."""
    inputs = inputs_of(model.net, output)
    if not is_labelled(x):
        given = dict(x)
    elif len(inputs) > 1 and hasattr(x, "data_vars"):
        given = {name: array for name, array in variables_of(x, "x").items() if name in inputs}
    else:
        given = {inputs[0]: x}
    trained = {name: model.known.along(name, answers=name not in inputs) for name in given}
    arrays = {name: one_array(array, trained[name]) for name, array in given.items()}
    name, first = next((name, array) for name, array in arrays.items() if is_labelled(array))
    first = turned(first, trained[name], f"x of {name}", warns=Along())
    warned = {name: along._replace(coordinates={}) for name, along in trained.items() if not places}
    made = {
        name: turned(in_order(array, first, name), trained[name], f"x of {name}", warns=warned.get(name))
        if is_labelled(array)
        else in_rows(first, array, f"x of {name}", other="x")
        for name, array in arrays.items()
    }
    others = {name: each for name, each in answers.items() if not is_labelled(each)}
    check_turned(arrays, made | others)
    for name in (name for name, along in trained.items() if STEP in along.dims and is_labelled(made[name])):
        check_times(made[name], made[name].dims[1], f"x of {name}")
    return made


def _members_paired(x: Any) -> Any:
    """A mapping without DataArrays with its members in the same rows; all else as it is. Raises DataError."""
    if not isinstance(x, Mapping) or has_labels(x):
        return x
    members = [(f"x[{name!r}]", each) for name, each in x.items()]
    check_fields(members)
    return dict(zip(x, in_same_rows(members), strict=True))


def one_array(x: Any, trained: Along, what: str = "x") -> Any:
    """A DataArray of a Dataset whose variables are channels; all else as it is. Raises DataError."""
    if not hasattr(x, "data_vars"):
        return x
    first, last = next(iter(x.data_vars.values())), trained.dims[-1] if trained.dims else VARIABLE
    if len(x.data_vars) == 1 and first.ndim > len(trained.dims):
        return first
    known = trained.coordinates.get(last)
    if known is None or known.type != "text":
        return stacked(x, what)
    return stacked(x, what, known.shown).rename({VARIABLE: last})


def arrays_of(model: Model, x: Any, y: Any = None, output: str = "") -> tuple[Any, Any]:
    """The arrays that the input layers read of a table in memory, of DataArrays and Datasets, and labels or targets
    for the same rows; all else as it is. output: that is wanted, by default the first one. Raises ConfigError,
    DataError."""
    output = output or model.outputs[0]
    check_at_hand("x", x)
    check_at_hand("y", y)
    x, y = with_gaps(x), with_gaps(y)
    table = native(as_table(x) if is_labelled(x) else _members_paired(x))
    x = table if isinstance(x, Mapping) and not is_labelled(x) else x
    answering = next(iter(model.known.answering), "")
    if hasattr(y, "data_vars") and not {*y.data_vars} & {*model.known.inputs}:  # of one layer
        y = one_array(y, model.known.along(answering, answers=True), "y")
    answers = {None: y} if is_labelled(y) or not isinstance(y, Mapping) else y
    x = by_layer(model, table, output, _shown(answers)) if has_labels(table) else x
    answers = {name: beside(x, each, "y") for name, each in answers.items()}
    given, inputs = _shown(answers), x if isinstance(x, Mapping) else {"x": x}
    for name in (name for name, each in answers.items() if is_labelled(each)):
        layer = name if name in model.known.inputs else answering
        answers[name] = turned(answers[name], model.known.along(layer, answers=True), "y")
    check_turned({**inputs, **given}, {**inputs, **_shown(answers)})
    plain = {name: each.data if is_labelled(each) else each for name, each in answers.items()}
    answers = {name: as_recorded(model.known, name or answering, each, "y") for name, each in plain.items()}
    y = answers.get(None, answers)
    if has_labels(table):
        return _recorded(model, values_of(x), output), y
    if not is_table(table):
        return _recorded(model, x, output), y
    if is_lazy(table):
        hint = "Give x.compute(), or a Dask array."
        raise ConfigError(Problem("x", "is a Dask DataFrame, and tables are evaluated in memory", hint=hint))
    return _features(table, model, output), y


def _shown(answers: Mapping[str | None, Any]) -> dict[str, Any]:
    """By names for messages."""
    return {"y" if name is None else f"y of {name}": each for name, each in answers.items()}


def predicted(model: Model, x: Any, output: str, batchsize: int | None) -> np.ndarray:
    """Those of arrays, with a warning if some are NaN, and a line if missing values are replaced."""
    x = x if isinstance(x, Mapping) else {inputs_of(model.net, output)[0]: x}
    x = {name: dense(np.asarray(array) if isinstance(array, Stored | list) else array) for name, array in x.items()}
    model.known.count_filled(x)
    found = model.computed(x, output=output, batchsize=batchsize)
    checked = NotANumber(model)
    checked.count({output: found[output]})
    checked.warn()
    return found[output]


class NotANumber:
    """Counts the predictions of a model that are NaN, so that the user is told of them and of the reason."""

    def __init__(self, model: Model) -> None:
        self._model, self._rows, self._wrong = model, 0, 0

    def count(self, outputs: Mapping[str, np.ndarray]) -> None:
        for rows in outputs.values():
            self._rows += len(rows)
            if (wrong := np.isnan(rows)).any():
                self._wrong += int(wrong.any(axis=tuple(range(1, rows.ndim))).sum())

    def warn(self) -> None:
        """Log a warning if there are any."""
        if self._wrong:
            state = self._model.state_dict() if not self._model.partitioned else {}
            broken = next((name for name, value in state.items() if not np.isfinite(value).all()), None)
            why = f"parameter {broken!r} holds values that are not finite" if broken else "values in the net overflow"
            logger.warning("%d of %d predictions are NaN: %s", self._wrong, self._rows, why)


def is_empty(x: Any) -> bool:
    """Whether x is arrays without rows."""
    values = x.values() if isinstance(x, Mapping) else [x]
    return all(len(np.shape(value)) > 0 and np.shape(value)[0] == 0 for value in values)


def _table(x: Any, model: Model, output: str, batchsize: int | None) -> Any:
    rows = predicted(model, _features(x, model, output), output, batchsize)
    return _framed(model, rows, output, x.index)


def _framed(model: Model, rows: np.ndarray, output: str, index: Any) -> Any:
    import pandas

    width = prod(rows.shape[1:])
    return pandas.DataFrame(rows.reshape(len(rows), width), index, model.known.names(output))


def _features(table: Any, model: Model, output: str, layers: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """What each input layer that the output needs, or each of these, reads of a table."""
    layers, filled = layers or inputs_of(model.net, output), Counter[str]()
    known = model.known.inputs
    twice = [name for name, count in Counter(map(str, table.columns)).items() if count > 1]
    if twice and any(name in known for name in layers):
        raise DataError(f"x: several columns are named {twice[0]!r}. Rename or drop one.")
    found = {
        name: known[name].features(table, filled) if name in known else numbers(table, map(str, table))
        for name in layers
    }
    model.known.tell_of_filled(filled, len(table))
    return found


# Lazily, on the workers


def sent(model: Model) -> Any:
    """The model as it is now, as one task that the blocks' tasks depend on. The scheduler sees only bytes."""
    from dask import delayed
    from dask.base import tokenize

    pickled = pickle.dumps(model)
    return delayed(pickle.loads, pure=True)(pickled, dask_key_name=f"model-{tokenize(pickled)}")


def _lazy_array(model: Model, x: Any, output: str, batchsize: int | None) -> Any:
    import dask.array as da

    given = dict(x) if isinstance(x, Mapping) else {None: x}
    arrays = {name: _by_rows(array) for name, array in given.items()}
    zeros = {name: np.zeros((1, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
    shape = model.computed(zeros.get(None, zeros), output=output)[output].shape[1:]
    indexed = []
    for i, array in enumerate(arrays.values()):
        indexed += [array, ("rows", *(f"x{i}.{axis}" for axis in range(1, array.ndim)))]
    return da.blockwise(
        partial(_block, names=tuple(arrays), output=output, batchsize=batchsize),
        ("rows", *(f"y{axis}" for axis in range(len(shape)))),
        *indexed,
        new_axes={f"y{axis}": size for axis, size in enumerate(shape)},
        model=sent(model),
        dtype=model.ops.dtype,
        meta=np.empty((0, *shape), model.ops.dtype),
        token="predict",
    )


def _by_rows(array: Any) -> Any:
    """The Dask array with blocks of whole samples."""
    if array.ndim < 2 or any(np.isnan(size) for size in array.shape[1:]):
        received = f"shape {array.shape}"
        hint = "Its first axis counts the samples, whose sizes must be known; compute_chunk_sizes() finds them."
        raise ConfigError(Problem("x", "must be a Dask array of samples", received, hint))
    if all(count == 1 for count in array.numblocks[1:]):
        return array
    return array.rechunk(dict.fromkeys(range(1, array.ndim), -1))


def _block(*blocks: Any, model: Model, names: Sequence[str | None], output: str, batchsize: int | None) -> np.ndarray:
    arrays = {name: _only(block) for name, block in zip(names, blocks, strict=True)}
    return predicted(model, _recorded(model, arrays.get(None, arrays), output), output, batchsize)


def _only(block: Any) -> Any:
    """The array in nested lists: those of an axis that has one block and no counterpart in the output."""
    while isinstance(block, list):
        (block,) = block
    return block


def _lazy_table(x: Any, model: Model, output: str, batchsize: int | None) -> Any:
    _features(x._meta, model, output)
    rows = model.computed(dict.fromkeys(model.net.input_layers, ()))[output]
    meta = _framed(model, rows, output, x._meta.index[:0])
    return x.map_partitions(_table, sent(model), output, batchsize, meta=meta)
