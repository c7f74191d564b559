"""Quantities on the command line: rates, times, sizes, and lists of numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-zA-Zµ/]*)\s*$")
_ELLIPSIS = ("...", "…")


class Quantity(click.ParamType):
    """A positive number with a unit, in the unit whose factor is 1.

    >>> LATENCY.convert("2ms", None, None), SIZE.convert("8GB", None, None), BANDWIDTH.convert("25Gbit", None, None)
    (0.002, 8000000000.0, 25000000000.0)
    """

    def __init__(self, name: str, units: Mapping[str, float], example: str) -> None:
        self.name, self._units, self._example = name, units, example
        self._folded = {unit.lower(): factor for unit, factor in units.items()}

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        found = _NUMBER.match(str(value))
        if found is None or float(found[1]) <= 0:
            self.fail(f"{value!r} is not a positive number with a unit. For example {self._example}.", param, ctx)
        unit = found[2].removesuffix("/s") if self is BANDWIDTH else found[2]
        if unit.lower() not in self._folded:
            units = ", ".join(self._units)
            what = f"unknown unit {unit!r}" if unit else "has no unit"
            self.fail(f"{value!r}: {what}. Use {units}; for example {self._example}.", param, ctx)
        return float(found[1]) * self._folded[unit.lower()]


BANDWIDTH = Quantity("rate", {"Mbit": 1e6, "Gbit": 1e9}, "1Gbit")
LATENCY = Quantity("time", {"us": 1e-6, "ms": 1e-3, "s": 1.0}, "50us")
SIZE = Quantity("size", {"MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30}, "8GB")


class Counts(click.ParamType):
    """Integers from 1 on, with commas between them. An ellipsis doubles up to the next one.

    >>> Counts().convert("1,...,6,9", None, None)
    [1, 2, 4, 6, 9]
    """

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        counts: list[int] = []
        doubles = False
        for part in (part.strip() for part in str(value).split(",")):
            if part in _ELLIPSIS and counts and not doubles:
                doubles = True
                continue
            if not part.isdecimal() or int(part) < 1:
                self.fail(
                    f"{value!r}: {part!r} is not an integer from 1 on. For example 1,2,4,8 or 1,...,1024.",
                    param,
                    ctx,
                )
            while doubles and 2 * counts[-1] < int(part):
                counts.append(2 * counts[-1])
            counts.append(int(part))
            doubles = False
        if doubles:
            self.fail(f"{value!r}: a number must follow the ellipsis. For example 1,...,1024.", param, ctx)
        return sorted(set(counts))


class Names(click.ParamType):
    """Names with commas between them."""

    name = "names"

    def __init__(self, valid: tuple[str, ...]) -> None:
        self._valid = valid

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip().lower() for name in str(value).split(","))
        for name in names:
            if name not in self._valid:
                self.fail(f"{name!r} is unknown. Valid: {', '.join(self._valid)}.", param, ctx)
        return names
