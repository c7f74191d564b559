"""A file that HDF5 writes to without ever seeing an error: where it cannot close a file, it crashes the process."""

from __future__ import annotations

import io
import os
from pathlib import Path


class RawFile(io.RawIOBase):
    """A new file. What is written after the first error of writing stays in memory, where HDF5 finds what it needs to
    close the file. The error is raised by `check`, which the writer must call soon, and when the file is closed.
    """

    def __init__(self, path: Path) -> None:
        self._fault: OSError | None = None
        self._file = io.FileIO(path, "w+")
        self._kept: list[tuple[int, bytes]] = []
        self._place = 0

    def write(self, data) -> int:
        view = memoryview(data).cast("B")
        if self._fault is None:
            try:
                done = 0
                while done < len(view):
                    done += os.pwrite(self._file.fileno(), view[done:], self._place + done)
            except OSError as error:
                self._fault = error
        if self._fault is not None:
            self._kept.append((self._place, bytes(view)))
        self._place += len(view)
        return len(view)

    def readinto(self, out) -> int:
        view = memoryview(out).cast("B")
        first, last = self._place, self._place + len(view)
        view[:] = os.pread(self._file.fileno(), len(view), first).ljust(len(view), b"\0")
        for place, data in self._kept:
            low, high = max(first, place), min(last, place + len(data))
            if low < high:
                view[low - first : high - first] = data[low - place : high - place]
        self._place = last
        return len(view)

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        end = max([os.fstat(self._file.fileno()).st_size, *(at + len(data) for at, data in self._kept)])
        self._place = place + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: end}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def truncate(self, size: int | None = None) -> int:
        size = self._place if size is None else size
        if self._fault is None:
            try:
                self._file.truncate(size)
            except OSError as error:
                self._fault = error
        return size

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def check(self) -> None:
        """Raise the first error of writing."""
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self.close()
        if kind is None:
            self.check()
