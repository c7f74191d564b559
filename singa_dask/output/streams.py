"""Text streams that may go away: a pipe whose reader has ended, a full disk, a closed terminal."""

from __future__ import annotations

import errno
import io
import os
import re
from typing import Any, TextIO, cast

# Control characters other than newline and tab, and the characters that reorder text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape(text: str) -> str:
    r"""Text as it may be sent to a terminal. JSON stays the same JSON.

    >>> print(escape("a\x1b[31mb\u202ec\n"), end="")
    a\x1b[31mb\u202ec
    """
    return _CONTROL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"


class Output:
    """A text stream that raises nothing: what cannot be written is lost.

    stream: None for a standard stream that was closed when the process began. fault: why something was lost, None
    while nothing was. told: whether the user knows. What the stream's encoding lacks is written as an escape sequence.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.stream: Any = _Closed() if stream is None else stream
        self.fault: OSError | ValueError | None = None
        self.told = False

    @classmethod
    def of(cls, stream: TextIO | Output | Escaped | None) -> Output:
        """The output that a stream is or writes to; a new one for any other stream."""
        if isinstance(stream, Escaped):
            return stream.output
        return stream if isinstance(stream, Output) else cls(stream)

    @property
    def cause(self) -> str:
        """The fault in words."""
        return getattr(self.fault, "strerror", None) or str(self.fault)

    def write(self, text: str) -> int:
        """Write text, or lose it."""
        try:
            try:
                self.stream.write(text)
            except UnicodeEncodeError:
                encoding = self.stream.encoding
                self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except (OSError, ValueError) as fault:
            self._lose(fault)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, or lose what waits in it."""
        try:
            self.stream.flush()
        except (OSError, ValueError) as fault:
            self._lose(fault)

    def _lose(self, fault: OSError | ValueError) -> None:
        """Remember the fault. Empty the stream's buffer, with which Python would fail at its end."""
        self.fault = fault
        try:
            number = self.stream.fileno()
            inheritable, kept = os.get_inheritable(number), os.dup(number)
        except (OSError, ValueError, AttributeError):  # nothing is behind it, or it is closed
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, number)
            self.stream.flush()
        finally:
            os.dup2(kept, number, inheritable)
            os.close(kept)
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        if name in ("stream", "buffer"):  # callers that find a buffer write to it
            raise AttributeError(name)
        return getattr(self.stream, name)


class Escaped:
    """A text stream for messages: escapes the text, and writes it to an output."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def write(self, text: str) -> int:
        """Write text, escaped."""
        self.output.write(escape(text))
        return len(text)

    def say(self, line: str) -> None:
        """Write a line at once."""
        self.write(line + "\n")
        self.output.flush()

    def __getattr__(self, name: str) -> Any:
        if name == "output":
            raise AttributeError(name)
        return getattr(self.output, name)


class _Closed(io.TextIOBase):
    """A standard stream that was closed when the process began."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def for_messages(stream: TextIO | Output | None) -> TextIO:
    """A stream for messages."""
    return cast(TextIO, Escaped(Output.of(stream)))


def for_data(stream: TextIO | None) -> Output | Escaped:
    """A stream for data: text that a program may read, escaped on a terminal only."""
    output = Output.of(stream)
    return Escaped(output) if output.isatty() else output


def occupy_descriptors() -> None:
    """Open /dev/null where standard streams are closed, for this process and those that it starts: else a socket or
    a file gets the number 1 or 2, to which libraries write messages."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
