"""What a ServerProtocol answers, and when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.servers import Post, contained, ones, protocol, server_plan

from singa_dask.ops import Ops
from singa_dask.server import partition
from singa_dask.server.ledger import Ledger
from singa_dask.server.messages import (
    Done,
    Fresh,
    Get,
    Inspect,
    Leave,
    OpenAccount,
    Origin,
    Put,
    Refused,
    State,
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


def test_everything_waits_for_the_parameters():
    to = post(None, accounts={"left": (0, 0)})
    requests = [
        Get(0, Origin(0)),
        update(0, 0),
        Inspect(0),
        Leave(0, Origin(1)),
        Sync(0, (0, 0), 1, ones()),
        OpenAccount(0, "left", (0, 0)),
    ]
    numbers = [to.say(request) for request in requests]
    assert all(to.waits(number) for number in numbers)
    assert to.ask(Put(0, ones(5.0))) == Done()
    assert [type(to.got[number]).__name__ for number in numbers] == [
        "Fresh",
        "Fresh",
        "State",
        "Done",
        "Delta",
        "State",
    ]
    assert value(to) == 5 - 1 + 1


def test_a_reply_says_which_updates_its_values_contain_also_when_several_are_answered_at_once():
    to = post(None)
    early = [to.say(request) for request in (Get(0, Origin(0)), Inspect(0), update(0, 1), update(0, 0))]
    to.say(Put(0, ones(0.0)))
    for number in early:
        reply = to.got[number]
        assert reply.values[0] == -reply.version == -2
    assert to.got[early[0]].next_step == 2


def test_only_the_first_put_counts():
    to = post(3.0)
    assert to.ask(Put(0, ones(9.0), version=7, step=7)) == Done()
    reply = to.ask(Get(0, Origin(0)))
    assert reply.values[0] == 3 and reply.version == 0 and reply.next_step == 0


def test_put_continues_from_a_checkpoint():
    to = Post(protocol())
    to.say(Put(0, ones(3.0), {"velocity": ones(0.5)}, version=40, step=10))
    state = to.ask(Inspect(0))
    assert state.version == 40 and state.state["velocity"][0] == 0.5
    assert to.ask(Get(0, Origin(0, first=10))).next_step == 10
    assert to.ask(update(0, 10, first=10)).version == 41


def test_put_copies_the_values_unless_told_otherwise():
    values = ones(0.0)
    to = Post(protocol())
    to.say(Put(0, values))
    to.say(update(0, 0))
    assert values[0] == 0 and value(to) == -1
    in_place = Post(server_plan(partition(16, 1, 1, beside=False)).protocol(Ops(), copy=False))
    in_place.say(Put(0, values))
    in_place.say(update(0, 0))
    assert values[0] == -1


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


def test_inspect_shows_values_state_and_version():
    plan = server_plan(partition(16, 1, 1, beside=False))
    proto = SGD(lr=1.0, momentum=0.5).proto.SerializeToString()
    to = Post(type(plan)(proto, plan.entries, plan.slices).protocol(Ops()))
    to.say(Put(0, ones(0.0)))
    to.say(update(0, 0))
    to.say(update(0, 1))
    state = to.ask(Inspect(0))
    assert isinstance(state, State)
    assert (state.values[0], state.state["velocity"][0], state.version) == (-2.5, -1.5, 2)


def test_a_slice_that_is_elsewhere_is_refused():
    reply = post().ask(Get(3, Origin(0)))
    assert isinstance(reply, Refused) and "slice 3" in reply.reason and "[0]" in reply.reason


def test_each_slice_is_on_its_own():
    cut = partition(64, 1, 1, beside=False)
    two = partition(64, 2, 1, beside=False)
    assert len(cut.slices) == 1 and len(two.slices) == 2
    to = Post(server_plan(two).protocol(Ops()))
    to.say(Put(0, ones(0.0, 32)))
    number = to.say(Get(1, Origin(0)))
    assert to.waits(number)
    to.say(Put(1, ones(4.0, 32)))
    assert to.got[number].values[0] == 4


# Updates of one group


def test_an_update_is_answered_with_parameters_that_contain_it():
    to = post(5.0)
    reply = to.ask(update(0, 0, 2.0))
    assert isinstance(reply, Fresh) and reply.values[0] == 3 and reply.version == 1 and reply.next_step == 1


def test_a_repeated_update_is_applied_once_and_answered_each_time():
    to = post()
    for _ in range(3):
        assert to.ask(update(0, 0)).values[0] == -1
    to.say(update(0, 1))
    assert to.ask(update(0, 0)).version == 2
    assert value(to) == -2


def test_updates_are_applied_in_the_order_of_their_steps():
    # With momentum the order shows: v1 = -g0, v2 = v1/2 - g1.
    plan = server_plan(partition(16, 1, 1, beside=False))
    proto = SGD(lr=1.0, momentum=0.5).proto.SerializeToString()
    to = Post(type(plan)(proto, plan.entries, plan.slices).protocol(Ops()))
    to.say(Put(0, ones(0.0)))
    numbers = [to.say(update(0, step, 2.0**step)) for step in (2, 1, 2, 0)]
    assert all(not to.waits(number) for number in numbers)
    velocities = [-1.0, -2.5, -5.25]
    assert value(to) == sum(velocities) and to.ask(Inspect(0)).version == 3


def test_a_gradient_of_another_size_is_refused_and_the_group_goes_on():
    to = post()
    for size in (1, 8, 32):
        reply = to.ask(Update(0, Origin(0), 0, ones(size=size)))
        assert isinstance(reply, Refused) and "(16,)" in reply.reason and f"({size},)" in reply.reason
    assert to.ask(update(0, 0)).version == 1


def test_staleness_counts_the_updates_since_the_parameters_were_read():
    to = post(groups=(0, 1))
    assert to.ask(update(0, 0)).staleness == 0
    assert to.ask(update(0, 1, based_on=1)).staleness == 0
    assert to.ask(update(1, 0, based_on=0)).staleness == 2


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


def test_an_updater_of_a_user_s_own_scales_stale_updates():
    cut = partition(16, 1, 1, beside=False)
    plan = replace(server_plan(cut), updater=Cautious(lr=1.0).proto.SerializeToString(), groups=(0, 1))
    to = Post(plan.protocol(Ops()))
    to.ask(Put(0, ones(0.0)))
    values = []
    for sent in [update(0, 0), update(0, 1, based_on=1), update(0, 2, based_on=2), update(1, 0, based_on=1)]:
        to.ask(sent)
        values.append(value(to))
    assert values == [-1, -2, -3, -3.5]  # the last one misses two updates


def falling() -> Post:
    """A server with two worker groups, whose learning rate is halved with each reduction, from 8."""
    cut = partition(16, 1, 1, beside=False)
    made = SGD(learning_rate=schedules.ReduceOnPlateau(base_lr=8.0, factor=0.5))
    plan = replace(server_plan(cut), updater=made.proto.SerializeToString(), groups=(0, 1))
    return Post(plan.protocol(Ops()))


def test_an_update_has_the_learning_rate_that_its_sender_names_and_replies_tell_the_lowest():
    to = falling()
    to.say(Put(0, ones(0.0), reductions=1))
    assert to.ask(Get(0, Origin(0))).reductions == 1
    assert to.ask(replace(update(0, 0), reductions=1)).reductions == 1
    assert value(to) == -4
    assert to.ask(replace(update(0, 1), reductions=3)).reductions == 3
    assert value(to) == -5
    late = to.ask(replace(update(1, 0), reductions=1))
    assert (late.reductions, value(to)) == (3, -9), "its step has the rate that the group knew, on all slices"
    assert to.ask(Inspect(0)).reductions == 3
    assert to.ask(replace(update(0, 1), reductions=3)).reductions == 3 and value(to) == -9, "repeated"


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


def test_a_new_generation_continues_where_the_servers_are():
    to = post()
    for step in range(5):
        to.say(update(0, step))
    assert to.ask(Get(0, Origin(0, 1, first=3))).next_step == 5
    reply = to.ask(update(0, 5, generation=1, first=5))
    assert reply.version == 6 and value(to) == -6


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


def test_without_a_bound_nobody_waits():
    to = post(groups=(0, 1, 2), max_staleness=None)
    for step in range(50):
        assert to.ask(update(0, step)).next_step == step + 1


def test_a_held_reply_is_given_to_every_repetition():
    to = post(groups=(0, 1), max_staleness=0)
    held = [to.say(update(0, 0)) for _ in range(3)]
    assert all(map(to.waits, held))
    to.say(update(1, 0))
    assert [to.got[number].values[0] for number in held] == [-2, -2, -2]


def test_a_withdrawn_request_is_not_answered_but_its_repetition_is():
    to = post(groups=(0, 1), max_staleness=0)
    first = to.say(update(0, 0))
    assert to.protocol.slices[0].withdraw(first)
    assert not to.protocol.slices[0].withdraw(first)
    again = to.say(update(0, 0))
    to.say(update(1, 0))
    assert to.waits(first) and to.got[again].values[0] == -2


def test_lock_step_gives_every_group_the_sum_of_all_of_each_step():
    to = post(groups=(0, 1, 2), max_staleness=0)
    for group in range(3):
        assert to.ask(Get(0, Origin(group))).clock == 0
    for step in range(6):
        order = np.roll([0, 1, 2], step)
        numbers = [to.say(update(int(group), step, 10.0**group)) for group in order]
        for number in numbers:
            assert to.got[number].values[0] == -111 * (step + 1) and to.got[number].version == 3 * (step + 1)


def test_in_lock_step_whoever_asks_once_more_gets_what_the_others_got():
    to = post(groups=(0, 1), max_staleness=0)
    to.say(Get(0, Origin(0)))
    to.say(Get(0, Origin(1)))
    to.say(update(0, 0))
    assert to.ask(Get(0, Origin(1))).version == 0
    to.say(update(1, 0))  # whose answer arrives; that of group 0 is lost
    to.say(update(1, 1))
    again = to.ask(update(0, 0))
    assert again.version == 2 and again.values[0] == -2 and again.next_step == 1


def test_lock_step_does_not_depend_on_who_comes_first():
    results = []
    for order in [(0, 1, 2), (2, 0, 1), (1, 2, 0)]:
        to = post(1.0, groups=(0, 1, 2), max_staleness=0)
        for step in range(4):
            for group in order:
                to.say(update(group, step, 0.1 * (group + 1) / (step + 3)))
        results.append(value(to))
    assert len(set(results)) == 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (1, 0, 2)], ids=str)
def test_lock_step_has_its_order_from_the_first_step_on(order):
    to = post(0.0, groups=(0, 1, 2), max_staleness=0)
    for group in order:
        to.say(update(group, 0, [2.0**30, -(2.0**30), 1.0][group]))
    assert value(to) == -1, "the large ones come first: after them, 1 is not rounded away"


def test_a_group_that_is_expected_is_waited_for_even_when_it_comes_after_the_first_update():
    to = post(groups=(0, 1), max_staleness=0)
    to.say(Get(0, Origin(0)))
    held = to.say(update(0, 0))
    assert to.ask(Get(0, Origin(1))).clock == 0
    assert to.waits(held)
    to.say(update(1, 0))
    assert to.got[held].values[0] == -2


@pytest.mark.parametrize("generation", [0, 4], ids=["its own", "one that never said anything"])
def test_a_group_that_leaves_frees_the_others(generation):
    to = post(groups=(0, 1), max_staleness=0)
    to.say(Get(0, Origin(1)))
    held = to.say(update(0, 0))
    assert to.waits(held)
    assert to.ask(Leave(0, Origin(1, generation))) == Done()
    assert to.got[held].version == 1
    assert to.ask(update(0, 1)).version == 2


def test_a_get_that_arrives_after_its_group_has_left_holds_nobody_back():
    to = post(groups=(0,), max_staleness=0)
    to.say(Leave(0, Origin(1, 2)))
    to.say(Get(0, Origin(1, 2)))
    for step in range(4):
        assert to.ask(update(0, step)).next_step == step + 1


def test_the_leave_of_a_former_generation_does_not_send_the_present_one_away():
    to = post(groups=(0, 1), max_staleness=0)
    to.say(Get(0, Origin(1, 1)))
    to.say(Leave(0, Origin(1, 0)))
    assert to.waits(to.say(update(0, 0)))


def test_a_late_group_is_excused_from_the_steps_that_the_others_have_made():
    to = post(groups=(0,), max_staleness=1)
    for step in range(10):
        to.say(update(0, step))
    fresh = to.ask(Get(0, Origin(1)))
    assert fresh.next_step == 0 and fresh.clock == 10
    # From now on the two go along with each other.
    assert to.ask(update(0, 10)).version == 11
    held = to.say(update(0, 11))
    assert to.waits(held)
    assert to.ask(update(1, 0, clock=10)).next_step == 1
    assert not to.waits(held)
    to.say(update(1, 1, clock=10))
    assert not to.waits(to.say(update(1, 2, clock=10)))
    assert to.waits(to.say(update(1, 3, clock=10)))


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


def test_a_group_that_returns_after_it_was_given_up_is_excused_too():
    to = post(groups=(0, 1), max_staleness=0)
    to.say(update(0, 0))
    to.say(update(1, 0))
    to.say(Leave(0, Origin(1)))
    for step in range(1, 8):
        assert to.ask(update(0, step)).next_step == step + 1
    fresh = to.ask(Get(0, Origin(1, 1)))
    assert fresh.next_step == 1 and fresh.clock == 8
    held = to.say(update(0, 8))
    assert to.waits(held)
    assert to.ask(update(1, 1, generation=1, first=1, clock=8)).next_step == 2
    assert not to.waits(held)


def test_a_late_group_is_excused_up_to_the_slowest_of_those_that_are_there():
    to = post(groups=(0, 1, 2), max_staleness=None)
    to.say(Leave(0, Origin(2)))  # which has made no step
    for step in range(8):
        to.say(update(0, step))
    for step in range(5):
        to.say(update(1, step))
    assert to.ask(Get(0, Origin(3))).clock == 5
    to.say(Leave(0, Origin(1)))
    assert to.ask(Get(0, Origin(4))).clock == 5, "group 3 is there"
    assert to.ask(Get(0, Origin(2, 1))).clock == 5


def test_a_group_that_returns_before_it_was_given_up_is_waited_for_as_before():
    to = post(groups=(0, 1), max_staleness=0)
    held = to.say(update(0, 0))
    to.say(Get(0, Origin(1)))
    assert to.ask(Get(0, Origin(1, 1))).clock == 0
    assert to.waits(held)
    to.say(update(1, 0, generation=1))
    assert to.got[held].values[0] == -2


def test_a_returning_group_has_one_clock_on_all_slices_so_nobody_waits_for_ever():
    """Group 1 left its last update on one of two slices only, and returned to them a step of group 0 apart."""
    a, b = (post(groups=(0, 1), max_staleness=0) for _ in range(2))
    for to in (a, b):
        to.say(update(0, 0)), to.say(update(1, 0))
    a.say(update(1, 1))
    for to in (a, b):
        to.say(Leave(0, Origin(1)))
        for step in range(1, 10):
            to.say(update(0, step))
    in_a = a.ask(Get(0, Origin(1, 1)))
    held = [a.say(update(0, 10)), b.say(update(0, 10))]
    in_b = b.ask(Get(0, Origin(1, 1)))
    first, clock = max(in_a.next_step, in_b.next_step), max(in_a.clock, in_b.clock)
    assert (in_a.next_step, in_b.next_step, in_a.clock, in_b.clock) == (2, 1, 10, 11)

    behind = {0: 10, 1: first}  # the step of each group that is under way
    under_way = {0: held, 1: None}
    for _ in range(20):
        for group, number in under_way.items():
            if number is not None and any(to.waits(n) for to, n in zip((a, b), number, strict=True)):
                continue
            behind[group] += number is not None
            origin = {} if group == 0 else {"generation": 1, "first": first, "clock": clock}
            under_way[group] = [to.say(update(group, behind[group], **origin)) for to in (a, b)]
    assert behind[0] > 20 and behind[1] > 10, "the two groups wait for each other"


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
