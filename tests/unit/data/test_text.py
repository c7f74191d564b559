"""Text: symbols, vocabularies, splits."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.data import Manifest, ShardFolder, resolve, shard_files
from singa_dask.data.converters import text
from singa_dask.errors import ConfigError, DataError


def written(folder: Path, content: str, name: str = "input.txt") -> Path:
    (folder / name).write_bytes(content.encode())
    return folder / name


def numbers(manifest: Manifest) -> np.ndarray:
    folder = ShardFolder(manifest)
    folder.verify()
    return np.concatenate([folder.reader(i).column("x") for i in range(len(manifest.shards))])[:, 0]


def spelled(manifest: Manifest) -> str:
    """The text that the shards hold."""
    assert isinstance(manifest.features.classes, tuple)
    return "".join(manifest.features.classes[int(number)] for number in numbers(manifest))


def test_characters_keep_their_order_and_are_numbered_in_sorted_order(tmp_path):
    content = "the cat\r\nsat ä€𝄞\n" * 3
    manifest = shard_files("text", tmp_path / "out", 4, source=written(tmp_path, content))[""]
    assert manifest.features.classes == tuple(sorted(set(content)))
    assert spelled(manifest) == content
    assert (manifest.features.shape, manifest.features.dtype, manifest.targets) == ((1,), "uint8", None)
    assert (manifest.total, manifest.window) == (len(content), text.WINDOW)


def test_more_than_256_symbols_are_stored_exactly_as_floats(tmp_path):
    content = "".join(chr(0x4E00 + i) for i in range(300)) * 2
    manifest = shard_files("text", tmp_path / "out", source=written(tmp_path, content))[""]
    assert manifest.features.dtype == "float32"
    assert spelled(manifest) == content


@given(st.text(st.characters(codec="utf-8", exclude_characters="\ufeff"), min_size=1))
def test_any_text_comes_back(tmp_path_factory, content):
    source = written(tmp_path_factory.mktemp("text"), content)
    split = text.load(source)[""]
    assert "".join(split.classes[int(number)] for number in split.features[:, 0]) == content


def test_a_given_vocabulary_counts_in_its_order(tmp_path):
    vocabulary = written(tmp_path, "\nzab", "vocab.txt")
    manifest = shard_files("text", tmp_path / "out", source=written(tmp_path, "ab\nba"), vocab=vocabulary)[""]
    assert manifest.features.classes == ("\n", "z", "a", "b")
    assert numbers(manifest).tolist() == [2, 3, 0, 3, 2]


def test_a_byte_order_mark_is_no_symbol(tmp_path):
    assert text.load(written(tmp_path, "\ufeffab"))[""].classes == ("a", "b")


def test_words_are_numbered_by_frequency_then_by_first_appearance(tmp_path):
    source = written(tmp_path, "the cat\nand the  Dog and a cat and")
    every = text.load(source, unit="word")[""]
    assert every.classes == ("and", "the", "cat", "Dog", "a")
    assert every.features[:, 0].tolist() == [1, 2, 0, 1, 3, 0, 4, 2, 0]
    some = text.load(source, unit="word", vocab_size=3)[""]
    assert some.classes == ("<unk>", "and", "the")
    assert some.features[:, 0].tolist() == [2, 0, 1, 2, 0, 1, 0, 0, 1]
    assert text.load(source, unit="word", vocab_size=5)[""].classes == every.classes


def test_a_text_may_hold_the_unknown_word_itself(tmp_path):
    split = text.load(written(tmp_path, "<unk> <unk> a a b"), unit="word", vocab_size=2)[""]
    assert split.classes == ("<unk>", "a")
    assert split.features[:, 0].tolist() == [0, 0, 1, 1, 0]


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
    ],
)
def test_faults_are_errors(tmp_path, content, options, fault):
    for name, characters in (("v", "ab\n"), ("twice", "aba"), ("empty", "")):
        written(tmp_path, characters, name)
    if "vocab" in options:
        options = {**options, "vocab": tmp_path / options["vocab"]}
    with pytest.raises(DataError, match=fault):
        shard_files("text", tmp_path / "out", source=written(tmp_path, content), **options)
    assert not (tmp_path / "out").exists()


def test_what_is_no_utf8_is_an_error_that_names_the_byte(tmp_path):
    (tmp_path / "latin.txt").write_bytes("über".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.txt: is not UTF-8 text \(byte 0, 0xfc\)"):
        text.load(tmp_path / "latin.txt")


def test_text_is_never_shuffled(tmp_path):
    with pytest.raises(ConfigError, match="shuffle: text cannot be shuffled"):
        shard_files("text", tmp_path / "out", source=written(tmp_path, "abc"), shuffle=True)


def test_tiny_shakespeare(tmp_path, monkeypatch):
    raw = Path(os.environ.get("SINGA_DASK_DATA", "")) / "tinyshakespeare" / "input.txt"
    if not raw.is_file():
        pytest.skip("tinyshakespeare is not in the folder named by SINGA_DASK_DATA")
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path))
    train, validation = (Manifest.load(resolve(f"dataset:tinyshakespeare/{s}")) for s in ("train", "validation"))
    assert (train.total, validation.total) == (1_003_854, 111_540)
    assert train.features.num_classes == validation.features.num_classes == 65
    assert (spelled(train) + spelled(validation)).encode() == raw.read_bytes()


def test_texts_share_the_vocabulary_of_shards(tmp_path):
    train, test = tmp_path / "train", tmp_path / "test"
    shard_files("text", train, source=written(tmp_path, "a b b c c c d"), unit="word", vocab_size=3)
    shard_files("text", test, source=written(tmp_path, "c b z", "z"), unit="word", vocab=train)
    manifest = Manifest.load(tmp_path / "test")
    assert manifest.features.classes == ("<unk>", "c", "b")
    assert numbers(manifest).tolist() == [1, 2, 0]
    shard_files("text", tmp_path / "whole", source=written(tmp_path, "a b"), unit="word")
    with pytest.raises(DataError, match=r"the word 'c' is not in the vocabulary, which lacks <unk>"):
        shard_files("text", tmp_path / "x", source=tmp_path / "z", unit="word", vocab=tmp_path / "whole")
