"""What only all blocks together know of a table: the encoder of each of its columns."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime

import numpy as np

from singa_dask.data.encoders import Encoder, Encoders, conversion
from singa_dask.data.ingest.facts import EXACT_FLOAT32, ColumnFacts, Kind
from singa_dask.data.ingest.options import IMPUTERS, Encoding
from singa_dask.data.sources.tables import is_number
from singa_dask.errors import DataError

logger = logging.getLogger(__name__)

# A number with a unit or a separator, in quotation marks or brackets, or with an exponent of Fortran; a time span as
# pandas writes it; a complex number.
_SPELLED = re.compile(
    r"[\s'\"(]*[+\-\u2212]?\s*[$€£]?\s*\d[\d\s.,'_]*([eEdD][+\-\u2212]?\d+)?\s*[%$€£]?[\s'\")]*"
    r"|-?\d+ days?( [+-]?[\d:.]+)?|\([^()]*j\)|[\d.e+-]+j"
)
_DATE = re.compile(r"\d{1,4}([-./])\d{1,2}[-./]\d{1,4}.*")
_COMPACT = re.compile(r"\d{4}-?\d\d|\d{8}(T\d{4,6})?|\d\d?[- ][A-Za-z]{3,}[- ]\d{4}|\d{4}-W\d\d-\d")
_WEEKS = "%G-W%V-%u"  # which Arrow does not read
_COMPACT_FORMATS = (
    *("%Y-%m", "%Y%m%d", "%Y%m%dT%H%M", "%Y%m%dT%H%M%S", _WEEKS),
    *("%d-%b-%Y", "%d %b %Y", "%d-%B-%Y", "%d %B %Y"),
)
_DATE_FORMATS = ("%d.%m.%Y", "%m.%d.%Y", "%Y.%m.%d", "%d.%m.%y", "%m.%d.%y", "%y.%m.%d")
_TIME_FORMATS = ("", " %H:%M", " %H:%M:%S", "T%H:%M", "T%H:%M:%S")
# So few samples can have as many categories.
LEAST_IDENTIFIERS = 20


def fit_encoders(
    columns: Sequence[ColumnFacts], encoding: Encoding, sample: Callable[[ColumnFacts], np.ndarray], notes: list[str]
) -> Encoders:
    """The encoders of a table's columns. sample: training values of a column of numbers or dates, with the missing.
    notes: gets what to warn of.

    Raises DataError that names column, row and option.
    """
    encoders = Encoders(_fit(column, encoding, sample) for column in columns)
    notes += rounded(columns)
    found = []
    distinct = [
        encoder.column
        for column, encoder in zip(columns, encoders, strict=True)
        if encoder.kind == "onehot"
        and len(encoder.categories) > LEAST_IDENTIFIERS
        and len(encoder.categories) == sum(facts.rows for facts in column.blocks) - column.missing
    ]
    if distinct:
        found.append(
            f"{', '.join(distinct)}: has another text in every sample, as identifiers do, and nets cannot learn from "
            "it. Leave it out (--drop), or read dates with --date"
        )
    for encoder in encoders:
        spelled = [text for text in encoder.categories if _is_spelled_number(text)]
        if spelled and len(spelled) + sum(map(is_number, encoder.categories)) > 0.9 * len(encoder.categories):
            found.append(
                f"{encoder.column}: holds texts that look like numbers, such as {spelled[0]!r}, and becomes"
                f" {len(encoder.categories):,} categories. Write numbers with a decimal point, and without thousands "
                "separators and units"
            )
        if encoder.column not in encoding.encode and (forms := _date_formats(encoder.categories)):
            first = next(text for text in encoder.categories if _is_date(text, forms[0]))
            of_csv = f"--date {encoder.column}={' or '.join(forms)} (csv), or with " if forms != [_WEEKS] else ""
            found.append(
                f"{encoder.column}: holds texts that look like dates, such as {first!r}, and becomes "
                f"{len(encoder.categories):,} categories. Dates become days with {of_csv}pandas.to_datetime in Python"
            )
    for note in found:
        logger.warning("%s.", note)
    notes += found
    return encoders


def rounded(columns: Sequence[ColumnFacts]) -> list[str]:
    """What is to say of columns of integers that float32 rounds, which is logged."""
    found: dict[str, list[str]] = {}
    for column in columns:
        blocks = column.filled
        first = next((facts.rounded for facts in blocks if facts.rounded is not None), None)
        if first is None or Kind.TEXT in column.kinds:
            continue
        if all(facts.of_days for facts in blocks):
            told = f"holds numbers that look like dates, such as {first}, which becomes {int(np.float32(first))}"
            way = f"Dates become days with --date {column.name}=%Y%m%d (csv), or with pandas.to_datetime in Python"
        else:
            told = f"integers beyond {EXACT_FLOAT32:,} lose digits, because nets compute in float32: "
            told += f"{first} becomes {int(np.float32(first))}"
            way = "Leave out columns that only number the rows; encode codes as categories"
        found.setdefault(f"{told}. {way}", []).append(column.name)
    notes = [f"{', '.join(names)}: {said}" for said, names in found.items()]
    for note in notes:
        logger.warning("%s.", note)
    return notes


def _is_spelled_number(text: str) -> bool:
    """Whether this is a number to a reader, but not to a computer: 1,5 or 1.234,50 or 12 % or 2 days 07:00:00."""
    return bool(_SPELLED.fullmatch(text)) and not _DATE.fullmatch(text) and not is_number(text)


def _date_formats(texts: Sequence[str]) -> list[str]:
    """The formats that nearly all texts have, if they are dates."""
    dates = [match for match in map(_DATE.fullmatch, texts) if match]
    separator = dates[0][1] if dates else "."
    forms = [day.replace(".", separator) + time for time in _TIME_FORMATS for day in _DATE_FORMATS]
    candidates = [match[0] for match in dates] if dates else list(filter(_COMPACT.fullmatch, texts))
    if not candidates or len(candidates) <= 0.9 * len(texts):
        return []
    forms = forms if dates else [*_COMPACT_FORMATS]
    return [form for form in forms if sum(_is_date(text, form) for text in candidates) > 0.9 * len(texts)]


def _is_date(text: str, form: str) -> bool:
    try:
        return bool(datetime.strptime(text.strip(), form))
    except ValueError:
        return False


def check_encoders(columns: Sequence[ColumnFacts], encoders: Encoders) -> None:
    """Raises DataError if encoders that were fitted on other samples cannot encode these columns."""
    for column, encoder in zip(columns, encoders, strict=True):
        name = column.name
        _check_infinite(column)
        if column.missing and encoder.fill is None:
            raise DataError(
                f"column {name!r}: {column.missing:,} value(s) are missing, the first in sample "
                f"{column.first_missing:,}, and the training samples had none. Fill them, or write the training "
                "samples with the option missing."
            )
        if column.kinds and (kind := one_kind(column)) is not encoder.holds:
            raise DataError(
                f"column {name!r}: holds {kind}s, but the training samples {encoder.holds}s. "
                f"{conversion(encoder, kind)}"
            )
        if encoder.categorical and encoder.unknown == "error":
            unknown = {value for facts in column.filled for value in facts.values or ()} - {*encoder.categories}
            if unknown:
                raise DataError(
                    f"column {name!r}: the category {min(unknown)!r} is not in the training samples "
                    f'({len(unknown):,} such). Write those with unknown="zeros", or add it there.'
                )


def one_kind(column: ColumnFacts) -> Kind:
    """The kind of a column, which must be the same in all blocks. Raises DataError."""
    kinds = column.kinds
    if len(kinds) == 1:
        return kinds.pop()
    if not kinds:
        raise DataError(f"column {column.name!r}: has no value in any row. Leave it out.")
    first = {facts.kind: start for start, facts in reversed(list(zip(column.starts, column.blocks, strict=True)))}
    places = " and ".join(f"{kind}s from sample {first[kind]:,} on" for kind in sorted(kinds, key=lambda k: first[k]))
    raise DataError(
        f"column {column.name!r}: holds {places}. Give it one type where it is read (dtype=), or leave it out."
    )


def _fit(column: ColumnFacts, encoding: Encoding, sample: Callable[[ColumnFacts], np.ndarray]) -> Encoder:
    name, kind = column.name, one_kind(column)
    _check_infinite(column)
    if column.missing and encoding.fill_of(name) == "error":
        raise DataError(
            f"column {name!r}: {column.missing:,} value(s) are missing, the first in sample "
            f"{column.first_missing:,}. Fill them with the option missing (--missing): mean, median, most_frequent, "
            "a number, or by column."
        )
    if kind is Kind.TEXT:
        return _fit_categories(column, encoding)
    if name in encoding.encode:
        raise DataError(f"column {name!r}: holds {kind}s, which cannot be categories. Convert it to text.")
    if kind in (Kind.DATE, Kind.ZONED):
        origin = math.floor(min(facts.low for facts in column.blocks if facts.kind is kind))
        fill = _fill(column, encoding, sample)
        if fill is not None and not isinstance(encoding.fill_of(name), str):
            fill += origin  # a number is a value of the feature
        return Encoder(name, kind.value, fill=fill, origin=float(origin))
    return Encoder(name, kind.value, fill=_fill(column, encoding, sample))


def _check_infinite(column: ColumnFacts) -> None:
    if column.infinite:
        raise DataError(
            f"column {column.name!r}: {column.infinite:,} value(s) are infinite or beyond float32, the first in "
            f"sample {column.first_infinite:,}. Remove or replace them."
        )


def _fill(column: ColumnFacts, encoding: Encoding, sample: Callable[[ColumnFacts], np.ndarray]) -> float | None:
    how = encoding.fill_of(column.name)
    if how == "error":
        return None
    if how == "mean":
        value = float(column.means()[0]) if any(facts.sums for facts in column.blocks) else math.nan
    elif how in IMPUTERS:
        values = sample(column)
        values = values[~np.isnan(values)]
        if how == "median":
            value = float(np.median(values)) if values.size else math.nan
        else:
            distinct, counts = np.unique(values, return_counts=True)
            value = float(distinct[counts.argmax()]) if values.size else math.nan
    elif isinstance(how, str):
        raise DataError(
            f"column {column.name!r}: holds numbers, so {how!r} cannot replace missing values. Use a number."
        )
    else:
        value = float(how)
    if math.isnan(value):
        raise DataError(f"column {column.name!r}: all training rows are missing. Leave it out, or give a number.")
    return value


def _fit_categories(column: ColumnFacts, encoding: Encoding) -> Encoder:
    name = column.name
    how = encoding.encode.get(name, "onehot")
    counts = column.counts()
    limit = math.inf if how == "ordinal" else encoding.max_categories
    if counts is None or len(counts) > limit:
        many = "more than 100,000" if counts is None else f"{len(counts):,}"
        raise DataError(
            f"column {name!r}: has {many} different texts, but one-hot encoding is limited to "
            f"{encoding.max_categories:,}. Leave the column out (--drop {name}), or read dates as such (csv: --date "
            f"{name}=%d.%m.%Y). If their order means something, number them: --category {name}=A,B,..., in Python "
            f'encode={{{name!r}: "ordinal"}}; there, max_categories is the limit.'
        )
    fill: str | float | None = encoding.fill_of(name)
    if fill == "error" or (fill != "most_frequent" and not column.missing):
        fill = None
    if fill in ("mean", "median"):
        raise DataError(
            f"column {name!r}: holds texts, so the {fill} cannot replace missing values (the first in sample "
            f"{column.first_missing:,}). Set missing by column: {{{name!r}: 'most_frequent'}} or a text "
            f"(--missing {name}=most_frequent)."
        )
    if fill == "most_frequent":
        fill = min(counts, key=lambda value: (-counts[value], value))
    present = {*counts, *(() if fill is None else (str(fill),))}
    categories = _in_order(present) if isinstance(how, str) else tuple(how)
    if odd := present.difference(categories):
        raise DataError(f"column {name!r}: has the category {min(odd)!r}, which encode does not list. Add it.")
    kind = how if isinstance(how, str) else "ordinal"
    return Encoder(name, kind, categories, None if fill is None else str(fill), encoding.unknown)


def _in_order(values: set[str]) -> tuple[str, ...]:
    """Sorted, by their numbers if all are numbers."""
    try:
        return tuple(sorted(values, key=float))
    except ValueError:
        return tuple(sorted(values))
