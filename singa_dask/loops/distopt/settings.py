"""What the methods of a DistOpt take if a call does not say otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from singa_dask.errors import ConfigError, Problem

THRESHOLD = 2097152


@dataclass(frozen=True)
class Settings:
    """See the methods of DistOpt."""

    threshold: int = THRESHOLD
    clipping: bool = False
    clip_Value: float = 100
    spars: float = 0.05
    topK: bool = False
    corr: bool = True

    def of(self, **given: Any) -> Settings:
        """These, but for those that a call gives. Raises ConfigError for a threshold below 1."""
        found = replace(self, **{name: value for name, value in given.items() if value is not None})
        if found.threshold < 1:
            hint = f"{THRESHOLD} is usual."
            raise ConfigError(Problem("threshold", "must be at least 1 element", str(found.threshold), hint))
        return found
