"""Ledgers against sets of steps."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from singa_dask.server.ledger import Assignment, Contained, Ledger

GROUPS = 3
added = st.lists(st.tuples(st.integers(0, GROUPS - 1), st.integers(0, 12)), max_size=25)


def ledger_of(steps, groups: int = GROUPS, first: int = 0) -> Ledger:
    ledger = Ledger()
    ledger.begin(groups, first)
    for group, step in steps:
        ledger.add(group, step)
    return ledger


def steps_of(ledger: Ledger, which: str) -> set[tuple[int, int]]:
    found = set()
    for group, of in ledger.assignments[ledger.assignment].items():
        bounds = getattr(of, which)
        assert bounds == sorted(set(bounds)) and len(bounds) % 2 == 0, "ranges that touch, overlap or are empty"
        found |= {(group, s) for a, b in zip(bounds[::2], bounds[1::2], strict=True) for s in range(a, b)}
    return found


def check(ledger: Ledger, by_all, by_any, twice) -> None:
    assert steps_of(ledger, "by_all") == set(by_all)
    assert steps_of(ledger, "by_any") == set(by_any)
    assert steps_of(ledger, "twice") == set(twice)


@given(added)
def test_it_contains_what_was_added_and_knows_what_was_added_twice(steps):
    counts = Counter(steps)
    check(ledger_of(steps), counts, counts, [step for step, n in counts.items() if n > 1])


@given(added, added)
def test_the_ledger_of_a_sum_is_the_ledger_of_all_its_updates(a, b):
    before = ledger_of(a)
    assert before.plus(ledger_of(b)) == ledger_of(a + b)
    assert before == ledger_of(a), "an operand was changed"
    before.merge(ledger_of(b))
    assert before == ledger_of(a + b)


@given(added, added)
def test_a_difference_is_what_was_added_since(a, b):
    known, later = ledger_of(set(a)), ledger_of({*a, *b})
    check(later.minus(known), {*b} - {*a}, {*b} - {*a}, ())
    assert known.plus(later.minus(known)) == later


@given(st.lists(added, min_size=1, max_size=4))
def test_the_joint_ledger_says_what_all_elements_contain_and_what_only_some(parts):
    counts = [Counter(steps) for steps in parts]
    twice = {step for of in counts for step, n in of.items() if n > 1}
    by_all, by_any = set.intersection(*map(set, counts)), set.union(*map(set, counts))
    check(Ledger.joint(map(ledger_of, parts)), by_all, by_any, twice)


@given(added, added, st.integers(0, 20), st.integers(1, GROUPS))
def test_it_survives_encoding_with_all_its_deals(a, b, first, groups):
    ledger = ledger_of(a)
    ledger.begin(groups, first)
    for group, step in b:
        ledger.add(group, step)
    again = Ledger.decode(json.loads(json.dumps(ledger.encode())))
    assert again == ledger and again.assignment == ledger.assignment
    again.add(0, 99)
    copy = ledger.copy()
    copy.add(0, 99)
    assert copy == again != ledger, "a copy shares its ranges"


def test_its_size_depends_on_gaps_and_not_on_steps():
    ledger = ledger_of((0, step) for step in range(10_000) if step not in (17, 5_000))
    assert ledger.encode() == [[3, 0, [[0, *[[0, 17, 18, 5_000, 5_001, 10_000]] * 2, []]]]]
    assert len(json.dumps(ledger.encode())) < 100


def test_a_group_goes_on_after_all_that_any_element_contains():
    ledger = ledger_of([(0, 0), (0, 1), (1, 0), (1, 3)])
    assert [ledger.next(group) for group in range(3)] == [2, 4, 0]
    ledger.assignments[ledger.assignment][0] = Contained([0, 2], [0, 5])
    assert ledger.next(0) == 5


def test_the_same_deal_goes_on_and_another_one_begins_anew():
    ledger = ledger_of([(0, step) for step in range(10)] + [(1, step) for step in range(14)])
    ledger.begin(GROUPS, 10)
    assert list(ledger.assignments) == [Assignment(GROUPS, 0)] and ledger.next(1) == 14
    ledger.begin(1, 10)
    assert ledger.assignment == Assignment(1, 10) and ledger.next(0) == 10
    ledger.add(0, 10)
    ledger.begin(GROUPS, 11)
    # Back in the first assignment, of which group 1 was ahead.
    assert ledger.assignment == Assignment(GROUPS, 11)
    assert [ledger.next(group) for group in range(3)] == [11, 14, 11]
    ledger.add(1, 14)
    assert (ledger.next(1), ledger.start(Assignment(GROUPS, 11), 1), ledger.start(Assignment(GROUPS, 0), 1)) == (
        15,
        14,
        0,
    )


def test_steps_of_another_deal_are_other_mini_batches():
    assert Ledger.joint([ledger_of([(0, 0)], groups=2), ledger_of([(0, 0)], groups=3)]).updates == 2
