"""Raw files of named data sets: from the cache, from SINGA_DASK_DATA, or from the publisher."""

from __future__ import annotations

import fnmatch
import hashlib
import logging
import os
from pathlib import Path

from singa_dask.data.catalogue import PublishedFile, Recipe
from singa_dask.errors import DataError
from singa_dask.job.home import home, make_folder

logger = logging.getLogger(__name__)

TIMEOUT_S = 30.0
_CHUNK_NBYTES = 1 << 16


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


def download(source: PublishedFile, folder: Path, timeout_s: float = TIMEOUT_S) -> Path:
    """Download one file to `folder` if it is missing. It appears there only complete and with the right checksum.

    timeout_s: of the connection and of every wait for more bytes. Raises DataError.
    """
    import pooch
    from requests import RequestException

    target, (algorithm, digest) = folder / source.file, source.checksum
    if target.exists():
        return target
    if not source.url.startswith(("https://", "http://")):
        raise DataError(f"{source.url}: only http and https addresses are supported. Correct the recipe.")
    try:
        make_folder(folder)
    except OSError as error:
        hint = "Name a writable folder in SINGA_DASK_CACHE."
        raise DataError(f"{folder}: cannot be written ({error.strerror}). {hint}") from error
    logger.info("downloading %s (%.1f MB)", source.url, source.size / 1e6)
    get = pooch.HTTPDownloader(timeout=timeout_s, progressbar=_Progress(source), chunk_size=_CHUNK_NBYTES)
    pooch.get_logger().setLevel(logging.WARNING)
    try:
        return Path(pooch.retrieve(source.url, f"{algorithm}:{digest}", source.file, folder, downloader=get))
    except ValueError as error:  # of the checksum
        raise DataError(
            f"{source.url}: the download is damaged or not the published file ({algorithm} differs). "
            f"Try again, or put {source.file} in {folder}."
        ) from error
    except (RequestException, OSError) as error:
        raise DataError(
            f"{source.url}: cannot be downloaded ({error}). Put {source.file} in {folder}, or set SINGA_DASK_DATA to "
            f"a folder that holds {folder.name}/{source.file}."
        ) from error


class _Progress:
    """Logs every tenth of a download. Raises DataError where it is larger than published."""

    def __init__(self, source: PublishedFile) -> None:
        self.total, self._source, self._done, self._logged = source.size, source, 0, 0

    def update(self, nbytes: int) -> None:
        """The last part counts as a whole one."""
        size = self._source.size
        if self._done >= size:
            raise DataError(f"{self._source.url}: is larger than the published {size:,} bytes. Check the address.")
        self._done += nbytes
        if (tenths := min(10, self._done * 10 // size)) > self._logged:
            self._logged = tenths
            logger.info("%s: %d %%", self._source.file, tenths * 10)

    def reset(self) -> None:
        """Pooch fills it once more at the end."""
        self._done = 0

    def close(self) -> None:
        """It has nothing to close."""


def checksum_fits(path: Path, checksum: tuple[str, str]) -> bool:
    """Whether the file has this (algorithm, hex digest)."""
    algorithm, expected = checksum
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest() == expected
