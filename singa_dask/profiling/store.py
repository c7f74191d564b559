"""Profiles in the cache: one file for each kind of machine, number of hosts and set of library versions."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from singa_dask.data.fetch import cache_dir
from singa_dask.errors import ConfigError, Problem
from singa_dask.planning.profile import FORMAT, Profile


def key_of(profile: Profile) -> str:
    """The name of the file for a profile of these machines: processor, cores, hosts, versions.

    >>> key_of(Profile(cpu="AMD EPYC 7B13", cores=8, hosts=2))
    'amd-epyc-7b13-8-cores-2-hosts-dbea0f52'
    """
    facts = [FORMAT, profile.cpu, profile.cores, profile.hosts, sorted(profile.versions.items())]
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
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(Problem(str(path), "cannot be read", str(error), "Delete it.")) from error
    try:
        return Profile.from_json(text)
    except ConfigError as error:
        hint = "Delete it, then run `singa-dask profile` again."
        raise ConfigError(Problem(str(path), "is not a profile", error.problems[0].received, hint)) from error


def save(key: str, profile: Profile) -> Path:
    """Keep a profile: what it has measured replaces what is kept under this key, the rest stays. Returns the file.

    Raises ConfigError if the kept file is damaged, or none can be written.
    """
    merged = load(key)
    if merged is None:
        merged = profile
    else:
        merged.merge(profile)
    path = path_of(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, merged.to_json())
    except OSError as error:
        hint = "Set SINGA_DASK_CACHE to a folder that can be written."
        raise ConfigError(Problem(str(path), "cannot be written", str(error), hint)) from error
    return path


def _replace(path: Path, text: str) -> None:
    """Write a file so that a reader finds either the old or the new one whole."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".profile-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
