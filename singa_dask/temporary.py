"""Temporary folders. If the process that uses one is killed, the next process removes it.

Whoever uses a folder holds a lock on it, which ends with the process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from singa_dask.errors import DataError

_PRIVATE = "singa-dask-"
NOT_KEPT = ".singa_dask-"  # how the folders begin in which estimators without a workspace train


class FolderInUse(DataError):
    """Another process uses a folder."""


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Inside, nobody takes the folder for an abandoned one. Raises FolderInUse if another process uses it."""
    descriptor = _held(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _held(folder: Path) -> int:
    """A descriptor that holds the lock on a folder. Raises FileNotFoundError if the folder was removed meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise FolderInUse(f"{folder}: another process is writing it. Wait for it to end.") from error
    except OSError:  # the file system has no locks: nobody removes the folder
        pass
    if not (folder.exists() and os.path.samestat(folder.stat(), os.fstat(descriptor))):
        os.close(descriptor)
        raise FileNotFoundError(f"{folder} was removed")
    return descriptor


def remove_abandoned(folders: Iterable[Path]) -> list[Path]:
    """Remove those of the folders that no process uses. Returns those that stay: they are in use, another user's, no
    folders, or on a file system that has no locks."""
    return [folder for folder in folders if not _removed(folder)]


def _removed(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new temporary folder that only this user can enter, removed at the end. Removes those of killed processes."""
    remove_abandoned(Path(tempfile.gettempdir()).glob(f"{_PRIVATE}*"))
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PRIVATE))
        try:
            descriptor = _held(folder)
            break
        except (FileNotFoundError, FolderInUse):  # another process took it for abandoned
            continue
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def is_private(folder: str | Path) -> bool:
    """Whether `private_folder` has made this folder."""
    return Path(folder).name.startswith(_PRIVATE)
