"""Which mini-batches' gradients the values of parameters contain.

A step of a worker group determines its mini-batch, so a ledger holds ranges of steps, by worker group. Its size
depends on the number of gaps, not of steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

# Bounds of disjoint ranges in order: [0, 40, 45, 110] are the steps 0 to 39 and 45 to 109.
Ranges = list[int]


class Assignment(NamedTuple):
    """To how many worker groups the training data are assigned, and the step with which the groups begin.

    The same step of the same group is another mini-batch where the data are assigned to more or fewer groups.
    """

    groups: int
    first: int


@dataclass
class Contained:
    """Steps of one worker group whose gradients values contain.

    by_all: that every element contains; by_any: that at least one element contains; twice: that an element contains
    more than once, which is a fault.
    """

    by_all: Ranges = field(default_factory=list)
    by_any: Ranges = field(default_factory=list)
    twice: Ranges = field(default_factory=list)

    def add(self, step: int) -> None:
        """Every element contains one gradient more."""
        if self.by_all and self.by_all[-1] == step == self.by_any[-1]:
            self.by_all[-1] = self.by_any[-1] = step + 1
        else:
            sum_ = _sum(self, Contained([step, step + 1], [step, step + 1]))
            self.by_all, self.by_any, self.twice = sum_.by_all, sum_.by_any, sum_.twice


@dataclass
class Ledger:
    """Which steps' gradients some elements of the parameters contain, by assignment and worker group.

    The last assignment is the current one. One with the same number of groups as an earlier one continues its
    mini-batches.
    """

    assignments: dict[Assignment, dict[int, Contained]] = field(default_factory=dict)

    @property
    def assignment(self) -> Assignment | None:
        """The current assignment."""
        return next(reversed(self.assignments), None)

    @property
    def updates(self) -> int:
        """How many gradients any element contains."""
        found = (each.by_any for of in self.assignments.values() for each in of.values())
        return sum(stop - start for ranges in found for start, stop in pairs(ranges))

    def begin(self, groups: int, step: int) -> None:
        """Go on with `groups` worker groups, which begin with `step` if the current assignment has another number."""
        if self.assignment is None or self.assignment.groups != groups:
            self.assignments[Assignment(groups, step)] = {}

    def add(self, group: int, step: int) -> None:
        """The elements now contain this gradient of the current assignment."""
        of = self.assignments[next(reversed(self.assignments))]
        if group not in of:
            of[group] = Contained()
        of[group].add(step)

    def start(self, assignment: Assignment, group: int) -> int:
        """The step with which a group begins in an assignment: after all that it did in earlier ones like it."""
        first = assignment.first
        for earlier, of in self.assignments.items():
            if earlier == assignment:
                break
            if earlier.groups == assignment.groups and group in of:
                first = max(first, of[group].by_any[-1])
        return first

    def next(self, group: int) -> int:
        """The first step of a group in the current assignment after all that any element contains."""
        assignment = self.assignment
        assert assignment is not None
        of = self.assignments[assignment]
        return max(self.start(assignment, group), of[group].by_any[-1] if group in of else 0)

    def plus(self, other: Ledger) -> Ledger:
        """The ledger of the sum of two values. A step in both is contained twice."""
        return self._paired(other, _sum)

    def merge(self, other: Ledger) -> None:
        """The elements now contain these gradients too."""
        self.assignments = self.plus(other).assignments

    def minus(self, known: Ledger) -> Ledger:
        """The ledger of the difference of two values, of which the second contains no more than the first."""
        return self._paired(known, lambda a, b: Contained(*map(difference, _of(a), _of(b))))

    @staticmethod
    def joint(ledgers: Iterable[Ledger]) -> Ledger:
        """The ledger of all elements, given those of some and of the others; an empty one if there are none."""
        found = list(ledgers)
        return reduce(lambda a, b: a._paired(b, _joint), found) if found else Ledger()

    def copy(self) -> Ledger:
        """A ledger with the same entries."""
        return Ledger.decode(self.encode())

    def encode(self) -> list[Any]:
        """Nested lists for JSON."""
        return [
            [*assignment, [[group, *_of(c)] for group, c in sorted(of.items())]]
            for assignment, of in self.assignments.items()
        ]

    @classmethod
    def decode(cls, encoded: Iterable[Any]) -> Ledger:
        """The inverse of `encode`."""
        return cls(
            {
                Assignment(groups, first): {g: Contained(*map(list, of)) for g, *of in found}
                for groups, first, found in encoded
            }
        )

    def _paired(self, other: Ledger, rule: Callable[[Contained, Contained], Contained]) -> Ledger:
        assignments: dict[Assignment, dict[int, Contained]] = {}
        for assignment in {**self.assignments, **other.assignments}:
            a, b = self.assignments.get(assignment, {}), other.assignments.get(assignment, {})
            pairs = ((group, rule(a.get(group, _NONE), b.get(group, _NONE))) for group in {**a, **b})
            assignments[assignment] = {group: made for group, made in pairs if made.by_any}
        return Ledger(assignments)


def combined(a: Ranges, b: Ranges, rule: Callable[[bool, bool], bool]) -> Ranges:
    """The steps for which `rule` holds, of whether a step is in `a` and whether it is in `b`.

    >>> combined([0, 5], [3, 9], lambda in_a, in_b: in_a and not in_b)
    [0, 3]
    """
    bounds: Ranges = []
    for step in sorted({*a, *b}):
        if rule(_holds(a, step), _holds(b, step)) != len(bounds) % 2:
            bounds.append(step)
    return bounds


def pairs(ranges: Ranges) -> tuple[tuple[int, int], ...]:
    """The first step of each range, and the one after its last."""
    return tuple(zip(ranges[::2], ranges[1::2], strict=True))


def _holds(ranges: Ranges, step: int) -> bool:
    return bisect_right(ranges, step) % 2 == 1


def _union(a: Ranges, b: Ranges) -> Ranges:
    return combined(a, b, lambda in_a, in_b: in_a or in_b)


def _common(a: Ranges, b: Ranges) -> Ranges:
    return combined(a, b, lambda in_a, in_b: in_a and in_b)


def difference(a: Ranges, b: Ranges) -> Ranges:
    """The steps in `a` that are not in `b`."""
    return combined(a, b, lambda in_a, in_b: in_a and not in_b)


def _of(contained: Contained) -> tuple[Ranges, Ranges, Ranges]:
    return contained.by_all, contained.by_any, contained.twice


def _sum(a: Contained, b: Contained) -> Contained:
    twice = _union(_union(a.twice, b.twice), _common(a.by_any, b.by_any))
    return Contained(_union(a.by_all, b.by_all), _union(a.by_any, b.by_any), twice)


def _joint(a: Contained, b: Contained) -> Contained:
    return Contained(_common(a.by_all, b.by_all), _union(a.by_any, b.by_any), _union(a.twice, b.twice))


_NONE = Contained()
