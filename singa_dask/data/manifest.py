"""The manifest of a folder of shards, which describes its contents without opening a shard.

    manifest.json     this file
    shard-00000.h5    contiguous `features` (n, ...) and, if there are labels, `labels` (n,)
    statistics.h5     `mean` and `std` of the whole sample shape

A *window* is `window` consecutive samples of one shard (the last of a shard may be shorter). Windows are the units of
hashing, of division among worker groups, and of shuffling.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.errors import DataError

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
STATISTICS_FILE = "statistics.h5"
FORMAT = "singa-dask shards"
VERSION = 1
HASH = "blake2b-128"
LABEL_DTYPE = np.dtype("<i8")
DTYPES = ("uint8", "float32")
LAYOUTS = ("HWC", "flat")
MAX_MANIFEST_NBYTES = 256 << 20
MAX_SAMPLE_NBYTES = 256 << 20
_SHARD_NAME = re.compile(r"shard-\d{5,}\.h5")
_DIGEST = re.compile(r"[0-9a-f]{32}")


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

    shape: of one stored sample: (height, width, channels) or (features,).
    classes: their names, their number, or None if unknown.
    mean, std: per channel (layout HWC) or one value (layout flat).
    notes: warnings to log when the data set is opened.
    """

    total: int
    shape: tuple[int, ...]
    dtype: str
    layout: str
    has_labels: bool
    classes: tuple[str, ...] | int | None
    window: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shards: tuple[Shard, ...]
    notes: tuple[str, ...] = ()
    folder: Path | None = field(default=None, compare=False)

    @property
    def num_classes(self) -> int | None:
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes

    @property
    def sample_nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

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
        return hashlib.blake2b(self.to_json().encode(), digest_size=16).hexdigest()

    def to_json(self) -> str:
        """The text of manifest.json, which is deterministic."""
        fields = {
            "format": FORMAT,
            "version": VERSION,
            "total": self.total,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "layout": self.layout,
            "has_labels": self.has_labels,
            "classes": list(self.classes) if isinstance(self.classes, tuple) else self.classes,
            "window": self.window,
            "hash": HASH,
            "mean": list(self.mean),
            "std": list(self.std),
            "notes": list(self.notes),
            "shards": [{"file": s.file, "samples": s.samples, "windows": list(s.windows)} for s in self.shards],
        }
        return json.dumps(fields, indent=1) + "\n"

    @classmethod
    def load(cls, folder: str | Path) -> Manifest:
        """Read and check `folder`/manifest.json.

        Raises DataError if it is missing or violates the format.
        """
        folder = Path(folder)
        path = folder / MANIFEST_FILE
        try:
            if path.stat().st_size > MAX_MANIFEST_NBYTES:
                raise DataError(f"{path}: is larger than {MAX_MANIFEST_NBYTES >> 20} MiB. {WAY_OUT}")
            fields = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(
                f"{folder}: is not a folder of shards (it has no {MANIFEST_FILE}). Write one with `singa-dask shard`."
            ) from None
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}). Check the path and its permissions."
            ) from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: is not JSON ({error}). {WAY_OUT}") from error
        return _Reader(path, fields).manifest()


WAY_OUT = "Copy the data set again, or rewrite it with `singa-dask shard`."


