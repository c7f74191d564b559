"""Lists of samples, each of which may say what its values are: tables, DataArrays, Datasets and arrays of files."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from singa_dask.data.containers import columns_of, in_types_of_numpy, is_table
from singa_dask.data.labelled import (
    VARIABLE,
    Labels,
    along_of,
    as_samples,
    as_table,
    index_along,
    is_labelled,
    labels_of,
    stacked,
    values_of,
)
from singa_dask.data.native import native
from singa_dask.data.rows import index_of
from singa_dask.data.schema import COLUMN, SEPARATOR, STEP, Along, Coordinates, of_columns
from singa_dask.data.sources.stored import Stored
from singa_dask.data.times import instants
from singa_dask.data.windows import LONG_GAP, SAME_VARYING_STEP, Step, falls
from singa_dask.errors import DataError

logger = logging.getLogger(__name__)

_VALUES = str | bytes | int | float | np.generic


class Listed(NamedTuple):
    """The values of each sample as in training; what the samples say beside these; and by the size of an axis, which
    sample was turned along it."""

    values: list[np.ndarray]
    labels: Labels
    moved: dict[int, str]


def listed(x: Any, what: str, trained: Along | None = None, step: Step | None = None) -> Listed | None:
    """The samples of a list of which one says what its values are; None of all else. Each becomes like those of
    training, by default like the first such one. The first dimension there has the steps. step: of the records in
    training, if `trained` does not tell it.

    Raises DataError, and ValueError if columns are missing, where a sample does not suit these, or its times do not
    rise, or step otherwise.
    """
    objects = isinstance(x, np.ndarray) and x.dtype.kind == "O" and x.ndim == 1
    several = (objects or isinstance(x, list | tuple)) and len(x) and not isinstance(x[0], _VALUES)
    given = [_native(each, f"{what}[{i}]") for i, each in enumerate(x)] if several else []
    if not any(isinstance(each, Stored) or index_of(each) is not None or is_labelled(each) for each in given):
        return None
    fits = trained is None or trained == Along()
    labels, where = Labels((), {}, trained or Along()), "" if fits else "the training data"
    values, times, moved, uneven = list[np.ndarray](), list[Coordinates](), dict[int, str](), list[str]()
    for place, each in enumerate(given):
        name = f"{what}[{place}]"
        sample, along = _described(each, name, labels.along)
        if not where and along != Along():
            known = labels_of(as_samples(sample), name) if is_labelled(sample) else None
            labels, where = known or Labels.of_sample(along), name
        like, steps = _comparable(along, labels.along)
        uneven += [name] * check_times(sample, steps, name)
        turn = along.turn_to(like, name, where)
        values.append(turn.of(np.asarray(values_of(sample))[np.newaxis])[0])
        moved |= {values[-1].shape[axis]: name for axis in turn.moved if COLUMN not in along.dims}
        if steps in along.coordinates:
            times.append(along.coordinates[steps])
            if not fits:
                check_step(times[-1], labels.along.coordinates.get(labels.along.dims[0]), name, step)
    if uneven:
        message = "%s: the times of %d of %d sequences have gaps or repeat, the first those of %s, and the net reads "
        logger.warning(message + "all steps alike. Resample them.", what, len(uneven), len(given), uneven[0])
    if fits and labels.along.dims:
        labels = _with_steps(labels, labels.along.dims[0], times, what)
    return Listed(values, labels, moved)


def together(
    x: Any, what: str, trained: Along | None = None, step: Step | None = None
) -> tuple[Any, Along, dict[int, str]]:
    """A list of samples as one array, what these say beside their values, and what was turned, as `listed` has it; all
    else as it is. Raises DataError."""
    try:
        of = listed(x, what, trained, step)
    except ValueError as error:
        raise DataError(str(error)) from error
    arrays = isinstance(x, list | tuple) and all(isinstance(each, np.ndarray) for each in x)
    values = [*x] if of is None and arrays else [] if of is None else of.values
    other = next((place for place, each in enumerate(values) if each.shape != values[0].shape), 0)
    if other:
        told = f"{what}[0] {values[0].shape} and {what}[{other}] {values[other].shape}"
        hint = "Pad them to one length, and give the lengths as a column; or use an estimator."
        raise DataError(f"{what}: holds samples of different shapes: {told}. {hint}")
    if of is None:
        return x, Along(), {}
    return np.stack(of.values), of.labels.along, of.moved


def _native(each: Any, what: str) -> Any:
    """Raises DataError for a structured array."""
    if getattr(getattr(each, "dtype", None), "names", None):
        fields = ", ".join(each.dtype.names)
        raise DataError(f"{what}: is a structured array with the fields {fields}. Give pandas.DataFrame({what}).")
    return each if isinstance(each, np.ndarray | list | tuple | _VALUES) else native(each)


def _described(each: Any, what: str, trained: Along) -> tuple[Any, Along]:
    """A DataArray, a table with the columns of training, or an array, and what it says of itself as one sample."""
    each = as_table(each)
    if hasattr(each, "data_vars"):
        known = (trained.coordinates[dim].shown for dim in (VARIABLE, COLUMN) if dim in trained.coordinates)
        each = stacked(each, what, next(known, ()))
    if is_labelled(each):
        each = each.drop_vars([name for name, coord in each.coords.items() if not coord.dims])  # each has its own
        return each, along_of(as_samples(each), what)
    if isinstance(each, Stored):
        return each, each.along(lone=True)._replace(scalars={})
    if (index := index_of(each)) is None:
        return each, Along()
    if not is_table(each):  # a Series, which is a row of a table if its labels are texts
        names = Coordinates.of(index.values) if instants(index) is None and len(trained.dims) < 2 else None
        return each, Along((COLUMN,), {COLUMN: names}) if names and names.type == "text" else Along()
    row = len(trained.dims) == 1 == len(each)
    each = in_types_of_numpy(columns_of(each, names_in(trained, each.columns, 2 - row), what))
    units = [each.attrs.get("units", {}).get(name, "") for name in map(str, each.columns)]
    told = {} if _is_unnamed(each, trained) else of_columns(each.columns)
    told |= {STEP: times} if not row and (times := _dates(index)) else {}
    along = Along((STEP, COLUMN)[row:], told, units[0] if len({*units}) == 1 else SEPARATOR.join(units))
    return each.to_numpy()[0] if row else each, along


def names_in(trained: Along, columns: Iterable[Any], dims: int) -> Any:
    """Those of the columns of a table that training reads, by its last dimension; None for all of them. dims: of a
    sample."""
    known = trained.coordinates.get(trained.dims[-1]) if len(trained.dims) == dims else None
    columns = [*map(str, columns)]
    if known is None or (known.type != "text" and not {*known.shown} <= {*columns}):
        return None
    return None if columns == [*map(str, range(known.size))] else known.shown


def _is_unnamed(table: Any, trained: Along) -> bool:
    """Whether its columns have the names that pandas gives, and those of training have others."""
    known, columns = trained.coordinates.get(COLUMN), [*map(str, range(table.shape[1]))]
    return known is not None and [*map(str, table.columns)] == columns != known.shown


def _dates(index: Any) -> Coordinates | None:
    """The labels of rows if they are times or time spans."""
    times = instants(index)
    return None if times is None or times.dtype.kind not in "mM" else Coordinates.of(times.to_numpy())


def _comparable(own: Along, trained: Along) -> tuple[Along, str]:
    """What training knows, and the dimension of the steps: without their coordinates where each sequence has its own
    ones, which do not rise or fall. Of a sample with one dimension, as many texts are names."""
    trained = trained.named_like(own)
    if not trained.dims:
        return trained, ""
    step = trained.dims[0]
    mine, known = own.coordinates.get(step), trained.coordinates.get(step)
    if not (mine and known):
        return trained, step
    names = len(trained.dims) == 1 and mine.type == known.type == "text" and mine.size == known.size
    if not names and not (mine.ways and known.ways):
        trained = trained._replace(coordinates={dim: at for dim, at in trained.coordinates.items() if dim != step})
    return trained, step


def check_times(sample: Any, step: str, what: str) -> bool:
    """Whether the times of the steps are regular beside gaps and repeats. Raises DataError if they fall."""
    if is_labelled(sample):
        index = index_along(sample, step) if step in sample.dims else None
    else:
        index = index_of(sample)
    times = instants(index)
    if times is None or times.dtype.kind not in "mM":
        return False
    if falls([("", times.to_numpy())], [], what, warns=False):
        hint = f"{what}.sortby({step!r})" if is_labelled(sample) else f"{what}.sort_index()"
        raise DataError(f"{what}: its times do not rise, and the steps of a sequence are in that order. Give {hint}.")
    own, steps = Step.of(times.to_numpy()), np.diff(times.to_numpy()) / np.timedelta64(1, "s")
    return not own.varies and bool(((steps == 0) | (steps > LONG_GAP * own.size)).any())


def _step(known: Coordinates | None) -> Step:
    """The step of coordinates, unless it varies by more than SAME_VARYING_STEP."""
    if known is None or known.type == "text" or not 1 < known.size == len(known.values):
        return Step()
    own, steps = Step.of(known.array), np.diff(known.array)
    return Step() if own.varies and not steps.max() <= steps.min() * (1 + SAME_VARYING_STEP) else own


def check_step(own: Coordinates | None, trained: Coordinates | None, what: str, known: Step | None = None) -> None:
    """Raise DataError if the steps follow each other at another interval than in training, where it may be `known`."""
    here, there = _step(own), known or _step(trained)
    if here.differs(there):
        hint = "Resample it, or give its values without their times: to_numpy()."
        raise DataError(f"{what}: steps by {here}, and by {there} in training. {hint}")


def _with_steps(labels: Labels, step: str, times: list[Coordinates], what: str) -> Labels:
    """Labels for samples with these coordinates along their steps: the longest ones if all step alike, else none, with
    a warning if two steps differ."""
    steps = [_step(each) for each in times if each.size > 1]
    other = next((each for each in steps if each.differs(steps[0])), None)
    if other is not None:
        message = "%s: some sequences step by %s, and others by %s. The net reads all steps alike: resample them"
        logger.warning(message, what, steps[0], other)
    alike = all(each.size for each in steps) and other is None
    told = {dim: known for dim, known in labels.along.coordinates.items() if dim != step or not labels.along.dims[1:]}
    told |= {step: max(times, key=lambda each: each.size)} if times and alike else {}
    coords = {dim: known for dim, known in labels.coords.items() if dim != step}
    return replace(labels, along=labels.along._replace(coordinates=told), coords=coords)
