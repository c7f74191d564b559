"""Where samples come from: the row of their source, and the file if there are several."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.columns import Column, Role
from singa_dask.data.manifest import FILES_FILE, WAY_OUT
from singa_dask.data.sources.source import spans_of
from singa_dask.errors import DataError
from singa_dask.files import read_text

MAX_FILES_NBYTES = 1 << 30


@dataclass(frozen=True)
class Origin:
    """Where the rows of one block come from. Of each of its files: the first row in the block, the number of the file,
    and what to add to a row of the block for the row of the file."""

    firsts: np.ndarray
    files: np.ndarray
    offsets: np.ndarray

    def of(self, role: Role, rows: np.ndarray) -> np.ndarray:
        """The rows in their files, or the numbers of the files, of these rows of the block."""
        places = np.searchsorted(self.firsts, rows, side="right") - 1
        return self.files[places] if role is Role.FILE else rows + self.offsets[places]


class Origins:
    """Numbers the rows of the blocks of a source, which come in order. files: see `file_names`."""

    def __init__(self, blocks: Sequence[Any]) -> None:
        spans = [span for block in blocks for span in spans_of(block)]
        numbers = dict.fromkeys(path for path, _ in spans)
        self.files = file_names([*numbers])
        # Images are counted, since each is the only row of its file.
        self._single = len(spans) > 1 and all(rows == 1 for _, rows in spans) and len(numbers) == len(spans)
        self._numbers = {path: number for number, path in enumerate(numbers)}
        self._rows = [0] * max(1, len(numbers))
        self._numbered = any(getattr(block, "numbered", False) for block in blocks)

    def next(self, block: Any, rows: int) -> Origin:
        """The origin of the next block, which has so many rows."""
        firsts, files, offsets = [], [], []
        first = 0
        for path, count in spans_of(block) or [(Path(), None)]:
            number = self._numbers.get(path, 0)
            firsts.append(first)
            files.append(number)
            known = getattr(block, "numbered", False)
            offsets.append(0 if known else (number if self._single else self._rows[number]) - first)
            count = rows - first if count is None else count
            self._rows[number] += count
            first += count
        return Origin(np.array(firsts), np.array(files, np.int32), np.array(offsets))

    def columns(self, taken: Collection[str], *, moved: bool) -> list[Column]:
        """The columns that keep the origin in shards, none if the place of a sample tells it. taken: names of other
        columns. moved: whether samples are in another order than in their source."""
        roles = ((Role.ROW, "int64"), (Role.FILE, "int32"))
        count = 2 if self.files else int(moved or self._numbered)
        return [Column(free_name(role, taken), role, dtype, ()) for role, dtype in roles[:count]]


def free_name(name: str, taken: Collection[str]) -> str:
    """This name, or the next with underscores that is not taken."""
    return name if name not in taken else free_name(f"{name}_", taken)


def write_files(folder: Path, names: Sequence[str]) -> None:
    """Write the names of the files beside the shards, if there are several."""
    if names:
        (folder / FILES_FILE).write_text(json.dumps(names, indent=0), encoding="utf-8")


def read_files(folder: Path) -> np.ndarray:
    """The names of the files that a column of numbers means. Raises DataError."""
    path = folder / FILES_FILE
    try:
        names = json.loads(read_text(path, at_most=MAX_FILES_NBYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({error}). {WAY_OUT}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: must be a list of texts. {WAY_OUT}")
    return np.array(names, object)


def file_names(files: Sequence[Path]) -> list[str]:
    """Of several files, their paths below the folder that holds all; none of a single one."""
    if len(files) < 2:
        return []
    root = os.path.commonpath([file.parent for file in files])
    return [str(file.relative_to(root)) for file in files]
