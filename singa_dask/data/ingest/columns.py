"""What only all blocks together know: the columns of the data set."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from singa_dask.data.columns import (
    FEW_CLASSES,
    MASK,
    MAX_RANK,
    WEIGHT,
    Channels,
    Column,
    Fill,
    Role,
    X,
    guess_channels,
    map_dtype,
    stored_dtype,
)
from singa_dask.data.encoders import Encoders
from singa_dask.data.ingest.facts import ColumnFacts, Kind, Part
from singa_dask.data.ingest.fit import check_encoders, fit_encoders, rounded
from singa_dask.data.ingest.options import Encoding
from singa_dask.data.manifest import Manifest
from singa_dask.data.sources.source import Source
from singa_dask.errors import ConfigError, DataError, NotFinite, Problem
from singa_dask.job.outputs import keep_their_numbers

logger = logging.getLogger(__name__)

# Numbers and texts with more distinct values, or fewer samples of each, are labels only if that is said.
MAX_CLASSES = 1000
SAMPLE_ROWS = 1_000_000
SAMPLES_OF_CLASS = 5


@dataclass
class Decided:
    """The columns. pieces: of parts, of each column but the features of a table. codes: by piece, or by column of
    texts, what the codes of each part become. notes: what to warn of. replaced: the numbers of missing values."""

    notes: list[str]
    columns: list[Column] = field(default_factory=list)
    pieces: dict[str, str] = field(default_factory=dict)
    codes: dict[str, Sequence[np.ndarray]] = field(default_factory=dict)
    encoders: Encoders = field(default_factory=Encoders)
    replaced: dict[str, int] = field(default_factory=dict)


def decide(
    source: Source, encoding: Encoding, parts: Sequence[Part], like: Manifest | None, *, shuffled: bool
) -> Decided:
    """The columns of these parts. Raises ConfigError and DataError."""
    starts = [0, *np.cumsum([part.total for part in parts]).tolist()]
    facts = {
        name: ColumnFacts(name.removeprefix("y/"), [part.facts[name] for part in parts], starts[:-1])
        for name in parts[0].facts
    }
    decided = Decided([*source.notes])
    decided.replaced = {name: facts[name].missing for name in source.x if facts[name].missing}
    if source.table:
        _decide_table(decided, [facts[name] for name in source.x], encoding, parts, like)
    for name in () if source.table else source.x:
        own = source.stored[name]
        known = None if like is None else like.column(own)
        column = features_column(own, facts[name], source.channels.get(name), encoding.fill_of(name), known)
        decided.columns.append(replace(column, classes=source.classes.get(name)))
        decided.pieces[own] = f"x/{name}"
    if not source.table and like is None:
        decided.notes += rounded([facts[name] for name in source.x])
    for name in source.y:
        own, piece = source.stored[name], f"y/{name}"
        column, recoded = answers_column(own, facts[piece], source, ordered=not shuffled, notes=decided.notes)
        if source.table and column.shape == ():
            column = replace(column, names=(name,))
        decided.columns.append(column)
        decided.pieces[own] = piece
        decided.codes |= {} if recoded is None else {piece: recoded}
    for own, given, role in ((WEIGHT, source.weight, Role.WEIGHT), (MASK, source.mask, Role.MASK)):
        if given is not None:
            decided.columns.append(factor_column(own, role, facts[own], decided.columns))
            decided.pieces[own] = own
    names = [column.name for column in decided.columns]
    if len(set(names)) < len(names):
        raise ConfigError(Problem("columns", "must have different names", ", ".join(names), "Rename one."))
    return decided


def _decide_table(
    decided: Decided,
    tables: Sequence[ColumnFacts],
    encoding: Encoding,
    parts: Sequence[Part],
    like: Manifest | None,
) -> None:
    """The features of a table, as one column."""
    if like is None:
        encoders = fit_encoders(tables, encoding, partial(_sample, parts), decided.notes)
    else:
        encoders = like.encoders
        check_encoders(tables, encoders)
    decided.encoders = encoders
    decided.columns.append(Column(X, Role.FEATURE, "float32", (encoders.width,), names=encoders.names))
    for encoder, table in zip(encoders, tables, strict=True):
        if encoder.categorical:
            decided.codes[encoder.column] = [encoder.recode(known.values or []) for known in table.blocks]


def _sample(parts: Sequence[Part], column: ColumnFacts) -> np.ndarray:
    """Values of training rows, as many of each block as belong to its share of SAMPLE_ROWS; all if there are fewer."""
    total = sum(part.rows[0] for part in parts)
    found = [np.empty(0)]
    for part, facts in zip(parts, column.blocks, strict=True):
        if facts.kind is Kind.EMPTY or not part.rows[0]:
            continue
        piece = part.pieces[facts.kind.value]
        values = np.empty((part.rows[0], *piece.shape), piece.dtype)
        part.read(facts.kind.value, 0, values)
        count = math.ceil(part.rows[0] * min(1.0, SAMPLE_ROWS / total))
        rows = np.linspace(0, part.rows[0], count, endpoint=False).astype(np.int64)
        found.append(values[rows, facts.place].astype(np.float64))
    return np.concatenate(found)


def array_column(
    name: str, role: Role, facts: ColumnFacts, channels: Channels | None = None, *, way: str = "", filled: bool = False
) -> Column:
    """The column of an array. way: out of missing values, which `filled` allows. Raises DataError for values that nets
    cannot read, ConfigError for unknown channels."""
    shape = _one_shape(facts)
    _check_finite(facts, way, filled=filled)
    where = channels_of(facts.name, shape, channels)
    dtype = stored_dtype(np.result_type(*(known.dtype for known in facts.filled)))
    assert dtype is not None
    return Column(name, role, dtype.name, shape, where)


def features_column(
    name: str, facts: ColumnFacts, channels: Channels | None, how: str | float, like: Column | None
) -> Column:
    """The column of an array of features. how: its missing values are filled, unless that is known from `like`, the
    column of the training data. Raises DataError, ConfigError."""
    if like is not None:
        way = "The training samples had none: fill these, or write the training samples with the option missing."
        column = array_column(name, Role.FEATURE, facts, channels, way=way, filled=like.fill is not None)
        return column if like.fill is None else column.with_fill(like.fill)
    way = "Fill them with the option missing (--missing): mean, a number, or mask; or leave out these samples."
    column = array_column(name, Role.FEATURE, facts, channels, way=way, filled=how != "error")
    return column if how == "error" else column.with_fill(_fill(facts, column, how))


def _fill(facts: ColumnFacts, column: Column, how: str | float) -> Fill:
    if how not in ("mean", "mask"):
        limit = np.finfo(np.float16 if column.dtype == "float16" else np.float32)
        if abs(float(how)) > float(limit.max):
            message = f"is beyond {limit.dtype}, in which {facts.name!r} is read"
            raise ConfigError(Problem("missing", message, str(how), "Give a smaller number."))
        return Fill((float(how),))
    if how == "mask" and not column.has_channels:
        message = f'"mask" needs samples with channels, or vectors, and those of {facts.name!r} are neither'
        hint = "Use mean or a number, or give arrays an axis of one channel: X[..., None]."
        raise ConfigError(Problem("missing", message, str(column.shape), hint))
    means = facts.means()
    if np.isnan(means).any():
        which = f"[{int(np.isnan(means).argmax())}]" if means.size > 1 else ""
        raise DataError(
            f"column {facts.name!r}: all training values of {column.name}{which} are missing, and have no mean. "
            "Leave it out, or give a number."
        )
    return Fill(tuple(means.tolist()), how == "mask")


def channels_of(name: str, shape: tuple[int, ...], channels: Channels | None) -> Channels:
    """Where the samples of an array have their channels. Raises ConfigError if that is wrong or not known."""
    where = guess_channels(shape) if channels is None else Channels(channels)
    if where is not None and (len(shape) == MAX_RANK) > (where is not Channels.NONE):
        where = None
    elif where is not None and (len(shape) < 3) > (where is Channels.NONE):
        raise ConfigError(Problem("channels", f"cannot be those of samples of {name!r}", str(shape), "Use none."))
    if where is None:
        raise ConfigError(
            Problem(
                "channels",
                f"are unknown: samples of {name!r} do not tell which axis is that of the channels",
                str(shape),
                f'Set channels={{{name!r}: "first"}}, "last" or "none" (--channels).',
            )
        )
    return where


def _one_shape(facts: ColumnFacts) -> tuple[int, ...]:
    """The shape of the samples, which must be the same in all blocks and hold values. Raises DataError."""
    shape = facts.filled[0].shape
    for start, known in zip(facts.starts, facts.blocks, strict=True):
        if known.rows and known.shape != shape:
            raise DataError(
                f"column {facts.name!r}: samples have the shape {shape}, but from sample {start:,} on {known.shape}. "
                "All must have the same."
            )
    if 0 in shape:
        raise DataError(f"column {facts.name!r}: samples have the shape {shape}, which holds no values.")
    return shape


def _check_finite(facts: ColumnFacts, way: str, *, filled: bool) -> None:
    if facts.missing and not filled:
        what, count, first = "NaN", facts.missing, facts.first_missing
    elif facts.infinite:
        what, count, first = "infinite or beyond float32", facts.infinite, facts.first_infinite
    else:
        return
    hint = "Replace them (numpy.nan_to_num), leave out these samples, or mask targets with the option mask."
    raise NotFinite(facts.name, what, count, first, way if facts.missing and not filled and way else hint)


def factor_column(name: str, role: Role, facts: ColumnFacts, columns: Sequence[Column]) -> Column:
    """The column of weights, or of a mask. Raises DataError for negative values and a shape that fits no target."""
    for start, known in zip(facts.starts, facts.blocks, strict=True):
        if known.rows and known.low < 0:
            raise DataError(
                f"{name}: must not be negative, but sample {start + known.first:,} has {known.low:g}. Correct it."
            )
    column = array_column(name, role, facts, Channels.NONE)
    if role is not Role.MASK:
        return column
    answers = [answer for answer in columns if answer.role in (Role.LABEL, Role.TARGET)]
    for answer in answers:
        if answer.shape == column.shape or column.shape in ((), (1,)):
            return Column(
                name, role, column.dtype, column.shape, answer.channels if column.values > 1 else column.channels
            )
    shapes = ", ".join(f"{answer.name} {answer.shape}" for answer in answers) or "nothing, since there is no y"
    raise DataError(f"mask: must be shaped like the targets ({shapes}). Received: {column.shape}.")


def answers_column(
    name: str, facts: ColumnFacts, source: Source, *, ordered: bool, notes: list[str]
) -> tuple[Column, list[np.ndarray] | None]:
    """The column of labels or targets, and what the codes of every part become, None if they stay.

    Raises DataError if the values leave open what they are, or do not fit the classes.
    """
    kinds = facts.kinds
    if not kinds:
        raise DataError(f"column {facts.name!r}: the mask is 0 for all labels. Leave the column out.")
    if Kind.TEXT in kinds and len(kinds) > 1:
        raise DataError(f"column {facts.name!r}: holds texts in some blocks and numbers in others. Give it one type.")
    if Kind.ARRAY in kinds:
        column = array_column(name, Role.TARGET, facts, source.channels.get(facts.name))
        if facts.name not in source.roles:
            _warn_of_few_values(facts)
        return column, None
    if facts.missing:
        raise DataError(
            f"column {facts.name!r}: {facts.missing:,} label(s) are missing, the first in sample "
            f"{facts.first_missing:,}. Leave out these samples."
        )
    shape = _one_shape(facts)
    distinct = _distinct(facts)
    if ordered and len(distinct) > 1 and facts.ascending():
        note = f"the labels {name!r} are sorted, and the samples are not shuffled: mini-batches hold few classes"
        logger.warning("%s. Shuffle, unless the order matters.", note)
        notes.append(note)
    names = source.classes.get(facts.name)
    if Kind.TEXT in kinds:
        return _of_texts(name, facts, distinct, names, source)
    column, recoded = _of_numbers(name, facts, distinct, names, source)
    if shape:
        low = 0 if recoded else min(known.low for known in facts.filled)
        column = replace(column, shape=shape, dtype=map_dtype(column.num_classes or 0, int(low)).name)
    return column, recoded


def _of_texts(
    name: str, facts: ColumnFacts, distinct: set, names: Sequence[str] | None, source: Source
) -> tuple[Column, list[np.ndarray]]:
    if names is None:
        _check_count(facts, distinct, source)
    classes = tuple(sorted(distinct) if names is None else names)
    _refuse_unknown(facts, distinct, classes)
    places = {value: place for place, value in enumerate(classes)}
    recoded = [np.array([places[value] for value in known.values or ()], np.int64) for known in facts.blocks]
    return Column(name, Role.LABEL, "int64", (), classes=classes), recoded


def _of_numbers(
    name: str, facts: ColumnFacts, distinct: set, names: Sequence[str] | None, source: Source
) -> tuple[Column, list[np.ndarray] | None]:
    low = int(min(known.low for known in facts.filled))
    high = int(max(known.high for known in facts.filled))
    if facts.filled[0].shape and low < 0 and (classes := _besides(distinct, names, source)):
        return Column(name, Role.LABEL, "int64", (), classes=classes), None
    if names is not None:
        coded = source.coded.get(facts.name)
        numbers = None if source.places or coded else _numbers(names)
        if numbers is not None and distinct <= set(numbers.tolist()):
            return Column(name, Role.LABEL, "int64", (), classes=tuple(names)), [numbers] * len(facts.blocks)
        if numbers is not None and (coded is False or low < 0 or high >= len(names)):
            _refuse_unknown(facts, distinct, numbers.tolist())
        if low < 0 or high >= len(names):
            raise DataError(
                f"column {facts.name!r}: labels must be 0 to {len(names) - 1} for {len(names)} classes. "
                f"Received: {low} to {high}. Correct them, or leave out classes."
            )
        coded = coded or (numbers is not None and numbers.tolist() != [*range(len(names))])
        return Column(name, Role.LABEL, "int64", (), classes=tuple(names), coded=coded), None
    _check_count(facts, distinct, source)
    if low == 0 and high == len(distinct) - 1:
        return Column(name, Role.LABEL, "int64", (), classes=len(distinct)), None
    ordered = sorted(distinct)
    if source.outputs is not None and low >= 0 and high < source.outputs:
        if not source.places:
            logger.warning("column %r: %s.", facts.name, keep_their_numbers(ordered, source.outputs))
        return Column(name, Role.LABEL, "int64", (), classes=source.outputs), None
    logger.warning(
        "column %r: the labels are not 0 to %s, but %s to %s with %s different ones; their numbers become the names "
        "of the classes.",
        facts.name,
        len(ordered) - 1,
        low,
        high,
        len(ordered),
    )
    # The codes of such a part are the numbers themselves; their places are found by a search.
    table = np.array(ordered, np.int64)
    return Column(name, Role.LABEL, "int64", (), classes=tuple(map(str, ordered))), [table] * len(facts.blocks)


def _besides(distinct: set, names: Sequence[str] | None, source: Source) -> tuple[str, ...] | int | None:
    """The classes of labels of positions of which one negative number marks those that do not count; None if the
    classes have other numbers."""
    kept = {value for value in distinct if value >= 0}
    classes = tuple(names) if names is not None else source.outputs or len(kept)
    numbers = range(len(classes) if isinstance(classes, tuple) else classes)
    told = names is not None and not source.places and _numbers(names) is not None
    others = told and [*(names or ())] != [*map(str, numbers)]
    return None if others or len(kept) != len(distinct) - 1 or not kept <= {*numbers} else classes


def _refuse_unknown(facts: ColumnFacts, distinct: set, classes: Sequence[Any]) -> None:
    """Raises DataError if a label is not one of the classes."""
    for unknown in sorted(distinct.difference(classes)):
        pairs = zip(facts.starts, facts.blocks, strict=True)
        start = next(start for start, known in pairs if unknown in (known.values or ()))
        raise DataError(
            f"column {facts.name!r}: the label '{unknown}' (in the block from sample {start:,} on) is not one of the "
            f"{len(classes)} classes. Add it to classes, or correct it."
        )


def _numbers(names: Sequence[str]) -> np.ndarray | None:
    """The names of classes as numbers, if they are numbers in ascending order."""
    try:
        numbers = np.array([int(name) for name in names], np.int64)
    except (ValueError, OverflowError):
        return None
    return numbers if (np.diff(numbers) > 0).all() else None


def _distinct(facts: ColumnFacts) -> set:
    if any(known.values is None for known in facts.blocks):
        raise DataError(f"column {facts.name!r}: has more than 100,000 different labels. Predict numbers: targets.")
    return {value for known in facts.blocks for value in known.values or ()}


def _check_count(facts: ColumnFacts, distinct: set, source: Source) -> None:
    samples = sum(known.rows for known in facts.blocks)
    if facts.name in source.roles or len(distinct) <= FEW_CLASSES:
        return
    if len(distinct) > MAX_CLASSES or samples < SAMPLES_OF_CLASS * len(distinct) or facts.filled[0].shape:
        text = Kind.TEXT in facts.kinds
        way = "" if text else f"For numbers to predict, set targets={facts.name!r} (--target). "
        raise DataError(
            f"column {facts.name!r}: has {len(distinct):,} different {'texts' if text else 'integers'} in "
            f"{samples:,} samples, which are hardly classes. {way}For classes, set labels={facts.name!r} (--label)."
        )


def _warn_of_few_values(facts: ColumnFacts) -> None:
    values = {value for known in facts.filled for value in known.values or ()}
    if all(known.values for known in facts.filled) and len(values) <= FEW_CLASSES:
        shown = ", ".join(f"{value:g}" for value in sorted(values)[:5])
        logger.warning(
            "column %r: holds only %s different numbers (%s%s), and they are predicted as numbers. For classes, set "
            "labels=%r (--label).",
            facts.name,
            len(values),
            shown,
            ", ..." if len(values) > 5 else "",
            facts.name,
        )
