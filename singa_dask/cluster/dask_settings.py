"""What differs from Dask's own settings in clusters that are started here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import dask
from dask.utils import parse_timedelta

from singa_dask.errors import ConfigError, Problem

SETTINGS: dict[str, Any] = {
    # The group is the unit of failure: its driver starts it again, Dask must not start single ranks again.
    "distributed.scheduler.allowed-failures": 0,
    # Threads that compute for hours share their cores with this: by default a worker looks at the stacks of all its
    # threads 100 times a second, and every process 50 times at how late its event loop is.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
}

_DURATION = re.compile(r"\d+(\.\d+)?\s*(ms|s|min|h|seconds?|minutes?|hours?|days?)")


def check_durations() -> None:
    """Raise ConfigError where the user has set a duration of Dask's to something else: Dask would fail with it late,
    and not name it."""
    for name, default in _durations("", {key: of for each in dask.config.defaults for key, of in each.items()}):
        value = dask.config.get(name)
        try:
            if value is not None:
                parse_timedelta(value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            hint = f"Correct it in Dask's configuration, or {_variable(name)}."
            problem = Problem(name, f"must be a duration, such as {default}", repr(value), hint)
            raise ConfigError(problem) from error


def _durations(prefix: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings that are durations by default, by their full names."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _durations(f"{prefix}{key}.", value)
        elif isinstance(value, str) and _DURATION.fullmatch(value):
            yield f"{prefix}{key}", value


def _variable(name: str) -> str:
    """The environment variable that sets this.

    >>> _variable("distributed.comm.timeouts.connect")
    'DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT'
    """
    return f"DASK_{name.replace('.', '__').replace('-', '_').upper()}"
