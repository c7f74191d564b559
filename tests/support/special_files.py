"""What may be in the place of a file, though nobody can read it as one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

# What an error calls it.
CALLED = {"fifo": "a pipe", "socket": "a socket", "null": "a device", "zero": "a device", "folder": "a folder"}


def put(kind: str, path: Path) -> Path:
    """Make a special file, in place of what is there. null, zero: links to these devices."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to(f"/dev/{kind}")
    return path


def precious(path: Path) -> Path:
    """Make a file of which another user would like to be rid."""
    path.write_text("precious")
    return path


def intact(path: Path) -> bool:
    """Whether a precious file is as it was."""
    return path.read_bytes() == b"precious" and not path.is_symlink()
