"""Folders below the user's home, which may not exist: in containers, and for users of services."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def home() -> Path:
    """The user's home, `~` where nothing says which."""
    return Path(os.path.expanduser("~"))


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, but not the user's home: as root it would be made, where nobody looks for it.

    Raises OSError.
    """
    if folder.is_relative_to(home()) and not home().is_dir():
        raise FileNotFoundError(errno.ENOENT, f"the home {home()} does not exist, and is not created", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