class _Reader:
    """Checks the fields of a manifest. Every error names the file, the field and the received value."""

    def __init__(self, path: Path, fields: Any):
        self.path = path
        if not isinstance(fields, dict):
            raise self.fault("manifest", "must be a JSON object", type(fields).__name__)
        self.fields: dict[str, Any] = fields

    def fault(self, key: str, expected: str, received: object) -> DataError:
        text = repr(received)
        return DataError(
            f"{self.path}: {key} {expected}. Received: {text if len(text) < 80 else text[:77] + '...'}. {WAY_OUT}"
        )

    def take(self, key: str, valid: Callable[[Any], bool], expected: str) -> Any:
        value = self.fields.get(key)
        if key not in self.fields or not valid(value):
            raise self.fault(key, expected, value if key in self.fields else "nothing")
        return value

    def manifest(self) -> Manifest:
        self.take("format", lambda v: v == FORMAT, f"must be {FORMAT!r}")
        self.take(
            "version",
            lambda v: _is_count(v) and v <= VERSION,
            f"must be at most {VERSION}: this data set needs a newer singa_dask",
        )
        self.take("hash", lambda v: v == HASH, f"must be {HASH!r}")
        dtype = self.take("dtype", lambda v: v in DTYPES, f"must be one of {', '.join(DTYPES)}")
        layout = self.take("layout", lambda v: v in LAYOUTS, f"must be one of {', '.join(LAYOUTS)}")
        rank = 3 if layout == "HWC" else 1
        shape = self.take(
            "shape",
            lambda v: isinstance(v, list) and len(v) == rank and all(map(_is_count, v)),
            f"must be {rank} positive whole number(s) for layout {layout}",
        )
        if math.prod(shape) * np.dtype(dtype).itemsize > MAX_SAMPLE_NBYTES:
            raise self.fault("shape", f"must describe a sample of at most {MAX_SAMPLE_NBYTES >> 20} MiB", shape)
        has_labels = self.take("has_labels", lambda v: isinstance(v, bool), "must be true or false")
        classes = self.take("classes", _is_classes, "must be a list of distinct names, a positive number or null")
        window = self.take("window", _is_count, "must be a positive whole number")
        channels = shape[-1] if layout == "HWC" else 1
        mean, std = (
            self.take(
                key,
                lambda v: isinstance(v, list) and len(v) == channels and all(map(_is_finite, v)),
                f"must be {channels} finite number(s)",
            )
            for key in ("mean", "std")
        )
        notes = self.take("notes", _is_texts, "must be a list of texts")
        shards = self.shards(window)
        total = sum(shard.samples for shard in shards)
        self.take("total", lambda v: _is_count(v) and v == total, f"must be the sum of the shards' samples, {total}")
        return Manifest(
            total,
            tuple(shape),
            dtype,
            layout,
            has_labels,
            tuple(classes) if isinstance(classes, list) else classes,
            window,
            tuple(map(float, mean)),
            tuple(map(float, std)),
            shards,
            tuple(notes),
            self.path.parent,
        )

    def shards(self, window: int) -> tuple[Shard, ...]:
        entries = self.take(
            "shards", lambda v: isinstance(v, list) and bool(v), "must be a list of at least one shard"
        )
        shards = []
        for index, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise self.fault(f"shards[{index}]", "must be a JSON object", entry)
            file: Any = entry.get("file")
            samples: Any = entry.get("samples")
            hashes: Any = entry.get("windows")
            if not isinstance(file, str) or not _SHARD_NAME.fullmatch(file):
                raise self.fault(f"shards[{index}].file", "must be named like shard-00000.h5", file)
            if not _is_count(samples):
                raise self.fault(f"shards[{index}].samples", "must be a positive whole number", samples)
            expected = -(-samples // window)
            if not _is_texts(hashes) or len(hashes) != expected or not all(map(_DIGEST.fullmatch, hashes)):
                raise self.fault(f"shards[{index}].windows", f"must be {expected} hashes of 32 hex digits", hashes)
            shards.append(Shard(file, samples, tuple(hashes)))
        if len({shard.file for shard in shards}) != len(shards):
            raise self.fault("shards", "must name each file once", [shard.file for shard in shards])
        return tuple(shards)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 62


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_classes(value: Any) -> bool:
    return value is None or _is_count(value) or (_is_texts(value) and len(value) > 0 and len(set(value)) == len(value))


@lru_cache(maxsize=64)
def warn_of_note(folder: Path, note: str) -> None:
    """Log a note about a data set once per process."""
    logger.warning("%s: %s", folder, note)
