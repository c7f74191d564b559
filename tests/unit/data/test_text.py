"""Text: symbols, vocabularies, splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.blocks import stored
from support.shards import write_shards
from support.sources import read_all

from singa_dask.data import Manifest, first_difference, shard_files, vocabulary
from singa_dask.data.converters import text
from singa_dask.errors import ConfigError, DataError


def written(folder: Path, content: str | bytes, name: str = "input.txt") -> Path:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


def numbers(manifest: Manifest) -> np.ndarray:
    return stored(manifest)["x"][:, 0]


def spelled(manifest: Manifest) -> str:
    """The text that the shards hold."""
    return "".join(manifest.features.classes[int(number)] for number in numbers(manifest))


@pytest.mark.parametrize(
    ("content", "dtype"),
    [("the cat\r\nsat ä€𝄞\n" * 3, "uint8"), ("".join(chr(0x4E00 + i) for i in range(300)) * 2, "float32")],
)
def test_characters_keep_their_order_and_are_numbered_in_sorted_order(tmp_path, content, dtype):
    manifest = shard_files("text", tmp_path / "out", 4, source=written(tmp_path, content))[""]
    assert manifest.features.classes == tuple(sorted(set(content)))
    assert spelled(manifest) == content
    assert (manifest.features.shape, manifest.features.dtype, manifest.targets) == ((1,), dtype, None)
    assert (manifest.total, manifest.window) == (len(content), text.WINDOW)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\ufeff"), min_size=1))
def test_any_text_comes_back(tmp_path_factory, content):
    source = written(tmp_path_factory.mktemp("text"), content)
    split = text.load(source)[""]
    assert "".join(split.classes["x"][int(number)] for number in read_all(split)["x"][:, 0]) == content


def test_a_given_vocabulary_counts_in_its_order(tmp_path):
    vocabulary = written(tmp_path, "\nzab", "vocab.txt")
    manifest = shard_files("text", tmp_path / "out", source=written(tmp_path, "ab\nba"), vocab=vocabulary)[""]
    assert manifest.features.classes == ("\n", "z", "a", "b")
    assert numbers(manifest).tolist() == [2, 3, 0, 3, 2]


SENTENCE = "the cat\nand the  Dog and a cat and"


@pytest.mark.parametrize(
    ("content", "options", "classes", "numbers"),
    [
        ("\ufeffab", {}, ("a", "b"), [0, 1]),  # a byte order mark is no symbol
        # by frequency, then by first appearance
        (SENTENCE, {"unit": "word"}, ("and", "the", "cat", "Dog", "a"), [1, 2, 0, 1, 3, 0, 4, 2, 0]),
        (SENTENCE, {"unit": "word", "vocab_size": 3}, ("<unk>", "and", "the"), [2, 0, 1, 2, 0, 1, 0, 0, 1]),
        (SENTENCE, {"unit": "word", "vocab_size": 5}, ("and", "the", "cat", "Dog", "a"), [1, 2, 0, 1, 3, 0, 4, 2, 0]),
        ("<unk> <unk> a a b", {"unit": "word", "vocab_size": 2}, ("<unk>", "a"), [0, 0, 1, 1, 0]),
    ],
)
def test_symbols_are_numbered(tmp_path, content, options, classes, numbers):
    split = text.load(written(tmp_path, content), **options)[""]
    assert (split.classes["x"], read_all(split)["x"][:, 0].tolist()) == (classes, numbers)


def test_the_end_of_the_text_is_for_validation(tmp_path):
    content = "abcdefghij" * 10
    made = shard_files("text", tmp_path / "out", source=written(tmp_path, content), validation=0.25)
    assert [spelled(made[split]) for split in ("train", "validation")] == [content[:75], content[75:]]
    assert made["train"].features.classes == made["validation"].features.classes


@pytest.mark.parametrize(
    ("content", "options", "fault"),
    [
        ("a\nbx", {"vocab": "v"}, r"'x' in line 2, column 2 \(character 3 of the text, from 0\) is not in the voc"),
        ("ab", {"vocab": "twice"}, r"twice: has the character 'a' twice, at 0 and 2"),
        ("ab", {"vocab": "empty"}, "empty: is empty"),
        ("ab", {"vocab": "nowhere"}, "nowhere: cannot be read"),
        ("a b", {"vocab": "v", "unit": "word"}, "vocab: must be a folder of text shards"),
        ("a b", {"unit": "line"}, "unit: must be char or word. Received: line"),
        ("a b", {"vocab_size": 3}, "vocab_size: needs unit word. Received: 3"),
        ("a b", {"vocab_size": 1, "unit": "word"}, "vocab_size: must be from 2 to"),
        ("a b", {"validation": 1.0}, "validation: must be at least 0 and below 1"),
        ("ab", {"validation": 0.9}, r"a split of 2 chars would be empty. Received: validation=0\.9"),
        ("", {}, "input.txt: has no chars"),
        (" \n", {"unit": "word"}, "input.txt: has no words"),
        (b"\xfcber", {}, r"input\.txt: is not UTF-8 text \(byte 0, 0xfc\)"),
        ("abc", {"shuffle": True}, "shuffle: the order of the samples of .* matters"),
    ],
)
def test_faults_are_errors(tmp_path, content, options, fault):
    for name, characters in (("v", "ab\n"), ("twice", "aba"), ("empty", "")):
        written(tmp_path, characters, name)
    if "vocab" in options:
        options = {**options, "vocab": tmp_path / options["vocab"]}
    with pytest.raises(ConfigError if "shuffle" in options else DataError, match=fault):
        shard_files("text", tmp_path / "out", source=written(tmp_path, content), **options)
    assert not (tmp_path / "out").exists()


def test_texts_share_the_vocabulary_of_shards(tmp_path):
    train, test = tmp_path / "train", tmp_path / "test"
    shard_files("text", train, source=written(tmp_path, "a b b c c c d"), unit="word", vocab_size=3)
    manifest = shard_files("text", test, source=written(tmp_path, "c b z", "z"), unit="word", vocab=train)[""]
    assert manifest.features.classes == ("<unk>", "c", "b")
    assert numbers(manifest).tolist() == [1, 2, 0]
    shard_files("text", tmp_path / "whole", source=written(tmp_path, "a b"), unit="word")
    with pytest.raises(DataError, match=r"the word 'c' is not in the vocabulary, which lacks <unk>"):
        shard_files("text", tmp_path / "x", source=tmp_path / "z", unit="word", vocab=tmp_path / "whole")


# Vocabularies


def test_a_vocabulary_comes_from_shards_or_from_a_file(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"c\r\nab")
    (tmp_path / "input.txt").write_text("abca")
    shard_files("text", tmp_path / "out", source=tmp_path / "input.txt", vocab=tmp_path / "vocab.txt", validation=0.5)
    symbols = ("c", "\r", "\n", "a", "b")
    assert vocabulary(tmp_path / "vocab.txt") == vocabulary(str(tmp_path / "out" / "train")) == symbols


def test_named_data_sets_have_one_too(monkeypatch, tmp_path):
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path))
    raw = tmp_path / "raw" / "tinyshakespeare"
    raw.mkdir(parents=True)
    (raw / "input.txt").write_text("bab" * 10)
    assert vocabulary("dataset:tinyshakespeare/validation") == ("a", "b")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("images", r"is not a text.*singa-dask shard text"),
        ("numbers", r"is not a text.*singa-dask shard text"),
        (".", r"is not a folder of shards.*Name one of its subfolders: .*numbers"),
        ("nowhere", "nowhere: cannot be read"),
    ],
)
def test_what_has_no_vocabulary_is_an_error(tmp_path, images, name, says):
    write_shards(tmp_path / "numbers", np.ones((3, 1)), np.arange(3), classes=["a", "b", "c"])
    with pytest.raises(DataError, match=says):
        vocabulary(tmp_path / name)


def test_the_first_difference_is_told():
    assert first_difference("abc", "abc") is None
    assert first_difference("abc", "axc") == "symbol 1 is 'b' here and 'x' there"
    assert first_difference("ab", "ab\n") == r"symbol 2 is missing here and '\n' there"
