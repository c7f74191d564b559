"""Sources of tables: which columns are features, labels and targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from singa_dask.data.columns import Role
from singa_dask.data.sources.source import Names, Source, Wanted
from singa_dask.errors import ConfigError, DataError, Problem, nearest

LABEL_NAMES = ("label", "labels", "class", "target", "y")
NO_LABEL = "none"
_LISTED = 60


@dataclass(frozen=True)
class TableColumn:
    """One column of a table. kind: for messages. fractional: whether its first rows hold numbers with a fraction.
    fault: why it cannot be a feature, and the way out. months: whether its dates are months, such as 2024-01."""

    kind: str
    fractional: bool = False
    fault: str = ""
    months: bool = False


Schema = Mapping[str, TableColumn]


@dataclass(frozen=True)
class Chosen:
    """The columns of a table by their use. notes: what was decided for the user."""

    x: tuple[str, ...]
    y: tuple[str, ...]
    weight: str | None
    mask: str | None
    roles: dict[str, Role]
    split: dict[str, str]
    notes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        more = (name for name in (self.weight, self.mask, *self.split.values()) if name is not None)
        return tuple(dict.fromkeys((*self.x, *self.y, *more)))

    def source(self, name: str, blocks: Sequence[Any], **more: Any) -> Source:
        """The source of these columns. more: its other fields."""
        chosen = {of: getattr(self, of) for of in ("x", "y", "weight", "mask", "roles", "split", "notes")}
        return Source(**{"name": name, "blocks": blocks, "table": True, **chosen, **more})


def choose(where: str, schema: Schema, wanted: Wanted, drop: Names, default: str | None = None) -> Chosen:
    """The columns that the user asks for; without x all that are not used otherwise are features. Columns that are
    named for the splits are not, but the only one with dates is.

    drop: columns that are not read. default: the label column if no name tells; None if there is no such rule.
    Raises DataError that names the column.
    """
    split = {name: column_named(where, name, schema) if name else _date(where, schema) for name in wanted.split}
    dropped = {column_named(where, name, schema) for name in Wanted.of(drop).x}
    if wanted.y == (NO_LABEL,) and NO_LABEL not in schema:
        wanted = replace(wanted, y=(), roles=())
    elif not wanted.y:
        wanted = replace(wanted, y=(_usual(where, schema, default),))
    wanted = wanted.renamed(lambda name: column_named(where, name, schema))
    others = {*wanted.y, wanted.weight, wanted.mask}
    if double := (others | {*wanted.x}) & dropped:
        raise ConfigError(
            Problem("drop", "the column is also used", repr(min(map(str, double))), "Drop it or use it.")
        )
    aside = others | dropped | {column for name, column in split.items() if name}
    x = wanted.x or tuple(name for name in schema if name not in aside)
    if not x:
        raise DataError(f"{where}: has no feature columns besides {', '.join(map(repr, others - {None}))}.")
    for name in (*x, *sorted(name for name in {*others, *split.values()} if name)):
        if schema[name].fault:
            raise DataError(f"{where}: column {name!r} {schema[name].fault}")
    roles, notes = {}, []
    for name, role in wanted.roles:
        if role == Role.LABEL and schema[name].fractional:
            notes.append(f"column {name!r} holds numbers with fractions: it is a target (regression), not a label")
            role = Role.TARGET
        roles[name] = role
    for place, name in enumerate(schema):
        if name in x and not name.strip():
            hint = f"pandas writes its index so. Leave it out with --drop {place}"
            notes.append(f"the column without a name, number {place}, is a feature: {hint}")
    return Chosen(x, wanted.y, wanted.weight, wanted.mask, roles, split, tuple(notes))


def _date(where: str, schema: Schema) -> str:
    """The only column with dates. Raises DataError."""
    dates = [name for name, column in schema.items() if column.kind == "date"]
    if len(dates) != 1:
        told = f"has the dates {', '.join(map(repr, dates))}" if dates else "has no column of dates"
        raise DataError(f"{where}: {told}. Say which column splits the samples: --split-by NAME.\n{listing(schema)}")
    return dates[0]


def has_fractions(column: Any) -> bool:
    """Whether a column of Arrow, or some scalars of one type, are numbers with a fraction."""
    from pyarrow import array, compute, types

    column = array(column) if isinstance(column, list) else column
    numbers = types.is_floating(column.type) or types.is_decimal(column.type)
    return numbers and bool(compute.any(compute.greater(compute.subtract(column, compute.floor(column)), 0)).as_py())


def column_named(where: str, name: str, schema: Schema) -> str:
    """A column by its name, or by its number: 0 is the first, -1 the last. Raises DataError."""
    if name in schema:
        return name
    try:
        number = int(name)
    except ValueError:
        if [*schema] == [*map(str, range(len(schema)))]:
            hint = "The file has no header: use these numbers, or write a first line with names."
        elif schema and not any(each.strip()[:1].isalpha() for each in schema):
            hint = f"{nearest(name, schema)} Are these values? A CSV file without a header needs --no-header."
        else:
            hint = nearest(name, schema)
        raise DataError(f"{where}: has no column {name!r}. {hint}") from None
    if not -len(schema) <= number < len(schema):
        raise DataError(f"{where}: has the columns 0 to {len(schema) - 1}. Received: {name}.")
    return [*schema][number]


def _usual(where: str, schema: Schema, default: str | None) -> str:
    usual = [name for name in schema if name.lower() in LABEL_NAMES]
    if len(usual) == 1:
        return usual[0]
    if not usual and default is not None:
        return default
    raise DataError(
        f"{where}: say which column holds the classes (--label NAME) or the numbers to predict (--target NAME); "
        f"--label {NO_LABEL} if there are none.\n{listing(schema)}"
    )


def listing(schema: Schema) -> str:
    """The columns of a table, one a line."""
    width = max(map(len, [*schema][:_LISTED]), default=0)
    lines = [f"  {name:{width}}  {column.kind}" for name, column in [*schema.items()][:_LISTED]]
    more = [f"  and {len(schema) - _LISTED:,} more"] if len(schema) > _LISTED else []
    return "\n".join(["The columns:", *lines, *more])


def check_distinct(where: str, names: Sequence[str]) -> None:
    """Raises DataError if two columns have the same name."""
    if len(set(names)) < len(names):
        double = Counter(names).most_common(1)[0][0]
        raise DataError(f"{where}: has two columns named {double!r}. Rename one of them.")


def is_number(text: str) -> bool:
    """Whether a cell is a number: in ASCII, without the underscores that Python allows."""
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii() and "_" not in text
