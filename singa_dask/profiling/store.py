"""Profiles in the cache: one file for each kind of machine, number of hosts and set of library versions."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from singa_dask.data.fetch import cache_dir
from singa_dask.errors import ConfigError, Problem
from singa_dask.files import open_lock, read_text, write_whole
from singa_dask.job.home import make_folder
from singa_dask.planning.profile import FORMAT, Profile

_REPLACED = "Run `singa-dask profile`, which replaces it."
_LOOK_EVERY_S = 0.2


def key_of(profile: Profile) -> str:
    """The name of the file for a profile of these machines: processor, cores, number and names of hosts, versions.

    >>> key_of(Profile(cpu="AMD EPYC 7B13", cores=8, hosts=2))
    'amd-epyc-7b13-8-cores-2-hosts-96dae055'
    """
    facts = [FORMAT, profile.cpu, profile.cores, profile.hosts, sorted(profile.versions.items())]
    facts += [profile.notes["hosts"]] if "hosts" in profile.notes else []
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]
    name = re.sub(r"[^a-z0-9]+", "-", profile.cpu.lower()).strip("-")
    return f"{name or 'processor'}-{profile.cores}-cores-{profile.hosts}-hosts-{digest}"


def path_of(key: str) -> Path:
    """Where the profile of this key is kept."""
    return cache_dir() / "profiles" / f"{key}.json"


def load(key: str) -> Profile | None:
    """The profile of this key, None if none is kept. Raises ConfigError if its file is damaged."""
    path = path_of(key)
    try:
        text = read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Problem(str(path), "cannot be read", str(error), _REPLACED)) from error
    try:
        return Profile.from_json(text)
    except ConfigError as error:
        raise ConfigError(Problem(str(path), "is not a profile", error.problems[0].received, _REPLACED)) from error


def save(key: str, profile: Profile) -> Path:
    """Keep a profile: what it has measured replaces what is kept under this key, the rest stays. Returns the file.

    A damaged file is replaced. Raises ConfigError if none can be written.
    """
    try:
        merged = load(key)
    except ConfigError:
        merged = None
    if merged is None:
        merged = profile
    else:
        merged.merge(profile)
    path = path_of(key)
    try:
        make_folder(path.parent)
        write_whole(path, merged.to_json())
    except OSError as error:
        hint = "Set SINGA_DASK_CACHE to a folder that can be written."
        raise ConfigError(Problem(str(path), "cannot be written", error.strerror or str(error), hint)) from error
    return path


@contextmanager
def locked(key: str, note: Callable[[str], None], *, patience_s: float = 180.0) -> Iterator[None]:
    """Nobody else on this machine measures for the profile of this key meanwhile. After a wait of `patience_s`, and
    where the cache cannot be written, it goes on without the lock. note: is told of a wait."""
    with ExitStack() as stack:
        with suppress(OSError):
            path = path_of(key).with_suffix(".lock")
            make_folder(path.parent)
            file = open_lock(path)
            stack.callback(os.close, file)  # and with it the lock
            _wait(file, note, patience_s)
        yield


def _wait(file: int, note: Callable[[str], None], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    waiting = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                note(f"another process has measured these machines for {patience_s:.0f} s: going on beside it")
                return
            if not waiting:
                note("waiting for another process, which measures these machines")
            waiting = True
            time.sleep(_LOOK_EVERY_S)
