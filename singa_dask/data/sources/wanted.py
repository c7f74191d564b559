"""Which columns of a source its user asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from singa_dask.data.columns import Channels, Role
from singa_dask.data.sources.patches import Patches
from singa_dask.errors import ConfigError, Problem

THE_DATE = ""

Names = str | int | Sequence[str | int] | None


@dataclass(frozen=True)
class Wanted:
    """The raw columns of each role, by the names that the user gave.

    y: in the order of the shards. roles: of columns of y that are said to be labels or targets. split: columns that
    say which split a sample is in, THE_DATE for the only one with dates; they may be features too. cut: the samples
    are patches.
    """

    x: tuple[str, ...] = ()
    y: tuple[str, ...] = ()
    weight: str | None = None
    mask: str | None = None
    roles: tuple[tuple[str, Role], ...] = ()
    channels: Channels | None = None
    split: tuple[str, ...] = ()
    cut: Patches | None = None

    @classmethod
    def of(
        cls,
        x: Names = None,
        y: Names = None,
        label: Names = None,
        target: Names = None,
        weight: str | int | None = None,
        mask: str | int | None = None,
        channels: str | None = None,
        split: Names = None,
        cut: Patches | None = None,
    ) -> Wanted:
        """x: feature columns. y: labels or targets, whichever the values are. label, target: likewise, but said to be
        classes, or numbers. channels: "first", "last" or "none".

        Raises ConfigError.
        """
        labels, targets = _names(label), _names(target)
        if channels is not None and channels not in list(Channels):
            raise ConfigError(Problem("channels", "must be first, last or none", repr(channels)))
        wanted = cls(
            _names(x),
            (*_names(y), *labels, *targets),
            None if weight is None else str(weight),
            None if mask is None else str(mask),
            (*((name, Role.LABEL) for name in labels), *((name, Role.TARGET) for name in targets)),
            None if channels is None else Channels(channels),
            _names(split),
            cut,
        )
        names = wanted.names
        double = next((name for place, name in enumerate(names) if name in names[:place]), None)
        if double is not None:
            raise ConfigError(Problem("columns", "a column can be used once only", repr(double), "Name it once."))
        return wanted

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, in the order x, y, weight, mask."""
        return (*self.x, *self.y, *(name for name in (self.weight, self.mask) if name is not None))

    def renamed(self, name: Callable[[str], str]) -> Wanted:
        """The same columns under other names."""
        return Wanted(
            tuple(map(name, self.x)),
            tuple(map(name, self.y)),
            None if self.weight is None else name(self.weight),
            None if self.mask is None else name(self.mask),
            tuple((name(column), role) for column, role in self.roles),
            self.channels,
            tuple(name(column) if column else column for column in self.split),
            self.cut,
        )


def _names(given: Names) -> tuple[str, ...]:
    if given is None:
        return ()
    return (str(given),) if isinstance(given, str | int) else tuple(map(str, given))
