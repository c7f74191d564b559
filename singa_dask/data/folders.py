"""Folders that appear whole or not at all."""

from __future__ import annotations

import glob
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from singa_dask.data.manifest import FILES_FILE, MANIFEST_FILE, STATISTICS_FILE
from singa_dask.errors import DataError, disk_full, no_room
from singa_dask.temporary import FolderInUse, in_use, remove_abandoned

logger = logging.getLogger(__name__)


@contextmanager
def replace_folder(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder next to `out` that is renamed to `out` when the block ends, and removed if it fails.

    Raises DataError if `out` exists, unless it is a folder of shards and overwrite is True.
    """
    remove_leftovers(out)
    check_free(out, overwrite)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.part-", dir=out.parent))
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror}). Choose another folder.") from error
    try:
        with in_use(temporary):
            yield temporary
        temporary.chmod(0o755)
        sync(temporary)
        check_free(out, overwrite)
        put_folder(temporary, out)
        sync(out.parent)
    except OSError as error:
        said = disk_full(out, error) if no_room(error) else f"{out}: could not be written ({error})."
        raise DataError(said) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put_folder(folder: Path, out: Path) -> None:
    """Rename a finished folder beside or below `out`, whose place it takes. Raises DataError."""
    try:
        if not out.exists():
            folder.rename(out)
            return
        old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old-", dir=out.parent))
        with in_use(old):
            out.rename(old / out.name)
            folder.rename(out)
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise DataError(f"{out}: could not be written ({error}).") from error


def remove_leftovers(out: Path, more: Iterable[Path] = ()) -> None:
    """Remove what killed processes that wrote `out` have left beside it, and `more` of it, and say so. Old shards that
    they had moved aside are put back."""
    name = glob.escape(out.name)
    for old in out.parent.glob(f".{name}.old-*/{name}"):
        with suppress(FolderInUse, OSError), in_use(old.parent):
            if not out.exists():
                old.rename(out)
    left = [*out.parent.glob(f".{name}.part-*"), *out.parent.glob(f".{name}.old-*"), *more]
    stay = remove_abandoned(left)
    for path in left:
        if path in stay:
            logger.warning("%s: another attempt is writing it, or has left it. Remove it if none runs.", path)
        else:
            logger.warning("%s: left by an attempt that was interrupted. It is removed.", path)


def check_free(out: Path, overwrite: bool) -> None:
    """Raises DataError if `out` exists, unless it is empty, or a folder of shards and overwrite is True."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    ours = out.is_dir() and (_is_data_set(out) or all(map(_is_data_set, out.iterdir())))
    if not overwrite:
        raise DataError(f"{out}: exists already. Choose another folder, remove it, or set overwrite.")
    if not ours:
        raise DataError(f"{out}: is not a folder of shards and is not overwritten. Choose another folder.")


def _is_data_set(folder: Path) -> bool:
    """Whether a folder has a manifest, and nothing but shards beside it."""
    if not (folder / MANIFEST_FILE).is_file():
        return False
    known = (MANIFEST_FILE, STATISTICS_FILE, FILES_FILE)
    return all(entry.name in known or entry.match("shard-*.h5") for entry in folder.iterdir())


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
