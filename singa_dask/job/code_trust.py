"""Whose code a file holds: code that is kept in a file is signed with a key of the user who wrote it.

Loading pickled code runs it, so code is loaded unasked only if this user has signed it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
from pathlib import Path

from singa_dask.job.home import home, make_folder

logger = logging.getLogger(__name__)

_NBYTES = 32


def sign(code: bytes) -> str:
    """This user's signature of `code`, or "" with a warning if no key can be kept."""
    try:
        key = _key(create=True)
    except OSError as error:
        message = (
            "%s cannot be written (%s): code that is kept with a run is loaded later only with trust_code. "
            "XDG_CONFIG_HOME names another folder."
        )
        logger.warning(message, key_file(), error.strerror)
        return ""
    return _signature(key, code)


def is_own(code: bytes, signature: str) -> bool:
    """Whether this user has signed `code`."""
    try:
        return hmac.compare_digest(_signature(_key(), code).encode(), signature.encode())
    except OSError:
        return False


def key_file() -> Path:
    """The file with this user's key: $XDG_CONFIG_HOME/singa_dask/code.key, by default in ~/.config."""
    named = os.environ.get("XDG_CONFIG_HOME")
    return (Path(named).expanduser() if named else home() / ".config") / "singa_dask" / "code.key"


def _signature(key: bytes, code: bytes) -> str:
    return hmac.new(key, code, hashlib.sha256).hexdigest()


def _key(*, create: bool = False) -> bytes:
    """Raises OSError if there is no key, or if others could have written it."""
    path = key_file()
    if create and not path.exists():
        _create(path)
    status = path.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077 or status.st_size != _NBYTES:
        raise PermissionError(0, "it is not a key of this user alone", str(path))
    return path.read_bytes()


def _create(path: Path) -> None:
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_NBYTES))
        os.link(temporary, path)  # never replaces the key of a process that was faster
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
