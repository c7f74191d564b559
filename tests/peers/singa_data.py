"""Small data in the formats that Apache SINGA's examples load, written into a folder."""

from __future__ import annotations

import gzip
import pickle
import struct
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from support.onnx_models import resnet

TRAINED, TESTED = 128, 128


def none(folder: Path) -> None:
    """The example makes its data, or has them."""


def _images(rows: int, shape: tuple[int, ...], classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images that are brighter the larger their class is."""
    draw = np.random.default_rng(rows)
    labels = np.arange(rows) % classes
    bright = labels.reshape(-1, *(1,) * len(shape)) * 20
    return (bright + draw.integers(0, 60, (rows, *shape))).astype(np.uint8), labels.astype(np.uint8)


def mnist(folder: Path) -> None:
    for name, rows in (("train", TRAINED), ("t10k", TESTED)):
        images, labels = _images(rows, (28, 28))
        with gzip.open(folder / f"{name}-images-idx3-ubyte.gz", "wb") as file:
            file.write(struct.pack(">IIII", 2051, rows, 28, 28) + images.tobytes())
        with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(struct.pack(">II", 2049, rows) + labels.tobytes())


def cifar100(folder: Path) -> None:
    home = folder / "cifar-100-python"
    home.mkdir()
    for name, rows in (("train", 8), ("test", 4)):
        images, labels = _images(rows, (3 * 32 * 32,))
        (home / name).write_bytes(pickle.dumps({"data": images, "fine_labels": labels.tolist()}))


def imdb(folder: Path) -> None:
    """Texts of 50 of the words 1 to 20; each class has half of these."""
    draw = np.random.default_rng(0)
    texts = [(draw.integers(1, 11, 50) + 10 * (i % 2), i % 2) for i in range(100)]
    rows = [(words.tolist(), label) for words, label in texts]
    made = {"train": rows[:66], "val": rows[66:], "embed_weights": draw.normal(size=(21, 300))}
    (folder / "imdb_processed.pickle").write_bytes(pickle.dumps(made))


def pairs(folder: Path) -> None:
    """Sentences of three words, and each word's character."""
    words, draw = {word: chr(0x4E00 + i) for i, word in enumerate("abcdefgh")}, np.random.default_rng(0)
    drawn = (draw.choice(list(words), 3) for _ in range(40))
    lines = (f"{' '.join(one)}\t{''.join(words[word] for word in one)}\tmade\n" for one in drawn)
    (folder / "pairs.txt").write_text("".join(lines), encoding="utf-8")


def text(folder: Path) -> None:
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 20)


def onnx(folder: Path) -> None:
    cifar100(folder)
    home = folder / "resnet18v1"
    home.mkdir()
    model = resnet((1, 1, 1, 1), width=64, size=224)
    (home / "resnet18v1.onnx").write_bytes(model.SerializeToString())
    with tarfile.open(folder / "resnet18v1.tar.gz", "w:gz") as archive:
        archive.add(home, "resnet18v1")


@contextmanager
def trange(steps: int) -> Iterator[range]:
    """In place of tqdm's."""
    yield range(steps)
