"""Paths as text: jobs hold them, and Dask sends them to workers."""

from __future__ import annotations

import sys
from pathlib import Path

from singa_dask.errors import ConfigError, Problem


def text_of(path: Path, key: str) -> str:
    """A path as text. Raises ConfigError for `key` if it is not text in the encoding of this process."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding().upper()
        hint = "Rename it." if encoding == "UTF-8" else "Set LC_ALL=C.UTF-8, or rename it."
        raise ConfigError(Problem(key, f"is not {encoding} text", repr(text), hint)) from None
    return text
