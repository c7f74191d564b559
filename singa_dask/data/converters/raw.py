"""Reading raw files of untrusted size."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from singa_dask.errors import DataError
from singa_dask.files import regular


@contextmanager
def open_raw(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; decompress .gz files. Raises DataError, also for errors while reading."""
    try:
        with open(path, "rb", opener=regular) as raw:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}). Download the file again.") from error


def read_exactly(file: BinaryIO, nbytes: int, path: Path) -> bytes:
    """The next `nbytes` bytes. Raises DataError if there are fewer."""
    data = file.read(nbytes)
    if len(data) != nbytes:
        raise DataError(f"{path}: ends {nbytes - len(data):,} bytes early. Download the file again.")
    return data


def expect_end(file: BinaryIO, path: Path) -> None:
    """Raises DataError if anything follows."""
    if file.read(1):
        raise DataError(f"{path}: is longer than its header says. Download the file again.")
