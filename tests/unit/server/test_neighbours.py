"""Server groups in a line: every update reaches every copy, once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.line import COUNT, STEPS, Line, events, happen, servers
from support.servers import Post, contained, ones, protocol

from singa_dask.server.ledger import Ledger
from singa_dask.server.messages import (
    Done,
    Inspect,
    OpenAccount,
    Origin,
    Refused,
    Sync,
    Update,
)
from singa_dask.server.neighbours import Account
from singa_dask.updaters import SGD


def made_of(line: Line, values: np.ndarray, i: int) -> set[int]:
    """Which updates of copy i these values hold, each of them once."""
    sum_, n = int(values[i]), int(values[COUNT + i])
    steps = {step for step in range(STEPS) if sum_ >> step & 1}
    assert sum_ == sum(2**step for step in steps), "an update that nobody made"
    assert len(steps) == n, "an update was counted twice"
    assert max(steps, default=0) < max(line.updates[i], 1)
    return steps


def ledger_of(line: Line, i: int) -> Ledger:
    """The ledger of copy i, which must say exactly what its values hold."""
    state = line.posts[i].ask(Inspect(0))
    for origin in range(len(line)):
        assert contained(state.ledger, origin) == made_of(line, state.values, origin)
    return state.ledger


@settings(max_examples=150)
@given(n=st.integers(2, 4), schedule=events)
def test_no_update_is_lost_or_counted_twice(n, schedule):
    line = Line(n)
    for event in schedule:
        happen(line, event)
        for i in range(n):
            for origin in range(n):
                # What a copy knows of another one is all that this had done up to some time.
                steps = made_of(line, line.values(i), origin)
                assert steps == set(range(len(steps)))
                assert i != origin or len(steps) == line.updates[i]
            ledger_of(line, i)
    line.sweep()
    expected = line.initial.copy()
    for origin in range(n):
        expected[origin] += 2 ** line.updates[origin] - 1
        expected[COUNT + origin] += line.updates[origin]
    for i in range(n):
        np.testing.assert_array_equal(line.values(i), expected)
        assert ledger_of(line, i).encode() == [
            [1, 0, [[g, *[[0, k]] * 2, []] for g, k in enumerate(line.updates) if k]]
        ]


@settings(max_examples=50)
@given(n=st.integers(2, 4), schedule=events, seed=st.integers(0, 2**32 - 1))
def test_copies_of_any_numbers_agree_within_rounding(n, schedule, seed):
    rng = np.random.default_rng(seed)
    line = Line(n, rng.standard_normal(16).astype(np.float32))
    exact, size = line.initial.astype(np.float64), np.abs(line.initial).astype(np.float64)
    for event in schedule:
        gradient = rng.standard_normal(16).astype(np.float32)
        before = sum(line.updates)
        happen(line, event, gradient)
        if sum(line.updates) > before:
            exact -= gradient
            size += np.abs(gradient)
    for _ in range(3):  # what was rounded away in one exchange is told in the next
        line.sweep()
    ulp = np.spacing(size.astype(np.float32))
    for i in range(n):
        assert (np.abs(line.values(i) - line.values(0)) <= 4 * ulp).all()
        assert (np.abs(line.values(i) - exact) <= 4 * (1 + len(schedule)) * ulp).all()


# When an exchange is due


def test_an_exchange_is_due_after_sync_freq_updates():
    line = Line(2, sync_freq=3)
    for _ in range(2):
        for due in (False, False, True):
            line.update(0)
            assert (line.begin(0, force=False) is not None) == due
        line.arrive(0)
        line.finish(0)
    assert line.posts[0].protocol.slices[0].begin_sync() is None, "by default none is forced"


def test_an_exchange_is_due_when_the_left_neighbour_has_said_something():
    line = Line(3, sync_freq=10)
    assert line.begin(1, force=False) is None
    line.begin(0)
    line.arrive(0)
    assert line.begin(1, force=False) is not None
    line.arrive(0)
    line.finish(1)
    assert line.begin(1, force=False) is None


def test_the_ends_of_the_line_have_nobody_to_talk_to():
    line = Line(2)
    assert line.posts[1].protocol.slices[0].begin_sync(force=True) is None
    assert isinstance(line.posts[0].ask(Sync(0, (0, 0), 1, ones())), Refused)
    assert (
        Post(protocol(accounts={"right": (0, 0)})).protocol.slices[0].begin_sync(force=True) is None
    )  # before the Put


def test_a_message_that_arrives_again_after_a_later_one_is_refused():
    line = Line(2)
    for _ in range(2):
        line.update(0)
        line.begin(0)
        line.arrive(len(line.syncs) - 1, keep=True)
        line.finish(0)
    line.arrive(0)
    assert "exchange 1 after 2" in line.replies[0][2].reason
    assert made_of(line, line.values(1), 0) == {0, 1}


# A server is made anew


def disturbed(n: int) -> Line:
    """A line in which everybody has something to tell, and messages are under way."""
    line = Line(n)
    for i in range(n):
        line.update(i)
    line.sweep()
    for i in range(n):
        line.update(i)
    for i in range(n - 1):
        line.begin(i)
    return line


@pytest.mark.parametrize(("n", "lost"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 2)])
def test_a_replaced_server_has_what_its_neighbours_had_and_these_lose_nothing(n, lost):
    line = disturbed(n)
    line.replace(lost)
    line.restore(lost)
    for i in range(n):
        line.update(i)
    line.sweep()
    copies = [line.values(i) for i in range(n)]
    assert all(ledger_of(line, i) == ledger_of(line, 0) for i in range(n))
    for origin in range(n):
        steps = made_of(line, copies[0], origin)
        # The living's are all there, said or not; of the lost one's at least what had been said of them.
        assert steps == ({0, 1, 2} if origin != lost else {0, 2})
    for values in copies:
        np.testing.assert_array_equal(values, copies[0])


def test_an_opening_that_arrives_again_after_exchanges_changes_nothing():
    line = disturbed(3)
    line.replace(1)
    line.restore(1)
    for i in range(3):
        line.update(i)
    line.flush(0)
    line.flush(1)
    before = line.values(2)
    assert line.hand_on(1, 2) == Done()
    np.testing.assert_array_equal(line.values(2), before)
    line.take_over(1, 0)
    line.sweep()
    assert made_of(line, line.values(0), 2) == {0, 1, 2}


def test_an_opening_of_an_earlier_account_is_refused():
    line = disturbed(2)
    old = line.account(0)
    line.replace(1)
    line.restore(1)
    for values in (None, ones(50.0)):
        assert isinstance(line.posts[0].ask(OpenAccount(0, "right", old, values)), Refused)
    line.sweep()
    np.testing.assert_array_equal(line.values(0), line.values(1))


@settings(max_examples=100)
@given(n=st.integers(2, 4), before=events, lost=servers, repeats=st.integers(1, 3), after=events)
def test_copies_agree_after_a_replacement_whatever_is_under_way(n, before, lost, repeats, after):
    line = Line(n)
    lost %= n
    for event in before:
        happen(line, event)
    unsaid = {
        i: made_of(line, line.values(i), i) - (made_of(line, line.values(lost), i)) for i in range(n) if i != lost
    }
    line.replace(lost)
    for _ in range(repeats):
        line.restore(lost)
    for event in after:
        happen(line, event)
        for i in range(n):
            ledger_of(line, i)
    line.sweep()
    for i in range(n):
        np.testing.assert_array_equal(line.values(i), line.values(0))
        assert ledger_of(line, i) == ledger_of(line, 0)
    for i, steps in unsaid.items():
        # All that the side knows from which the new server takes over survives, said or not.
        if i < lost or lost == 0:
            assert steps <= made_of(line, line.values(0), i)


def test_an_account_forgets_what_it_began_with_once_the_neighbour_exchanges():
    """Its values would be held twice for ever."""
    left, right = Account(ones(0.0), Ledger()), Account(ones(0.0), Ledger())
    mine, theirs = ones(1.0), ones(10.0)
    sync = left.begin(0, mine, Ledger())
    assert (left.opening[0] == 0).all() and (left.known == 1).all(), "a neighbour may still ask for them"
    answer = right.answer(theirs, Ledger(), sync, SGD(lr=1.0).mix)
    assert (right.opening[0] == 11).all() and right.opening[0] is right.known
    left.finish(mine, Ledger(), sync, answer)
    assert left.opening[0] is left.known and (mine == 11).all() and (theirs == 11).all()


@pytest.mark.parametrize("size", [1, 32])
def test_an_opening_that_does_not_fit_is_refused_and_changes_nothing(size):
    line = Line(2)
    line.update(1)
    reply = line.posts[1].ask(OpenAccount(0, "left", (1, 0), ones(7.0, size)))
    assert isinstance(reply, Refused) and f"must have shape (16,), not ({size},)" in reply.reason
    assert line.values(1)[1] == 1 and line.values(1)[0] == 0


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=12))
def test_the_most_reductions_of_the_learning_rate_reach_all_copies(told):
    """Each copy hears of some reductions with an update; once everything is exchanged, all know the most."""
    line, steps = Line(3), [0, 0, 0]
    for i, reductions in told:
        line.posts[i].ask(Update(0, Origin(0), steps[i], ones(0.0), reductions=reductions))
        steps[i] += 1
        known = [post.ask(Inspect(0)).reductions for post in line.posts]
        assert known[i] >= reductions
    for left in (0, 1, 0):
        sync = line.posts[left].protocol.slices[0].begin_sync(force=True)
        reply = line.posts[left + 1].ask(sync)
        line.posts[left].protocol.slices[0].finish_sync(sync, reply)
    most = max((reductions for _, reductions in told), default=0)
    assert [post.ask(Inspect(0)).reductions for post in line.posts] == [most] * 3


def test_a_copy_of_a_neighbour_has_its_reductions_of_the_learning_rate():
    line = Line(2)
    line.posts[0].ask(Update(0, Origin(0), 0, ones(0.0), reductions=2))
    state = line.posts[0].ask(OpenAccount(0, "right", (0, 1)))
    assert state.reductions == 2
