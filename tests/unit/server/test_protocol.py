"""What a ServerProtocol answers, and when."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from support.servers import Post, contained, ones, protocol, server_plan

from singa_dask.ops import Ops
from singa_dask.server import partition
from singa_dask.server.ledger import Ledger
from singa_dask.server.messages import (
    Done,
    Get,
    Inspect,
    Leave,
    OpenAccount,
    Origin,
    Put,
    Refused,
    Sync,
    Update,
)
from singa_dask.server.protocol import ServerProtocol
from singa_dask.updaters import SGD, schedules


def post(values: float | None = 0.0, **options) -> Post:
    """To a protocol that has its parameters, unless `values` is None."""
    made = Post(protocol(**options))
    if values is not None:
        assert made.ask(Put(0, ones(values))) == Done()
    return made


def update(group: int, step: int, gradient: float = 1.0, *, based_on: int = 0, **origin) -> Update:
    return Update(0, Origin(group, **origin), step, ones(gradient), based_on)


def value(to: Post) -> float:
    """Of all elements, which must be equal."""
    values = to.ask(Inspect(0)).values
    assert (values == values[0]).all()
    return float(values[0])


# Put, Get, Inspect


def test_everything_waits_for_the_parameters_and_says_which_updates_these_contain():
    to = post(None, accounts={"left": (0, 0)})
    requests = [
        Get(0, Origin(0)),
        update(0, 1),
        update(0, 0),
        Inspect(0),
        Leave(0, Origin(1)),
        Sync(0, (0, 0), 1, ones()),
        OpenAccount(0, "left", (0, 0)),
    ]
    numbers = [to.say(request) for request in requests]
    assert all(map(to.waits, numbers))
    assert to.ask(Put(0, ones(5.0))) == Done()
    types = ["Fresh", "Fresh", "Fresh", "State", "Done", "Delta", "State"]
    assert [type(to.got[number]).__name__ for number in numbers] == types
    assert [(to.got[n].version, to.got[n].values[0]) for n in numbers[:4]] == [(2, 5 - 2 + 1)] * 4
    assert to.got[numbers[0]].next_step == 2


def test_put_continues_from_a_checkpoint():
    to = Post(protocol())
    to.say(Put(0, ones(3.0), {"velocity": ones(0.5)}, version=40, step=10))
    state = to.ask(Inspect(0))
    assert state.version == 40 and state.state["velocity"][0] == 0.5
    assert to.ask(Get(0, Origin(0, first=10))).next_step == 10
    assert to.ask(update(0, 10, first=10)).version == 41


@pytest.mark.parametrize("copy", [True, False])
def test_put_copies_the_values_unless_told_otherwise(copy):
    values = ones(0.0)
    to = Post(server_plan(partition(16, 1, 1, beside=False)).protocol(Ops(), copy=copy))
    to.say(Put(0, values))
    to.say(update(0, 0))
    assert value(to) == -1 and values[0] == (0 if copy else -1)


@pytest.mark.parametrize(
    "put",
    [Put(0, ones(size=32)), Put(0, ones(), {"velocity": ones(size=8)}), Put(0, ones(), {"moment": ones()})],
    ids=["values", "state", "names"],
)
def test_a_put_that_does_not_fit_is_refused_and_leaves_the_slice_as_it_was(put):
    to = post(None)
    waiting = to.say(Get(0, Origin(0)))
    assert "Put failed" in to.ask(put).reason
    assert to.waits(waiting)
    assert to.ask(Put(0, ones(2.0))) == Done()
    assert to.got[waiting].values[0] == 2


def test_get_waits_for_its_version():
    to = post()
    number = to.say(Get(0, Origin(1), version=2))
    to.say(update(0, 0))
    assert to.waits(number)
    to.say(update(0, 1))
    assert to.got[number].version == 2 and to.got[number].values[0] == -2


def test_a_slice_that_is_elsewhere_is_refused():
    reply = post().ask(Get(3, Origin(0)))
    assert isinstance(reply, Refused) and "slice 3" in reply.reason and "[0]" in reply.reason


def test_each_slice_is_on_its_own():
    to = Post(server_plan(partition(64, 2, 1, beside=False)).protocol(Ops()))
    to.say(Put(0, ones(0.0, 32)))
    number = to.say(Get(1, Origin(0)))
    assert to.waits(number)
    to.say(Put(1, ones(4.0, 32)))
    assert to.got[number].values[0] == 4


# Updates of one group


def test_updates_are_applied_in_the_order_of_their_steps():
    # With momentum the order shows: v1 = -g0, v2 = v1/2 - g1.
    to = post(updater=partial(SGD, momentum=0.5))
    numbers = [to.say(update(0, step, 2.0**step)) for step in (2, 1, 2, 0)]
    assert not any(map(to.waits, numbers))
    state, velocities = to.ask(Inspect(0)), [-1.0, -2.5, -5.25]
    assert (state.values[0], state.state["velocity"][0], state.version) == (sum(velocities), velocities[-1], 3)


def test_a_gradient_of_another_size_is_refused_and_the_group_goes_on():
    to = post()
    for size in (1, 8, 32):
        reply = to.ask(Update(0, Origin(0), 0, ones(size=size)))
        assert isinstance(reply, Refused) and "(16,)" in reply.reason and f"({size},)" in reply.reason
    assert to.ask(update(0, 0)).version == 1


def test_the_updater_hears_of_the_group_s_step_and_of_all_updates_made():
    class Recorder:
        def start(self, w):
            calls.append("start")

        def update(self, step, w, g, made, reductions, staleness):
            calls.append((step, made))

    calls = []
    cut = partition(16, 1, 1, beside=False)
    to = Post(ServerProtocol(cut.slices, lambda _: Recorder(), Ops(), groups=(0, 1)))
    to.say(Put(0, ones(), version=40, step=10))
    for group, step in [(0, 10), (1, 10), (1, 11), (0, 11)]:
        to.say(update(group, step, first=10))
    assert calls == ["start", (10, 40), (10, 41), (11, 42), (11, 43)]


class Cautious(SGD):
    """SGD whose learning rate is divided by the staleness (Zhang et al. 2016)."""

    type = "kUserUpdater"

    def stale_factor(self, staleness):
        return 1 / max(1, staleness)


def test_an_updater_of_a_user_s_own_scales_updates_by_those_made_since_the_parameters_were_read():
    to = post(updater=Cautious, groups=(0, 1))
    given = []
    for sent in [update(0, 0), update(0, 1, based_on=1), update(0, 2, based_on=2), update(1, 0, based_on=1)]:
        given.append((to.ask(sent).staleness, value(to)))
    assert given == [(0, -1), (0, -2), (0, -3), (2, -3.5)]


def test_an_update_has_the_learning_rate_that_its_sender_names_and_replies_tell_the_lowest():
    halved = schedules.ReduceOnPlateau(base_lr=8.0, factor=0.5)
    to = post(None, updater=lambda lr: SGD(learning_rate=halved), groups=(0, 1))
    to.say(Put(0, ones(0.0), reductions=1))
    assert to.ask(Get(0, Origin(0))).reductions == 1
    given = []
    for sent, reductions in [(update(0, 0), 1), (update(0, 1), 3), (update(1, 0), 1), (update(0, 1), 3)]:
        given.append((to.ask(replace(sent, reductions=reductions)).reductions, value(to)))
    # The third is late: its step has the rate that the group knew, on all slices. The last one is repeated.
    assert given == [(1, -4), (3, -5), (3, -9), (3, -9)]
    assert to.ask(Inspect(0)).reductions == 3


# Generations


def test_what_a_former_generation_says_is_refused():
    to = post()
    to.say(update(0, 0))
    assert to.ask(Get(0, Origin(0, 1, first=1))).next_step == 1
    for late in (Get(0, Origin(0)), update(0, 1), update(0, 0)):
        reply = to.ask(late)
        assert isinstance(reply, Refused) and "generation 1" in reply.reason
    assert to.ask(Leave(0, Origin(0))) == Done()
    assert value(to) == -1


def test_a_new_generation_that_agreed_on_a_later_step_skips_what_was_lost_here():
    to = post()
    to.say(update(0, 0))
    assert to.ask(Get(0, Origin(0, 1))).next_step == 1
    assert to.ask(update(0, 3, generation=1, first=3)).next_step == 4
    assert value(to) == -2


def test_an_update_that_was_waiting_when_its_generation_ended_is_refused():
    to = post()
    orphan = to.say(update(0, 1))
    to.say(Get(0, Origin(0, 1)))
    assert isinstance(to.got[orphan], Refused)
    assert to.ask(update(0, 0, generation=1)).version == 1
    assert value(to) == -1


# Bounded staleness


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_group_waits_when_it_is_further_ahead_than_the_bound(bound):
    to = post(groups=(0, 1), max_staleness=bound)
    for step in range(bound):
        assert to.ask(update(0, step)).next_step == step + 1
    held = to.say(update(0, bound))
    assert to.waits(held)
    to.say(Inspect(0))
    assert to.waits(held)
    assert to.ask(update(1, 0)).next_step == 1
    assert to.got[held].next_step == bound + 1


def test_a_held_reply_is_given_to_every_repetition_but_not_to_a_withdrawn_one():
    to = post(groups=(0, 1), max_staleness=0)
    withdrawn, *held = [to.say(update(0, 0)) for _ in range(3)]
    assert [to.protocol.slices[0].withdraw(withdrawn) for _ in range(2)] == [True, False]
    assert all(map(to.waits, held))
    to.say(update(1, 0))
    assert to.waits(withdrawn) and [to.got[number].values[0] for number in held] == [-2, -2]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (1, 0, 2)], ids=str)
def test_lock_step_gives_every_group_the_sum_of_each_step_in_one_order(order):
    to = post(groups=(0, 1, 2), max_staleness=0)
    for step in range(4):
        numbers = [to.say(update(group, step, [2.0**30, -(2.0**30), 1.0][group])) for group in order]
        # The large ones come first: after them, 1 is not rounded away.
        assert [(to.got[n].values[0], to.got[n].version) for n in numbers] == [(-1, 3 * (step + 1))] * 3


def test_a_group_leaves_with_its_generation_or_a_later_one_and_frees_the_others():
    to = post(groups=(0, 1), max_staleness=0)
    to.say(Get(0, Origin(1, 1)))
    held = to.say(update(0, 0))
    to.say(Leave(0, Origin(1, 0)))
    assert to.waits(held)
    assert to.ask(Leave(0, Origin(1, 1))) == Done()
    assert to.got[held].version == 1
    for late in (Leave(0, Origin(1, 4)), Get(0, Origin(1, 4)), Leave(0, Origin(2, 3)), Get(0, Origin(2, 3))):
        to.say(late)
    assert to.ask(update(0, 1)).version == 2, "a Get that arrives after its group has left holds nobody back"


def test_a_late_group_is_excused_from_the_steps_that_the_others_have_made():
    to = post(groups=(0,), max_staleness=1)
    for step in range(10):
        to.say(update(0, step))
    fresh = to.ask(Get(0, Origin(1)))
    assert (fresh.next_step, fresh.clock) == (0, 10)
    # From now on the two go along with each other.
    said = [update(0, 10), update(0, 11), *(update(1, step, clock=10) for step in range(4))]
    numbers = [to.say(each) for each in said[:2]]
    assert [to.waits(number) for number in numbers] == [False, True]
    numbers += [to.say(said[2])]
    assert not any(map(to.waits, numbers))
    numbers += [to.say(each) for each in said[3:]]
    assert [to.waits(number) for number in numbers] == [False] * 5 + [True]


def test_the_clock_that_the_workers_of_a_late_group_agreed_on_holds_on_every_slice():
    to = post(groups=(0,), max_staleness=0)
    for step in range(10):
        to.say(update(0, step))
    assert to.ask(Get(0, Origin(1))).clock == 10
    held = to.say(update(1, 4, first=4, clock=12))
    assert to.waits(held)
    for step in (10, 11, 12):
        to.say(update(0, step))
    assert to.got[held].clock == 13 and to.got[held].next_step == 5


def test_a_late_group_is_excused_up_to_the_slowest_of_those_that_are_there():
    to = post(groups=(0, 1, 2), max_staleness=None)
    to.say(Leave(0, Origin(2)))  # which has made no step
    for group, steps in ((0, 8), (1, 5)):
        for step in range(steps):
            assert to.ask(update(group, step)).next_step == step + 1, "without a bound nobody waits"
    assert to.ask(Get(0, Origin(3))).clock == 5
    to.say(Leave(0, Origin(1)))
    assert [to.ask(Get(0, origin)).clock for origin in (Origin(4), Origin(2, 1))] == [5, 5], "group 3 is there"


def test_a_group_that_returns_before_it_was_given_up_is_waited_for_as_before():
    to = post(groups=(0, 1), max_staleness=0)
    held = to.say(update(0, 0))
    to.say(Get(0, Origin(1)))
    assert to.ask(Get(0, Origin(1, 1))).clock == 0
    assert to.waits(held)
    to.say(update(1, 0, generation=1))
    assert to.got[held].values[0] == -2


# The ledger


def test_a_ledger_says_with_which_step_each_group_goes_on():
    """In a checkpoint of step 100, group 1 may be ahead of group 0, and group 2 behind it."""
    ledger = Ledger.decode([[3, 0, [[g, [0, n], [0, n], []] for g, n in enumerate((100, 110, 95))]]])
    to = Post(protocol(groups=(0, 1, 2), dealt_to=3))
    to.say(Put(0, ones(0.0), version=100, step=100, ledger=ledger))
    assert [to.ask(Get(0, Origin(group))).next_step for group in range(3)] == [100, 110, 95]
    assert to.ask(Get(0, Origin(3, first=97))).next_step == 97, "it is new"
    for group, step in enumerate((100, 110, 95)):
        to.say(update(group, step, first=step))
    state = to.ask(Inspect(0))
    assert [contained(state.ledger, group) for group in range(4)] == [*({*range(n)} for n in (101, 111, 96)), set()]
    assert not contained(ledger, 1) & {110}, "the checkpoint's own ledger changed"


def test_another_number_of_groups_begins_with_the_step_of_the_checkpoint():
    ledger = Ledger.decode([[2, 0, [[0, [0, 100], [0, 100], []], [1, [0, 110], [0, 110], []]]]])
    to = Post(protocol(groups=(0, 1, 2), dealt_to=3))
    to.say(Put(0, ones(0.0), step=100, ledger=ledger))
    assert [to.ask(Get(0, Origin(group))).next_step for group in range(3)] == [100, 100, 100]
    assert to.ask(update(1, 100, first=100)).ledger.encode() == [
        *ledger.encode(),
        [3, 100, [[1, *[[100, 101]] * 2, []]]],
    ]
