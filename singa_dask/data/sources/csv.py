"""CSV: one sample per line, one value per column. Blocks are ranges of bytes that end with a line."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from singa_dask.data.columns import Role
from singa_dask.data.encoders import DATES
from singa_dask.data.schema import Reading
from singa_dask.data.sources.cells import (
    LED,
    MONTH,
    NOT_READ,
    is_date,
    is_truth,
    is_value,
    is_zoned,
    may_lose_zeros,
)
from singa_dask.data.sources.dialect import (
    SAMPLE_NBYTES,
    Dialect,
    asking_for_separator,
    dialect_of,
    opened,
    ranges_of,
    rows_of,
)
from singa_dask.data.sources.files import Block, find_files, need, reading, stamp_of
from singa_dask.data.sources.source import TABLE, Format, Names, Source, Wanted
from singa_dask.data.sources.tables import (
    Chosen,
    Schema,
    TableColumn,
    choose,
    column_named,
    has_fractions,
    is_number,
    listing,
)
from singa_dask.errors import DataError

SUFFIXES = (".csv", ".tsv", ".txt")


def read(
    source: str | Path,
    wanted: Wanted,
    drop: Names = None,
    category: Names = None,
    date: Names = None,
    types: Mapping[str, str] | None = None,
    header: bool | None = None,
    separator: str = ",",
) -> dict[str, Source]:
    """The label "none" stands for none; by default it is the column named label, class, target or y, or the first one
    if the file has no header, as in SINGA.

    drop: columns that are not read. category: columns that hold categories or the names of classes, even if they look
        like numbers. date: columns of dates that are not ISO 8601, as "column=%d.%m.%Y"; those with %z, or that end
        with Z or an offset, have a time zone. types: of columns, of `schema.TYPES`; by default the first lines tell.
    header: whether the first line names the columns. By default it does if it holds one of the given names, or if one
        of its cells is text where the cell below is not.
    Raises DataError that names the line and the column.
    """
    files, categories = find_files(source, SUFFIXES), Wanted.of(category).x
    dates = dict(entry.partition("=")[::2] for entry in Wanted.of(date).x)
    dialect = dialect_of(files, header, separator, {*wanted.names, *categories, *dates})
    with asking_for_separator(files[0], dialect):
        return {"": _source(str(source), files, dialect, wanted, Wanted.of(drop).x, categories, dates, types or {})}


def _source(
    where: str,
    files: Sequence[Path],
    dialect: Dialect,
    wanted: Wanted,
    drop: Sequence[str],
    categories: Sequence[str],
    dates: Mapping[str, str],
    types: Mapping[str, str],
) -> Source:
    """The columns of these files. The rest is as of `load`."""
    every = dict.fromkeys(dialect.names, TableColumn(""))
    given = {name: kind for name, kind in types.items() if name in every}
    given |= {column_named(where, name, every): "text" for name in categories}
    for name, form in dates.items():
        column = column_named(where, name, every)
        if unread := NOT_READ.search(form):
            hint = f"Convert the column first: pandas.to_datetime(column, format={form!r})."
            raise DataError(f"{where}: --date {name}={form}: {unread[0]} is not read from CSV files. {hint}")
        if form:
            given[column] = "zoned date" if "%z" in form else "date"
            dialect.dates[column] = form
    blocks = [
        CsvBlock(path, start, stop, line, dialect, given, stamp_of(path))
        for path in files
        for start, stop, line in ranges_of(path, dialect.has_header)
    ]
    if not blocks:
        raise DataError(f"{where}: has no samples.{_line_ends(files[0])}")
    dropped = {column_named(where, name, every) for name in drop}
    schema = blocks[0].schema(dropped)
    for name, form in dates.items():
        if not form and schema[column_named(where, name, every)].kind not in DATES:
            hint = f"Say their format: --date {name}=%d.%m.%Y."
            raise DataError(f"{where}: column {name!r} holds no dates of ISO 8601. {hint}")
    default = None if dialect.has_header else dialect.names[0]
    return _typed(where, blocks, schema, choose(where, schema, wanted, drop, default=default))


def _typed(where: str, blocks: Sequence[CsvBlock], schema: Schema, chosen: Chosen) -> Source:
    """The source of these columns, with the types as which all blocks are read."""
    dialect = blocks[0].dialect
    read = {name: schema[name].kind for name in chosen.names}
    read |= {name: "text" for name in chosen.y if schema[name].months}  # as labels, they are texts
    months = [name for name in chosen.names if schema[name].months and name not in chosen.y]
    dialect.dates.update(dict.fromkeys(months, "%Y-%m"))
    # Later blocks may have fractions: it matters only of labels, targets and groups whether all values are whole.
    numbers = {*chosen.x, chosen.weight, chosen.mask}
    read |= {name: "number" for name in read if read[name] == "integer" and name in numbers}
    labels = [name for name in chosen.y if chosen.roles.get(name) is not Role.TARGET]
    whole = [name for name in (*chosen.x, *labels) if schema[name].kind == "integer"]
    led = blocks[0].led_by_zero(whole, blocks[0].sample())
    exact = frozenset(whole).difference(led)
    read |= {name: "text" for name in led if read[name] == "integer"}  # labels: 007 and 7 are two classes
    notes = chosen.notes
    if months:
        way = f"--category {months[0]} keeps the months, as categories"
        notes += (f"{', '.join(months)}: months such as 2024-01 are read as dates, the first day of each; {way}",)
    if "--separator" in dialect.question and "' '" not in dialect.question:
        notes += (f"there is one column with the separator {dialect.separator!r}. {dialect.question}",)
    if hive := next((part for part in blocks[-1].path.parent.parts if "=" in part and part not in where), ""):
        notes += (f"the values that folders such as {hive} name are not read, as they are of Parquet",)
    if cut := [name for name in chosen.x if name in led]:
        cell = led[cut[0]]
        way = f"--category {cut[0]} keeps it, as a category"
        notes += (f"{', '.join(cut)}: read as numbers, so that {cell} becomes {int(cell)}; {way}",)
    typed = [replace(block, types=read, exact=exact) for block in blocks]
    how = Reading("csv", dialect.separator, dialect.has_header, dialect.dates, read)
    return chosen.source(where, typed, notes=notes, reading=how)


def contents(source: str | Path, separator: str = ",", header: bool | None = None) -> str:
    """The columns of the first file, one a line. separator, header: as of `load`. Raises DataError."""
    path = find_files(source, SUFFIXES)[0]
    dialect = dialect_of([path], header, separator, set())
    with asking_for_separator(path, dialect):
        ranges = ranges_of(path, dialect.has_header)
        listed = listing(CsvBlock(path, *next(ranges, (0, 0, 1)), dialect, {}, "").schema())
    return f"{listed}\n{dialect.question}".rstrip()


FORMAT = Format("csv", TABLE, SUFFIXES, read, contents, "tables", ("pyarrow.csv",))


@dataclass(frozen=True)
class CsvBlock(Block):
    """The lines in bytes [start, stop) of a file. line: the number of the first one, from 1. types: of the columns to
    read, as `_type` names them. exact: those of integers, of which none may begin with a 0."""

    path: Path
    start: int
    stop: int
    line: int
    dialect: Dialect
    types: Mapping[str, str]
    stamp: str
    exact: frozenset[str] = frozenset()

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    @property
    def key(self) -> str:
        return f"{self.path}[{self.start}:{self.stop}]@{self.stamp}#{self.types}{self.dialect.dates or ''}"

    def only(self, names: Sequence[str]) -> CsvBlock:
        return replace(self, types={name: self.types[name] for name in names})

    def read(self) -> dict[str, Any]:
        """A pandas Series of each column. Raises DataError."""
        need("pandas", "tables", "csv")
        with reading(self.path, "Is it a CSV file? Leave it out of --source otherwise."):
            data = self._bytes(self.stop)
            table = self._parsed(data, self.types)
            for name, kind in self.types.items():
                if kind == "integer" and _type(table.column(name)) not in ("integer", "number"):
                    raise self._not_a(name)
            for name in self.led_by_zero([name for name in self.types if name in self.exact], data):
                line, cell = next((line, cell.strip()) for line, cell in self._cells(name) if LED.match(cell))
                raise DataError(
                    f"{self.path}: line {line}, column {name!r}: {cell!r} begins with 0, which numbers lose. Say "
                    f"--category {name} if the column holds codes, or write the numbers without it."
                )
            return {name: _trimmed(table.column(name)).to_pandas() for name in self.types}

    def schema(self, dropped: Set[str] = frozenset()) -> dict[str, TableColumn]:
        """All columns, by the first lines. Raises DataError, also if numbers are among the texts of a column that is
        not dropped."""
        sample = self._parsed(self.sample(), dict.fromkeys(self.dialect.names, "") | dict(self.types))
        found = {name: _describe(sample.column(name)) for name in self.dialect.names}
        for name in found:
            if found[name].kind != "text" or name in self.types or name in dropped:
                continue
            texts = [value for value in sample.column(name).to_pylist() if value is not None]
            if any(map(is_number, texts)):
                raise self._not_a(name)
            if {True, False} <= {*map(is_zoned, texts)}:
                raise self._mixes_zones(name)
            if texts and all(map(MONTH.fullmatch, texts)):
                found[name] = TableColumn("date", months=True)
        return found

    def sample(self) -> bytes:
        """The first lines."""
        data = self._bytes(min(self.stop, self.start + SAMPLE_NBYTES))
        if self.start + len(data) < self.stop:
            data = data[: data.rfind(b"\n") + 1] or self._bytes(self.stop)
        return data

    def led_by_zero(self, names: Sequence[str], data: bytes) -> dict[str, str]:
        """Of each of these columns of integers the first cell that begins with a 0 too many, if there is one."""
        if not names or not may_lose_zeros(data, self.dialect.separator):
            return {}
        from pyarrow import compute

        texts = self._parsed(data, dict.fromkeys(names, "text"))
        hits = {n: texts.column(n).filter(compute.match_substring_regex(texts.column(n), LED.pattern)) for n in names}
        return {name: _trimmed(cells)[0].as_py() for name, cells in hits.items() if len(cells)}

    def _bytes(self, stop: int) -> bytes:
        with opened(self.path) as file:
            file.seek(self.start)
            data = file.read(stop - self.start)
        if len(data) < stop - self.start:
            raise DataError(f"{self.path}: was truncated since the command began. Start it again.")
        return data

    def _parsed(self, data: bytes, types: Mapping[str, str]) -> Any:
        import pyarrow as pa
        from pyarrow import csv as arrow

        dates = {name: form for name, form in self.dialect.dates.items() if types.get(name) in DATES}

        arrow_types = {
            "number": pa.float64(),
            "text": pa.string(),
            "true or false": pa.bool_(),
            "date": pa.timestamp("us"),
            "zoned date": pa.timestamp("us", "UTC"),
        }
        try:
            table = arrow.read_csv(
                pa.BufferReader(data),
                read_options=arrow.ReadOptions(
                    column_names=[*self.dialect.names], block_size=max(1 << 20, len(data) + 1)
                ),
                parse_options=arrow.ParseOptions(delimiter=self.dialect.separator, newlines_in_values=True),
                convert_options=arrow.ConvertOptions(
                    column_types={n: arrow_types[t] for n, t in types.items() if t in arrow_types}
                    | dict.fromkeys(dates, pa.string()),
                    include_columns=[*types],
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowException as error:
            raise self._fault(data, types, error) from error
        for name, form in dates.items():
            place = table.column_names.index(name)
            table = table.set_column(place, name, self._dates(name, form, _trimmed(table.column(name))))
        return table

    def _dates(self, name: str, form: str, texts: Any) -> Any:
        """A column of dates with a format of their own. Raises DataError for the first text that does not fit it."""
        from pyarrow import compute

        dates = compute.strptime(texts, format=form, unit="us", error_is_null=True)
        if dates.null_count > texts.null_count:
            bad = compute.index(compute.and_not(dates.is_null(), texts.is_null()), True).as_py()
            rows = rows_of(self._bytes(self.stop).decode(), self.dialect.separator, self.line)
            line = next(islice(rows, bad, None))[0]
            raise DataError(
                f"{self.path}: line {line}, column {name!r}: {texts[bad].as_py()!r} is no date of the format "
                f"{form!r}. Correct it, or say another format: --date {name}=FORMAT."
            )
        return dates

    def _fault(self, data: bytes, types: Mapping[str, str], error: Exception) -> DataError:
        """The line and column of what cannot be parsed."""
        try:
            rows = [*rows_of(data.decode(), self.dialect.separator, self.line)]
        except (UnicodeDecodeError, csv.Error) as fault:
            return DataError(f"{self.path}: is not UTF-8 CSV from line {self.line} on ({fault}). Convert it first.")
        width, places = len(self.dialect.names), {name: place for place, name in enumerate(self.dialect.names)}
        for line, cells in rows:
            if len(cells) != width:
                return DataError(f"{self.path}: line {line} has {len(cells)} columns, but the first line has {width}.")
        for name in types:
            if types[name] == "number" and any(not is_value(cells[places[name]]) for _, cells in rows):
                return self._not_a(name)
            if types[name] == "true or false" and (bad := self._first(name, is_truth)):
                line, cell = bad
                return DataError(
                    f"{self.path}: line {line}, column {name!r}: {cell!r} is not true or false, as other cells are. "
                    f"Write true or false, or say --category {name} when the shards are written."
                )
            zones = {is_zoned(cells[places[name]]) for _, cells in rows} if types[name] in DATES else set()
            if not zones <= {None, types[name] == "zoned date"}:
                return self._mixes_zones(name)
            if None in zones and (bad := self._first(name, is_date)):
                line, cell = bad
                return DataError(
                    f"{self.path}: line {line}, column {name!r}: {cell!r} is not a date of ISO 8601. Correct it, or "
                    f"give the format of all dates of the column: --date {name}=%d.%m.%Y."
                )
        return DataError(f"{self.path}: the lines from {self.line} on cannot be read ({error}). Correct the file.")

    def _cells(self, name: str) -> Iterator[tuple[int, str]]:
        """The cells of a column as they are written, with the numbers of their lines."""
        place, text = self.dialect.names.index(name), self._bytes(self.stop).decode(errors="replace")
        return ((line, cells[place]) for line, cells in rows_of(text, self.dialect.separator, self.line))

    def _first(self, name: str, fits: Callable[[str], bool]) -> tuple[int, str] | None:
        """The line of the first cell of a column that does not fit, and the cell."""
        return next(((line, cell) for line, cell in self._cells(name) if not fits(cell)), None)

    def _not_a(self, name: str) -> DataError:
        """The error for the first text in a column of numbers."""
        line, cell = self._first(name, is_value) or (self.line, "")
        return DataError(
            f"{self.path}: line {line}, column {name!r}: {cell!r} is not a number. Correct it, say --category {name} "
            f"if the column holds categories, or --drop {name}."
        )

    def _mixes_zones(self, name: str) -> DataError:
        """The error for the first date that has a time zone where others have none, or the reverse."""
        found = [(line, cell, is_zoned(cell)) for line, cell in self._cells(name)]
        dates = [date for date in found if date[2] is not None]
        expected = {"date": False, "zoned date": True}.get(self.types.get(name, ""), dates[0][2])
        line, cell, zoned = next(date for date in dates if date[2] is not expected)
        return DataError(
            f"{self.path}: line {line}, column {name!r}: {cell!r} has {'a' if zoned else 'no'} time zone, and other "
            f"dates have {'none' if zoned else 'one'}. Write all of them with one (Z, +02:00), or none."
        )


def _line_ends(path: Path) -> str:
    """What to say of a file whose lines are not told apart."""
    with opened(path) as file:
        head = file.read(SAMPLE_NBYTES)
    return " Its lines end with CR alone: write them with LF." if b"\r" in head and b"\n" not in head else ""


def _type(column: Any) -> str:
    from pyarrow import types

    if types.is_integer(column.type):
        return "integer"
    if types.is_floating(column.type) or types.is_null(column.type):
        return "number"
    if types.is_boolean(column.type):
        return "true or false"
    if types.is_timestamp(column.type):
        return "zoned date" if column.type.tz else "date"
    return "date" if types.is_date(column.type) else "text"


def _describe(column: Any) -> TableColumn:
    from pyarrow import types

    if types.is_time(column.type):
        hint = "Read it as categories with --category, or leave it out with --drop."
        return TableColumn("time of day", fault=f"holds times of day, which are not read. {hint}")
    return TableColumn(_type(column), has_fractions(column))


def _trimmed(column: Any) -> Any:
    import pyarrow as pa
    from pyarrow import compute, types

    if types.is_date(column.type):
        return column.cast(pa.timestamp("s"))
    return compute.utf8_trim_whitespace(column) if types.is_string(column.type) else column
