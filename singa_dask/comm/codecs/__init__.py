"""How a vector of floats travels: one codec per value of `cluster.codec`, and `Threshold`, which only DistOpt uses."""

from __future__ import annotations

from typing import Any

from singa_dask.comm.codecs.base import Codec, ErrorFeedback
from singa_dask.comm.codecs.dense import BFloat16, Full, Half, Partial
from singa_dask.comm.codecs.sparse import Threshold, TopK
from singa_dask.errors import ConfigError, Problem, nearest

__all__ = [
    "CODECS",
    "BFloat16",
    "Codec",
    "ErrorFeedback",
    "Full",
    "Half",
    "Partial",
    "Threshold",
    "TopK",
    "codec",
]

CODECS: dict[str, type[Codec]] = {kind.name: kind for kind in (Full, Half, BFloat16, Partial, TopK)}


def codec(name: str, **settings: Any) -> Codec:
    """The codec that a job names. settings: sparsity, the share of kPartial and kTopK; None where it is not given.

    Raises ConfigError for an unknown name, and a setting that is missing, out of range or without effect.

    >>> codec("kTopK", sparsity=0.01).nbytes(1000)
    44
    """
    if name not in CODECS:
        raise ConfigError(Problem("cluster.codec", "there is no such codec", str(name), nearest(str(name), CODECS)))
    kind = CODECS[name]
    given = {key: value for key, value in settings.items() if value is not None}
    problems = [Problem(f"cluster.{key}", f"must be given for {name}") for key in kind.settings if key not in given]
    for key, value in given.items():
        if key not in kind.settings:
            problems.append(Problem(f"cluster.{key}", f"has no meaning for {name}", repr(value), "Leave it out."))
    if problems:
        raise ConfigError(problems)
    return kind(*(given[key] for key in kind.settings))
