"""Streams that go away."""

from __future__ import annotations

import errno
import io
import os


class Failing(io.StringIO):
    """A stream that can be written `whole` times. Then writing fails, with this number or as on a closed file."""

    def __init__(self, number: int | None, whole: int = 0, terminal: bool = False) -> None:
        super().__init__()
        self.number, self.whole, self.terminal = number, whole, terminal

    def write(self, text: str) -> int:
        if self.whole == 0 and self.number is None:
            raise ValueError("I/O operation on closed file.")
        if self.whole == 0:
            raise OSError(self.number, os.strerror(self.number or 0))
        self.whole -= 1
        return super().write(text)

    def isatty(self) -> bool:
        return self.terminal


# A pipe whose reader has ended, a full disk, a terminal that was closed, a quota, and a file that was closed.
FAULTS = {name: getattr(errno, name) for name in ("EPIPE", "ENOSPC", "EIO", "EDQUOT")} | {"closed": None}
