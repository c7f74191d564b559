"""Groups of parameters: factors on learning rate and weight decay for those whose names match a pattern."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import ParamGroupProto, UpdaterProto
from singa_dask.net.flat import Entry
from singa_dask.updaters.fields import as_written


def scaled(entry: Entry, updater: UpdaterProto) -> Entry:
    """The entry, its scales multiplied by those of every group that it belongs to."""
    lr_scale, wd_scale = as_written(entry.lr_scale), as_written(entry.wd_scale)
    for group in updater.group:
        if any(fnmatchcase(entry.name, pattern) for pattern in group.match):
            lr_scale, wd_scale = lr_scale * as_written(group.lr_scale), wd_scale * as_written(group.wd_scale)
    return replace(entry, lr_scale=lr_scale, wd_scale=wd_scale)


def check_groups(groups: Iterable[ParamGroupProto], names: Iterable[str]) -> None:
    """Raise ConfigError for every pattern that matches none of the parameters of these names."""
    names = list(names)
    problems = [
        Problem(f"updater.group[{i}].match", "matches no parameter", repr(pattern), f"There are: {', '.join(names)}.")
        for i, group in enumerate(groups)
        for pattern in group.match
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    if problems:
        raise ConfigError(problems)
