"""CIFAR-10, binary version: records of 1 label byte and 3,072 pixel bytes, planes red, green, blue."""

from __future__ import annotations

import io
import logging
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from singa_dask.data.catalogue import Recipe
from singa_dask.data.converters.raw import open_raw
from singa_dask.data.ingest.collections import images_of
from singa_dask.data.sources.source import Source
from singa_dask.errors import DataError
from singa_dask.files import check_regular

logger = logging.getLogger(__name__)

TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILE = "test_batch.bin"
_RECORD_NBYTES = 1 + 3 * 32 * 32
_MAX_RECORDS = 100_000


def load(recipe: Recipe, raw: dict[str, Path]) -> dict[str, Source]:
    """50,000 training and 10,000 test images (N, 32, 32, 3).

    If the test batch is missing, the last training batch becomes the test split, and a note says so. Raises DataError.
    """
    archive = raw.get("cifar-10-binary.tar.gz")
    batches = dict(_from_archive(archive) if archive else ((name, _from_file(path)) for name, path in raw.items()))
    train = [name for name in TRAIN_FILES if name in batches]
    notes: tuple[str, ...] = ()
    if TEST_FILE in batches and len(train) == len(TRAIN_FILES):
        test = TEST_FILE
    elif TEST_FILE in batches and train:
        test = TEST_FILE
        notes = (f"only {len(train)} of the {len(TRAIN_FILES)} training batches were found: {', '.join(train)}",)
    elif len(train) > 1:
        test = train.pop()
        notes = (
            f"{TEST_FILE} was not found: {test} is used as the test split instead of for training; "
            f"{', '.join(train)} are the training split. Results do not compare with published ones",
        )
    else:
        found = ", ".join(batches) or "nothing"
        raise DataError(f"cifar10: needs at least two batches. Found: {found}.")
    for note in notes:
        logger.warning("%s.", note)
    images, labels = zip(*(batches[name] for name in train), strict=True)
    return {
        "train": images_of(np.concatenate(images), np.concatenate(labels), recipe.classes, notes),
        "test": images_of(*batches[test], recipe.classes, notes),
    }


def _from_archive(path: Path) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """The batches in the published archive, read without unpacking it to the disk."""
    try:
        check_regular(path)
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if not member.isfile() or name not in (*TRAIN_FILES, TEST_FILE):
                    continue
                if member.size > _MAX_RECORDS * _RECORD_NBYTES:
                    raise DataError(f"{path}: {member.name} is too large. Download the file again.")
                content = archive.extractfile(member)
                if content is not None:
                    yield name, _decode(content.read(), f"{path}: {member.name}")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}). Download the file again.") from error


def _from_file(path: Path) -> tuple[np.ndarray, np.ndarray]:
    buffer = io.BytesIO()
    with open_raw(path) as file:
        while record := file.read(1 << 20):
            buffer.write(record)
            if buffer.tell() > _MAX_RECORDS * _RECORD_NBYTES:
                raise DataError(f"{path}: is larger than {_MAX_RECORDS} images. Download the file again.")
    return _decode(buffer.getvalue(), str(path))


def _decode(data: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 32, 32, 3) and labels (N,) of one batch."""
    if not data or len(data) % _RECORD_NBYTES:
        raise DataError(
            f"{where}: {len(data):,} bytes are not whole records of {_RECORD_NBYTES}. Download the file again."
        )
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, _RECORD_NBYTES)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    if records[:, 0].max() > 9:
        raise DataError(f"{where}: has labels above 9. Is it the binary version of CIFAR-10? Download the file again.")
    return np.ascontiguousarray(images), records[:, 0].astype(np.int64)
