"""CSV files as they are written: their dialect, their lines, and ranges of bytes that end with a line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from singa_dask.data.sources.files import BLOCK_NBYTES, reading
from singa_dask.data.sources.tables import check_distinct, is_number
from singa_dask.errors import DataError

SAMPLE_NBYTES = 1 << 20
_OF_SPACES = r"pandas.read_csv(PATH, sep=r'\s+').to_csv(OTHER, index=False)"
_MAX_OPEN_QUOTE = 8 * BLOCK_NBYTES
_BOM = b"\xef\xbb\xbf"
_PACKED = {b"\x1f\x8b": "gunzip", b"BZ": "bunzip2", b"\xfd7": "unxz", b"(\xb5": "unzstd", b"PK": "unzip"}


@dataclass(frozen=True)
class Dialect:
    """How the files are written. names: of all columns. dates: formats of those not in ISO 8601, by column. question:
    to the user, if the separator is probably another one."""

    names: tuple[str, ...]
    separator: str
    has_header: bool
    dates: dict[str, str] = field(default_factory=dict)
    question: str = ""


def dialect_of(files: Sequence[Path], header: bool | None, separator: str, named: Set[str]) -> Dialect:
    """That of files with the same columns. header: None if the lines tell. named: columns that the user names.

    Raises DataError.
    """
    if len(separator) != 1:
        raise DataError(f"separator: must be one character. Received: {separator!r}.")
    heads = [[[cell.strip() for cell in cells] for cells in _head(path, separator)] for path in files]
    if not heads[0]:
        raise DataError(f"{files[0]}: is empty.")
    first = heads[0][0]
    known = any(name in named and not is_number(name) for name in first)
    has_header = (known or _has_header(heads[0])) if header is None else header
    names = first if has_header else [str(place) for place in range(len(first))]
    check_distinct(str(files[0]), names)
    for path, rows in zip(files, heads, strict=True):
        if has_header and rows and rows[0] != names:
            raise DataError(f"{path}: its first line does not name the same columns as that of {files[0]}.")
    question = _other_separator(heads[0], separator) if len(first) == 1 else ""
    return Dialect(tuple(names), separator, has_header, question=question)


def _other_separator(rows: Sequence[Sequence[str]], separator: str) -> str:
    """What to ask if lines of one cell probably have another separator."""
    lines = [row[0] for row in rows]
    marks = [mark for mark in ",;\t|" if mark in lines[0] and len({line.count(mark) for line in lines} - {0}) == 1]
    words = {len(line.split()) for line in lines}
    if not marks and len(words) == 1 and words != {1}:
        if any("  " in line for line in lines):
            return f"Do several spaces separate columns? Write commas: {_OF_SPACES}."
        marks = [" "]
    if not marks or marks[0] == separator:
        return ""
    written = "$'\\t'" if marks[0] == "\t" else repr(marks[0])
    return f"Is the separator another one? --separator {written}"


@contextmanager
def asking_for_separator(path: Path, dialect: Dialect) -> Iterator[None]:
    """An error where the separator is probably another one begins with that."""
    try:
        yield
    except DataError as error:
        if not dialect.question:
            raise
        told = f"has one column with the separator {dialect.separator!r}. {dialect.question}"
        raise DataError(f"{path}: {told} Otherwise: {error}") from error


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a file. Raises DataError."""
    with reading(path, "Check the path and its rights."), path.open("rb") as file:
        yield file


def rows_of(text: str, separator: str, line: int = 1) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not empty."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    start = 0
    try:
        for cells in reader:
            if cells:
                yield line + start, cells
            start = reader.line_num
    except csv.Error as error:
        if "field limit" in str(error):
            most = f"a cell of line {line + start} has more than {csv.field_size_limit():,} characters"
            raise csv.Error(f"{most}: is a quotation mark not closed?") from error
        raise


def _head(path: Path, separator: str) -> list[list[str]]:
    """The cells of the first two lines."""
    with opened(path) as file:
        data = file.read(SAMPLE_NBYTES)
        if data.count(b"\n") < 2 and len(data) == SAMPLE_NBYTES:
            data += file.read(BLOCK_NBYTES - SAMPLE_NBYTES)
    if b"\n" not in data and len(data) == BLOCK_NBYTES:
        raise DataError(f"{path}: its first line has more than {BLOCK_NBYTES:,} bytes. Is it a CSV file?")
    packed = next((tool for mark, tool in _PACKED.items() if data.startswith(mark)), None)
    if packed is not None and b"\0" in data:
        raise DataError(f"{path}: is compressed, so that its lines cannot be read in parallel. Run {packed} first.")
    try:
        text = data.decode("utf-8-sig") if len(data) < SAMPLE_NBYTES else data.decode("utf-8-sig", errors="ignore")
        return [cells for _, cells in islice(rows_of(text, separator), 2)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path}: is not a UTF-8 CSV file with the separator {separator!r} ({error}). Convert it first."
        ) from error


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    below = rows[1] if len(rows) > 1 else []
    return any(not is_number(a) and is_number(b) for a, b in zip(rows[0], below, strict=False))


def ranges_of(path: Path, header: bool) -> Iterator[tuple[int, int, int]]:
    """(start, stop, first line) of each block. A block ends with a line end that is not in quotation marks."""
    with opened(path) as file:
        start = 3 if file.read(3) == _BOM else 0
        file.seek(start)
        line = 1
        if header:
            cells = _until_line_end(file, 0, path, line)
            start, line = start + len(cells), line + cells.count(b"\n")
        data = bytearray(min(BLOCK_NBYTES, path.stat().st_size))  # its pages are cleared first
        while size := file.readinto(data):
            quotes = data.count(b'"', 0, size)
            rest = _until_line_end(file, quotes, path, line) if size == len(data) else bytearray()
            stop = start + size + len(rest)
            blank = all(data[i : min(i + 4096, size)].isspace() for i in range(0, size, 4096)) and not rest.strip()
            if not blank:
                yield start, stop, line
            start, line = stop, line + data.count(b"\n", 0, size) + rest.count(b"\n")


def _until_line_end(file: io.BufferedReader, quotes: int, path: Path, line: int) -> bytearray:
    """What follows `quotes` quotation marks, up to the end of their last line."""
    rest = bytearray()
    while piece := file.readline():
        rest += piece
        quotes += piece.count(b'"')
        if quotes % 2 == 0:
            break
        if len(rest) > _MAX_OPEN_QUOTE:
            raise DataError(f"{path}: a quotation mark after line {line} is not closed. Close it, or remove it.")
    return rest
