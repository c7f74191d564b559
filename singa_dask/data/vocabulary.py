"""Vocabularies: the symbols of a text, by number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from singa_dask.data.converters.text import read_vocabulary
from singa_dask.data.manifest import Manifest
from singa_dask.data.resolve import SCHEME, resolve
from singa_dask.errors import DataError


def vocabulary(path: str | Path) -> tuple[str, ...]:
    """The symbols of a text in the order of their numbers.

    path: a folder of text shards, "dataset:NAME/SPLIT", or a file whose characters, in order, are the vocabulary.
    Raises DataError.
    """
    file = Path(path).expanduser().absolute()
    if not str(path).startswith(SCHEME) and not file.is_dir():
        return read_vocabulary(file)
    folder = resolve(str(path))
    manifest = Manifest.load(folder)
    symbols = manifest.features
    if symbols.values != 1 or manifest.targets is not None or not isinstance(symbols.classes, tuple):
        raise DataError(
            f"{folder}: is not a text: a text has unlabelled samples of one value and named classes. "
            "Write it with `singa-dask shard text`."
        )
    return symbols.classes


def first_difference(here: Sequence[str], there: Sequence[str]) -> str | None:
    """The first difference of two vocabularies in words; None if they are equal."""
    for number, (a, b) in enumerate(zip_longest(here, there)):
        if a != b:
            a, b = ("missing" if symbol is None else repr(symbol) for symbol in (a, b))
            return f"symbol {number} is {a} here and {b} there"
    return None
