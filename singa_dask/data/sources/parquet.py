"""Parquet: a file, a folder or several files; row groups are the blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from singa_dask.data.columns import Role
from singa_dask.data.sources.files import (
    BLOCK_NBYTES,
    MAX_BLOCK_NBYTES,
    Block,
    find_files,
    need,
    reading,
    root_of,
    stamp_of,
)
from singa_dask.data.sources.source import TABLE, Format, Names, Source, Wanted
from singa_dask.data.sources.tables import TableColumn, choose, has_fractions, listing
from singa_dask.errors import DataError

SUFFIXES = (".parquet", ".parq", ".pq")
_REMEDY = "Is it a whole Parquet file? Copy it again, or leave it out of --source."
_BATCH_ROWS = 1 << 16


def read(source: str | Path, wanted: Wanted, drop: Names = None) -> dict[str, Source]:
    """The features may be one column of lists of equal length. drop: columns that are not read. Folders such as kind=a
    are a column, as in Hive. The index of pandas is not a column, but dates in it are the times of the rows."""
    files = find_files(source, SUFFIXES)
    root = root_of(source)
    schemas, times = zip(*map(_schema, files), strict=True)
    hive = _hive(files, root)
    for path, schema, keys in zip(files, schemas, hive, strict=True):
        _check_same(files[0], schemas[0], path, schema)
        if [*keys] != [*hive[0]]:
            raise DataError(f"{path}: its folders name the columns {[*keys]}, but those of {files[0]} {[*hive[0]]}.")
    columns = {name: _describe(kind) for name, kind in schemas[0].items()}
    if any(role is Role.LABEL for _, role in wanted.roles):
        columns |= {name: replace(columns[name], fractional=True) for name in _fractional(files[0])}
    for name, value in hive[0].items():
        columns[name] = replace(_describe(value.type), fractional=has_fractions([keys[name] for keys in hive]))
    chosen = choose(str(source), columns, wanted, drop)
    vectors = [name for name in chosen.x if columns[name].kind.startswith("vector")]
    if vectors and len(chosen.x) > 1:
        raise DataError(
            f"{source}: column {vectors[0]!r} holds a vector for each sample, so it must be the only feature. "
            f"Say --x {vectors[0]}."
        )
    time = times[0] if len({*times}) == 1 else None
    stored = (*(name for name in chosen.names if name in schemas[0]), *([] if time is None else [time]))
    row_nbytes = sum(_width(schemas[0][name]) for name in stored if name != time)
    blocks: list[ParquetBlock] = []
    for path, keys in zip(files, hive, strict=True):
        used = {name: value for name, value in keys.items() if name in chosen.names}
        for groups, rows in _groups(path, row_nbytes):
            blocks.append(ParquetBlock(path, groups, rows, stored, tuple(used.items()), stamp_of(path)))
    if not blocks:
        raise DataError(f"{source}: has no rows.")
    double = [
        f"column {name!r} has the values that folders name, not those of the files"
        for name in hive[0]
        if name in schemas[0]
    ]
    return {"": chosen.source(str(source), blocks, table=not vectors, time=time, notes=(*chosen.notes, *double))}


def contents(source: str | Path) -> str:
    """The columns of the first file, one a line. Raises DataError."""
    schema, _ = _schema(find_files(source, SUFFIXES)[0])
    return listing({name: _describe(kind) for name, kind in schema.items()})


FORMAT = Format("parquet", TABLE, SUFFIXES, read, contents, "tables", ("pyarrow.parquet",))


@dataclass(frozen=True)
class ParquetBlock(Block):
    """Whole row groups, or `rows` (start, stop) of a large one. hive: values of columns that folders name, as
    scalars of Arrow."""

    path: Path
    groups: tuple[int, ...]
    rows: tuple[int, int] | None
    columns: tuple[str, ...]
    hive: tuple[tuple[str, Any], ...]
    stamp: str

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    @property
    def key(self) -> str:
        return f"{self.path}{list(self.groups)}{self.rows or ''}@{self.stamp}#{','.join(self.columns)}"

    def only(self, names: Sequence[str]) -> ParquetBlock:
        hive = tuple(pair for pair in self.hive if pair[0] in names)
        return replace(self, columns=tuple(name for name in self.columns if name in names), hive=hive)

    def read(self) -> dict[str, Any]:
        """A pandas Series of each column, or (rows, values) of a column of vectors. Raises DataError."""
        need("pandas", "tables", "parquet")
        import pyarrow as pa

        with _opened(self.path) as file:
            if self.rows is None:
                table = file.read_row_groups([*self.groups], columns=[*self.columns])
            else:
                table = _rows_of(file, self.groups[0], self.rows, self.columns)
            found = {name: _values(self.path, name, table.column(name)) for name in self.columns}
        for name, value in self.hive:
            found[name] = pa.repeat(value, table.num_rows).to_pandas()
        return found


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with reading(path, _REMEDY), pq.ParquetFile(path) as file:
        yield file


def _schema(path: Path) -> tuple[dict[str, Any], str | None]:
    """The Arrow type of each column, and the last column of the index of pandas if it has dates."""
    with _opened(path) as file:
        schema = file.schema_arrow
    index = [name for name in _of_pandas(schema).get("index_columns", ()) if isinstance(name, str)]
    dated = index[-1:] if index and _describe(schema.field(index[-1]).type).kind in ("date", "zoned date") else []
    return {field.name: field.type for field in schema if field.name not in index}, next(iter(dated), None)


def _fractional(path: Path) -> list[str]:
    """The columns whose first rows have fractions."""
    with _opened(path) as file:
        names = [field.name for field in file.schema_arrow if _describe(field.type).kind == "number"]
        batch = next(file.iter_batches(_BATCH_ROWS, columns=names), None)
    return [] if batch is None else [name for name in batch.schema.names if has_fractions(batch.column(name))]


def _of_pandas(schema: Any) -> dict[str, Any]:
    """What pandas has written of its types."""
    return json.loads((schema.metadata or {}).get(b"pandas", b"{}"))


def _check_same(first: Path, schema: dict[str, Any], path: Path, other: dict[str, Any]) -> None:
    if [*other] != [*schema] and {*other} != {*schema}:
        name = min({*other} ^ {*schema})
        raise DataError(f"{path}: column {name!r} is only in one of this file and {first}. Name files that fit.")
    for name, kind in schema.items():
        if _describe(other[name]).kind not in (_describe(kind).kind, "empty"):
            raise DataError(
                f"{path}: column {name!r} is of type {other[name]}, but of type {kind} in {first}. "
                "Write the files again with one type, or leave one out of --source."
            )


@lru_cache
def _describe(kind: Any) -> TableColumn:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _describe(kind.value_type)
    if types.is_floating(kind) or types.is_decimal(kind):
        return TableColumn("number")
    if types.is_integer(kind):
        return TableColumn("integer")
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return TableColumn("text")
    if types.is_boolean(kind):
        return TableColumn("true or false")
    if types.is_timestamp(kind) or types.is_date(kind):
        return TableColumn("zoned date" if types.is_timestamp(kind) and kind.tz else "date")
    if types.is_duration(kind):
        return TableColumn("timedelta")
    if types.is_null(kind):
        return TableColumn("empty")
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if lists and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        return TableColumn("vector")
    return TableColumn(str(kind), fault=f"is of type {kind}, which cannot be read. Leave it out with --drop.")


def _width(kind: Any) -> int:
    """Bytes of a value in memory, about."""
    from pyarrow import types

    if types.is_fixed_size_list(kind):
        return kind.list_size * _width(kind.value_type)
    try:
        return max(1, kind.bit_width // 8)
    except ValueError:
        return 32


def _hive(files: Sequence[Path], root: Path) -> list[dict[str, Any]]:
    """Columns that folders between the source and each file name, as in kind=a/part-0.parquet: scalars of Arrow, of
    one type by name, null where the folder is __HIVE_DEFAULT_PARTITION__."""
    import pyarrow as pa
    from pyarrow.dataset import HivePartitioning, get_partition_keys

    found = []
    for path in files:
        folders = path.relative_to(root).parts[:-1] if root.is_dir() else ()
        names = dict.fromkeys(unquote(part.partition("=")[0]) for part in folders if "=" in part)
        hive = HivePartitioning(pa.schema([(name, pa.string()) for name in names]), segment_encoding="uri")
        known = get_partition_keys(hive.parse("/".join((*folders, ""))))
        found.append({name: known.get(name) for name in names})
    with _opened(files[0]) as file:
        written = {column["name"]: column for column in _of_pandas(file.schema_arrow).get("columns", ())}
    texts = {name: pa.array([values.get(name) for values in found], pa.string()) for name in found[0]}
    typed = {name: _typed(values, written.get(name, {})) for name, values in texts.items()}
    return [{n: typed[n][at] if n in typed else None for n in values} for at, values in enumerate(found)]


def _typed(texts: Any, written: Mapping[str, Any]) -> Any:
    """Texts as the type that pandas had, as which it was `written`; else as integers or other numbers if all are."""
    import pyarrow as pa

    known = written.get("pandas_type", "")
    types = [pa.int64(), pa.float64()]
    if known in ("unicode", "string") or written.get("numpy_type") in ("str", "string"):
        types = []
    elif known in ("bool", "datetime", "datetimetz", "date"):
        types = [pa.bool_() if known == "bool" else pa.timestamp("us", "UTC" if known == "datetimetz" else None)]
    for kind in types if texts.null_count < len(texts) else ():
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            continue
    return texts


def _groups(path: Path, row_nbytes: int) -> Iterator[tuple[tuple[int, ...], tuple[int, int] | None]]:
    """Row groups that one block reads together, and a range of rows if there is but one, too large, group."""
    with _opened(path) as file:
        counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    most = max(1, BLOCK_NBYTES // max(1, row_nbytes))
    largest = max(1, MAX_BLOCK_NBYTES // max(1, row_nbytes))
    held: list[int] = []
    for group, count in enumerate(counts):
        if held and sum(counts[i] for i in held) + count > most:
            yield tuple(held), None
            held = []
        if count > largest:
            yield from (((group,), (start, min(start + largest, count))) for start in range(0, count, largest))
        elif count:
            held.append(group)
    if held:
        yield tuple(held), None


def _rows_of(file: Any, group: int, rows: tuple[int, int], columns: Sequence[str]) -> Any:
    import pyarrow as pa

    parts, place = [], 0
    for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[*columns]):
        first, last = max(rows[0] - place, 0), min(rows[1] - place, batch.num_rows)
        if first < last:
            parts.append(batch.slice(first, last - first))
        place += batch.num_rows
        if place >= rows[1]:
            break
    return pa.Table.from_batches(parts)


def _values(path: Path, name: str, column: Any) -> Any:
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute, types

    if types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if types.is_null(column.type):
        column = column.cast(pa.float64())
    if types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    if _describe(column.type).kind != "vector":
        return column.to_pandas()
    lengths = compute.fill_null(compute.list_value_length(column), -1).to_numpy()
    odd = np.flatnonzero(lengths != lengths[0])
    if lengths[0] < 1 or odd.size:
        row = int(odd[0]) if odd.size and lengths[0] >= 1 else 0
        raise DataError(
            f"{path}: column {name!r} holds a list of {lengths[row]} values in row {row} of a block, but "
            f"{max(lengths)} in others. All lists must be equally long."
        )
    flat = compute.list_flatten(column)
    if flat.null_count:
        raise DataError(f"{path}: column {name!r} holds lists with missing values. Fill them first.")
    return flat.to_numpy().reshape(len(lengths), -1)
