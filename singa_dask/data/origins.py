"""Where samples come from: the row of their source, and the file if there are several."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from singa_dask.data.columns import Role
from singa_dask.data.manifest import FILES_FILE, WAY_OUT
from singa_dask.errors import DataError
from singa_dask.files import read_text

MAX_FILES_NBYTES = 1 << 30


@dataclass(frozen=True)
class BlockOrigins:
    """Where the rows of one block come from. Of each of its files: the first row in the block, the number of the file,
    and what to add to a row of the block for the row of the file."""

    firsts: np.ndarray
    files: np.ndarray
    offsets: np.ndarray

    def of(self, role: Role, rows: np.ndarray) -> np.ndarray:
        """The rows in their files, or the numbers of the files, of these rows of the block; times as they are."""
        if role is Role.TIME:
            return rows
        places = np.searchsorted(self.firsts, rows, side="right") - 1
        return self.files[places] if role is Role.FILE else rows + self.offsets[places]


class Origins:
    """Numbers the rows of the blocks of a source, which come in order. files: see `file_names`.

    spans: `Block.spans` of all blocks. numbered: whether the blocks give the numbers of their rows.
    """

    def __init__(self, spans: Sequence[Sequence[tuple[Path, int | None]]], *, numbered: bool = False) -> None:
        every = [span for of in spans for span in of]
        numbers = dict.fromkeys(path for path, _ in every)
        self.files = file_names([*numbers]) if len(numbers) > 1 else []
        self.numbered = numbered
        # Images are counted, since each is the only row of its file.
        self._single = len(every) > 1 and all(rows == 1 for _, rows in every) and len(numbers) == len(every)
        self._numbers = {path: number for number, path in enumerate(numbers)}
        self._rows = [0] * max(1, len(numbers))

    def next(self, spans: Sequence[tuple[Path, int | None]], rows: int) -> BlockOrigins:
        """The origin of the next block, which has so many rows."""
        firsts, files, offsets = [], [], []
        first = 0
        for path, count in spans or [(Path(), None)]:
            number = self._numbers.get(path, 0)
            firsts.append(first)
            files.append(number)
            offsets.append(0 if self.numbered else (number if self._single else self._rows[number]) - first)
            count = rows - first if count is None else count
            self._rows[number] += count
            first += count
        return BlockOrigins(np.array(firsts), np.array(files, np.int32), np.array(offsets))


def free_name(name: str, taken: Collection[str]) -> str:
    """This name, or the next with underscores that is not taken."""
    return name if name not in taken else free_name(f"{name}_", taken)


def write_files(path: Path, names: Sequence[str]) -> None:
    """Write the names of several files beside the shards."""
    path.write_text(json.dumps(names, indent=0), encoding="utf-8")


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
