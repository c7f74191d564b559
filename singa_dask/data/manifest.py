"""The manifest of a folder of shards, which describes its contents without opening a shard.

    manifest.json     this file
    shard-00000.h5    for each column a contiguous dataset (n, ...)
    files.json        the names of the files of the source, if there are several
    statistics.h5     `mean` and `std` of the first column of features, each of the whole sample shape

A *window* is `window` consecutive samples of one shard (the last of a shard may be shorter). Windows are the units of
hashing, of division among worker groups, and of shuffling.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from singa_dask.data.columns import IDENTITY, Column, Role
from singa_dask.data.encoders import Encoders
from singa_dask.data.schema import VERSION, Schema
from singa_dask.errors import DataError, nearest, way_out
from singa_dask.files import read_text
from singa_dask.temporary import NOT_KEPT

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
STATISTICS_FILE = "statistics.h5"
FILES_FILE = "files.json"
FORMAT = "singa-dask shards"
HASH = "blake2b-128"
MAX_MANIFEST_NBYTES = 256 << 20
# In a note of samples that share values.
OVERLAP = "the patches overlap"
WAY_OUT = "Copy the data set again, or rewrite it with `singa-dask shard`."


@dataclass(frozen=True)
class Shard:
    """One file: its name, its number of samples, and the hash of each window."""

    file: str
    samples: int
    windows: tuple[str, ...]


@dataclass(frozen=True)
class ShardWindow:
    """Samples [start, start + samples) of the data set, in `shard` from sample `position` on."""

    shard: int
    position: int
    start: int
    samples: int


@dataclass(frozen=True)
class Manifest:
    """The contents of a folder of shards. Immutable; equality ignores `folder`.

    order: how the samples were ordered when they were written; folders with the same order and number of samples hold
    the same samples in the same places, if they were written from the same samples. in_place: whether the shards are
    files of the user's, outside of the folder. notes: warnings to log when the data set is opened. given: the file of
    which the shards were made for a moment.
    """

    total: int
    schema: Schema
    window: int
    shards: tuple[Shard, ...]
    order: str = ""
    in_place: bool = False
    notes: tuple[str, ...] = ()
    folder: Path | None = field(default=None, compare=False)
    given: str = field(default="", compare=False)

    @property
    def where(self) -> str:
        """What messages call the data: what the user gave if the folder is not kept."""
        kept = self.folder is None or not any(part.startswith(NOT_KEPT) for part in self.folder.parts)
        return self.given or (str(self.folder) if kept else "the given data")

    @property
    def columns(self) -> tuple[Column, ...]:
        """What the shards hold of each sample."""
        return self.schema.columns

    @property
    def encoders(self) -> Encoders:
        """How the columns of a table became features."""
        return self.schema.encoders

    @property
    def shuffled(self) -> bool:
        """Whether the samples were written in random order."""
        return self.order.startswith("shuffled")

    @property
    def overlaps(self) -> bool:
        """Whether samples share values, as patches do that overlap."""
        return any(OVERLAP in note for note in self.notes)

    @property
    def features(self) -> Column:
        """The first column of features."""
        return next(column for column in self.columns if column.role is Role.FEATURE)

    @property
    def targets(self) -> Column | None:
        """The first column of labels or targets."""
        return next((column for column in self.columns if column.role in (Role.LABEL, Role.TARGET)), None)

    def column(self, name: str) -> Column:
        """The column of this name. Raises DataError."""
        for column in self.columns:
            if column.name == name:
                return column
        names = [column.name for column in self.columns]
        raise DataError(f"{self.folder}: has no column {name!r}. It has: {', '.join(names)}. {nearest(name, names)}")

    def path_in(self, file: str) -> Path:
        """A file of the folder, such as that of a shard."""
        if self.folder is None:
            raise DataError("the manifest was not read from a folder. Use Manifest.load.")
        return self.folder / file

    @property
    def sample_nbytes(self) -> int:
        """Bytes of one sample, all columns."""
        return sum(column.nbytes for column in self.columns)

    @property
    def description(self) -> str:
        """The schema as JSON, which checkpoints keep: of the columns that a net reads."""
        read = tuple(column for column in self.columns if column.role not in IDENTITY)
        return replace(self.schema, columns=read).to_json()

    @cached_property
    def shard_starts(self) -> np.ndarray:
        """The first sample number of each shard, and the total: (number of shards + 1,)."""
        return np.cumsum([0, *(shard.samples for shard in self.shards)], dtype=np.int64)

    @cached_property
    def windows(self) -> tuple[ShardWindow, ...]:
        """All windows in the order of the files."""
        found = []
        for index, shard in enumerate(self.shards):
            start = int(self.shard_starts[index])
            for position in range(0, shard.samples, self.window):
                found.append(
                    ShardWindow(index, position, start + position, min(self.window, shard.samples - position))
                )
        return tuple(found)

    @cached_property
    def digest(self) -> str:
        """A hash of the manifest, and so of all data. Equal for every copy of the data set."""
        return hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()

    @property
    def text(self) -> str:
        """The text of manifest.json, which is deterministic."""
        fields = {
            "format": FORMAT,
            "version": VERSION,
            "total": self.total,
            **self.schema.fields,
            "window": self.window,
            "hash": HASH,
            "order": self.order,
            "in_place": self.in_place,
            "notes": list(self.notes),
            "shards": [{"file": s.file, "samples": s.samples, "windows": list(s.windows)} for s in self.shards],
        }
        return json.dumps(fields, indent=1) + "\n"

    def write(self, folder: Path, *, durable: bool) -> None:
        """Write manifest.json into a folder. durable: flush it to the disk."""
        with open(folder / MANIFEST_FILE, "w", encoding="utf-8") as file:
            file.write(self.text)
            file.flush()
            if durable:
                os.fsync(file.fileno())

    @classmethod
    def load(cls, folder: str | Path) -> Manifest:
        """Read and check `folder`/manifest.json.

        Raises DataError if it is missing or violates the format.
        """
        from singa_dask.data.manifest_reader import read_manifest

        folder = Path(folder)
        path = folder / MANIFEST_FILE
        try:
            fields = json.loads(read_text(path, at_most=MAX_MANIFEST_NBYTES))
        except FileNotFoundError:
            raise DataError(
                f"{folder}: is not a folder of shards (it has no {MANIFEST_FILE}). Write one with `singa-dask shard`."
            ) from None
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}). {way_out(error, 'Check the path and its permissions.')}"
            ) from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: is not JSON ({error}). {WAY_OUT}") from error
        return read_manifest(path, fields)


@lru_cache(maxsize=64)
def warn_of_note(folder: Path, note: str) -> None:
    """Log a note about a data set once per process."""
    logger.warning("%s: %s", folder, note)
