"""The files of a source, and how they are cut into blocks."""

from __future__ import annotations

import glob
import importlib
import itertools
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.data.columns import MAX_SAMPLE_NBYTES
from singa_dask.errors import DataError, SingaError, reason, way_out
from singa_dask.files import FILE, FOLDER, kind_of

logger = logging.getLogger(__name__)

BLOCK_NBYTES = 32 << 20
MAX_BLOCK_NBYTES = 256 << 20  # of a block that must be larger, because one chunk or row group is
MAX_BLOCKS = 1 << 20
_GLOB = frozenset("*?[")


class Block(ABC):
    """Consecutive samples that one task reads. Can be pickled, unless it is local: in the memory of this process.

    key: text that is equal for the same samples in every run. files: the first and the last of those in which it lies,
    if it does. spans: the files of its rows, in order, each with their number; None for all that are left. numbered:
    whether it gives the numbers of its rows.
    """

    local: bool = False
    numbered: bool = False

    if TYPE_CHECKING:  # a property here would be the default of fields

        @property
        def key(self) -> str: ...

    @property
    def files(self) -> Sequence[Path]:
        return ()

    @property
    def spans(self) -> Sequence[tuple[Path, int | None]]:
        return [(file, None) for file in self.files[:1]]

    @abstractmethod
    def read(self) -> Mapping[str, Any]:
        """By raw column: a NumPy array (rows, ...), or a pandas Series of a table. Raises DataError."""


def files_of(blocks: Sequence[Any]) -> list[Path]:
    """The files of the first and the last block, which stand for those of all."""
    return list(dict.fromkeys(file for block in (*blocks[:1], *blocks[-1:]) for file in block.files))


def find_files(source: str | Path, suffixes: Sequence[str]) -> list[Path]:
    """The files of a path, of a folder (those that end with a suffix, with a warning if it has others), or of a glob
    pattern, sorted by name.

    Raises DataError if there are none.
    """
    path = Path(source).expanduser().absolute()
    kind = kind_of(path)
    if kind == FILE:
        return [path]
    if kind == FOLDER:
        every = [p for p in path.rglob("*") if not any(part[0] in "._" for part in p.relative_to(path).parts)]
        named = {p for p in every if p.name.lower().endswith(tuple(suffixes))}
        found = only_files(named)
        if not found:
            raise DataError(f"{path}: holds no files that end with {' or '.join(suffixes)}. Check --source.")
        if others := sorted(p for p in every if p not in named and p.is_file()):
            _warn_of_left_out(path, str(others[0].relative_to(path)), len(others), ", ".join(suffixes))
        return found
    if kind is not None:
        raise DataError(f"{path}: is {kind}, neither a file nor a folder. Check --source.")
    if _GLOB & set(str(source)):
        found = only_files(map(Path, glob.glob(str(path), recursive=True)))
        if not found:
            hint = (
                f"Name the files in the folders that match: {source}/*" if glob.glob(str(path)) else "Check --source."
            )
            raise DataError(f"{source}: no file matches this pattern. {hint}")
        return found
    raise DataError(f"{path}: does not exist. Check --source.")


@lru_cache(1024)
def _warn_of_left_out(folder: Path, first: str, count: int, suffixes: str) -> None:
    """Log once that files are left out."""
    message = "%s: %d file%s left out, such as %s: only names that end with %s are read. Name all files with a pattern"
    logger.warning(message, folder, count, " is" if count == 1 else "s are", first, suffixes)


def root_of(source: str | Path) -> Path:
    """The folder below which the files of `find_files` lie: of a pattern, the one before the first sign of it."""
    path = Path(source).expanduser().absolute()
    if kind_of(path) is not None:
        return path
    return Path(*itertools.takewhile(lambda part: not _GLOB & set(part), path.parts))


def only_files(paths: Iterable[Path]) -> list[Path]:
    """The files among these paths and folders, sorted. Raises DataError for what is neither."""
    kinds = {path: kind_of(path) for path in sorted(paths)}
    for path, kind in kinds.items():
        if kind not in (FILE, FOLDER):
            raise DataError(f"{path}: is {kind or 'gone'}, not a file. Remove it, or name the others in a pattern.")
    return [path for path, kind in kinds.items() if kind == FILE]


