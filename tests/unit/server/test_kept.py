"""Servers that are lost, and successors that resume from what they have left in memory."""

import random
from dataclasses import replace

import numpy as np
import pytest
from support.lost import SIZE, Lost, exchange, same, update
from support.servers import contained, ones
from support.servers import protocol as protocol_of

from singa_dask.server.kept import SLICE, kept_ledger, never_served, read_kept, save_slices
from singa_dask.server.messages import (
    Done,
    Get,
    GoBack,
    Inspect,
    Leave,
    Moved,
    OpenAccount,
    Origin,
    Put,
    Refused,
    Update,
)
from singa_dask.server.slice_protocol import LEFT, RIGHT
from singa_dask.updaters import Adam


def test_a_successor_has_everything():
    server = Lost(updater=Adam)
    server.ask(Put(0, ones(5), version=7, step=7, reductions=1))
    for step in (7, 8):
        server.ask(update(1, step))
    server.ask(Update(0, Origin(0, 3, 7), 7, ones(1, SIZE)))
    server.ask(Leave(0, Origin(2)))
    before = server.protocol.slices[0]
    server.lose()
    after = server.protocol.slices[0]
    assert after is not before and after.values is not before.values and before.updater.state
    np.testing.assert_equal((after.values, after.updater.state), (before.values, before.updater.state))
    for name in ("version", "ledger", "members", "untold", "heard", "reductions", "accounts"):
        assert getattr(after, name) == getattr(before, name), name
    assert not after.members[2].active and after.members[0].generation == 3


def test_slices_without_values_wait_for_them_still():
    server = Lost(slices=2)
    server.ask(Put(1, ones(4)))
    server.lose()
    assert server.protocol.slices[0].values is None and server.ask(Get(0, Origin(0))) is None
    server.ask(Put(0, ones(2)))
    assert [server.ask(Get(i, Origin(0))).values[0] for i in range(2)] == [2, 4]


def test_worker_groups_that_have_gone_meanwhile_are_not_waited_for():
    server = Lost(max_staleness=0, groups=(0, 1))
    server.ask(Put(0, ones(0)))
    assert server.ask(update(0, 0)) is None
    server.lose(groups=(0,))
    assert (server.ask(update(0, 0)).values == -1).all()


def test_a_server_that_lives_acknowledges_nothing_that_its_successor_does_not_know():
    server = Lost(max_staleness=0, groups=(0, 1))
    server.ask(Put(0, ones(0)))
    old, held = server.server, server.server.call(update(0, 0))
    server.lose()
    late = old.call(update(1, 0))
    assert late.result(1) == held.result(1) == Moved() and old.retired
    assert old.call(Inspect(0)).result(1) == Moved()
    assert (server.protocol.slices[0].values == 0).all(), "it is not acknowledged, and repeated here"
    assert server.ask(update(0, 0)) is None and (server.ask(update(1, 0)).values == -2).all()


def test_what_is_gone_is_not_read_and_nothing_is_saved_without_room():
    server, protocol, asked = Lost(), protocol_of(SIZE), []
    described = server.saved
    del server
    assert read_kept(described) is None and save_slices(protocol, (), asked.append) is None
    assert asked[0] > 2 * 4 * SIZE
    (answer,) = protocol.handle(0, Put(0, ones(0)))
    assert answer.reply == Done()


# Neighbours


MOMENTS = [f"{side} {name}" for side in ("left", "right") for name in ("began", "answered", "finished")]


@pytest.mark.parametrize("moment", [(), *[(moment,) for moment in MOMENTS], tuple(MOMENTS)], ids=str)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_an_exchange_goes_on_after_the_loss_of_either_side(moment, before):
    left, right = Lost(0, 2), Lost(1, 2)
    for server in (left, right):
        server.ask(Put(0, ones(100)))
    for step in range(before + 2):
        left.ask(update(0, step, 1))
        right.ask(update(1, step, 10))
        exchange(left, right, moment if step == before else ())
    exchange(left, right, ())
    for server in (left, right):
        state = server.ask(Inspect(0))
        assert (state.values == 100 - 11 * (before + 2)).all()
        assert not any(c.twice for of in state.ledger.assignments.values() for c in of.values())


def test_the_opening_values_are_there_for_a_neighbour_that_repeats_its_request():
    left, right = Lost(0, 2), Lost(1, 2)
    left.ask(Put(0, ones(3)))
    opening = left.ask(OpenAccount(0, RIGHT, (1, 2)))
    left.ask(update(0, 0))
    left.server.begin_sync(0, force=True)
    left.lose()
    again = left.ask(OpenAccount(0, RIGHT, (1, 2)))
    assert (again.values == opening.values).all() and again.ledger == opening.ledger
    right.ask(Put(0, again.values, ledger=again.ledger))
    right.server.open_account(0, LEFT, (1, 2))
    exchange(left, right, ())
    assert (right.ask(Inspect(0)).values == 2).all()


