"""JSON lines in a file, which wait in memory while the disk is full, and are written again if the file vanishes."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from singa_dask.files import is_at, regular, unlinked, write_whole
from singa_dask.training.forms import fits

logger = logging.getLogger(__name__)

MAX_LINE_NBYTES = 1 << 20


class LineFile:
    """A file with a JSON object per line. What cannot be written waits in memory until a later write succeeds.

    form: tells whether an object is one of its lines. fault: why the last write failed; None if it did not.
    """

    def __init__(self, path: Path, form: Callable[[Any], bool] = lambda row: fits(row, {})) -> None:
        self.path = path
        self.fault: OSError | None = None
        self._form = form
        self._waiting: list[str] = []
        self._replaces = False  # what waits replaces what the file has
        self._file: int | None = None  # stays readable if the file is removed

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line."""
        self._waiting.append(json.dumps(row) + "\n")
        self.write()

    def replace(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Make these the only lines."""
        self._waiting, self._replaces = [json.dumps(row) + "\n" for row in rows], True
        self.write()

    def write(self) -> None:
        """Write what waits, if that is possible now."""
        self._recall()
        try:
            if self._replaces:
                write_whole(self.path, "".join(self._waiting))
                self._follow()
            elif self._waiting:
                self._extend("".join(self._waiting))
        except OSError as error:
            self.fault = error
        else:
            self._waiting, self._replaces, self.fault = [], False, None

    @property
    def vanished(self) -> bool:
        """Whether the file that this object wrote is no longer there."""
        return self._file is not None and not is_at(self._file, self.path)

    def close(self) -> None:
        """Forget the file: if it vanishes from now on, its lines are gone."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    __del__ = close

    def rows(self) -> Iterator[dict[str, Any]]:
        """All lines, without damaged ones and a last line that a crash truncated."""
        yield from self.read()[0]

    def read(self) -> tuple[list[dict[str, Any]], list[str]]:
        """All lines, and a sentence for each fault of the file; a last line that a crash truncated is not a fault."""
        self._recall()
        rows: list[dict[str, Any]] = []
        damaged: list[int] = []
        faults: list[str] = []
        if not self._replaces:
            try:
                with open(self.path, "rb", opener=regular) as file:
                    for number, line in _lines(file):
                        row = _parsed(line)
                        (rows.append(row) if self._form(row) else damaged.append(number))
            except FileNotFoundError:
                pass
            except OSError as error:
                faults = [f"{self.path}: cannot be read ({error.strerror})"]
        if damaged:
            more = f" and {len(damaged) - 1} more are" if damaged[1:] else " is"
            faults = [f"{self.path}: line {damaged[0]}{more} damaged, and left out"]
        return [*rows, *map(json.loads, list(self._waiting))], faults

    def _recall(self) -> None:
        """Take what a file had that has vanished as lines that wait."""
        if self._file is None or self._replaces or not self.vanished:
            return
        try:
            with io.FileIO(os.dup(self._file)) as raw, io.BufferedReader(raw) as file:
                file.seek(0)
                kept = [line.decode() for _, line in _lines(file)]
        except OSError as error:  # it was on another host's disk
            logger.error("%s: has vanished, and its lines with it (%s)", self.path, error.strerror)
            kept = []
        self._waiting, self._replaces = kept + self._waiting, True

    def _extend(self, text: str) -> None:
        with open(self.path, "ab", buffering=0, opener=unlinked) as file:
            before, rest = os.fstat(file.fileno()).st_size, text.encode()
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                with suppress(OSError):  # half a line must not stay
                    os.ftruncate(file.fileno(), before)
                raise
        if self._file is None:
            self._follow()

    def _follow(self) -> None:
        """Hold the file open, so that its lines can be read after it was removed."""
        self.close()
        self._file = unlinked(self.path, os.O_RDONLY)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The whole lines, from 1; b"" for one of more than MAX_LINE_NBYTES."""
    for number in count(1):
        line = rest = file.readline(MAX_LINE_NBYTES)
        while len(rest) == MAX_LINE_NBYTES and not rest.endswith(b"\n"):
            line, rest = b"", file.readline(MAX_LINE_NBYTES)
        if not rest.endswith(b"\n"):
            return
        yield number, line


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
