"""Text: one sample per character or word, in the order of the text.

A symbol is a character or a word; its number is its place in the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from singa_dask.data.catalogue import Recipe
from singa_dask.data.converters.split import Split
from singa_dask.data.manifest import Manifest
from singa_dask.errors import DataError

UNKNOWN = "<unk>"
UNITS = ("char", "word")
WINDOW = 1 << 16  # text is read in its order: large windows cost nothing
MAX_VOCABULARY = 1 << 24  # float32 holds every whole number below it


def load(
    source: Path,
    vocab: str | Path | None = None,
    unit: str = "char",
    vocab_size: int | None = None,
    validation: float = 0.0,
) -> dict[str, Split]:
    """A UTF-8 text as the numbers of its symbols, (N, 1), uint8 where the vocabulary has at most 256, else float32.

    vocab: a file whose characters, in order, are the vocabulary, or a folder of text shards, to have theirs; left out,
        it is the sorted characters of the text.
    unit: "char", or "word" for what stands between white space; a vocabulary of words begins with the most frequent.
    vocab_size: for words, the size of the vocabulary; where there are more, its first word is "<unk>", which stands
        for the rare ones. Left out, every word is in it.
    validation: the share of the text, its end, that becomes the split "validation"; with 0 there is one split.
    Raises DataError; one for a character that is not in the vocabulary names its line and column.
    """
    if unit not in UNITS:
        raise DataError(f"unit: must be char or word. Received: {unit}.")
    if vocab is not None and vocab_size is not None:
        raise DataError(f"vocab_size: vocab gives the vocabulary already. Received: {vocab_size}. Leave one out.")
    if unit == "char" and vocab_size is not None:
        raise DataError(f"vocab_size: goes with unit word only. Received: {vocab_size}. Leave it out.")
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
            f"{source}: has {len(vocabulary):,} different words, of which {MAX_VOCABULARY:,} can be told apart. "
            "Give vocab_size."
        )
    features = numbers.astype(np.uint8 if len(vocabulary) <= 256 else np.float32)[:, np.newaxis]
    ends = {"": (0, len(features))}
    if validation:
        cut = int(len(features) * (1 - validation))
        if not 0 < cut < len(features):
            raise DataError(
                f"{source}: {len(features)} {unit}s leave one of the splits empty. Received: validation={validation}."
            )
        ends = {"train": (0, cut), "validation": (cut, len(features))}
    return {
        name: Split(features[first:last], None, vocabulary, window=WINDOW, ordered=True)
        for name, (first, last) in ends.items()
    }


def load_recipe(recipe: Recipe, raw: dict[str, Path]) -> dict[str, Split]:
    """The characters of a recipe's only source; its last `validation` of them are a split. Raises DataError."""
    (source,) = raw.values()
    return load(source, validation=recipe.validation)


def read_text(path: Path) -> str:
    """A UTF-8 file as it is, line ends included. Raises DataError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is no text in UTF-8 (byte {error.start}, 0x{error.object[error.start]:02x}). Convert it first."
        ) from error


def read_vocabulary(path: Path) -> tuple[str, ...]:
    """The characters of a file, in order, line ends included. Raises DataError where one of them comes twice."""
    vocabulary = tuple(read_text(path))
    if not vocabulary:
        raise DataError(f"{path}: is empty, but its characters are the vocabulary.")
    places: dict[str, int] = {}
    for place, symbol in enumerate(vocabulary):
        if places.setdefault(symbol, place) != place:
            raise DataError(
                f"{path}: every character must be there once, but {symbol!r} stands at {places[symbol]} and {place}. "
                "Remove one of them; line ends count."
            )
    return vocabulary


def _given(path: Path, unit: str) -> tuple[str, ...]:
    if path.is_dir():
        classes = Manifest.load(path).classes
        if not isinstance(classes, tuple):
            raise DataError(f"vocab: {path} holds no text, whose symbols have names. Name shards of a text.")
        return classes
    if unit == "word":
        raise DataError(f"vocab: for words it is a folder of text shards, whose words count. Received: {path}.")
    return read_vocabulary(path)


def _known_words(source: Path, words: list[str], given: tuple[str, ...]) -> np.ndarray:
    numbers = {word: number for number, word in enumerate(given)}
    strange = next((word for word in words if word not in numbers), None)
    if strange is not None and UNKNOWN not in numbers:
        raise DataError(
            f"{source}: the word {strange!r} is not in the vocabulary, which has no {UNKNOWN}. "
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
            "text, from 0) is not in the vocabulary. Add it there, or let the text give the vocabulary."
        )
    return numbers, given


def _words(words: list[str], size: int | None) -> tuple[np.ndarray, tuple[str, ...]]:
    counts = Counter(words)  # in the order of their first appearance, which the sort keeps among equals
    vocabulary = sorted(counts, key=lambda word: -counts[word])
    if size is not None and size < len(vocabulary):
        vocabulary = [UNKNOWN, *[word for word in vocabulary if word != UNKNOWN][: size - 1]]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    return np.array([numbers.get(word, 0) for word in words], dtype=np.int64), tuple(vocabulary)
