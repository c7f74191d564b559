"""How the columns of a table become features, and which samples are in which split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

from singa_dask.data.sources.source import THE_DATE
from singa_dask.errors import ConfigError, Problem, nearest

SHARES = ("validation", "test")
GROUPS = ("test_groups", "validation_groups")
GROUPS_SHARE = 0.2
IMPUTERS = ("mean", "median", "most_frequent")
ARRAY_IMPUTERS = ("mean", "mask")
MAX_CATEGORIES = 1000


@dataclass(frozen=True)
class Encoding:
    """Options of write and shard.

    missing: what replaces missing values: "error", "mean", "median", "most_frequent", a number, or a text for a column
    of texts; or a mapping from columns to these. Of arrays: "error", "mean" (of each channel or value of a vector,
    else of all values), a number, or "mask": the mean, and as many further channels or values, which are 1 where the
    value is there, else 0. encode: by column, "onehot", "ordinal", or a list of all categories
    in their order, which is ordinal; by default texts are one-hot and numbers stay. unknown: what an unknown category
    becomes at prediction: "error", or "zeros" (-1 of an ordinal column). max_categories: of a one-hot column.
    """

    missing: Any = "error"
    encode: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    unknown: str = "error"
    max_categories: int = MAX_CATEGORIES

    def is_category(self, name: str) -> bool:
        """Whether a column holds categories even if its values are numbers."""
        return name in self.encode

    def fill_of(self, name: str) -> str | float:
        """What replaces missing values of a column."""
        return self.missing.get(name, "error") if isinstance(self.missing, Mapping) else self.missing

    def check(self, columns: Sequence[str], *, table: bool) -> None:
        """Raises ConfigError for unknown columns and values. table: whether they are those of a table, or arrays."""
        for key in ("missing", "encode"):
            given = getattr(self, key)
            for name in given if isinstance(given, Mapping) else ():
                if name not in columns or not (table or key == "missing"):
                    hint = nearest(str(name), columns) if table or key == "missing" else "It is for those of a table."
                    raise ConfigError(Problem(key, "names a column that the features do not have", repr(name), hint))
        for name, how in self.encode.items():
            if isinstance(how, str) and how not in ("onehot", "ordinal"):
                hint = 'Use "onehot", "ordinal", or a list of the categories in their order.'
                raise ConfigError(Problem("encode", f"is unknown for column {name!r}", repr(how), hint))
        if self.unknown not in ("error", "zeros"):
            raise ConfigError(Problem("unknown", "must be error or zeros", repr(self.unknown)))
        fills = self.missing.values() if isinstance(self.missing, Mapping) else [self.missing]
        for fill in fills:
            if (
                not isinstance(fill, str | Real)
                or isinstance(fill, bool)
                or fill in (math.inf, -math.inf)
                or (fill != fill)
            ):
                hint = f"Use error, {', '.join(IMPUTERS if table else ARRAY_IMPUTERS)}, a finite number, or by column"
                hint += f" {{{columns[0]!r}: 'mean'}}."
                raise ConfigError(Problem("missing", "must be a way to fill missing values", repr(fill), hint))
            if not table and isinstance(fill, str) and fill not in ("error", *ARRAY_IMPUTERS):
                message = (
                    "is for the columns of a table" if fill in IMPUTERS else "must be a way to fill missing values"
                )
                hint = f"Of arrays, use error, {', '.join(ARRAY_IMPUTERS)} or a number."
                raise ConfigError(Problem("missing", message, repr(fill), hint))
            if table and fill == "mask":
                hint = f"Use error, {', '.join(IMPUTERS)} or a number."
                raise ConfigError(
                    Problem("missing", "mask is for arrays, and these are columns of a table", "mask", hint)
                )
        if table and not isinstance(self.missing, Mapping | Real) and self.missing not in ("error", *IMPUTERS):
            raise ConfigError(
                Problem(
                    "missing",
                    "must be a way to fill missing values",
                    repr(self.missing),
                    f"Use error, {', '.join(IMPUTERS)} or a number; a text only by column: {{'colour': 'none'}}.",
                )
            )


@dataclass(frozen=True)
class Splits:
    """Options of write and shard: which samples are for validation and test. The others train.

    validation, test: shares of the samples, chosen at random. validation_from, test_from: a date or number; samples
    are in the split from this value of the column `split_by` on, by default of the only one with dates.
    validation_groups, test_groups: a column whose values are groups, of which a fifth are in the split with all their
    samples; or a mapping from the column to the share. split_column: its values name the split of every sample.
    """

    validation: float = 0.0
    test: float = 0.0
    split_by: str | None = None
    validation_from: Any = None
    test_from: Any = None
    validation_groups: str | Mapping[str, float] | None = None
    test_groups: str | Mapping[str, float] | None = None
    split_column: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that are set."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {key: value for key, value in values.items() if value is not None and (value or key not in SHARES)}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that say which split a sample is in; THE_DATE for the only one with dates."""
        by = self.split_by or THE_DATE if {"validation_from", "test_from"} & {*self.given} else None
        groups = [column for key in GROUPS if (column := self.groups(key)[0])]
        return tuple(dict.fromkeys(name for name in (by, *groups, self.split_column) if name is not None))

    def key(self, column: str) -> str:
        """The option that needs this column."""
        if column in (self.split_by, THE_DATE):
            return "split_by" if column else next(key for key in self.given if key.endswith("_from"))
        return next((key for key in GROUPS if self.groups(key)[0] == column), "split_column")

    def groups(self, key: str) -> tuple[str, float]:
        """The column and the share of validation_groups or test_groups; "" if it is not given."""
        given = getattr(self, key)
        if isinstance(given, Mapping) and len(given) == 1:
            ((column, share),) = given.items()
            return str(column), share
        return ("", 0.0) if given is None else (str(given), GROUPS_SHARE)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Splits:
        """From these options. Raises ConfigError for values that cannot be, and for two that make the same split."""
        named = {key: str(options[key]) for key in ("split_by", "split_column") if options.get(key) is not None}
        splits = cls(**{**options, **named})  # a column may be called 0
        if splits.given:
            splits._check()
        return splits

    def _check(self) -> None:
        for name in SHARES:
            if not 0 <= getattr(self, name) < 1:
                message = "must be a share of the samples from 0 to below 1"
                raise ConfigError(Problem(name, message, str(getattr(self, name))))
            double = [key for key in (name, f"{name}_from", f"{name}_groups") if key in self.given]
            if len(double) > 1:
                message = f"and {double[0]} both make the {name} samples"
                raise ConfigError(Problem(double[1], message, repr(self.given[double[1]]), "Give one of them."))
        if self.validation + self.test >= 1:
            received = f"{self.validation}, {self.test}"
            raise ConfigError(Problem("validation", "and test must leave samples to train", received))
        if self.split_column and len(self.given) > 1:
            other = next(iter(self.given))
            hint = "Leave it out, or split_column."
            raise ConfigError(
                Problem(other, "cannot be set together with split_column", repr(self.given[other]), hint)
            )
        if self.split_by and not {"validation_from", "test_from"} & {*self.given}:
            hint = "Add one of them, or leave it out. For groups, use test_groups."
            raise ConfigError(Problem("split_by", "is for validation_from and test_from", repr(self.split_by), hint))
        for key in GROUPS:
            given, share = getattr(self, key), self.groups(key)[1]
            valid = isinstance(given, Mapping) and len(given) == 1 and isinstance(share, Real) and 0 < share < 1
            if not (valid or given is None or isinstance(given, str)):
                hint = 'Write "station", or {"station": 0.3} (station=0.3 in a command).'
                raise ConfigError(
                    Problem(key, "must be a column, or one with a share between 0 and 1", repr(given), hint)
                )


SPLIT_OPTIONS = tuple(entry.name for entry in fields(Splits))
