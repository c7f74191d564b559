"""Resolves a path in a job to a folder of shards."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from singa_dask.data.catalogue import Recipe, load_recipe, recipe_names
from singa_dask.data.fetch import cache_dir
from singa_dask.data.manifest import MANIFEST_FILE
from singa_dask.data.schema import VERSION
from singa_dask.data.sharding import shard_recipe
from singa_dask.errors import DataError, nearest
from singa_dask.files import kind_of
from singa_dask.job.home import make_folder

logger = logging.getLogger(__name__)

SCHEME = "dataset:"
LOCK_TIMEOUT_S = 25.0


def resolve(path: str) -> Path:
    """The absolute folder of shards of a job's `path`.

    "dataset:NAME/SPLIT" is a named data set in the cache, which is created if it is missing. Anything else is a folder
    with a manifest. Raises DataError.
    """
    if path.startswith(SCHEME):
        return _named(path)
    folder = Path(path).expanduser().absolute()
    if kind_of(folder / MANIFEST_FILE):
        return folder
    raise DataError(f"{folder}: is not a folder of shards (it has no {MANIFEST_FILE}). {_hint(folder, path)}")


def _hint(folder: Path, path: str) -> str:
    inside = sorted(entry.parent.name for entry in folder.glob(f"*/{MANIFEST_FILE}"))
    if inside:
        return f"Name one of its subfolders: {', '.join(inside)}."
    for name in recipe_names():
        if name in path.lower().split("/"):
            return f"Did you mean {SCHEME}{name}/{load_recipe(name).splits[0]}?"
    return f"Write one with `singa-dask shard`, or name a data set: {SCHEME}digits/train."


def _named(path: str) -> Path:
    name, _, split = path.removeprefix(SCHEME).strip("/").partition("/")
    recipe = load_recipe(name)
    if split not in recipe.splits:
        hint = nearest(split, recipe.splits) if split else f"Name one: {SCHEME}{name}/{recipe.splits[0]}."
        raise DataError(f"{path}: {name} has the splits {', '.join(recipe.splits)}. {hint}")
    folder = cache_dir() / "shards" / f"v{VERSION}" / name
    if not _is_complete(folder, recipe):
        _make(recipe, folder)
    return folder / split


def _is_complete(folder: Path, recipe: Recipe) -> bool:
    return all((folder / split / MANIFEST_FILE).is_file() for split in recipe.splits)


def _make(recipe: Recipe, folder: Path) -> None:
    """Write the shards of a named data set, one process at a time if the file system supports locks."""
    try:
        make_folder(folder.parent)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error.strerror}). Name a writable folder in SINGA_DASK_CACHE."
        ) from error
    with _lock(folder.with_name(f"{folder.name}.lock")):
        if _is_complete(folder, recipe):
            return
        logger.info("writing the shards of %s to %s", recipe.name, folder)
        try:
            shard_recipe(recipe, folder, recipe.nshards)
        except DataError:
            # Without the lock, another process may have finished first.
            if not _is_complete(folder, recipe):
                raise


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a file lock. Continue without it after 25 s, or if files cannot be locked.

    Two processes may then do the same work, but the final rename succeeds for one only.
    """
    lock = FileLock(path, timeout=LOCK_TIMEOUT_S, is_singleton=False)
    try:
        lock.acquire()
    except (Timeout, NotImplementedError, OSError) as error:
        logger.warning("%s: cannot be locked (%s); continuing without the lock", path, error)
    try:
        yield
    finally:
        lock.release()
