"""Neighbouring server groups that mix their changes by a rule of the user's own."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.line import Line, events, happen
from support.lost import Lost, exchange, update
from support.servers import contained, ones

from singa_dask.server.messages import Inspect, Put, Refused
from singa_dask.updaters import SGD, Mixing

STORM = ("left began", "right answered", "left answered", "left finished", "right finished")


class Averaging(SGD):
    type = "kUserUpdater"

    def mix(self, exchange, left, right):
        return Mixing(left=0.5, right=0.5)


class ByUpdates(SGD):
    type = "kUserUpdater"

    def mix(self, exchange, left, right):
        share = left.updates / max(1, left.updates + right.updates)
        return Mixing(left=share, right=1 - share)


class Elastic(SGD):
    type = "kUserUpdater"

    def mix(self, exchange, left, right):
        return Mixing(left=0.5, right=0.5, share=2 * 0.125)


class Slowly(SGD):
    type = "kUserUpdater"

    def mix(self, exchange, left, right):
        return Mixing(share=0.5)


class Once(SGD):
    """Takes one exchange, and fails in the next."""

    type = "kUserUpdater"

    def mix(self, exchange, left, right):
        return Mixing() if exchange == 1 else Mixing(left=-1)


def pair(updater, *updates):
    """Two server groups after so many updates each, by which the values of the left one fall by 1, the others by 3."""
    line = Line(2, ones(0.0), updater=updater)
    for i, count in enumerate(updates):
        for _ in range(count):
            line.update(i, ones(3.0 if i else 1.0))
    return line


def once(line, *, meanwhile=0):
    """One exchange. meanwhile: updates of the left group before it has its answer."""
    line.begin(0)
    for _ in range(meanwhile):
        line.update(0, ones(1.0))
    line.arrive(0)
    line.finish(0)
    return line.values(0)[0], line.values(1)[0]


@pytest.mark.parametrize(
    ("updater", "updates", "expected"),
    [
        (Averaging, (4, 2), (-5, -5)),
        (ByUpdates, (3, 1), (-3, -3)),  # 3/4 of 3 and 1/4 of 3
        (ByUpdates, (0, 2), (-6, -6)),
        (Elastic, (4, 4), (-5, -11)),  # each goes an eighth of the way to the other
        (Slowly, (2, 2), (-5, -7)),  # -2 - 6 / 2 and -6 - 2 / 2
    ],
)
def test_a_rule_of_one_s_own(updater, updates, expected):
    assert once(pair(updater, *updates)) == expected


def test_what_happens_during_an_exchange_counts_in_the_next():
    line = pair(Averaging, 2, 2)
    assert once(line, meanwhile=2) == (-6, -4)
    assert once(line) == (-5, -5)


@settings(max_examples=60)
@given(n=st.integers(2, 4), schedule=events, rule=st.sampled_from([Averaging, Elastic, ByUpdates, Slowly]))
def test_accounts_and_ledgers_stay_true_whatever_is_lost_or_repeated(n, schedule, rule):
    line = Line(n, ones(0.0), updater=rule)
    for event in schedule:
        happen(line, event)
    line.sweep()
    values = np.array([line.values(i) for i in range(n)], np.float64)
    for i in range(n):
        made = [2 ** line.updates[i] - 1, line.updates[i]]
        if rule in (Averaging, Elastic):  # they take from one group what they give to the other
            np.testing.assert_allclose(values.sum(axis=0)[[i, 8 + i]], made, rtol=1e-5, atol=1e-4)
        ledger = line.posts[i].ask(Inspect(0)).ledger
        for origin in range(n):
            assert contained(ledger, origin) == set(range(line.updates[origin])), "which updates took part"
    for left, right in pairwise(line.posts):
        known = [post.protocol.slices[0].accounts[s].known for post, s in ((left, "right"), (right, "left"))]
        np.testing.assert_array_equal(*known)


@pytest.mark.parametrize("rule", [Averaging, Slowly])
def test_an_exchange_goes_on_after_the_loss_of_either_side(rule):
    values = []
    for lost in ((), STORM):
        left, right = Lost(0, 2, updater=rule), Lost(1, 2, updater=rule)
        for server in (left, right):
            server.ask(Put(0, ones(0)))
        for step in range(3):
            left.ask(update(0, step, 1))
            right.ask(update(1, step, 8))
            exchange(left, right, lost)
        values.append([server.ask(Inspect(0)).values[0] for server in (left, right)])
    assert values[0] == values[1]
    assert rule is not Averaging or values[0] == [-13.5] * 2


def test_a_rule_that_fails_ends_the_updates_and_changes_nothing():
    line = pair(Once, 1, 1)
    assert once(line) == (-4, -4)
    line.update(0, ones(1.0))
    line.begin(0)
    line.arrive(0)
    refused = line.replies[0][2]
    assert isinstance(refused, Refused)
    assert refused.reason == "Sync failed: ValueError: Mixing.left must be from 0 to 1. Received: -1."
    assert line.values(1)[0] == -4
    line.finish(0)
    with pytest.raises(AssertionError):  # the worker gets the same answer
        line.update(1, ones(1.0))


@pytest.mark.parametrize("wrong", [{"left": -0.1}, {"right": 1.5}, {"share": 0}, {"left": float("nan")}])
def test_numbers_outside_their_range_are_refused(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=rf"Mixing.{name} must be .* Received: {value}"):
        Mixing(**wrong)
