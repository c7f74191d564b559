"""Whose code a file holds."""

from __future__ import annotations

import pytest

from singa_dask.job.code_trust import is_own, key_file, sign


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_only_what_this_user_has_signed_is_own(tmp_path, monkeypatch):
    assert not is_own(b"code", "")
    signature = sign(b"code")
    assert signature == sign(b"code") and is_own(b"code", signature)
    assert not is_own(b"codes", signature) and not is_own(b"code", "")
    assert key_file().stat().st_mode & 0o777 == 0o600 and [key_file()] == list(key_file().parent.iterdir())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    assert not is_own(b"code", signature)
    sign(b"code")
    assert not is_own(b"code", signature)


def test_a_key_that_others_can_read_is_none(caplog):
    signature = sign(b"code")
    key_file().chmod(0o644)
    assert not is_own(b"code", signature)
    assert sign(b"code") == "" and "loaded later only with trust_code" in caplog.text


def test_without_a_place_for_the_key_code_is_not_signed(tmp_path, caplog):
    (tmp_path / "config").write_text("a file")
    assert sign(b"code") == "" and "cannot be written (Not a directory)" in caplog.text
    assert not is_own(b"code", "")