def need(module: str, extra: str, what: str) -> Any:
    """Import a module of an extra. Raises DataError that names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{what}: {module} is not installed. Run `pip install '.[{extra}]'` in a clone of singa_dask."
        ) from error


def unreadable(path: Path, error: BaseException, remedy: str) -> DataError:
    """The error for a file that a library cannot read. The host is named because workers have their own disks."""
    if not path.exists():
        return DataError(
            f"{path}: does not exist on {socket.gethostname()}. Every worker must reach the files by the same path."
        )
    return DataError(f"{path}: cannot be read ({reason(error)}). {way_out(error, remedy)}")


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """What libraries raise while they read a file becomes a DataError: a damaged file makes them raise anything."""
    try:
        yield
    except SingaError:
        raise
    except Exception as error:
        raise unreadable(path, error, remedy) from error


def check_sample(path: Path, name: str, nbytes: int, remedy: str) -> None:
    """Raises DataError if a sample of a column is larger than shards may have."""
    if nbytes > MAX_SAMPLE_NBYTES:
        most = f"at most {MAX_SAMPLE_NBYTES >> 20} MiB are allowed"
        raise DataError(f"{path}: a sample of {name} has {nbytes:,} bytes; {most}. {remedy}")


@dataclass(frozen=True)
class Rows:
    """Samples [start, stop) of a file. stamp: changes when the file does."""

    path: Path
    start: int
    stop: int
    stamp: str

    @property
    def key(self) -> str:
        return f"{self.path}[{self.start}:{self.stop}]@{self.stamp}"

    def index(self, name: str) -> tuple[slice, ...]:
        """What is read of a dataset."""
        return (slice(self.start, self.stop),)


def stamp_of(path: Path) -> str:
    """The size and time of a file, which tell whether it was changed."""
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def cut_rows(files: Iterable[tuple[Path, str, int, int]], row_nbytes: int) -> list[tuple[Rows, ...]]:
    """Rows for each block: of large files a range, of small files several files.

    files: (path, stamp, rows, rows that are stored together) of each. row_nbytes: bytes of one sample.
    """
    most = max(1, BLOCK_NBYTES // max(1, row_nbytes))
    blocks: list[tuple[Rows, ...]] = []
    small: list[Rows] = []
    held = 0
    for path, stamp, total, together in files:
        together = max(1, together)
        step = most - most % together if together <= most else min(together, max(1, MAX_BLOCK_NBYTES // row_nbytes))
        if total > MAX_BLOCKS * step:
            raise DataError(
                f"{path}: holds {total:,} samples by its header, and at most {MAX_BLOCKS * step:,} can be read. "
                "Is it whole? Copy it again."
            )
        for start in range(0, total, step):
            rows = Rows(path, start, min(start + step, total), stamp)
            if held + rows.stop - rows.start > step and small:
                blocks.append(tuple(small))
                small, held = [], 0
            small.append(rows)
            held += rows.stop - rows.start
    return [*blocks, tuple(small)] if small else blocks


@dataclass(frozen=True)
class RowsBlock(Block):
    """A block of rows of one or several files.

    columns: where each raw column is in a file. read_rows(rows, where): reads the values of these places from one
    file; can be pickled.
    """

    rows: tuple[Rows, ...]
    columns: Mapping[str, str]
    read_rows: Callable[[Rows, Sequence[str]], Sequence[np.ndarray]]

    @property
    def files(self) -> tuple[Path, ...]:
        return self.rows[0].path, self.rows[-1].path

    @property
    def spans(self) -> list[tuple[Path, int]]:
        return [(rows.path, rows.stop - rows.start) for rows in self.rows]

    @property
    def key(self) -> str:
        return "+".join(rows.key for rows in self.rows) + "#" + ",".join(self.columns.values())

    def only(self, names: Sequence[str]) -> RowsBlock:
        return replace(self, columns={name: self.columns[name] for name in names})

    def read(self) -> dict[str, np.ndarray]:
        """The arrays of each column. Raises DataError."""
        parts = [self.read_rows(rows, tuple(self.columns.values())) for rows in self.rows]
        joined = parts[0] if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]
        return dict(zip(self.columns, joined, strict=True))
