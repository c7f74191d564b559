"""How the columns of a table become features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from singa_dask.errors import ConfigError, Problem, nearest

IMPUTERS = ("mean", "median", "most_frequent")
MAX_CATEGORIES = 1000


@dataclass(frozen=True)
class Encoding:
    """Options of write and shard.

    missing: what replaces missing values: "error", "mean", "median", "most_frequent", a number, or a text for a column
    of texts; or a mapping from columns to these. encode: by column, "onehot", "ordinal", or a list of all categories
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

    def check(self, columns: Sequence[str]) -> None:
        """Raises ConfigError for unknown columns and values."""
        for key in ("missing", "encode"):
            given = getattr(self, key)
            for name in given if isinstance(given, Mapping) else ():
                if name not in columns:
                    hint = nearest(str(name), columns) if columns else "It is for the columns of a table."
                    raise ConfigError(Problem(key, "names a column that the features do not have", repr(name), hint))
        for name, how in self.encode.items():
            if isinstance(how, str) and how not in ("onehot", "ordinal"):
                hint = 'Use "onehot", "ordinal", or a list of the categories in their order.'
                raise ConfigError(Problem("encode", f"is unknown for column {name!r}", repr(how), hint))
        if self.unknown not in ("error", "zeros"):
            raise ConfigError(Problem("unknown", "must be error or zeros", repr(self.unknown)))
        if not columns and self.missing != "error":
            hint = "Fill arrays before (numpy.nan_to_num), or give the columns as a DataFrame."
            raise ConfigError(Problem("missing", "is for the columns of a table", repr(self.missing), hint))
        fills = self.missing.values() if isinstance(self.missing, Mapping) else [self.missing]
        for fill in fills:
            if not isinstance(fill, str | int | float) or fill != fill:
                hint = f"Use error, {', '.join(IMPUTERS)}, a number, or by column {{'age': 'mean'}}."
                raise ConfigError(Problem("missing", "must be a way to fill missing values", repr(fill), hint))
        if not isinstance(self.missing, Mapping | int | float) and self.missing not in ("error", *IMPUTERS):
            raise ConfigError(
                Problem(
                    "missing",
                    "must be a way to fill missing values",
                    repr(self.missing),
                    f"Use error, {', '.join(IMPUTERS)} or a number; a text only by column: {{'colour': 'none'}}.",
                )
            )
