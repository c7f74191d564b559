"""CSV: one sample per line, one value per column, one column for the label."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from singa_dask.data.converters.split import Split
from singa_dask.errors import DataError, nearest


def load(
    source: Path, label: str | int | None = None, header: bool | None = None, separator: str = ","
) -> dict[str, Split]:
    """A CSV file as one split of (N, D) float32 features.

    label: the name or index (from 0; -1 is the last) of the label column, "none" for no labels. By default the column
        named "label", "class" or "target", else the first one, as in SINGA. Labels that are not whole numbers are
        class names, numbered in sorted order.
    header: whether the first line names the columns. By default it does if one of its cells is text where the cell
        below is not.
    Raises DataError that names the line and the column.
    """
    rows = _rows(source, separator)
    names = _names(rows, header)
    if names is not None:
        rows = rows[1:]
    if not rows:
        raise DataError(f"{source}: has no samples.")
    column = _label_column(source, label, names, len(rows[0][1]))
    labels, classes = (None, None) if column is None else _labels([cells[column].strip() for _, cells in rows])
    kept = [i for i in range(len(rows[0][1])) if i != column]
    if not kept:
        raise DataError(f"{source}: has no column besides the label. Check the separator, {separator!r}.")
    features = np.empty((len(rows), len(kept)), dtype=np.float32)
    for row, (line, cells) in enumerate(rows):
        try:
            features[row] = [cells[i] for i in kept]
        except ValueError:
            raise _not_a_number(source, line, cells, kept, names) from None
    return {"": Split(features, labels, classes)}


def _rows(source: Path, separator: str) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not empty. All lines have the same length."""
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=separator)
            rows = [(reader.line_num, cells) for cells in reader if cells]
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror}). Check the path.") from error
    except (csv.Error, TypeError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: is not a UTF-8 CSV file with the separator {separator!r} ({error}).") from error
    if not rows:
        raise DataError(f"{source}: is empty.")
    width = len(rows[0][1])
    for line, cells in rows:
        if len(cells) != width:
            raise DataError(f"{source}: line {line} has {len(cells)} columns, but the first line has {width}.")
    return rows


def _names(rows: list[tuple[int, list[str]]], header: bool | None) -> list[str] | None:
    first = [cell.strip() for cell in rows[0][1]]
    if header is None:
        below = rows[1][1] if len(rows) > 1 else []
        header = any(not _is_number(a) and _is_number(b) for a, b in zip(first, below, strict=False))
    return first if header else None


def _label_column(source: Path, label: str | int | None, names: list[str] | None, width: int) -> int | None:
    if label is None:
        usual = [i for i, name in enumerate(names or []) if name.lower() in ("label", "class", "target")]
        return usual[0] if usual else 0
    if label == "none":
        return None
    if names is not None and label in names:
        return names.index(str(label))
    try:
        column = int(label)
    except ValueError:
        hint = nearest(str(label), names) if names else "The file has no header line: give the column's index."
        raise DataError(f"{source}: has no column named {label!r}. {hint}") from None
    if not -width <= column < width:
        raise DataError(f"{source}: has the columns 0 to {width - 1}. Received: label={column}.")
    return column % width


def _labels(cells: list[str]) -> tuple[np.ndarray, list[str] | int]:
    """Labels (N,) and the classes: whole numbers from 0 stay, anything else is a name."""
    if all(cell.isascii() and cell.isdigit() for cell in cells):
        labels = np.array(cells, dtype=np.int64)
        return labels, int(labels.max()) + 1
    names, labels = np.unique(cells, return_inverse=True)
    return labels, names.tolist()


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _not_a_number(source: Path, line: int, cells: list[str], kept: list[int], names: list[str] | None) -> DataError:
    column = next(i for i in kept if not _is_number(cells[i]))
    where = repr(names[column]) if names else str(column)
    return DataError(
        f"{source}: line {line}, column {where}: {cells[column]!r} is not a number. "
        "Remove the column, or give it with --label if it is the label."
    )
