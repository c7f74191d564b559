"""Raw files of named data sets: from the cache, from SINGA_DASK_DATA, or from the publisher."""

from __future__ import annotations

import fnmatch
import hashlib
import http.client
import logging
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import BinaryIO

from singa_dask.data.catalogue import Recipe, Source
from singa_dask.errors import DataError
from singa_dask.files import replacing
from singa_dask.job.home import home, make_folder

logger = logging.getLogger(__name__)

TIMEOUT_S = 30.0
_CHUNK_NBYTES = 1 << 20


def cache_dir() -> Path:
    """The cache folder: $SINGA_DASK_CACHE, or ~/.cache/singa_dask."""
    named = os.environ.get("SINGA_DASK_CACHE")
    return Path(named).expanduser().absolute() if named else home() / ".cache" / "singa_dask"


def raw_files(recipe: Recipe, source: str | Path | None = None) -> dict[str, Path]:
    """The raw files of a data set by name, for its converter.

    source: a folder that must hold them. By default they come from the cache, else from $SINGA_DASK_DATA/<name>, else
    are downloaded to the cache. Raises DataError.
    """
    if not recipe.sources:
        return {}
    if source is not None:
        folder = Path(source).expanduser().absolute()
        found = _in_folder(recipe, folder)
        if not found:
            wanted = ", ".join(s.file for s in recipe.sources)
            raise DataError(f"{folder}: does not hold the files of {recipe.name}. Expected: {wanted}.")
        return found
    cache = cache_dir() / "raw" / recipe.name
    found = _sources_in(recipe, cache)
    if found:
        return found
    shared = os.environ.get("SINGA_DASK_DATA")
    if shared:
        found = _in_folder(recipe, Path(shared).expanduser().absolute() / recipe.name)
        if found:
            return found
    return {source.file: download(source, cache) for source in recipe.sources}


def _in_folder(recipe: Recipe, folder: Path) -> dict[str, Path]:
    """All sources, or the alternatives that exist. A checksum other than the published one only logs a warning: the
    converter checks the structure, and a repacked file is valid."""
    found = _sources_in(recipe, folder)
    others = [s.file for s in recipe.sources if found and not checksum_fits(found[s.file], s.checksum)]
    if others:
        logger.warning(
            "%s: using files that differ from the published ones (other checksum): %s", folder, ", ".join(others)
        )
    if found or not folder.is_dir():
        return found
    for path in sorted(folder.iterdir()):
        name = path.name.removesuffix(".gz")
        if any(fnmatch.fnmatch(name, pattern) for pattern in recipe.alternatives):
            found[name] = path
    return found


def _sources_in(recipe: Recipe, folder: Path) -> dict[str, Path]:
    """The path of each source in `folder`, compressed or not; empty unless all exist."""
    found = {}
    for source in recipe.sources:
        for name in (source.file, source.file.removesuffix(".gz")):
            if (folder / name).is_file():
                found[source.file] = folder / name
                break
        else:
            return {}
    return found


def download(source: Source, folder: Path, timeout_s: float = TIMEOUT_S) -> Path:
    """Download one file to `folder` if it is missing. It appears there only complete and with the right checksum.

    timeout_s: of the connection and of every wait for more bytes. Raises DataError.
    """
    target = folder / source.file
    if target.exists():
        return target
    if not source.url.startswith(("https://", "http://")):
        raise DataError(f"{source.url}: only http and https addresses are supported. Correct the recipe.")
    try:
        make_folder(folder)
    except OSError as error:
        hint = "Name a writable folder in SINGA_DASK_CACHE."
        raise DataError(f"{folder}: cannot be written ({error.strerror}). {hint}") from error
    try:
        with replacing(target) as part:
            with part.open("wb") as file:
                _copy(source, file, timeout_s)
                file.flush()
                os.fsync(file.fileno())
            if not checksum_fits(part, source.checksum):
                raise DataError(
                    f"{source.url}: the download is damaged or not the published file ({source.checksum[0]} differs). "
                    f"Try again, or put {source.file} in {folder}."
                )
        return target
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"{source.url}: cannot be downloaded ({reason}). Put {source.file} in {folder}, or set SINGA_DASK_DATA to "
            f"a folder that holds {folder.name}/{source.file}."
        ) from error


def _copy(source: Source, file: BinaryIO, timeout_s: float) -> None:
    logger.info("downloading %s (%.1f MB)", source.url, source.size / 1e6)
    done, logged = 0, 0
    with urllib.request.urlopen(source.url, timeout=timeout_s) as response:
        while chunk := response.read(_CHUNK_NBYTES):
            done += len(chunk)
            if done > source.size:
                raise DataError(
                    f"{source.url}: is larger than the published {source.size:,} bytes. Check the address."
                )
            file.write(chunk)
            if done * 10 // source.size > logged:
                logged = done * 10 // source.size
                logger.info("%s: %d %%", source.file, logged * 10)


def checksum_fits(path: Path, checksum: tuple[str, str]) -> bool:
    """Whether the file has this (algorithm, hex digest)."""
    algorithm, expected = checksum
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest() == expected
