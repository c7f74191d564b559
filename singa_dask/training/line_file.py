"""JSON lines in a file, which wait in memory while the disk is full."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


class LineFile:
    """A file with a JSON object per line. What cannot be written waits in memory until a later write succeeds.

    fault: why the last write failed; None if it did not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault: OSError | None = None
        self._waiting: list[str] = []
        self._replaces = False  # what waits replaces what the file has

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
        try:
            if self._replaces:
                write_whole(self.path, "".join(self._waiting))
            elif self._waiting:
                self._extend("".join(self._waiting))
        except OSError as error:
            self.fault = error
        else:
            self._waiting, self._replaces, self.fault = [], False, None

    def rows(self) -> Iterator[dict[str, Any]]:
        """All lines, without a last line that a crash truncated."""
        if self.path.exists() and not self._replaces:
            with open(self.path) as file:
                for line in file:
                    if line.endswith("\n"):
                        yield json.loads(line)
        yield from map(json.loads, list(self._waiting))

    def _extend(self, text: str) -> None:
        before = self.path.stat().st_size if self.path.exists() else 0
        try:
            with open(self.path, "a") as file:
                file.write(text)
        except OSError:
            with suppress(OSError):  # half a line must not stay
                os.truncate(self.path, before)
            raise


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