@pytest.mark.parametrize("seed", range(20))
def test_servers_that_are_lost_at_any_moment_end_with_the_sum_of_all_updates(seed):
    draw, line = random.Random(seed), [Lost(i, 3, groups=(i,)) for i in range(3)]
    made, under_way = [0] * 3, {}
    for server in line:
        server.ask(Put(0, ones(0)))
    for _ in range(120):
        number = draw.randrange(3)
        match draw.randrange(5):
            case 0:
                line[number].lose()
            case 1 | 2:
                assert (line[number].ask(update(number, made[number], 1 << number)).values < 0).all()
                made[number] += 1
            case 3 if number < 2:
                under_way[number] = line[number].server.begin_sync(0, force=True)
            case 4 if number in under_way:
                reply = line[number + 1].ask(under_way[number])
                if draw.random() < 0.7 and not isinstance(reply, Refused):
                    line[number].server.finish_sync(line[number].server.begin_sync(0), reply)
                    del under_way[number]
    for number in (0, 1, 0, 1, 0, 1):
        for _ in range(2):
            sync = line[number].server.begin_sync(0, force=True)
            line[number].server.finish_sync(sync, line[number + 1].ask(sync))
    total = -sum(count << number for number, count in enumerate(made))
    assert [server.ask(Inspect(0)).values[0] for server in line] == [total] * 3


def test_a_server_that_dies_while_it_saves_an_account_leaves_the_one_before(monkeypatch):
    left, right = Lost(0, 2), Lost(1, 2)
    for server in (left, right):
        server.ask(Put(0, ones(0)))
    left.ask(update(0, 0))
    exchange(left, right, ())
    number = left.regions[0, RIGHT].number
    left.ask(update(0, 1))
    assert left.regions[0, RIGHT].number == number, "it has not changed"
    region = left.regions[0, SLICE]
    monkeypatch.setattr(region, "save", lambda *args: 1 / 0)  # the account is saved, the slice is not
    with pytest.raises(ZeroDivisionError):
        left.server.begin_sync(0, force=True)
    left.lose()
    assert not left.protocol.slices[0].accounts[RIGHT].waiting
    exchange(left, right, ())
    assert [(server.ask(Inspect(0)).values == -2).all() for server in (left, right)] == [True] * 2


# Back to the step before


def test_a_slice_goes_back_to_the_step_that_all_have():
    server = Lost(groups=(0,))
    server.ask(Put(0, ones(0)))
    for step in range(3):
        server.ask(replace(update(0, step), reductions=step))
    server.ask(Get(0, Origin(0, 1, 2)))
    reply = server.ask(GoBack(0, Origin(0, 1, 2), 2))
    assert (reply.next_step, reply.version, reply.values[0]) == (2, 2, -2)
    assert contained(reply.ledger, 0) == {0, 1} and reply.reductions == 2, "the evaluation came before the step"
    assert same(server.ask(GoBack(0, Origin(0, 1, 2), 2)), reply), "repeated"
    again = server.ask(replace(update(0, 2), origin=Origin(0, 1, 2)))
    assert (again.version, again.values[0]) == (3, -3)


@pytest.mark.parametrize(
    "why", ["two steps", "two groups", "no memory", "nothing to undo", "neighbour", "lost beside one"]
)
def test_a_slice_that_cannot_go_back_says_where_it_is(why):
    server = Lost(0, 1 + (why in ("neighbour", "lost beside one")), groups=(0, 1) if why == "two groups" else (0,))
    server.protocol.slices[0].keeper = None if why == "no memory" else server.protocol.slices[0].keeper
    server.ask(Put(0, ones(0)))
    for step in range(3):
        server.ask(update(0, step))
    if why == "lost beside one":
        server.lose()
    reply = server.ask(GoBack(0, Origin(0, 1), {"two steps": 1, "nothing to undo": 3}.get(why, 2)))
    assert (reply.next_step, reply.version) == (3, 3)
    assert isinstance(server.ask(GoBack(0, Origin(0, 0), 2)), Refused)


def test_who_reads_the_ledger_of_a_lost_server_supersedes_it():
    """Its driver may be cut off and not dead: nothing is acknowledged that the next driver does not know."""
    made = Lost(slices=2)
    made.ask(Put(0, ones(0)))
    assert kept_ledger(made.saved) is None and never_served(made.saved), "a slice has no values"
    assert made.ask(Put(1, ones(1))) == Moved(), "it gets none any more"
    made = Lost(slices=2)
    for index in range(2):
        made.ask(Put(index, ones(0)))
    for index, step in ((0, 0), (1, 0), (0, 1)):
        made.ask(update(0, step, index=index))
    ledger = kept_ledger(made.saved)
    (contained,) = ledger.assignments[ledger.assignment].values()
    assert (contained.by_all, contained.by_any) == ([0, 1], [0, 2])
    assert made.ask(update(0, 1, index=1)) == Moved()
    assert kept_ledger(made.saved).updates == ledger.updates, "it can be read again"
    assert not never_served(made.saved)
