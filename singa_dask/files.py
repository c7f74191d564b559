"""Opening files by name: only regular files are opened, others are named by their kind, and writing follows no link.

A pipe, a device or a socket in the place of a file would block its reader, or never end. A link in the place of a file
that is written would lead to any file of this user's.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_TEXT_NBYTES = 64 << 20
FILE, FOLDER, DEVICE, LINK = "a file", "a folder", "a device", "a symbolic link"
LOST_LINK = "a symbolic link that leads to nothing"
_KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFLNK: LINK,
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: DEVICE,
    stat.S_IFBLK: DEVICE,
}


class NotAFile(OSError):
    """What is in the place of a regular file."""

    def __init__(self, kind: str, path: str | Path) -> None:
        self.kind = kind
        super().__init__(errno.EINVAL, f"it is {kind}, not a file", str(path))


def kind_of(path: str | Path, *, follow: bool = True) -> str | None:
    """What is at a path: FILE, FOLDER, "a pipe" ...; None for nothing. follow: look where a link leads."""
    try:
        return _KINDS[stat.S_IFMT(os.stat(path, follow_symlinks=follow).st_mode)]
    except (FileNotFoundError, NotADirectoryError):
        return LOST_LINK if os.path.islink(path) else None


def check_regular(path: str | Path, *, follow: bool = True) -> None:
    """Raise NotAFile where something else than a regular file is at a path; nothing may be there."""
    if (kind := kind_of(path, follow=follow)) not in (None, FILE):
        raise NotAFile(str(kind), path)


def regular(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """An opener for `open`, for regular files only. With os.O_NOFOLLOW no link is one. Raises NotAFile."""
    check_regular(path, follow=not flags & os.O_NOFOLLOW)
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode)
    if stat.S_ISREG(found := os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)  # it came since
    raise NotAFile(_KINDS[stat.S_IFMT(found)], path)


def unlinked(path: str | Path, flags: int) -> int:
    """An opener for `open` that follows no link, to write regular files. Raises NotAFile."""
    return regular(path, flags | os.O_NOFOLLOW)


def read_text(path: str | Path, encoding: str = "utf-8", at_most: int = MAX_TEXT_NBYTES) -> str:
    """The text of a regular file of at most so many bytes. Raises OSError, UnicodeDecodeError."""
    with open(path, "rb", opener=regular) as file:
        fits = os.fstat(file.fileno()).st_size <= at_most  # read(n) takes n bytes of memory, whatever the file has
        content = file.read() if fits else b""
    if not fits:
        raise OSError(errno.EINVAL, f"it is larger than {at_most:,} bytes", str(path))
    return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def open_lock(path: Path, mode: int = 0o666) -> int:
    """The descriptor of a file to lock, which is made if it is missing, and keeps its contents. Raises OSError."""
    return regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)


def is_at(descriptor: int, path: str | Path) -> bool:
    """Whether an open file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path`, which takes its place if the block ends well, and is removed otherwise.

    A link is replaced, not followed. What processes that were killed have left beside it is removed; a lock on the new
    file tells them from living ones. Raises OSError, also for a folder or a device at `path`.
    """
    if (kind := kind_of(path, follow=False)) in (FOLDER, DEVICE):
        raise NotAFile(str(kind), path)
    _remove_left(path)
    temporary, descriptor = _temporary(path)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        try:
            temporary.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically. Raises OSError."""
    with replacing(path) as temporary:
        temporary.write_text(text)


def _temporary(path: Path) -> tuple[Path, int]:
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        descriptor = unlinked(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        with suppress(OSError):  # without locks, nobody takes it for left
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_at(descriptor, temporary):
            return temporary, descriptor
        os.close(descriptor)  # another process took it for left before it was locked


def _remove_left(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):  # another process was faster, or it is not ours
            descriptor = unlinked(left, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
            except BlockingIOError:
                pass  # it is being written
            except OSError as error:
                message = "%s: is being written, or was left by a process that was killed (%s)"
                logger.warning(message, left, error.strerror)
            finally:
                os.close(descriptor)
