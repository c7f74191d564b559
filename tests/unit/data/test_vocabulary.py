from __future__ import annotations

import numpy as np
import pytest

from singa_dask.data import first_difference, shard_files, vocabulary, write_shards
from singa_dask.errors import DataError


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


def test_what_has_no_vocabulary_is_an_error(tmp_path, images):
    numbers = write_shards(tmp_path / "numbers", np.ones((3, 1)), None)
    labelled = write_shards(tmp_path / "labelled", np.ones((3, 1)), np.arange(3), classes=["a", "b", "c"])
    for manifest in (images, numbers, labelled):
        with pytest.raises(DataError, match=r"is not a text.*singa-dask shard text"):
            vocabulary(manifest.folder)
    with pytest.raises(DataError, match=r"is not a folder of shards.*Name one of its subfolders: .*numbers"):
        vocabulary(tmp_path)
    with pytest.raises(DataError, match="nowhere: cannot be read"):
        vocabulary(tmp_path / "nowhere")


def test_the_first_difference_is_told():
    assert first_difference("abc", "abc") is None
    assert first_difference("abc", "axc") == "symbol 1 is 'b' here and 'x' there"
    assert first_difference("ab", "ab\n") == r"symbol 2 is missing here and '\n' there"
