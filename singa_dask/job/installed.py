"""Which modules belong to Python, which are installed, and which of these may hold the code of a job."""

from __future__ import annotations

import json
import os
import re
import sysconfig
from functools import cache
from importlib.metadata import distribution, distributions, packages_distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

import singa_dask

_PACKAGES = frozenset({"site-packages", "dist-packages"})
_NAME = re.compile(r"[\w.-]+")


def in_packages(path: str) -> bool:
    """Whether a file is in a folder of installed packages, or a link there names it."""
    return not _PACKAGES.isdisjoint((*Path(path).parts, *Path(os.path.realpath(path)).parts))


def is_standard(path: str) -> bool:
    """Whether a module belongs to the standard library. path: its file, or "built-in" or "frozen"."""
    inside = os.path.realpath(path).startswith(_standard_library())
    return path in ("built-in", "frozen") or (inside and not in_packages(path))


def is_users(path: str) -> bool:
    """Whether a file of Python code belongs neither to Python, nor to singa_dask, nor to an installed package."""
    known = in_packages(path) or is_standard(path) or os.path.realpath(path).startswith(_singa_dask())
    return os.path.isabs(path) and not known


def is_installed(path: str) -> bool:
    """Whether a module is installed, also by `pip install --editable`."""
    origins = (json.loads(d.read_text("direct_url.json") or "{}") for d in distributions())
    folders = (unquote(urlparse(o["url"]).path) for o in origins if o.get("dir_info", {}).get("editable"))
    return not is_users(path) or any(os.path.realpath(path).startswith(_inside(folder)) for folder in folders)


def requires_singa_dask(package: str) -> bool:
    """Whether the metadata of an installed package, named as it is imported, require singa-dask."""
    required = (
        requirement
        for name in packages_distributions().get(package, ())
        for requirement in distribution(name).requires or ()
    )
    return any(_normal(found[0]) == "singa-dask" for text in required if (found := _NAME.match(text)))


@cache
def _standard_library() -> str:
    return _inside(sysconfig.get_path("stdlib"))


@cache
def _singa_dask() -> str:
    return _inside(os.path.dirname(singa_dask.__file__))


def _inside(folder: str) -> str:
    return os.path.join(os.path.realpath(folder), "")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
