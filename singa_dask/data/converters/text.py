"""Text: one sample per character or word, in the order of the text.

A symbol is a character or a word. Its number is its position in the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from singa_dask.data.catalogue import Recipe
from singa_dask.data.ingest.collections import source_of
from singa_dask.data.manifest import Manifest
from singa_dask.data.sources.source import Source
from singa_dask.errors import DataError
from singa_dask.files import regular

UNKNOWN = "<unk>"
UNITS = ("char", "word")
WINDOW = 1 << 16  # text is read in order: large windows cost nothing
MAX_VOCABULARY = 1 << 24  # float32 represents all integers up to here


def load(
    source: Path,
    vocab: str | Path | None = None,
    unit: str = "char",
    vocab_size: int | None = None,
    validation: float = 0.0,
) -> dict[str, Source]:
    """A UTF-8 text as the numbers of its symbols: (N, 1), uint8 for up to 256 symbols, else float32.

    vocab: a file with the characters of the vocabulary in order, or a folder of text shards to take it from. By
        default the vocabulary is the sorted characters of the text.
    unit: "char", or "word" for words between white space. A vocabulary of words is sorted by frequency.
    vocab_size: for words, the size of the vocabulary. If the text has more words, the first symbol is "<unk>", which
        replaces the rare ones. By default the vocabulary has every word.
    validation: the fraction at the end of the text that becomes the split "validation"; 0 for a single split.
    Raises DataError; for a character outside the vocabulary, it names line and column.
    """
    if unit not in UNITS:
        raise DataError(f"unit: must be char or word. Received: {unit}.")
    if vocab is not None and vocab_size is not None:
        raise DataError(f"vocab_size: excludes vocab. Received: {vocab_size}. Leave one of them out.")
    if unit == "char" and vocab_size is not None:
        raise DataError(f"vocab_size: needs unit word. Received: {vocab_size}. Leave it out.")
    if vocab_size is not None and not 2 <= vocab_size <= MAX_VOCABULARY:
        raise DataError(f"vocab_size: must be from 2 to {MAX_VOCABULARY}. Received: {vocab_size}.")
    if not 0 <= validation < 1:
        raise DataError(f"validation: must be at least 0 and below 1. Received: {validation}.")
    text = read_text(source)
    given = None if vocab is None else _given(Path(vocab).expanduser().absolute(), unit)
    if unit == "word" and given is not None:
        numbers, vocabulary = _known_words(source, text.split(), given), given
    elif unit == "word":
        numbers, vocabulary = _words(text.split(), vocab_size)
    else:
        numbers, vocabulary = _characters(source, text, given)
    if not numbers.size:
        raise DataError(f"{source}: has no {unit}s.")
    if len(vocabulary) > MAX_VOCABULARY:
        raise DataError(
            f"{source}: has {len(vocabulary):,} different words, but a vocabulary holds at most {MAX_VOCABULARY:,}. "
            "Give vocab_size."
        )
    features = numbers.astype(np.uint8 if len(vocabulary) <= 256 else np.float32)[:, np.newaxis]
    ends = {"": (0, len(features))}
    if validation:
        cut = int(len(features) * (1 - validation))
        if not 0 < cut < len(features):
            raise DataError(
                f"{source}: a split of {len(features)} {unit}s would be empty. Received: validation={validation}."
            )
        ends = {"train": (0, cut), "validation": (cut, len(features))}
    return {
        name: replace(
            source_of(features[first:last], classes=vocabulary), name=str(source), ordered=True, window=WINDOW
        )
        for name, (first, last) in ends.items()
    }


def load_recipe(recipe: Recipe, raw: dict[str, Path]) -> dict[str, Source]:
    """The characters of a recipe's only source, split at `validation`. Raises DataError."""
    (source,) = raw.values()
    return load(source, validation=recipe.validation)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, with its line ends. Raises DataError."""
    try:
        with open(path, encoding="utf-8-sig", newline="", opener=regular) as file:
            return file.read()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is not UTF-8 text (byte {error.start}, 0x{error.object[error.start]:02x}). Convert it first."
        ) from error


def read_vocabulary(path: Path) -> tuple[str, ...]:
    """The characters of a file, in order, including line ends. Raises DataError for duplicates."""
    vocabulary = tuple(read_text(path))
    if not vocabulary:
        raise DataError(f"{path}: is empty, but must hold the vocabulary.")
    places: dict[str, int] = {}
    for place, symbol in enumerate(vocabulary):
        if places.setdefault(symbol, place) != place:
            raise DataError(
                f"{path}: has the character {symbol!r} twice, at {places[symbol]} and {place}. "
                "Remove one of them; line ends count."
            )
    return vocabulary


def _given(path: Path, unit: str) -> tuple[str, ...]:
    if path.is_dir():
        classes = Manifest.load(path).features.classes
        if not isinstance(classes, tuple):
            raise DataError(f"vocab: {path} is not a text: its classes have no names. Name shards of a text.")
        return classes
    if unit == "word":
        raise DataError(f"vocab: must be a folder of text shards for unit word. Received: {path}.")
    return read_vocabulary(path)


def _known_words(source: Path, words: list[str], given: tuple[str, ...]) -> np.ndarray:
    numbers = {word: number for number, word in enumerate(given)}
    strange = next((word for word in words if word not in numbers), None)
    if strange is not None and UNKNOWN not in numbers:
        raise DataError(
            f"{source}: the word {strange!r} is not in the vocabulary, which lacks {UNKNOWN}. "
            "Write the other shards with a smaller --vocab-size."
        )
    return np.array([numbers[word] if word in numbers else numbers[UNKNOWN] for word in words], dtype=np.int64)


def _characters(source: Path, text: str, given: tuple[str, ...] | None) -> tuple[np.ndarray, tuple[str, ...]]:
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    if given is None:
        found, numbers = np.unique(codes, return_inverse=True)
        return numbers, tuple(map(chr, found.tolist()))
    of_vocabulary = np.array([ord(symbol) for symbol in given], dtype=codes.dtype)
    order = np.argsort(of_vocabulary)
    numbers = order[np.searchsorted(of_vocabulary, codes, sorter=order).clip(max=order.size - 1)]
    strange = np.flatnonzero(of_vocabulary[numbers] != codes)
    if strange.size:
        place = int(strange[0])
        line = text.count("\n", 0, place) + 1
        column = place - text.rfind("\n", 0, place)
        raise DataError(
            f"{source}: the character {text[place]!r} in line {line}, column {column} (character {place} of the "
            "text, from 0) is not in the vocabulary. Add it there, or leave vocab out."
        )
    return numbers, given


def _words(words: list[str], size: int | None) -> tuple[np.ndarray, tuple[str, ...]]:
    counts = Counter(words)  # in order of first appearance, which the stable sort keeps for equal counts
    vocabulary = sorted(counts, key=lambda word: -counts[word])
    if size is not None and size < len(vocabulary):
        vocabulary = [UNKNOWN, *[word for word in vocabulary if word != UNKNOWN][: size - 1]]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    return np.array([numbers.get(word, 0) for word in words], dtype=np.int64), tuple(vocabulary)
